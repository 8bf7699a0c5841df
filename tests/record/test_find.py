"""What cannot be recorded is refused before it runs, and the reason says what to do."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py.errors import ArgumentError
from ggml_py.record.programs import elf, find

from ..support.cli_runs import COMMAND, fails, run

# A program that calls the scheduler, and a library that could be ggml's.
PROGRAM = """
void * ggml_backend_sched_new(void *, void *, int, unsigned long, _Bool, _Bool);
int main(void) { return ggml_backend_sched_new(0, 0, 0, 0, 0, 0) != 0; }
"""
LIBRARY = """
void * ggml_backend_sched_new(void * a, void * b, int c, unsigned long d, _Bool e, _Bool f) {
    return 0;
}
const char * ggml_version(void) { return VERSION; }
const char * ggml_commit(void) { return "1234567"; }
"""
MORE = """
#include <stdint.h>
#include <string.h>
struct params { unsigned long size; void * buffer; _Bool no_alloc; };
static uint64_t tensors[4096]; static int n;
void * ggml_init(struct params p) { return p.buffer; }
void * ggml_new_tensor_2d(void * c, int t, long a, long b) { return tensors + 46 * n++; }
void * ggml_set_name(void * t, const char * name) { return t; }
void * ggml_mul_mat(void * c, void * a, void * b) { return ggml_new_tensor_2d(c, 0, 0, 0); }
void * ggml_scale(void * c, void * a, float s) { return ggml_new_tensor_2d(c, 0, 0, 0); }
void * ggml_view_1d(void * c, void * a, long n, unsigned long o) {
    return ggml_new_tensor_2d(c, 0, 0, 0); }
void * ggml_soft_max(void * c, void * a) { return ggml_new_tensor_2d(c, 0, 0, 0); }
char * ggml_get_name(void * t) { return (char *) t + 256; }
unsigned long ggml_tensor_overhead(void) { return 368; }
unsigned long ggml_graph_overhead(void) { return 1000; }
const char * ggml_op_name(int i) { return "NONE"; }
const char * ggml_type_name(int i) { return "f32"; }
unsigned long ggml_type_size(int i) { return 4; }
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are recorded on Linux")


def compiled(folder: Path, name: str, source: str, *flags: str) -> Path:
    (folder / f"{name}.c").write_text(source)
    command = ["gcc", "-w", "-o", folder / name, folder / f"{name}.c", *flags]
    subprocess.run(command, check=True, cwd=folder)
    return folder / name


def library(folder: Path, version: str, *more: str, source=LIBRARY + MORE) -> Path:
    return compiled(
        folder, "libggml-base.so", source, "-shared", "-fPIC", f'-DVERSION="{version}"', *more
    )


def program(folder: Path) -> Path:
    return compiled(folder, "program", PROGRAM, "-L.", "-l:libggml-base.so", "-Wl,-rpath,$ORIGIN")


def found(*command: object, **more: str):
    return find.find([str(word) for word in command], {**os.environ, **more})


def refused(*command: object) -> str:
    with pytest.raises(ArgumentError) as info:
        found(*command)
    return str(info.value)


def test_a_program_is_linked_with_ggml(tmp_path):
    lib = library(tmp_path, "0.26.0")
    path = program(tmp_path)
    assert found(path) == [find.Found(path, lib, "linked with")]
    script = tmp_path / "script"
    script.write_text(f"#!{path}\n")
    script.chmod(0o755)
    assert found(script)[0].library == lib


def test_a_library_beside_the_program_is_opened_later(tmp_path):
    (tmp_path / "lib").mkdir()
    lib = library(tmp_path / "lib", "0.26.0")
    shutil.copy("/bin/true", tmp_path / "server")
    assert found(tmp_path / "server") == [find.Found(tmp_path / "server", lib, "beside")]


def test_packages_of_a_python(tmp_path):
    (tmp_path / "pkg.libs").mkdir()
    lib = library(tmp_path / "pkg.libs", "0.26.0")
    (one,) = found(sys.executable, "script.py", PYTHONPATH=str(tmp_path))
    assert one.library == lib and one.how.startswith("a package of python")


def test_modules_of_node(tmp_path):
    folder = tmp_path / "app" / "node_modules" / "x"
    folder.mkdir(parents=True)
    lib = library(folder, "0.26.0")
    node = tmp_path / "node"
    shutil.copy("/bin/true", node)
    script = tmp_path / "app" / "main.js"
    script.write_text("")
    assert found(node, script)[0].library == lib


