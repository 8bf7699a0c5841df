"""Searches for faults (benchmarks/search.py): what they notice, and what their records contain."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "benchmarks"))
import search  # noqa: E402
from meaning import meaning  # noqa: E402

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


@pytest.mark.thorough("long")
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
    # It continues where the record ends.
    done = subprocess.run(
        [*command[:-1], "13"], capture_output=True, text=True, check=False, timeout=120
    )
    assert json.loads(out.read_text())["outcomes"]["odd"] == 6
    assert "13 cases" in done.stdout


@pytest.mark.thorough("long")
@pytest.mark.skipif(os.name != "posix", reason="there is no SIGSTOP")
def test_a_search_that_was_paused_has_no_findings(script, tmp_path):
    """Its limit is 2 s for a case; it stands still for 4 s."""
    slow = "time.sleep(1.5)\n    if seed == 2"
    script.write_text(script.read_text().replace("if seed == 2", slow))
    out = tmp_path / "fake.json"
    command = [sys.executable, str(script), "--out", str(out), "--cases", "2"]
    running = subprocess.Popen(command, start_new_session=True)
    time.sleep(1.5)
    os.killpg(running.pid, signal.SIGSTOP)
    time.sleep(4)
    os.killpg(running.pid, signal.SIGCONT)
    assert running.wait(60) == 0
    assert json.loads(out.read_text())["outcomes"] == {"even": 1, "odd": 1}


@pytest.mark.thorough("long")
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
    assert not search.changed_since(record)
    record["code"] = "0"
    assert search.changed_since(record)
    out.write_text(json.dumps(record))
    done = subprocess.run(
        [*command, "1"], capture_output=True, text=True, check=False, timeout=120
    )
    assert "starting over" in done.stderr
    assert json.loads(out.read_text())["cases"] == 1


@pytest.mark.parametrize(
    ("name", "a", "b", "same"),
    [
        ("a.py", '"""Old."""\nx = 1  # why\n', '"""New\n\nwords."""\n\nx = 1\n', True),
        ("a.py", 'def f():\n    "Old."\n    return 1', 'def f():\n    "N."\n    return 1', True),
        ("a.py", 'def f():\n    """D."""\n    return 1\n', 'def f():\n    return 1\n', True),
        ("a.py", "f(1,\n  2)\n", "f(1, 2)\n", True),
        ("a.py", 'raise E("old")\n', 'raise E("new")\n', False),
        ("a.py", 'x = "old"\n', 'x = "new"\n', False),
        ("a.py", "if a:\n    b()\nc()\n", "if a:\n    b()\n    c()\n", False),
        ("a.py", "f(1\n", "f(2\n", False),
        ("a.h", "int a; // one\n\n/* two\n */ int b;", "int a;\nint b; // three", True),
        ("a.cpp", 'f("// a");', 'f("// b");', False),
        ("a.cpp", "#define A 1\nint a;", "#define A 1 int a;", False),
        ("a.toml", "# a\nb = 1", "# c\nb = 1", False),
    ],
)  # fmt: skip
def test_words_do_not_make_a_record_older(name, a, b, same):
    assert (meaning(name, a.encode()) == meaning(name, b.encode())) is same


SLOW = """
import sys, time
sys.path.insert(0, {folder!r})
import search

search.SAVE_S = 0

def case(seed):
    time.sleep(0.02)
    return "done"

SEARCH = search.Search("fake", ("benchmarks/search.py", {about!r}), case, per_process=5)
if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
"""


@pytest.fixture
def slow(tmp_path):
    """The command of a search that is about a file elsewhere, and its record."""
    path, out = tmp_path / "fake.py", tmp_path / "fake.json"
    path.write_text(SLOW.format(folder=str(REPO / "benchmarks"), about="benchmarks/fake-*"))
    return [sys.executable, str(path), "--out", str(out), "--jobs", "2", "--cases"], out


def _read(out):
    return json.loads(out.read_text())


def _started(command, out):
    """Such a search, once it has a record."""
    running = subprocess.Popen([*command, "400"], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not out.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return running


@pytest.mark.thorough("long")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_search_that_was_killed_goes_on_with_another_build_of_the_release(slow, number):
    command, out = slow
    running = _started(command, out)
    running.send_signal(number)
    running.communicate(timeout=60)
    record = _read(out)
    ran = record["cases"]
    assert 0 < ran < 400 and sum(record["builds"].values()) == ran
    (build,) = record["builds"]
    other = f"{build.rpartition('-')[0]}-00000000"
    out.write_text(json.dumps(record | {"builds": {other: ran}}))
    done = subprocess.run([*command, str(ran + 7)], capture_output=True, text=True, check=True)
    assert "starting over" not in done.stderr
    assert _read(out)["builds"] == {other: ran, build: 7}
    assert _read(out)["outcomes"] == {"done": ran + 7}
    out.write_text(json.dumps(record | {"builds": {"0.1.0-00000000": ran}}))
    done = subprocess.run([*command, "2"], capture_output=True, text=True, check=True)
    assert "starting over" in done.stderr and _read(out)["cases"] == 2


@pytest.mark.thorough("long")
def test_what_ran_after_a_file_changed_is_not_counted(slow):
    command, out = slow
    changed = REPO / "benchmarks" / f"fake-{os.getpid()}"
    running = _started(command, out)
    try:
        changed.write_text("")
        _out, said = running.communicate(timeout=60)
    finally:
        changed.unlink()
    assert running.returncode == 1 and "has changed" in said
    assert _read(out)["cases"] < 400 and not search.changed_since(_read(out))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_no_record_has_a_finding(path):
    record = json.loads(path.read_text())
    if "search" in record:
        mended = record.get("mended", {})  # seeds, and the tests that hold what was mended
        named = record.get("named", {})  # seeds, and the pages that say what is left as it is
        known = mended.keys() | named.keys()
        assert [f["seed"] for f in record["findings"] if str(f["seed"]) not in known] == []
        for seed, page in named.items():
            assert f"case {seed}" in (REPO / page).read_text()
        for test in mended.values():
            file, _, name = test.partition("::")
            assert f"def {name}(" in (REPO / file).read_text()
        assert record["cases"] == sum(record["outcomes"].values()) > 0
    else:  # benchmarks/promises.py
        assert record["equal"]


def test_the_old_records_are_named():
    old = []
    for path in RECORDS:
        record = json.loads(path.read_text())
        if search.changed_since(record):
            old.append(f"{path.stem} ({record['date']})")
    if old:
        named = ", ".join(old)
        warnings.warn(f"of other code: {named}; the command is in each", stacklevel=1)


@pytest.mark.thorough("sample")
def test_no_call_of_the_api_ends_the_process():
    import api

    report = search.run(REPO / "benchmarks" / "api.py", api.SEARCH, 0, 200)
    assert report.findings == [] and report.cases == 200
