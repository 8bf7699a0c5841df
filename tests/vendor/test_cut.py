"""Functions cut out of C++ sources: what is taken along, what is not, what is refused."""

import re
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
from vendor import cache, cards, cpp_source, cut, identity, releases  # noqa: E402
from vendor.comments import without_comments  # noqa: E402
from vendor.report import BuildError, OutsideError  # noqa: E402

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
    stream = cpp_source.preprocessed([COMPILER, "-std=c++17"], ["main.cu"], folders, defines)
    return cpp_source.read(stream, {"backend"})


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


def text(folder, source_text, **wanted):
    (folder / "main.cu").write_text(source_text)
    return cut.cut(source(folder), cut.Wanted(**wanted))


def test_of_a_type_only_the_members_that_are_wanted(folder):
    made = text(
        folder,
        "struct stream_t { toolkit_x y; };\n"
        "struct dev { stream_t s; std::vector<int> wide; int cores, more[4]; int free = 2; };\n"
        "int cores_of(dev * d) { return d->cores; }\n",
        roots=["cores_of"], members={"dev": ["more", "free"]},
    )  # fmt: skip
    assert "int cores, more[4];" in made and "int free = 2;" in made
    assert "wide" not in made and "stream_t" not in made and made.count("dev {") == 1


def test_of_a_function_only_the_statements_that_are_wanted(folder):
    """Those that match, in the block of the first that does: not what a condition guards."""
    made = text(
        folder,
        "static const int FAMILY = 7;\nstatic int other() { return 1; }\n"
        "dev_t * dev_init(int n) {\n  dev_t * dev = toolkit_new(n);\n  if (dev) {\n"
        "    dev->queue = other();\n    dev->has_mm = toolkit_family(FAMILY);\n"
        "    if (toolkit_try()) { dev->has_mm = false; }\n    dev->has_mm |= n > 2;\n  }\n"
        "  return dev;\n}\n",
        roots=["dev_init"], slices={"dev_init": ("dev_t * dev, int n", r"dev->has_\w+ \|?= ")},
        ends=["*_init"],
    )  # fmt: skip
    kept = [line for line in made.splitlines() if not line.startswith("#")]
    assert kept == [
        "static const int FAMILY = 7;",
        "static void gp_dev_init(dev_t * dev, int n) {",
        "dev->has_mm = toolkit_family(FAMILY);", "dev->has_mm |= n > 2;", "}",
    ]  # fmt: skip
    assert '#line 7 "main.cu"' in made


def test_a_function_that_is_not_wanted_keeps_its_head(folder):
    made = text(
        folder,
        "struct ctx { int n; };\nstatic int work(ctx * c) { return toolkit_run(c); }\n"
        "static void * make_init(ctx * c) { return (void *) (size_t) work(c); }\n"
        "static const struct { void * (*init)(ctx *); } table[] = { { make_init } };\n",
        roots=["table"], ends=["*_init"],
    )  # fmt: skip
    assert "static void * make_init(ctx * c) { GP_CUT_OFF }" in made
    assert "toolkit_run" not in made and "struct ctx" in made


def test_functions_that_answer_record_their_lines(folder):
    made = text(
        folder,
        "enum kernel { NONE, TILE };\nstatic kernel choose(int n) { return n ? TILE : NONE; }\n"
        "static constexpr bool odd(int n) { return n & 1; }\n"
        "static const char * name(int n) { return n ? \"a\" : \"b\"; }\n"
        "static void note(int n) { if (n) { return; } name(n); }\n"
        "static bool supported(int n) {\n  note(n);\n  if (odd(n)) {\n    return false;\n  }\n"
        "  return choose(n) != NONE;\n}\n",
        roots=["supported"], answers=["supported"],
    )  # fmt: skip
    assert "choose(int n) { GP_FRAME return GP_AT n ? TILE : NONE; }" in made.replace("{G", "{ G")
    assert "return GP_ANSWER false;" in made and "return GP_ANSWER choose(n) != NONE;" in made
    assert "{ return n & 1; }" in made and "return n ? \"a\"" in made and "return; }" in made


