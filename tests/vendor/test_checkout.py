"""A checkout is built from a copy in which only what changed is new."""

import os
import re
from types import SimpleNamespace

import pytest

import build_ggml
from vendor import cache as caches
from vendor import checkout, instrument, releases, unpacked
from vendor.edit import Edit, place
from vendor.identity import Options, configuration, tree_of, upstream_of
from vendor.report import BuildError


@pytest.fixture
def ggml(tmp_path):
    folder = tmp_path / "llama.cpp" / "ggml"
    for name, text in {
        "CMakeLists.txt": "set(GGML_VERSION_MAJOR 0)\n", "include/ggml.h": "int n;\n",
        "src/ggml.c": "int f(void) { return 1; } // one\n", "src/ggml-alloc.c": "int g;\n",
        "cmake/x.cmake": "# x\n", ".git/HEAD": "main\n", "build/out.o": "o\n",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def written(ggml, target):
    """The files that a copy writes."""
    before = {p: p.stat().st_mtime_ns for p in target.rglob("*") if p.is_file()}
    for path in before:
        os.utime(path, ns=(1, 1))
    checkout.copied(ggml, target)
    files = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    return files, {
        p.relative_to(target).as_posix() for p in target.rglob("*")
        if p.is_file() and p.stat().st_mtime_ns != 1
    }  # fmt: skip


def test_only_what_changed_is_written(ggml, tmp_path):
    target = tmp_path / "copy"
    every = {
        "CMakeLists.txt", "include/ggml.h", "src/ggml.c", "src/ggml-alloc.c", "cmake/x.cmake"
    }  # fmt: skip
    assert written(ggml, target) == (every, every)
    assert written(ggml, target) == (every, set())
    (ggml / "src" / "ggml.c").write_text("int f(void) { return 1; } // two\n")
    assert written(ggml, target) == (every, set())
    (ggml / "src" / "ggml.c").write_text("int f(void) { return 2; } // two\n")
    assert written(ggml, target) == (every, {"src/ggml.c"})
    (ggml / "src" / "ggml-alloc.c").unlink()
    assert written(ggml, target) == (every - {"src/ggml-alloc.c"}, set())


def test_comments_are_copied_on_demand(ggml, tmp_path):
    """An edit that looks for a comment finds the checkout's own."""
    target = checkout.copied(ggml, tmp_path / "copy")
    text = "int f(void) { return 1; } // two\n"
    (ggml / "src" / "ggml.c").write_text(text)
    checkout.copied(ggml, target)
    assert (target / "src" / "ggml.c").read_text() != text
    checkout.copied(ggml, target, comments=True)
    assert (target / "src" / "ggml.c").read_text() == text


def test_a_comment_that_edits_look_for_can_be_restored(ggml, tmp_path, monkeypatch):
    """It was gone when the copy was made: a build of the checkout as it is now finds it."""
    file, compiled = ggml / "src" / "ggml.c", SimpleNamespace(failed=lambda: None, folder=tmp_path)
    edit = Edit("one", "// one\n", "int h;\n// one\n")
    monkeypatch.setattr(instrument, "EDITS", {"ggml.c": (edit,)})
    monkeypatch.setattr(instrument, "_unedited", lambda _src: ())
    text = file.read_text()
    file.write_text(text.replace("one", "gone"))
    copy = checkout.copied(ggml, tmp_path / "copy")
    with pytest.raises(BuildError, match=f"cannot instrument {ggml}.*found 0 times"):
        build_ggml._instrumented(copy, compiled, ggml)
    file.write_text(text)
    checkout.copied(ggml, copy)
    assert build_ggml._instrumented(copy, compiled, ggml) == ["ggml.c"]
    assert "int h;" in (tmp_path / build_ggml.INSTRUMENTED / "ggml.c").read_text()


MODEL = """\
void split(void) {
    // pass 1: assign
    int a = 0; // first
    while (a < 2) {
        a++;
    }

    // pass 2: expand
    // (both ways)
    for (;;) {
        break;
    }
}
"""
ANCHORS = ("    // pass 1: assign", "    // pass 2:")


@pytest.mark.parametrize("said", ["    // another word\n", "    /* two\n    lines */\n", ""])
def test_comments_that_edits_look_for_are_put_back(said):
    """Whatever a checkout says there, or does not."""
    text = MODEL.replace("    // pass 2: expand\n    // (both ways)\n", said)
    text = text.replace("int a = 0; // first", "int  a = 0;")
    made = checkout.with_comments(text, MODEL, ANCHORS)
    assert made == text.replace("    for (;;)", "    // pass 2: expand\n    for (;;)")
    assert checkout.with_comments(made, MODEL, ANCHORS) == made


@pytest.mark.parametrize("old, new", [("a++;\n    }", "a++;\n    }\n    g();"), ("for (;;)", "do")])
def test_no_comment_is_put_where_the_code_is_another(old, new):
    text = MODEL.replace("// pass 2: expand", "// else").replace(old, new)
    assert checkout.with_comments(text, MODEL, ANCHORS) == text


def test_all_comments_of_a_checkout_may_change():
    """The scheduler and the allocator of the default release without lines of comment."""
    known = unpacked.folder(releases.default().label, caches.default_folder())
    if known is None:
        pytest.skip("the sources of the default release are not on this machine")
    usual, _placed = instrument.instrumented(known)
    for name in ("ggml-backend.cpp", "ggml-alloc.c"):
        plain = re.sub(r"(?m)^ *//.*\n", "", (known / name).read_text())
        edits = instrument.EDITS[name]
        wanted = checkout.comments_of(edits)
        made = checkout.with_comments(plain, (known / name).read_text(), wanted)
        texts = {name: made}
        assert not [one.wrong for edit in edits if (one := place(name, edit, texts)).wrong]
        code = [[line for _n, line in checkout._code(text)] for text in (texts[name], usual[name])]
        assert code[0] == code[1]


def test_a_file_that_is_restored_with_its_old_time_is_new(ggml, tmp_path):
    """ninja compares times: an older one would mean that nothing is to be done."""
    target, file = tmp_path / "copy", ggml / "src" / "ggml.c"
    old = file.read_text()
    checkout.copied(ggml, target)
    file.write_text("int f(void) { return 3; }\n")
    checkout.copied(ggml, target)
    file.write_text(old)
    os.utime(file, ns=(1, 1))
    checkout.copied(ggml, target)
    assert (target / "src" / "ggml.c").read_text() == old
    assert (target / "src" / "ggml.c").stat().st_mtime_ns > 1


def test_a_comment_changes_no_key_and_code_does(ggml):
    options = Options(source=ggml.parent)

    def keys():
        upstream = upstream_of(options)
        return configuration(options, upstream), tree_of(options, upstream)

    before = keys()
    (ggml / "src" / "ggml.c").write_text("int f(void) { return 1; } // another\n")
    assert keys() == before
    (ggml / "src" / "ggml.c").write_text("int f(void) { return 2; } // another\n")
    after = keys()
    assert after[0] != before[0] and after[1] == before[1]  # another build of the same tree
    (ggml / "CMakeLists.txt").write_text("set(GGML_VERSION_MAJOR 0)  # said\n")
    assert keys()[0] != after[0]
