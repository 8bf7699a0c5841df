"""Bombs, devices, folders, files without an end and files that change, for every reader: it ends
soon, takes little memory and names the file in its error."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
