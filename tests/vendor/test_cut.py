"""Functions cut out of C++ sources: what is taken along, what is not, what is refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))
from vendor import cache, cut, identity, releases  # noqa: E402
from vendor.report import BuildError  # noqa: E402

COMPILER = shutil.which("g++") or "c++"
HEADER = """
#pragma once
#include <toolkit.h>
#include <vector>
#define LIMIT (1 << 4)
enum kind { KIND_NONE, KIND_SOME = 2, KIND_ALL };
struct device { int cores; toolkit_stream stream; bool fits(int n) const; };
template <typename T> struct traits { static const int size = sizeof(T); };
static constexpr bool wide_enough(int n) { return n >= LIMIT; }
"""
SOURCE = """
#include "part.h"
// supported() in a comment, "supported(" in a string
extern "C" {
int plain(int n);
}
typedef kind (*chooser)(int stream);
using kinds = std::vector<kind>;
static const int table[] = { 1, 2, 3 };
static int unused() { return toolkit_call(); }
[[noreturn]] void never(const char * why) { throw why; }
bool device::fits(int n) const { return n < cores; }
#ifdef WITH_ALL
static kind choose(int n) { return n ? KIND_ALL : KIND_SOME; }
#else
static kind choose(int n) {
    if (n != table[0]) { never("{"); }
    return KIND_SOME;
}
#endif
template <int N> void kernel(int stream) { toolkit_launch(N, stream); }
template void kernel<4>(int dst);
int plain(int n) { return traits<short>::size + n; }
bool supported(const device & dst, int n) {
    chooser one = choose;
    return dst.fits(plain(n)) && wide_enough(n) && one(n) != KIND_NONE;
}
bool other(const device & d) { return unused() > 0 && d.cores; }
"""
STUBS = "#define GP_AT\n#define GP_FRAME\nstruct toolkit_stream {};\n"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "backend"
    folder.mkdir()
    (folder / "part.h").write_text(HEADER)
    (folder / "main.cu").write_text(SOURCE)
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit" / "toolkit.h").write_text("int of_the_toolkit;\n")
    return folder


def source(folder, *defines):
    folders = (folder, folder.parent / "toolkit")
    stream = cut.preprocessed([COMPILER, "-std=c++17"], ["main.cu"], folders, defines)
    return cut.read(stream, {"backend"})


def names(made, *roots, provided=()):
    taken = cut.reached(made, cut.Wanted(roots, provided))
    return {n for d in made.definitions if id(d) in taken for n in d.names}


def test_a_function_takes_along_what_it_needs(folder):
    made = names(source(folder), "supported")
    assert made == {
        "supported", "plain", "traits", "choose", "chooser", "table", "never", "wide_enough",
        "device", "device::fits", "kind", "KIND_NONE", "KIND_SOME", "KIND_ALL",
    }  # fmt: skip


def test_what_is_provided_is_not_followed(folder):
    made = names(source(folder), "supported", provided={"choose", "device"})
    assert "choose" not in made and "never" not in made and "device::fits" not in made


def test_a_build_option_chooses_the_code(folder):
    assert "never" not in names(source(folder, "WITH_ALL"), "supported")


def test_what_is_cut_compiles_and_answers(folder, tmp_path):
    text = cut.cut(source(folder), cut.Wanted(["supported"]))
    assert "unused" not in text and "toolkit_launch" not in text and "of_the_toolkit" not in text
    program = tmp_path / "cut.cpp"
    program.write_text(
        f"#include <vector>\n{STUBS}{text}\n#line 1 \"end\"\n"
        "int main() { device d{100, {}}; return supported(d, 16) + 2 * supported(d, 99); }\n"
    )
    subprocess.run(
        [COMPILER, "-std=c++17", str(program), "-o", str(tmp_path / "cut")], check=True
    )
    with pytest.raises(subprocess.CalledProcessError):  # `never` was called: 16 is not table[0]
        subprocess.run([str(tmp_path / "cut")], check=True, capture_output=True)
    program.write_text(program.read_text().replace("table[] = { 1", "table[] = { 16"))
    subprocess.run(
        [COMPILER, "-std=c++17", str(program), "-o", str(tmp_path / "cut")], check=True
    )
    assert subprocess.run([str(tmp_path / "cut")], check=False).returncode == 1


def test_the_compiler_names_the_line_of_the_source(folder, tmp_path):
    program = tmp_path / "cut.cpp"
    program.write_text(STUBS + cut.cut(source(folder), cut.Wanted(["supported"], {"plain"})))
    done = subprocess.run(
        [COMPILER, "-std=c++17", "-fsyntax-only", str(program)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    line = 1 + SOURCE.splitlines().index("    return dst.fits(plain(n)) && wide_enough(n) && "
                                         "one(n) != KIND_NONE;")  # fmt: skip
    assert f"main.cu:{line}:" in done.stderr and "plain" in done.stderr


@pytest.mark.parametrize("root", ["missing", "kernel<4>", "toolkit_call"])
def test_a_root_that_is_not_there_once_is_refused(folder, root):
    with pytest.raises(BuildError, match=f"{root} is defined 0 times"):
        cut.cut(source(folder), cut.Wanted([root]))


def test_a_source_that_cannot_be_preprocessed_is_named(folder):
    (folder.parent / "toolkit" / "toolkit.h").unlink()
    with pytest.raises(BuildError, match=r"(?s)main\.cu.*toolkit\.h"):
        source(folder)


TOOLKIT = (
    "cuda_runtime.h", "cuda.h", "cublas_v2.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h",
    "cuda_fp4.h", "cub/cub.cuh", "cooperative_groups.h", "cooperative_groups/reduce.h", "mma.h",
)  # fmt: skip


@pytest.mark.thorough("long")
def test_what_cuda_supports_is_a_few_definitions(tmp_path):
    """Of the pinned release, without the toolkit: its headers are empty files."""
    folder = cache.default_folder()
    with cache.Lock(folder):
        ggml = identity.unpacked(releases.default(), folder, whole=False) / "ggml"
    for name in TOOLKIT:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = ("ggml-cuda.cu", "fattn.cu", "fwht.cu", "lightning-indexer.cu")
    folders = (ggml / "include", ggml / "src", ggml / "src" / "ggml-cuda", tmp_path)
    defines = ("CUDART_VERSION=12080", "GGML_CUDA_PEER_MAX_BATCH_SIZE=128", 'GGML_VERSION=""',
               'GGML_COMMIT=""')  # fmt: skip
    made = cut.read(
        cut.preprocessed([COMPILER, "-std=c++17"], files, folders, defines),
        {"ggml-cuda", "vendors"},
    )
    found = names(made, "ggml_backend_cuda_device_supports_op")
    assert len(found) < 60 < len(made.definitions)
    # Attention's kernel decides, and what a device is comes from its initialisation.
    assert {"ggml_cuda_get_best_fattn_kernel", "ggml_cuda_init", "turing_mma_available"} <= found
    text = cut.cut(made, cut.Wanted(["ggml_backend_cuda_device_supports_op"]))
    assert '"fattn.cu"' in text and "<<<" not in text and "__global__" not in text
