"""`python -m vendor.new_release`: releases that the index has beyond the table, and trying one."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ggml_py.builds import current
from ggml_py.trace.rules import RELEASES, find_release, rules_of
from vendor import candidate, fetch, releases, rows, suite
from vendor.new_release import Candidate, enter
from vendor.report import BuildError
from vendor.suite import SuiteRun, run_suite

from ..support.build_support import REPO, index, small_sdist

pytestmark = pytest.mark.thorough("long", quick=20)  # many are programs that ask an index
NEWEST = RELEASES[0]
CMAKE = "set(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR {})\nset(GGML_VERSION_PATCH 1)\n"
TREE = "xllamacpp-2026.11.12345/thirdparty/llama.cpp/ggml"


@pytest.fixture
def server(monkeypatch):
    with index() as state:
        monkeypatch.setenv("PIP_INDEX_URL", state.url)
        state.files["llama_cpp_python-0.3.36.tar.gz"] = b"listed"
        state.files["xllamacpp-2026.9.11063.tar.gz"] = b"listed"
        yield state


# ---- what the index has


def run(*arguments, env=None):
    """Runs the tool in this source tree."""
    return subprocess.run(
        [sys.executable, "-m", "vendor.new_release", *arguments], cwd=REPO, capture_output=True,
        text=True, check=False, timeout=300, env={**os.environ, **(env or {})},
    )  # fmt: skip


def fails(*arguments, env=None):
    done = run(*arguments, env=env)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_nothing_newer_is_exit_status_0(server):
    done = run("check")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "xllamacpp: none newer (listed: 2026.10.11549)\n"
        "llama-cpp-python: none newer (listed: 0.3.36)\n"
    )
    assert not any("/files/" in path for path in server.asked)  # nothing is downloaded


def test_newer_ones_are_exit_status_1_newest_first(server):
    server.files["xllamacpp-2026.11.12345.tar.gz"] = b"x" * 4096
    server.files["xllamacpp-2026.10.11700.tar.gz"] = b"x"
    server.files["llama_cpp_python-0.3.4.tar.gz"] = b"older, though 4 > 36 as text"
    done = run("check")
    assert done.returncode == 1 and done.stderr == ""
    assert done.stdout.startswith(
        "xllamacpp: 2 newer source distributions (listed: 2026.10.11549)\n"
        "  2026.11.12345  date unknown  size unknown  which ggml: known once downloaded\n"
        "    python -m vendor.new_release try 2026.11.12345 --package xllamacpp\n"
        "  2026.10.11700  "
    )
    assert "llama-cpp-python: none newer" in done.stdout


def test_size_and_date_are_said_if_the_index_tells(server):
    server.as_json = True
    server.files["xllamacpp-2026.11.12345.tar.gz"] = b"x" * 4096
    done = run("check", "xllamacpp")
    assert "  2026.11.12345  2026-11-20  4.0 KiB  which" in done.stdout
    assert "llama-cpp-python" not in done.stdout
    (one,) = candidate.index.newer("xllamacpp")
    assert one.sha256 == hashlib.sha256(b"x" * 4096).hexdigest() and one.size == 4096


def test_a_withdrawn_version_is_not_newer(server):
    server.as_json, server.yanked = True, "xllamacpp-2026.11.12345.tar.gz"
    server.files[server.yanked] = b"x"
    assert "xllamacpp: none newer" in run("check").stdout


def test_an_index_that_cannot_be_asked(server):
    assert "does not know no-such-package" in fails("check", "no-such-package")
    dead = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple/"}
    said = fails("check", env=dead)
    assert "error: the package index cannot be reached" in said and "PIP_INDEX_URL" in said


# ---- what is in a version


def sdist(tmp_path, members):
    path = tmp_path / "xllamacpp-2026.11.12345.tar.gz"
    path.write_bytes(small_sdist(members))
    return path


def read(tmp_path, minor, version="2026.11.12345"):
    archive = sdist(tmp_path, {
        f"{TREE}/include/ggml.h": b"", f"{TREE}/CMakeLists.txt": CMAKE.format(minor).encode(),
        f"{TREE}/examples/llama.cpp/ggml/include/ggml.h": b"",
    })  # fmt: skip
    return candidate.read_release(archive, "xllamacpp", version, "0" * 64)


def test_the_row_of_a_version_is_what_is_in_it(tmp_path):
    row = read(tmp_path, 27)
    assert (row.label, row.ggml, row.build) == ("0.27.1", "0.27.1", 12345)
    assert row.subfolder == "thirdparty/llama.cpp"
    assert read(tmp_path, 27, "0.3.1").build is None
    table = tmp_path / "row.toml"
    table.write_text(rows.row_of(row))
    assert releases.find(str(table)) == row


def test_a_version_of_ggml_that_is_taken_gets_a_longer_label(tmp_path, monkeypatch):
    known = replace(releases.default(), label="0.27.1", ggml="0.27.1")
    monkeypatch.setattr(releases, "releases", lambda: (known,))
    assert read(tmp_path, 27).label == "0.27.1.p2026.11.12345"


def test_what_has_no_ggml_is_refused(tmp_path):
    with pytest.raises(BuildError, match=r"has no llama\.cpp with ggml/include/ggml\.h"):
        candidate.read_release(sdist(tmp_path, {"a/b": b""}), "xllamacpp", "1", "0")
    old = sdist(tmp_path, {f"{TREE}/include/ggml.h": b"", f"{TREE}/CMakeLists.txt": b"old"})
    with pytest.raises(
        BuildError, match=r"has no version: rules are known by version, from 0\.9\.4"
    ):
        candidate.read_release(old, "xllamacpp", "1", "0")
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"no archive")
    with pytest.raises(BuildError, match="cannot be read as a source distribution"):
        candidate.read_release(broken, "xllamacpp", "1", "0")


def test_a_version_that_is_listed_or_not_there(server):
    said = fails("try", "2026.10.11549")
    assert "xllamacpp 2026.10.11549 is listed already, as 0.26.0" in said
    said = fails("try", "1.0", "--report", __file__)
    assert "already exists: --force replaces it" in said
    said = fails("try", "2026.99.1")
    assert "no source distribution of xllamacpp 2026.99.1; the newest: 2026.9.11063" in said


def test_an_unlisted_file_has_the_hash_that_the_index_says(server, tmp_path):
    server.as_json = True
    server.files["xllamacpp-2026.11.12345.tar.gz"] = content = small_sdist({"a": b"b"})
    offer = candidate.index.offered("xllamacpp", "2026.11.12345")
    path, digest = fetch.unlisted(offer, tmp_path)
    assert path.read_bytes() == content and digest == hashlib.sha256(content).hexdigest()
    assert fetch.unlisted(offer, tmp_path) == (path, digest)
    path.write_bytes(b"damaged")
    with pytest.raises(BuildError, match="hash mismatch"):
        fetch.unlisted(offer, tmp_path)
    assert not path.exists()


# ---- the tables


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the two tables."""
    (tmp_path / "vendor").mkdir()
    table = Path(shutil.copy2(REPO / "vendor" / "upstream.toml", tmp_path / "vendor"))
    rules = Path(shutil.copy2(REPO / "ggml_py" / "trace" / "rules.py", tmp_path))
    monkeypatch.setattr(releases, "TABLE", table)
    monkeypatch.setattr(rows, "RULES", rules)
    return table, rules