def test_a_type_of_another_header_is_not_declared_again(folder):
    (folder.parent / "toolkit" / "toolkit.h").write_text("struct tensor {\nint ne;\n};\n")
    made = text(
        folder,
        "#include <toolkit.h>\nstruct tensor;\nstruct mine;\n"
        "bool supported(const tensor * t, mine * m) { return t->ne > 1; }\n",
        roots=["supported"],
    )
    assert "struct tensor;" not in made and "struct mine;" in made


def test_names_that_upstreams_build_generates_are_constants(folder):
    """Those that match and that nothing defines: not a member, nor what is defined or provided."""
    made = text(
        folder,
        "int own_len = 1;\nvoid load(kernels * k) {\n"
        "  add(k->more_len, add_f32_len, add_f32_data[2], own_len, given_len, other);\n}\n",
        roots=["load"], provided={"given_len"}, generated={"*_len": "size", "*_data": "bytes"},
    )  # fmt: skip
    declared = [line for line in made.splitlines() if line.startswith("static const")]
    assert declared == ["static const bytes add_f32_data{};", "static const size add_f32_len{};"]
    assert made.index("add_f32_len{}") < made.index("load")


def test_a_function_that_no_file_defines_is_named(folder):
    source_text = (
        "int far(const int * at, int n);\nextern int limit;\ntypedef int (*chooser)(int);\n"
        "bool supported(chooser c, int n) { return c(far(&n, 2)) > limit; }\n"
    )
    with pytest.raises(BuildError, match=r"none of the files that are read defines far$"):
        text(folder, source_text, roots=["supported"])
    assert "far(" in text(folder, source_text, roots=["supported"], provided={"far"})


@pytest.mark.parametrize("root", ["missing", "kernel<4>", "toolkit_call"])
def test_a_root_that_is_not_there_once_is_refused(folder, root):
    with pytest.raises(BuildError, match=f"{root} is defined 0 times"):
        cut.cut(source(folder), cut.Wanted([root]))


def test_a_source_that_cannot_be_preprocessed_is_named(folder):
    (folder.parent / "toolkit" / "toolkit.h").unlink()
    with pytest.raises(BuildError, match=r"(?s)main\.cu.*toolkit\.h"):
        source(folder)


def test_pragmas_are_no_names(folder):
    made = text(
        folder,
        "#pragma GCC diagnostic ignored \"-Wall\"\nextern int unused_here;\n"
        "extern int n;\nbool supported(int i) {\n#pragma message(\"TODO\")\n  return i < n;\n}\n",
        roots=["supported"],
    )
    assert "pragma" not in made and "unused_here" not in made and "extern int n;" in made


def test_an_edit_keeps_the_lines_after_it():
    """Also the marks of the preprocessor."""
    kept = partial(cards._with_lines, r"x = (GP_ANSWER \1);")
    made = re.sub(r"x = ([^;]*);", kept, "x = a &&\n  b;\nlast")
    assert made == "x = (GP_ANSWER a &&\n  b);\nlast"
    gone = partial(cards._with_lines, "")
    made = re.sub(r"catch[^}]*}", gone, "{ 1; }\ncatch (e) {\n# 7 \"f.h\"\n  2;\n}\nlast")
    assert made == '{ 1; }\n\n# 7 "f.h"\n\n\nlast'


# --- of upstream's releases


def ggml_of(label):
    folder = cache.default_folder()
    with cache.Lock(folder):
        return identity.unpacked(releases.find(label), folder, whole=False) / "ggml"


# Why a release's backend is not cut: it is not there, or its device is described in another way.
LACKING = {
    "0.21.0": {"hexagon": "no member named"},
    "0.9.4": {
        "hexagon": "no member named", "et": "the release has no ggml-et/ggml-et.cpp",
        "webgpu": "create_webgpu_device is defined 0 times",
    },
}  # fmt: skip


