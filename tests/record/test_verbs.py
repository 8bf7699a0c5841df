"""The verbs on records, without a native library."""

import json
import re
import subprocess
import sys

import pytest

from ggml_py.record import stream

from ..support.cli_runs import BLOCKED, fails, ok, run
from ..support.own_records import recorded
from ..support.record_mutator import written


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("verbs") / "here.ggrec"
    recorded(path, run=True)
    return path


def test_view_lists_the_plans(path):
    text = ok("view", path)
    head, columns, first, second = text.splitlines()
    assert head.startswith("python") and columns.split()[:3] == ["plan", "sched", "kind"]
    assert first.split()[:4] == ["0", "0", "other", "-"] and first.endswith("for the first time")
    assert second.endswith("first; memory laid out: for the first time")
    data = json.loads(ok("view", path, "--json"))
    assert [p["computed"] for p in data["plans"]] == [4, 0]
    assert data["processes"][0]["ended"] and data["damage"] == []


def test_which_plan_is_meant(path):
    assert "3 nodes" not in ok("view", path, "--plan", 1)
    assert ok("view", path, "--when", "other") == ok("view", path, "--plan", 0)
    error = fails("plan", path, code=2)
    assert "has 2 plans: choose one with --plan N or --when other" in error
    assert "  plan sched kind " in error  # the list
    assert "--plan 2: " in fails("plan", path, "--plan", 2, code=2)
    assert "has no such plan, only: other" in fails("plan", path, "--when", "decode", code=2)
    assert "exclude each other" in fails("plan", path, "--plan", 1, "--when", "other", code=2)


def test_explain_why_not_diff_sweep(path):
    assert " is on BLAS: 1.wgt0" in ok("explain", path, 0, "--plan", 1)
    assert " is on " in ok("why-not", path, 0, "BLAS", "--plan", 1)
    assert "both make the same decisions." in ok("diff", path, path, "--plan", 1)
    done = run("diff", path, path, "--plan", 0, "--plan", 1)
    assert done.returncode == 1 and "nodes" in done.stdout
    assert "plan 0 (other) → 1 (other)" in ok("sweep", path)
    assert "only apply to a model" in fails("sweep", path, "-ngl", 1, code=2)


def test_a_record_has_a_page(path, tmp_path):
    said = run("view", path, "-o", tmp_path / "r.html", command=BLOCKED)
    assert (said.returncode, said.stderr) == (0, f"{tmp_path / 'r.html'}: 2 plans\n")
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "<title>Record of python" in text and '"slices":{' in text
    assert "already exists" in fails("view", path, "-o", tmp_path / "r.html")
    ok("view", path, "--run", "-o", tmp_path / "r.html", "--force")  # the same
    assert (tmp_path / "r.html").read_text("utf-8") == text
    ok("view", path, "--plan", 0, "-o", tmp_path / "p.html")
    assert "<title>Plan of" in (tmp_path / "p.html").read_text("utf-8")
    assert "choose one with --plan N" in fails("view", path, "-o", tmp_path / "r.json", code=2)


def test_a_record_without_times_has_no_page_of_them(tmp_path):
    recorded(tmp_path / "p.ggrec")
    error = fails("view", tmp_path / "p.ggrec", "--run", "-o", tmp_path / "r.html")
    assert "has no measured times" in error and not (tmp_path / "r.html").exists()
    ok("view", tmp_path / "p.ggrec", "-o", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "no times: `ggml-py record --run` records them" in text


def test_a_plan_of_a_record_is_saved_and_drawn(path, tmp_path):
    ok("view", path, "--plan", 0, "-o", tmp_path / "p.json")
    ok("view", path, "--plan", 0, "-o", tmp_path / "p.html")
    assert ok("plan", tmp_path / "p.json", "--text") == ok("plan", path, "--plan", 0, "--text")


def test_damaged_plans_are_counted_and_the_others_shown(path, tmp_path):
    found = [(c.type, c.process, c.time, bytes(c.payload))
             for c in stream.chunks(path.read_bytes(), [])]  # fmt: skip
    at = next(i for i, chunk in enumerate(found) if chunk[0] == "plan")
    found[at] = (*found[at][:3], found[at][3].replace(b"splits\0\0", b"splitz\0\0"))
    (tmp_path / "bad.ggrec").write_bytes(written(found))
    done = run("view", tmp_path / "bad.ggrec")
    assert done.returncode == 0 and "first" in done.stdout.splitlines()[-1]
    assert "bad.ggrec: 1 of 2 plans is damaged: plan 0 of python" in done.stderr
    assert "it has no 'splits'" in done.stderr
    data = json.loads(ok("view", tmp_path / "bad.ggrec", "--json"))
    assert len(data["plans"]) == len(data["damaged_plans"]) == 1


def test_times(path, tmp_path):
    assert "4 computes" in ok("view", path, "--run")
    ok("view", path, "--run", "-o", tmp_path / "run.json")
    assert ok("view", tmp_path / "run.json") == ok("view", path, "--run")
    assert "applies to records only" in fails("view", tmp_path / "run.json", "--run", code=2)


def test_planned_again_on_other_devices(path):
    again = ok("plan", path, "--plan", 0, "-d", "BLAS,CPU", "--text")
    assert again == ok("plan", path, "--plan", 0, "--text")
    moved = ok("plan", path, "--plan", 0, "-d", "sim:gpu0", "-d", "CPU", "--weights", ".=gpu0")
    assert re.search(r"^gpu0 +3 \(100%\)", moved, re.M)
    assert "-ngl can only apply to a model" in fails("plan", path, "--plan", 0, "-ngl", 1, code=2)
    done = run("plan", path, "--plan", 0, "-d", "CPU", "--weights", "none=CPU")
    assert "'none' matches none of the 2 weights of the graph" in done.stderr
    assert "--weights needs -d" in fails("plan", path, "--plan", 0, "--weights", "x=CPU", code=2)
    assert "no device or buffer type 'gpu7'" in fails(
        "plan", path, "--plan", 0, "-d", "CPU", "--weights", ".=gpu7"
    )


def test_options_of_records_are_refused_elsewhere(path, tmp_path):
    ok("view", path, "--plan", 0, "-o", tmp_path / "p.json")
    saved = tmp_path / "p.json"
    assert "--plan applies to records only" in fails("plan", saved, "--plan", 0, code=2)
    assert "--when applies to records only" in fails("explain", saved, 0, "--when", "other", code=2)


def test_without_a_native_library(path):
    """Everything but planning again is read from the file."""
    script = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.startswith('ggml_py.boundary') or name.startswith('_ggml'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from ggml_py.record.session import Record\n"
        "for one in Record.read(sys.argv[1]):\n"
        "    print(one.label, one.plan.headline(), one.plan.explain(0).headline, one.difference)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