def labels_in(table):
    releases._table.cache_clear()
    releases.releases.cache_clear()
    found = [one.label for one in releases.releases()]
    releases._table.cache_clear()
    releases.releases.cache_clear()
    return found


def row(ggml="0.27.0", build=12345, version="2026.11.12345"):
    return releases.Release(ggml, ggml, build, "xllamacpp", version, f"xllamacpp-{version}.tar.gz",
                            "1" * 64, "thirdparty/llama.cpp")  # fmt: skip


@pytest.mark.parametrize(
    ("new", "at"),
    [
        (row(), 0),
        (row("0.10.0", 8929, "2026.4.8929"), 11),
        (row("0.9.1", None, "0.2.1"), len(RELEASES)),
    ],
)
def test_a_release_is_entered_where_it_belongs_in_both_tables(tree, new, at, monkeypatch):
    table, rules = tree
    before = labels_in(table)
    rest = table.read_text().partition("# The OpenBLAS")[2]
    assert rows.add(new) == [rules, table]
    monkeypatch.setattr(releases, "TABLE", table)
    assert labels_in(table) == [*before[:at], new.label, *before[at:]]
    assert table.read_text().partition("# The OpenBLAS")[2] == rest
    space: dict = {"__name__": "ggml_py.trace.rules"}
    text = rules.read_text().replace("from .record", "from ggml_py.trace.record")
    exec(compile(text, str(rules), "exec"), space)
    known = space["RELEASES"][at]
    assert tuple(known) == (new.label, new.ggml, new.version, f"b{new.build}" if new.build else "")
    assert len(space["RELEASES"]) == len(RELEASES) + 1
    assert sorted(path.name for path in table.parent.iterdir()) == ["upstream.toml"]


def test_a_release_is_not_entered_twice_or_over_an_older_label(tree):
    table, rules = tree
    was = table.read_text(), rules.read_text()
    for release, said in (
        (replace(row(), label="0.26.0"), "is listed as 0.26.0"),
        (replace(row(), sha256=releases.default().sha256), "is listed as 0.26.0"),
        (
            replace(row("0.26.0"), label="0.26.0.p2026.11.12345"),
            "rename it to 0.26.0.p2026.10.11549",
        ),
    ):
        with pytest.raises(BuildError, match=re.escape(said)):
            rows.add(release)
    assert (table.read_text(), rules.read_text()) == was


