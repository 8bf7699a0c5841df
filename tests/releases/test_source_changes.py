"""The lines of ggml's scheduler in which two sources differ."""

import pytest

from ggml_py.releases.source_changes import changes_between, lines_of, source_changes

SOURCE = """\
#include "ggml.h"

// assigns backends
static int place(int n) {
    /* the best
       so far */
    int best = -1;
    if (n > best) {
        best = n; // first
    }
    return best;
}

void split(void) {
    place(1);
}
"""


def folders(tmp_path, *changes):
    found = []
    for name, text in (("a", SOURCE), ("b", SOURCE)):
        (tmp_path / name / "src").mkdir(parents=True)
        for old, new in changes if name == "b" else ():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / name / "src" / "ggml-backend.cpp").write_text(text)
        (tmp_path / name / "src" / "ggml.c").write_text("int x;\n")
        found.append(tmp_path / name)
    return found


def changes(tmp_path, *given):
    return list(changes_between(*(folder / "src" for folder in folders(tmp_path, *given))))


def test_a_changed_rule_is_shown_with_its_function_and_line(tmp_path):
    (found,) = changes(tmp_path, ("n > best", "n >= best"))
    assert (found.file, found.function) == ("ggml-backend.cpp", "place")
    assert found.removed == ((8, "    if (n > best) {"),)
    assert found.added == ((8, "    if (n >= best) {"),)
    assert lines_of([found]) == [
        "the sources differ in 2 lines of ggml-backend.cpp:",
        "  ggml-backend.cpp:8 in place", "  - if (n > best) {", "  + if (n >= best) {",
    ]  # fmt: skip


def test_comments_blank_lines_and_spaces_do_not_count(tmp_path):
    given = [
        ("// assigns backends", "// anything\n"), ("so far", "yet"), ("// first", "// f"),
        ("    place(1);", "\n      place(1);"),
    ]  # fmt: skip
    assert changes(tmp_path, *given) == []


def test_a_line_that_is_gone_or_new_stands_alone(tmp_path):
    given = ("        best = n; // first\n", ""), ("place(1);", "place(1); x();")
    gone, new = changes(tmp_path, *given)
    assert (gone.added, gone.function) == ((), "place") and gone.removed[0][0] == 9
    assert new.function == "split"


def test_many_lines_are_counted_by_function(tmp_path):
    many = "".join(f"    x({i});\n" for i in range(40))
    found = changes(tmp_path, ("    place(1);\n", many))
    lines = lines_of(found)
    assert lines[0] == "the sources differ in 41 lines of ggml-backend.cpp:"
    assert "  ggml-backend.cpp: split, 41 lines" in lines and "--verbose" in lines[-1]
    assert "  + x(39);" in lines_of(found, verbose=True)


def test_checkouts_are_compared_where_they_are(tmp_path):
    one, other = folders(tmp_path, ("n > best", "n < best"))
    (found,) = source_changes(str(one), str(other))
    assert found.function == "place"
    (tmp_path / "none").mkdir()
    assert source_changes(str(one), str(tmp_path / "none")) is None


@pytest.mark.thorough("programs")
def test_a_release_that_was_fetched_is_found():
    assert source_changes("0.26.0", "0.26.0") == ()
