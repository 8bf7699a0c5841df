"""Bombs, devices, folders, files without an end and files that change, for every reader: it ends
soon, takes little memory and names the file in its error."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py.releases.kept import kept_in

from ..support.foreign_text import run
from ..support.hostile_files import MIB, READERS, SECONDS, answer, make_good

REPO = Path(__file__).resolve().parents[2]
# Errors of internals; and a MemoryError, which comes before the computer has no more.
INTERNAL = {
    "KeyError", "IndexError", "TypeError", "AttributeError", "MemoryError", "RecursionError",
    "AssertionError", "error", "BaseException", "UnicodeDecodeError", "OverflowError",
}  # fmt: skip


@pytest.mark.thorough("long")
@pytest.mark.parametrize("reader", READERS)
def test_no_file_hangs_fills_the_memory_or_ends_the_process(reader, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.hostile_files", reader, str(tmp_path), "8"],
        cwd=REPO, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) > 30
    for row in rows:
        assert row["seconds"] < SECONDS and row["mib"] < MIB // 2, row
        assert row["error"] not in INTERNAL and "Traceback" not in row["said"], row
        assert not row["error"] or row["what"] in row["said"] or row["path"] in row["said"] or (
            row["said"].startswith("Usage")), row  # fmt: skip


def _linked_to_itself(path):
    path.symlink_to(path.name)


def _linked_in_a_circle(path):
    path.symlink_to("other")
    path.with_name("other").symlink_to(path.name)


def _unreadable(path):
    path.write_bytes(b"")
    path.chmod(0)


STRANGE = {  # entries of a folder of kept plans, and what its error says
    "a folder": (Path.mkdir, "a folder"),
    "a pipe": (os.mkfifo, "a pipe without a file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "outside the folder"),
    "a socket": (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "No such device"),
    "linked to itself": (_linked_to_itself, "Too many levels of symbolic links"),
    "in a circle": (_linked_in_a_circle, "Too many levels of symbolic links"),
    "linked to nothing": (lambda path: path.symlink_to("nothing"), "No such file"),
    "not readable": (_unreadable, ""),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["a.json.gz", "a.ggrec", "cases.txt"])
def test_strange_entries_of_a_folder_of_kept_plans(name, kind, tmp_path, monkeypatch):
    make, expected = STRANGE[kind]
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    make(Path(name))
    found, said = answer(lambda path: kept_in(path.parent), tmp_path / name)
    assert found in ("ValueError", "OSError", "FileNotFoundError", "PermissionError"), (found, said)
    is_list = name == "cases.txt" and kind != "not readable"  # what is no file is no list
    assert name in said and (is_list or expected in said), said


def test_strange_entries_of_a_folder_of_records(tmp_path, good, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("z.ggrec").write_bytes((good / "r.ggrec").read_bytes())
    for i, (make, _said) in enumerate(STRANGE.values()):
        make(Path(f"{i}.ggrec"))
    said = run(["record", "--of", "."], tmp_path)
    assert said.code == 0 and "z.ggrec" in said.out and "computed" in said.out
    assert len(said.err.splitlines()) == len(STRANGE)


def test_a_folder_of_many_files_and_of_names_of_any_bytes(tmp_path, good):
    content = (good / "plan.json.gz").read_bytes()
    for name in (b"\xff\xfe", b"n" * 240, b"\x1b]0;owned\x07", b" "):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name + b".json.gz")).write_bytes(content)
    for i in range(5000):
        (tmp_path / f"{i}.txt").touch()
    assert len(kept_in(tmp_path)) == 4


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make_good(tmp_path_factory.mktemp("good"))


@pytest.mark.thorough("cases", quick=3)
@pytest.mark.parametrize("reader", [r for r in READERS if r not in ("models.load", "generate")])
def test_a_file_that_is_cut_at_any_byte(reader, good, tmp_path):
    name, read = READERS[reader]
    content = (good / name).read_bytes()
    path = tmp_path / name
    for n in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:n])
        kind, said = answer(read, path)
        assert kind not in INTERNAL and "Traceback" not in said, (n, kind, said)
