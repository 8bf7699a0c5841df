"""Reads ggml's headers and writes all of ggml_py's code that is derived from them.

    python -m vendor.bindgen GGML_DIR OUT_DIR   GGML_DIR is the folder with include/ and src/

writes these files into OUT_DIR:

    _ggml.c         the cffi module (API mode, limited API), each function renamed to its guard
    guards.h/.cpp   `gp_NAME` for each function NAME: catches aborts (native/guard.h)
    enums.py        ggml's enums as Python enums
    ops.py          each op as a method of Context
    bindings.json   which functions are bound, which are waived and why

`generate_llama` writes the first two for libllama, as _llama.c and llama_guards.h/.cpp.

The compiler checks the declarations against the headers when it compiles _ggml.c and guards.cpp.
The enums.py and ops.py of the default pin are committed, as ggml_py/builds/default_enums.py and
ggml_py/graphs/ops.py. A test fails when they are stale.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cffi

from . import bindgen_py
from .headers import GGML, HEADERS, LLAMA, WAIVED, Api, Function, HeaderSet, Param, read

CHECKED_POINTERS = {
    "struct ggml_tensor *", "struct ggml_context *", "struct ggml_cgraph *",
    "struct gguf_context *", "ggml_backend_t", "ggml_backend_buffer_t",
    "ggml_backend_buffer_type_t", "ggml_backend_dev_t", "ggml_backend_reg_t",
    "ggml_backend_event_t", "ggml_backend_sched_t", "ggml_gallocr_t", "ggml_opt_context_t",
    "ggml_opt_dataset_t", "ggml_opt_result_t", "struct llama_model *", "struct llama_context *",
    "struct llama_vocab *", "struct llama_sampler *", "struct llama_batch_ext *",
}  # fmt: skip

# Callbacks that Python implements, declared extern "Python" in the module.
_CALLBACKS = """
extern "Python" void gp_on_log(enum ggml_log_level level, const char * text, void * user_data);
extern "Python" bool gp_on_abort(void * user_data);
extern "Python" bool gp_on_eval(struct ggml_tensor * t, bool ask, void * user_data);
extern "Python" bool gp_on_copy(struct ggml_backend * backend, const struct ggml_tensor * src,
    struct ggml_tensor * dst, struct ggml_cgraph * graph, void * user_data);
extern "Python" void gp_on_custom1(struct ggml_tensor * dst, const struct ggml_tensor * a,
    int ith, int nth, void * userdata);
extern "Python" void gp_on_custom2(struct ggml_tensor * dst, const struct ggml_tensor * a,
    const struct ggml_tensor * b, int ith, int nth, void * userdata);
extern "Python" void gp_on_custom3(struct ggml_tensor * dst, const struct ggml_tensor * a,
    const struct ggml_tensor * b, const struct ggml_tensor * c, int ith, int nth, void * userdata);
extern "Python" void gp_on_custom(struct ggml_tensor * dst, int ith, int nth, void * userdata);
extern "Python" int gp_on_supports(const struct ggml_tensor * op, void * user_data);
extern "Python" int gp_on_order(struct ggml_tensor ** nodes, int n, int32_t * order, void * keep,
    void * user_data);
extern "Python" bool gp_on_compare(int node_index, struct ggml_tensor * t1, struct ggml_tensor * t2,
    void * user_data);