@pytest.mark.thorough("long")
@pytest.mark.parametrize("label", [None, "0.21.0", "0.9.4"])
def test_every_backend_is_cut_from_new_and_old_releases(tmp_path, label):
    """Without a toolkit, and a small part of each backend."""
    native = REPO / "ggml_py" / "native"
    ggml = ggml_of(label)
    made = cards.generate(ggml, native, tmp_path / "made", cards.command(COMPILER))
    lacking = LACKING.get(label, {})
    for one in made:
        assert re.search(lacking.get(one.backend, r"\A\Z"), one.why), one
    for one in made:
        if one.file is None:
            continue
        text = one.file.with_suffix(".inc").read_text()
        # Vulkan's lists a thousand pipelines, Hexagon's includes what its DSP is asked for.
        most = {"vulkan": 10_000, "hexagon": 5_000}.get(one.backend, 3_000)
        assert "<<<" not in text and "__global__" not in text and text.count("\n") < most
        assert text.count("GP_ANSWER") > 30
        assert str(ggml) not in text  # nothing tells where it was built


def test_a_backend_that_a_release_lacks_is_left_out_with_the_reason(tmp_path):
    (tmp_path / "ggml" / "src").mkdir(parents=True)
    native = REPO / "ggml_py" / "native"
    made = cards.generate(tmp_path / "ggml", native, tmp_path / "x", cards.command(COMPILER))
    assert [one.file for one in made] == [None] * len(cards.BACKENDS)
    assert made[0].why == "the release has no ggml-metal/ggml-metal.cpp"


def test_what_is_cut_is_kept_until_what_it_is_made_of_changes(tmp_path, monkeypatch):
    """Each backend on its own: a change of the scheduler or of a comment cuts none again."""
    native, ran, ggml = REPO / "ggml_py" / "native", [], tmp_path / "ggml"
    for name in ("ggml-cuda/ggml-cuda.cu", "ggml-metal/ggml-metal.cpp", "ggml-backend.cpp"):
        (ggml / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (ggml / "src" / name).write_text("int f() { return 1; }  // one\n")
    (ggml / "include").mkdir()
    (ggml / "include" / "ggml.h").write_text("int n;\n")
    cut = cards._cut
    monkeypatch.setattr(cards, "_cut", lambda *given: ran.append(given[0]) or cut(*given))

    def cached(*names):
        ran.clear()
        made = cards.cached(ggml, native, tmp_path / "cache", [COMPILER], names)
        assert [one.backend for one in made] == list(names) and all(one.why for one in made)
        return sorted(ran)

    assert cached("cuda", "metal") == ["cuda", "metal"]
    assert cached("metal", "cuda") == cached("cuda") == []
    (ggml / "src" / "ggml-backend.cpp").write_text("int f() { return 2; }\n")
    (ggml / "src" / "ggml-cuda" / "ggml-cuda.cu").write_text("int f() { return 1; }  // two\n")
    assert cached("cuda", "metal") == []
    (ggml / "src" / "ggml-cuda" / "ggml-cuda.cu").write_text("int f() { return 3; }\n")
    assert cached("cuda", "metal") == ["cuda"]
    (ggml / "include" / "ggml.h").write_text("\nint n;\n")  # its lines have other numbers
    assert cached("cuda", "metal") == ["cuda", "metal"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("f(); // a\n", "f(); // b\n", True),
        ("f(); /* a\n */ g();\n", "f(); /* b\n */ g();\n", True),
        ("f(); /* a\n */ g();\n", "f(); /* a */ g();\n", False),  # lines move
        ('f("// a");\n', 'f("// b");\n', False),
        ("f('\"'); // a\n", "f('\"'); // b\n", True),
        ('f(R"(// a)");\n', 'f(R"(// b)");\n', False),
        ("f(); // a\n", "g(); // a\n", False),
    ],
)
def test_comments_do_not_count(tmp_path, one, other, same):
    made = []
    for text in (one, other):
        (tmp_path / "x.cu").write_text(text)
        made.append(without_comments(tmp_path / "x.cu"))
    assert (made[0] == made[1]) == same