def test_nothing_is_entered_if_the_second_table_cannot_be(tree, monkeypatch):
    table, rules = tree
    was = table.read_text()
    monkeypatch.setattr(rows, "RULES", rules.with_name("gone.py"))
    with pytest.raises(OSError):
        rows.add(row())
    rules.write_text(rules.read_text().replace("    Known(", "    known(", 1))
    monkeypatch.setattr(rows, "RULES", rules)
    with pytest.raises(BuildError, match=r"has 14 rows, upstream\.toml 15"):
        rows.add(row())
    assert table.read_text() == was


def test_an_installed_package_does_not_change_its_table(monkeypatch, tmp_path):
    monkeypatch.setattr(rows, "ROOT", tmp_path / "_build")
    with pytest.raises(BuildError, match="belongs to an installed package"):
        rows.add(row())


def found(**edits):
    return {
        "release": vars(row()), "hash_from_index": False, "size": 1 << 20, "uploaded": None,
        "shares_ggml_with": [], "table": "row.toml", "default": "0.26.0",
        "edits": {"made": 126, "all": 127, "missing": [], "absent": []} | edits,
        "api": {"enums": {"added": ["GGML_OP_NEW"], "removed": [], "changed": []}},
    }  # fmt: skip


def test_the_report_says_what_is_not_there():
    edits = found(missing=["anchor 'a' was found 0 times in b.cpp"])
    one = Candidate(edits, "", "compiling failed", {}, None, "0.26.0")
    said = one.report()
    assert "126 of 127 edits have a place" in said and "- anchor 'a' was found 0 times" in said
    assert "uploaded at an unknown time" in said and "the index says none" in said
    assert "It does not build: compiling failed" in said and "Not compared" in said
    assert "new ops need rows in `vendor/ops_*.toml`: `GGML_OP_NEW`" in said
    assert not one.complete
    with pytest.raises(BuildError, match="does not build and is not entered"):
        enter(one)


def test_the_report_says_which_tests_failed():
    one = Candidate(found(missing=[]), "0.27.0-1", "", {}, None, "0.26.0")
    assert "## Tests\n\nNot run: it was not asked for." in one.report()
    ran = SuiteRun("pytest --any-release", 61.2, 9, ("tests.test_a::test_b",))
    said = replace(one, suite=ran).report()
    assert "`pytest --any-release`: 8 of 9 passed, in 61 s.\n\n- failed: tests.test_a::" in said


@pytest.mark.parametrize(
    ("body", "n", "failed"),
    [
        ("def test_a(): pass\ndef test_b(): assert 0", 2, ("tests.test_plan::test_b",)),
        ("import pytest\ndef test_a(): pytest.skip()\ndef test_b(): pass", 1, ()),
    ],
)
def test_what_a_suite_says(monkeypatch, tmp_path, body, n, failed):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_plan.py").write_text(body)
    option = "def pytest_addoption(parser): parser.addoption('--any-release', action='store_true')"
    (tmp_path / "tests" / "conftest.py").write_text(option)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    ran = run_suite(current()["key"])
    assert (ran.n, ran.failed, ran.passed) == (n, failed, not failed)
    (tmp_path / "tests" / "conftest.py").write_text("1/0")
    ran = run_suite(current()["key"])
    assert not ran.passed and ran.broken.startswith("exit status ")


def test_a_suite_that_pytest_did_not_finish_has_not_passed(monkeypatch, tmp_path):
    (tmp_path / "tests").mkdir()
    option = "def pytest_addoption(parser): parser.addoption('--any-release', action='store_true')"
    (tmp_path / "tests" / "conftest.py").write_text(option)
    body = "def test_a(): pass\ndef test_b(): raise KeyboardInterrupt\ndef test_c(): pass"
    (tmp_path / "tests" / "test_plan.py").write_text(body)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    ran = run_suite(current()["key"])
    assert not ran.failed and ran.broken.startswith("exit status 2") and not ran.passed
    said = Candidate(found(missing=[]), "0.27.0-1", "", {}, None, "0.26.0", ran).report()
    assert "pytest did not run to its end: exit status 2" in said


def test_rules_of_a_newer_version_are_those_of_the_newest():
    plan = find_release(NEWEST.label)
    assert plan == NEWEST
    from ggml_py.trace.record import Settings

    rules = [rules_of(Settings(v, f"{v}-0", True, 1, 0, 0, 0)) for v in ("0.27.0", NEWEST.ggml)]
    assert rules[0] == rules[1]
