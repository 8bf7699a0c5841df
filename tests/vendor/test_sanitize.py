"""Builds with sanitizers: reports are read, planted mistakes are reported, clean runs are clean."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py.boundary.ffi import BUILD

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "benchmarks"))
import sanitize  # noqa: E402

LOG = """\
/home/u/.cache/ggml_py/sources/0.26.0-x-ggml/ggml/src/ggml-cpu/ops.cpp:12:3: runtime error: \
left shift of 255 by 24 places cannot be represented in type 'int'
    #0 0x7f00 in f /home/u/ggml/src/ggml-cpu/ops.cpp:12
/w/ggml_py/native/guard.cpp:7:1: runtime error: signed integer overflow: 3 + 2147483647
=================================================================
==12==ERROR: AddressSanitizer: heap-use-after-free on address 0x60 at pc 0x7 bp 0x7 sp 0x7
READ of size 8 at 0x60 thread T0
    #0 0x7f00 in memcpy ../../libsanitizer/interceptors.inc:827
    #1 0x7f01 in ggml_backend_buffer_get_size /c/instrumented/ggml-backend.cpp:119
    #2 0x7f02 in gp_x (/w/_ggml.abi3.so+0x1b7546)
==12==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x61 at pc 0x7 bp 0x7 sp 0x7
    #0 0x7f03 in PyList_New Objects/listobject.c:1
"""


def test_reports_are_read_by_place_and_kind():
    assert list(sanitize.reports([LOG])) == [
        ("ggml-cpu/ops.cpp:12", "left shift of N by N places cannot be represented in type 'int'"),
        ("ours: guard.cpp:7", "signed integer overflow: N + N"),
        ("ggml-backend.cpp:119 (ggml_backend_buffer_get_size)", "heap-use-after-free"),
        ("no frame in our or upstream's code", "heap-buffer-overflow"),
    ]


def test_what_is_ours_or_corrupts_memory_fails_the_run():
    (upstream, ours, free, overflow) = sanitize.reports([LOG])
    assert [sanitize.is_grave(*r) for r in (upstream, ours, free, overflow)] == [0, 1, 1, 1]


def test_a_sanitized_build_without_its_runtime_says_how_to_start_it(tmp_path):
    """Loading it would end the process without a word that helps."""
    from ggml_py.boundary import ffi as _ffi

    build = {"key": "0.26.0-sanitize-1", "sanitize": "address", "folder": tmp_path}
    if BUILD.get("sanitize"):
        pytest.skip("the runtime is loaded")
    with pytest.raises(_ffi.LoadError, match=r"LD_PRELOAD=\$\(cc -print-file-name=libasan.so\)"):
        _ffi._check_sanitizers(build)


def test_a_sanitized_build_is_never_the_default():
    from ggml_py import builds as _builds

    assert _builds._special({"pristine": False, "debug": False, "sanitize": "address"})
    assert not _builds._special({"pristine": False, "debug": False})  # of an older builder


PLANTED = {
    "heap-buffer-overflow": """
        source = ggml.ffi.new("char[]", 8)
        ggml.lib.ggml_backend_tensor_set(tensor.ptr, source, 0, 256)
    """,
    "heap-use-after-free": """
        raw = int(ggml.ffi.cast("uintptr_t", buffer.ptr))  # a number keeps nothing
        buffer.close()
        ggml.lib.ggml_backend_buffer_get_alignment(ggml.ffi.cast("ggml_backend_buffer_t", raw))
    """,
    "runtime error": """
        # a misaligned pointer, which the function reads through
        odd = ggml.ffi.cast("struct ggml_tensor *", int(ggml.ffi.cast("uintptr_t", tensor.ptr)) + 1)
        ggml.lib.ggml_nelements(odd)
    """,
    "": "",
}
PROGRAM = """
import textwrap, sys
import ggml_py as ggml
with ggml.device("CPU").init(n_threads=2) as cpu, ggml.Context() as context:
    tensor = context.new_tensor("f32", 64)
    buffer = cpu.buffer_type.alloc(256)
    tensor.alloc(buffer)
    tensor.set(range(64))
    graph = context.new_graph(16)
    other = context.sqr(tensor)
    graph.build_forward_expand(other)
    context.alloc(cpu)
    cpu.compute(graph)
    assert other.get()[8] == 64
    try:
        context.add(tensor, context.new_tensor("f32", 5))
    except ggml.AbortError as error:  # an exception of C++ through C
        print(error.condition)
    exec(textwrap.dedent(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def sanitized():
    """The key of a build with both sanitizers, made on first use (two minutes)."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    asked = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    if not Path(asked.stdout.strip()).is_absolute():
        pytest.skip("this compiler has no libasan.so")
    command = [sys.executable, "-m", "ggml_py", "build", "--sanitize=address,undefined", "--json"]
    command += ["--cards=none"]  # they double the time; `make sanitize` has them
    env = {k: v for k, v in os.environ.items() if k != "GGML_PY_UPSTREAM"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["key"]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_mistake_is_reported_and_nothing_else(planted, sanitized, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, PLANTED[planted]], capture_output=True, text=True,
        env=sanitize.environment("address,undefined", sanitized, tmp_path), check=False,
    )  # fmt: skip
    assert "GGML_ASSERT(ggml_can_repeat(b, a)) failed" in done.stdout, done.stderr
    text = done.stderr + "".join(path.read_text() for path in tmp_path.iterdir())
    if planted:
        assert planted in text
        assert list(sanitize.reports([text]))
    else:
        assert text == ""
        assert done.returncode == 0, done.stderr