"""
_MODULE_FUNCTIONS = """
void * gp_interrupt_callback(void);
void * gp_shared(void);
void gp_guard_install(void);
bool gp_trace_present(void);
uint64_t gp_changes(void);
"""

_LLAMA_FUNCTIONS = """
void gp_share(void * shared);
"""


def cdef(api: Api, *more: str) -> str:
    """The declarations for cffi, and `more`."""
    return "\n".join(
        [
            *(f"#define {name} ..." for name in api.macros),
            *api.types,
            *api.constants,
            *(f"{f.prototype};" for f in api.bound),
            *more,
        ]
    )


def _guard_prototype(f: Function) -> str:
    return re.sub(rf"\b{f.name}\b(?=\()", f"gp_{f.name}", f.prototype, count=1)


_SHOWN = r"struct ggml_tensor \*|char \*|enum \w+|bool|float|double|u?int\d+_t|int|size_t"


def _shown(f: Function) -> Iterator[Param]:
    for p in f.params:
        if re.fullmatch(_SHOWN, p.type):
            yield p


# Calls that change neither memory nor sources of existing tensors, so `gp_changes` does not count
# them. Nor does it count the short calls (below).
_HARMLESS = re.compile(
    r"ggml_backend_(sched_)?(graph_compute(_async)?|synchronize)|ggml_backend_graph_plan_compute"
    r"|ggml_graph_(compute|get_tensor|node|nodes|n_nodes|size)|ggml_backend_tensor_[sg]et\w*"
    r"|ggml_backend_buffer_(get|is)_\w+|gp_(blank|graph|kv|run)_\w+|gp_decode_one|gp_likeliest|gp_set_pieces"
)


# Calls that run without the GIL, so another thread might free the tensor's memory (pins.h).
_PINNING = re.compile(r"ggml_backend_tensor_((set|get)(_2d)?(_async)?|memset|copy(_async)?)")


# Calls that write to a tensor, or return a pointer to its data, and the parameters that name it
# (blank.h).
_WRITING = {
    r"ggml_backend_tensor_(set(_2d)?(_async)?|memset)|ggml_set_(zero|[if]32(_[1n]d)?)"
    r"|ggml_get_data(_f32)?": ("tensor",),
    r"ggml_backend_tensor_copy(_async)?": ("dst",),
    r"ggml_opt_dataset_get_batch": ("data_batch", "labels_batch"),
}
_COMPUTING = re.compile(
    r"ggml_(backend_(sched_)?)?graph_compute(_async|_with_ctx)?|ggml_backend_compare_graph_backend"
)
# A plan does not name its graph, so that is noted when the plan is made.
_OF_PLANS = {
    "ggml_backend_graph_plan_compute": " gp_blank_plan_computed(plan);",
    "ggml_backend_graph_plan_free": " gp_blank_plan(plan, nullptr);",
}


def _noted(f: Function) -> str:
    """Code that notes what `f` gives data to."""
    if f.name == "ggml_backend_buffer_clear":
        return " gp_blank_cleared(buffer);"
    if f.name in _OF_PLANS:
        return _OF_PLANS[f.name]
    if _COMPUTING.fullmatch(f.name):
        graphs = [p.name for p in f.params if p.type == "struct ggml_cgraph *"]
        return "".join(f" gp_blank_computed({name});" for name in graphs)
    names = next((names for calls, names in _WRITING.items() if re.fullmatch(calls, f.name)), ())
    test = {p.name: f"if ({p.name}) " if f.nullable(p) else "" for p in f.params}
    note = "gp_blank_written((struct ggml_tensor *) {});"
    return "".join(f" {test[name]}{note.format(name)}" for name in names)


def _guard(f: Function) -> str:
    pinned = [
        p.name
        for p in f.params
        if _PINNING.fullmatch(f.name) and p.type == "struct ggml_tensor *"
    ]
    given = ["pinned_" * (p.name in pinned) + p.name for p in f.params]
    call = f"{f.name}({', '.join(given)})"
    pins = "".join(f" gp::pinned_tensor pinned_{name}({name});" for name in pinned)
    void = f.result == "void"
    give_up = "return;" if void else "return {};"
    lines = [f"{_guard_prototype(f)} {{"]
    lines.append(f"    GP_NEEDS({f.name}, {give_up})")
    if not f.name.endswith("_free"):
        for p in f.params:
            if p.type in CHECKED_POINTERS and not f.nullable(p):
                lines.append(f"    GP_NOT_NULL({f.name}, {p.name}, {give_up})")
    harmless = (_short(f) and f.name not in _UNSEEN) or _HARMLESS.fullmatch(f.name)
    changing = "" if harmless else " gp::changing changing;"
    body = f"{call};" if void else f"return {call};"
    if _makes_tensor(f) and not _FINDS_TENSOR.fullmatch(f.name):
        body = f"{f.result} made = {call}; GP_CHECK_MADE(made) return made;"
    if f.name == "ggml_backend_graph_plan_create":
        body = f"const auto made = {call}; gp_blank_plan(made, {f.params[1].name}); return made;"
    if re.fullmatch("ggml_backend_(sched_)?graph_compute(_async)?", f.name):
        graph = f.params[1].name
        body = f"gp::computing now({graph}); return now.ended({call});"
    inside = f"gp::scope guarded;{changing}{_noted(f)}{pins} {body}"
    lines.append(f"    try {{ {inside} }}")
    shown = "".join(f' gp::show("{p.name}", {p.name});' for p in _shown(f))
    lines.append(f'    catch (const std::exception &) {{ gp::caught("{f.name}");{shown} }}')
    if not void:
        lines.append(f"    {give_up}")
    lines.append("}")
    return "\n".join(lines)


def guards(api: Api, which: HeaderSet = GGML, name: str = "guards.h") -> tuple[str, str]:
    """guards.h and guards.cpp. The source includes the header by `name`."""
    includes = "".join(f'#include "{header}"\n' for header in which.own)
    prototypes = "".join(f"{_guard_prototype(f)};\n" for f in api.bound)
    header = (
        f"// GENERATED by bindgen.py.\n#pragma once\n{includes}\n"
        f'#ifdef __cplusplus\nextern "C" {{\n#endif\n{prototypes}#ifdef __cplusplus\n}}\n#endif\n'
    )
    # Weak symbols: without the backend, or with a pristine libggml-base, their address is 0.
    weak = "".join(f"#pragma weak {f.name}\n" for f in api.bound)
    source = (
        f'// GENERATED by bindgen.py.\n#include "{name}"\n#include "guard.h"\n'
        f'#include "blank.h"\n#include "pins.h"\n\n'
        f"#include <exception>\n\n{weak}\n"
        "#define GP_NEEDS(f, give_up) if (__builtin_expect((f) == nullptr, 0)) "
        '{ gp::fail(GP_ERROR_MISSING, #f, ""); give_up }\n'
        # A pristine libggml-base has no rules (kernel_check.h).
        'extern "C" void gp_check_made(const struct ggml_tensor * made);\n'
        "#pragma weak gp_check_made\n"
        "#define GP_CHECK_MADE(made) if ((made) != nullptr && gp_check_made != nullptr) "
        "{ gp_check_made(made); }\n"
        "#define GP_NOT_NULL(f, p, give_up) if (__builtin_expect((p) == nullptr, 0)) "
        "{ gp::fail(GP_ERROR_NULL, #f, #p); give_up }\n\n"
        'extern "C" {\n\n' + "\n\n".join(_guard(f) for f in api.bound) + "\n\n}\n"
    )
    return header, source


# These do less work than it takes to release and reacquire the GIL. Constructors also must not
# run on two threads at once: a context has no lock.
_QUERIES = re.compile(
    r"ggml_(n\w+|is_\w+|are_\w+|can_\w+|blck_size|type_\w+|row_size|element_size|get_name|set_name"
    r"|set_input|set_output|set_param|op_\w+|unary_op_name|get_first_tensor|get_next_tensor"
    r"|used_mem|get_max_tensor_size|get_mem_\w+)"
)
# Keep the GIL so that no other thread sees their work half done.
_UNSEEN = ("ggml_build_backward_expand", "ggml_opt_init", "gp_sched_read")
_RELEASING = re.compile(
    r"  Py_BEGIN_ALLOW_THREADS\n  _cffi_restore_errno\(\);\n"
    r"(  \{ (?:result = )?(\w+)\(.*\n)"
    r"  _cffi_save_errno\(\);\n  Py_END_ALLOW_THREADS\n"
)


def _ffi(api: Api, module: str, *included: str) -> cffi.FFI:
    """The declarations of a module whose C source includes the headers `included`."""
    ffi = cffi.FFI()
    # Function-like macros, because ggml_backend_dev_type is also the tag of an enum.
    renames = "".join(f"#define {f.name}(...) gp_{f.name}(__VA_ARGS__)\n" for f in api.bound)
    includes = "".join(f'#include "{name}"\n' for name in included)
    ffi.set_source(module, f"{includes}{renames}")
    return ffi


def _ggml_ffi(api: Api) -> cffi.FFI:
    ffi = _ffi(api, "ggml_py._ggml", "guards.h", "module.h")
    ffi.cdef(cdef(api, _MODULE_FUNCTIONS, _CALLBACKS))
    return ffi


def _emit(ffi: cffi.FFI, short: set[str], out: Path) -> None:
    with contextlib.redirect_stdout(None):  # emit_c_code prints the file's name
        ffi.emit_c_code(str(out))
    out.write_text(_hold_the_gil(out.read_text(), short))


def _module(api: Api, out: Path) -> None:
    short = {"gp_changes", *(f.name for f in api.bound if _short(f))}
    _emit(_ggml_ffi(api), short, out)


def _llama_module(ggml: Api, llama: Api, out: Path) -> None:
    # cffi repeats the unnamed enums of what is included.
    ffi = _ffi(llama, "ggml_py._llama", *GGML.native, "llama_guards.h", "module_client.h")
    ffi.include(_ggml_ffi(ggml))
    ffi.cdef(cdef(llama, _LLAMA_FUNCTIONS))
    _emit(ffi, set(), out)


_FINDS_TENSOR = re.compile(r"ggml_get_(first_|next_)?tensor")


def _makes_tensor(f: Function) -> bool:
    """Whether `f` returns a tensor of a context, either new or found (`_FINDS_TENSOR`)."""
    takes_ctx = bool(f.params) and f.params[0].type == "struct ggml_context *"
    return f.header == "ggml.h" and takes_ctx and f.result == "struct ggml_tensor *"


def _short(f: Function) -> bool:
    if f.header != "ggml.h" or f.name in _UNSEEN:
        held = ("gp_view_fits", "gp_context_hold", "gp_context_let_go", *_UNSEEN)
        return f.header == "blank.h" or f.name in held
    return _makes_tensor(f) or _QUERIES.fullmatch(f.name) is not None


def _hold_the_gil(source: str, names: set[str]) -> str:
    """cffi's C source, with the GIL held during calls of `names`."""
    found = {m[2] for m in _RELEASING.finditer(source)}
    if not names <= found:
        raise RuntimeError(f"cffi writes calls in another form: {sorted(names - found)[:3]}")
    return _RELEASING.sub(
        lambda m: f"{m[1]}  GP_RAISE_IF_FAILED\n" if m[2] in names else m[0], source
    )