@pytest.mark.thorough("long")
def test_all_that_a_backend_includes_counts():
    """What the compiler reads of upstream's for each backend is part of its key."""
    ggml, command = ggml_of(None), cards.command(COMPILER)
    for name, backend in cards.BACKENDS.items():
        files = [f for f in backend.files if (ggml / "src" / backend.folder / f).is_file()]
        read = included(ggml, backend, files, command)
        own = [p for p in read if p.parts[:2] == ("src", backend.folder)]
        assert not [p for p in own if p.suffix in cards._NOT_READ], name
        others = [p for p in read if p not in own]
        assert all(p.suffix == ".h" and len(p.parts) == 2 for p in others), (name, others)
        assert all(p.parts[0] in ("src", "include") for p in others)


def included(ggml, backend, files, command):
    """What the files include of ggml's, relative to its folder."""
    with tempfile.TemporaryDirectory() as empty:
        folders = [Path(empty), ggml / "src" / backend.folder, ggml / "include", ggml / "src"]
        cards._make_empty(Path(empty), backend, files, command, folders)
        done = subprocess.run(
            [*command, "-M", "-x", "c++", *(f"-I{f}" for f in folders),
             *(f"-D{d}" for d in backend.defines), "-"],
            input="".join(f'#include "{file}"\n' for file in files),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    paths = [Path(word).resolve() for word in done.stdout.replace("\\\n", " ").split()[1:]]
    return [p.relative_to(ggml.resolve()) for p in paths if ggml.resolve() in p.parents]


# A compiler that ends so when it is to write an object file.
ENDS = {
    "echo x.cpp:1:1: fatal error: No space left on device >&2; exit 1": "disk full",
    "kill -9 $$": "killed, probably for lack of memory",
    "echo cc1plus: out of memory allocating 65536 bytes >&2; exit 1": "lack of memory",
    "echo as: broken >&2; exit 1": "as: broken",
}


@pytest.mark.thorough("long")
@pytest.mark.parametrize("ends", ENDS)
def test_no_backend_is_left_out_because_of_the_machine(tmp_path, ends):
    """The build fails, and the next one cuts the backend."""
    native, names = REPO / "ggml_py" / "native", ["cann"]
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\ncase \"$*\" in *' -c '*) {ends};; esac\n{COMPILER} \"$@\"\n")
    compiler.chmod(0o755)

    def cached():
        command = cards.command(str(compiler))
        return cards.cached(ggml_of(None), native, tmp_path / "cache", command, names)

    with pytest.raises(OutsideError, match=ENDS[ends]):
        cached()
    compiler.write_text(f"#!/bin/sh\n{COMPILER} \"$@\"\n")
    (one,) = cached()
    assert one.file.is_file() and one.why == ""


@pytest.mark.thorough("long")
@pytest.mark.parametrize(
    "name",
    [
        "rtx4090", "m3max", "mi300x", "adreno-x1", "arc-a770", "webgpu-m3max", "ascend-910b",
        "hexagon-v79", "et-soc-1", "vulkan-rx7900xtx",
    ],
)  # fmt: skip
def test_the_lines_of_answers_are_returns_of_upstreams_source(name):
    import ggml_py as ggml

    source_folder = ggml_of(None) / "src"
    card = ggml.load_profile(name)
    with ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 128, 64)
        w = ctx.new_tensor("q4_0", 128, 64)
        cache_ = ctx.new_tensor("q8_0", 128, 256, 2)
        q, mask = ctx.new_tensor("f32", 128, 8, 2), ctx.new_tensor("f16", 256, 64)
        rows = ctx.new_tensor("i32", 4)
        nodes = [
            ctx.mul_mat(w, x), ctx.get_rows(w, rows), ctx.rms_norm(x, 1e-5), ctx.silu(x),
            ctx.soft_max(x), ctx.flash_attn_ext(q, cache_, cache_, mask, 1.0, 0.0, 0.0),
            ctx.top_k(x, 4), ctx.argsort(x, 0), ctx.cont(ctx.transpose(x)),
        ]  # fmt: skip
        for node in nodes:
            for place in card.decide(node).row.split(", "):
                file, line = place.split(":")
                (path,) = (source_folder / cards.BACKENDS[card.card.backend].folder).rglob(file)
                at = path.read_text().splitlines()[int(line) - 1]
                assert re.search(r"return|\bsupp\w* \|?= ", at), (node, place, at)