def test_linked_in_statically(tmp_path):
    both = PROGRAM + LIBRARY
    for name, flags in (("static", ("-static",)), ("inside", ())):
        path = compiled(tmp_path, name, both, '-DVERSION=""', *flags)
        why = refused(path)
        assert f"{path} has ggml linked in statically" in why and "-DBUILD_SHARED_LIBS=ON" in why


def test_a_library_that_calls_itself(tmp_path):
    """Only one whose calls go through the loader can be recorded."""
    own = LIBRARY + PROGRAM.replace("main", "run")
    flags = ("-shared", "-fPIC", '-DVERSION=""')
    open_ = compiled(tmp_path, "open.so", own, *flags)
    bound = compiled(tmp_path, "bound.so", own, *flags, "-Wl,-Bsymbolic")
    hidden = compiled(tmp_path, "hidden.so", own, *flags, "-fvisibility=hidden")
    assert [elf.calls_through_loader(p) for p in (open_, bound, hidden)] == [True, False, False]
    assert [elf.defines(p) for p in (open_, bound, hidden)] == [True, True, False]


def test_no_ggml(tmp_path):
    assert "has no ggml" in refused("/bin/true")
    static = compiled(tmp_path, "static", "int main(void) { return 0; }", "-static")
    assert "a static program without ggml" in refused(static)
    assert "no package of" in refused(sys.executable, "-c", "1")
    assert "no such program" in refused("no-such-program")
    text = tmp_path / "text"
    text.write_text("echo")
    text.chmod(0o755)
    assert "neither a program nor a script" in refused(text)
    text.chmod(0o644)
    assert "cannot be executed" in refused(text)


def test_set_uid_and_other_abi(tmp_path):
    library(tmp_path, "0.26.0")
    path = program(tmp_path)
    path.chmod(path.stat().st_mode | stat.S_ISUID)
    assert "is set-uid or set-gid" in refused(path)
    path.chmod(0o755)
    content = bytearray(path.read_bytes())
    for at, value, said in ((18, 0x28, "ARM"), (4, 1, "32-bit")):
        other = bytearray(content)
        other[at] = value
        path.write_bytes(bytes(other))
        path.chmod(0o755)
        why = refused(path)
        assert said in why or "damaged ELF file" in why
    path.write_bytes(bytes(content[:200]))
    path.chmod(0o755)
    assert "damaged ELF file" in refused(path)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("7.7.7", "is ggml 7.7.7, which is no release that ggml_py knows. The nearest are "),
        ("0.25.9", "The nearest are 0.25.3 and 0.26.0: --upstream 0.25.3 records with"),
    ],
)
def test_a_release_that_is_not_known(tmp_path, version, said):
    library(tmp_path, version)
    error = fails("record", "--", program(tmp_path), code=1)
    assert said in error and "vendor/UPDATING.md" in error


def test_one_that_does_not_say_its_version(tmp_path):
    library(tmp_path, "", source=MORE + LIBRARY.partition("const")[0])
    assert "does not say which ggml it is" in fails("record", "--", program(tmp_path))


def test_one_that_ends_the_process_when_asked(tmp_path):
    bad = LIBRARY + "#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }"
    library(tmp_path, "0.26.0", source=bad)
    assert "cannot be asked about its ggml" in fails("record", "--", program(tmp_path))


@pytest.mark.thorough("builds")
@pytest.mark.needs(release="default")
def test_other_structs_are_refused(tmp_path):
    """A fork with the same version: nothing is put in front of it."""
    lib = library(tmp_path, "0.26.0")
    error = fails("record", "-o", tmp_path / "x", "--", program(tmp_path))
    assert f"{lib} (ggml 0.26.0) does not fit" in error and "op 1 (NONE and DUP)" in error
    assert not (tmp_path / "x").exists()


def test_usage(tmp_path):
    assert "give the program to record" in fails("record", code=2)
    assert "is no size" in fails("record", "--max-size", "x", "--", "true", code=2)
    assert "has no records" in fails("record", "--of", tmp_path, code=2)
    assert "--env needs -o" not in fails("record", "--env", "--", "/bin/true")
    assert "only simulated ones" in fails("record", "-d", "CUDA0", "--", "/bin/true")
    done = run("record", "--help", command=COMMAND)
    assert "ggml-py record -- llama-bench -m model.gguf" in done.stdout
