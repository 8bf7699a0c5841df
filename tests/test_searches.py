"""Searches for faults (benchmarks/search.py): what they notice, and what their records say."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "benchmarks"))
import search  # noqa: E402

RECORDS = sorted(search.RESULTS.glob("*.json"))

SCRIPT = '''
"""A search with one case of each kind."""
import os, signal, sys, time
sys.path.insert(0, {folder!r})
import search

def case(seed):
    print("noise")
    if seed == 2:
        raise ValueError("case two")
    if seed == 4:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == 6:
        time.sleep(60)
    if seed == 8:
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    return "even" if seed % 2 == 0 else "odd"

SEARCH = search.Search("fake", ("benchmarks/search.py",), case, limit_s=2)
if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "fake.py"
    path.write_text(SCRIPT.format(folder=str(REPO / "benchmarks")))
    return path


def test_whatever_happens_to_a_case_is_a_finding_and_the_next_one_runs(script, tmp_path):
    out = tmp_path / "fake.json"
    command = [sys.executable, str(script), "--out", str(out), "--cases", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    record = json.loads(out.read_text())
    assert record["outcomes"] == {
        "odd": 5, "even": 1, "raised ValueError": 1, "died of SIGSEGV": 1,
        "took more than 2 s": 1, "exited with 3": 1,
    }  # fmt: skip
    assert [finding["seed"] for finding in record["findings"]] == [2, 4, 6, 8]
    assert "case two" in record["findings"][0]["text"]
    assert "last words" in record["findings"][3]["text"]
    # It goes on where the record ends.
    done = subprocess.run(
        [*command[:-1], "13"], capture_output=True, text=True, check=False, timeout=120
    )
    assert json.loads(out.read_text())["outcomes"]["odd"] == 6
    assert "13 cases" in done.stdout


def test_a_process_that_dies_at_its_end_is_a_finding_of_its_last_case(script, tmp_path):
    text = script.read_text().replace("import os,", "import atexit, os,")
    script.write_text(text.replace("SEARCH =", "atexit.register(os.abort)\nSEARCH =", 1))
    out = tmp_path / "fake.json"
    command = [sys.executable, str(script), "--out", str(out), "--cases", "2"]
    subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert json.loads(out.read_text())["outcomes"] == {"even": 1, "died of SIGABRT": 1}


def test_a_record_of_other_code_is_not_gone_on_with(script, tmp_path):
    out = tmp_path / "fake.json"
    command = [sys.executable, str(script), "--out", str(out), "--cases"]
    subprocess.run([*command, "2"], check=True, timeout=120)
    record = json.loads(out.read_text())
    assert search.changed_since(record) == []
    record["about"]["benchmarks/search.py"] = "0"
    assert search.changed_since(record) == ["benchmarks/search.py"]
    out.write_text(json.dumps(record))
    done = subprocess.run(
        [*command, "1"], capture_output=True, text=True, check=False, timeout=120
    )
    assert "beginning anew" in done.stderr
    assert json.loads(out.read_text())["cases"] == 1


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_no_record_has_a_finding_and_the_old_ones_are_named(path):
    record = json.loads(path.read_text())
    assert record["findings"] == []
    assert record["cases"] == sum(record["outcomes"].values()) > 0
    if changed := search.changed_since(record):
        warnings.warn(
            f"{path.name} is of {record['date']} ({record['commit'][:8]}); changed since: "
            f"{', '.join(changed)}. To run it again: {record['command']}",
            stacklevel=1,
        )


@pytest.mark.sample
def test_no_call_of_the_api_ends_the_process():
    import api

    report = search.run(REPO / "benchmarks" / "api.py", api.SEARCH, 0, 200)
    assert report.findings == [] and report.cases == 200