def report(api: Api) -> dict[str, object]:
    """bindings.json: bound and waived functions of each header, and how each op is reached."""
    ops, by_hand = bindgen_py.split_ops(api)
    upstream = [f for f in api.functions if f.header in HEADERS]
    return {
        "n_declared": len(upstream),
        "n_bound": sum(f.name not in WAIVED for f in upstream),
        "bound": {h: [f.name for f in upstream if f.header == h and f.name not in WAIVED]
                  for h in HEADERS},
        "waived": {f.name: WAIVED[f.name] for f in upstream if f.name in WAIVED},
        "ops": {f.name: f.name.removeprefix("ggml_") for f in ops},
        "ops_by_hand": by_hand,
    }  # fmt: skip


def generate(ggml_dir: Path, out_dir: Path, *, cc: str = "cc") -> None:
    """Writes all files named at the top into `out_dir`. Unchanged files are not touched, so CMake
    does not recompile them."""
    api = read(ggml_dir, cc)
    out_dir.mkdir(parents=True, exist_ok=True)
    header, source = guards(api)
    texts: dict[str, str] = {
        "guards.h": header,
        "guards.cpp": source,
        "enums.py": bindgen_py.enums(api),
        "ops.py": bindgen_py.ops(api),
        "bindings.json": json.dumps(report(api), indent=1) + "\n",
    }
    for name, text in texts.items():
        _write(out_dir / name, lambda path, text=text: path.write_text(text))  # type: ignore[misc]
    _write(out_dir / "_ggml.c", lambda path: _module(api, path))


def generate_llama(ggml_dir: Path, out_dir: Path, *, cc: str = "cc") -> None:
    """Writes the cffi module of libllama and its guards into `out_dir`. `ggml_dir` is the folder of
    ggml in llama.cpp's tree."""
    ggml, llama = read(ggml_dir, cc), read(ggml_dir, cc, LLAMA)
    out_dir.mkdir(parents=True, exist_ok=True)
    header, source = guards(llama, LLAMA, "llama_guards.h")
    _write(out_dir / "llama_guards.h", lambda path: path.write_text(header))
    _write(out_dir / "llama_guards.cpp", lambda path: path.write_text(source))
    _write(out_dir / "_llama.c", lambda path: _llama_module(ggml, llama, path))


def _write(path: Path, make: Callable[[Path], object]) -> None:
    new = path.with_name(path.name + ".new")
    make(new)
    if path.exists() and path.read_bytes() == new.read_bytes():
        new.unlink()
    else:
        new.replace(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    generate(Path(sys.argv[1]), Path(sys.argv[2]))
