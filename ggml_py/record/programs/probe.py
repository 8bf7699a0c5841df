"""Prints a ggml library's version, names, sizes and a few tensors, as JSON. It is a program of its
own, because a wrong library may end the process. Run by path; it imports nothing of ours.

    python -I -S probe.py LIBRARY N_OPS N_TYPES
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any


class _InitParams(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)
    ]  # fmt: skip


_F32, _SIZE = 0, 1 << 16


def _function(lib: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments
    return function


def _text(lib: ctypes.CDLL, name: str) -> str | None:
    if not hasattr(lib, name):
        return None
    value = _function(lib, name, ctypes.c_char_p)()
    return None if value is None else str(value.decode("utf-8", "replace"))


def _tensors(lib: ctypes.CDLL) -> tuple[int, list[str]]:
    """The offset of a tensor's name, and the bytes of a few tensors with addresses made
    relative."""
    new = _function(lib, "ggml_new_tensor_2d", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int,
                    ctypes.c_int64, ctypes.c_int64)  # fmt: skip
    pair = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    buffer = ctypes.create_string_buffer(_SIZE)
    base = ctypes.addressof(buffer)
    init = _function(lib, "ggml_init", ctypes.c_void_p, _InitParams)
    context = init(_InitParams(_SIZE, base, True))
    a, b = new(context, _F32, 32, 4), new(context, _F32, 32, 3)
    _function(lib, "ggml_set_name", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(a, b"probe")
    made = [a, b, _function(lib, "ggml_mul_mat", ctypes.c_void_p, *pair)(context, a, b)]
    made.append(
        _function(lib, "ggml_scale", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                  ctypes.c_float)(context, b, 0.5)
    )  # fmt: skip
    made.append(
        _function(lib, "ggml_view_1d", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                  ctypes.c_int64, ctypes.c_size_t)(context, b, 8, 64)
    )  # fmt: skip
    made.append(_function(lib, "ggml_soft_max", ctypes.c_void_p, *pair[:2])(context, b))
    name = _function(lib, "ggml_get_name", ctypes.c_void_p, ctypes.c_void_p)(a) - a
    size = _function(lib, "ggml_tensor_overhead", ctypes.c_size_t)() - 32
    found = []
    for tensor in made:
        words = (ctypes.c_uint64 * (size // 8)).from_address(tensor)
        found.append(
            ",".join(f"+{w - base:x}" if base <= w < base + _SIZE else f"{w:x}" for w in words)
        )
    return name, found


def main() -> None:
    """Prints the answer as the last line."""
    path, n_ops, n_types = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    lib = ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_LOCAL)
    found: dict[str, Any] = {
        "ggml_version": _text(lib, "ggml_version"), "ggml_commit": _text(lib, "ggml_commit"),
    }  # fmt: skip
    if hasattr(lib, "gp_record_tables"):
        found["tables"] = json.loads(_text(lib, "gp_record_tables") or "{}")
    name_offset, found["tensors"] = _tensors(lib)
    found["tensor_overhead"] = _function(lib, "ggml_tensor_overhead", ctypes.c_size_t)()
    found["graph_overhead"] = _function(lib, "ggml_graph_overhead", ctypes.c_size_t)()
    # struct ggml_tensor ends with its name, a pointer and 8 bytes.
    found["max_name"] = found["tensor_overhead"] - 32 - name_offset - 16
    number = ctypes.c_int
    op = _function(lib, "ggml_op_name", ctypes.c_char_p, number)
    type_ = _function(lib, "ggml_type_name", ctypes.c_char_p, number)
    size = _function(lib, "ggml_type_size", ctypes.c_size_t, number)
    found["ops"] = [(op(i) or b"").decode("utf-8", "replace") for i in range(n_ops)]
    found["types"] = [
        [(type_(i) or b"").decode("utf-8", "replace"), size(i)] for i in range(n_types)
    ]
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
