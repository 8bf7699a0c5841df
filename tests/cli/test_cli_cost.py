"""calibrate and cost: llama-bench's rows from a machine's file."""

import json
import re
import time

import pytest

from ggml_py import llama
from ggml_py.boundary.ffi import BUILD
from ggml_py.calibrate.describe import processor
from ggml_py.cost import Machine
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import BLOCKED, fails, ok, run
from ..support.measured import knows_all

pytestmark = pytest.mark.thorough("long", quick=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """m.gguf, a model; machine.json, of one thread, which knows its work."""
    path = tmp_path_factory.mktemp("cost")
    write_llama(path / "m.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    with load(path / "m.gguf", program="bench", n_ctx=512, n_threads=1) as model:
        plans = [model.plan(n, past) for n in (1, 4, 64, 128) for past in (0, 256)]
    ours = {"ggml": BUILD["ggml_version"], "build": BUILD["key"], "processor": processor()}
    knows_all(plans, **ours).save(path / "machine.json")
    return path


def rows(folder, *options):
    done = ok("cost", folder / "m.gguf", "--machine", folder / "machine.json", "-d", "CPU",
              "-t", 1, *options, "--json")  # fmt: skip
    return json.loads(done)


def test_rows_are_those_of_llama_bench(folder):
    found = rows(folder, "-p", "64,128", "-n", "16", "--depth", "0,256")
    assert [row["test"] for row in found["rows"]] == [
        "pp64", "pp128", "tg16", "pp64 @ d256", "pp128 @ d256", "tg16 @ d256",
    ]  # fmt: skip
    for row in found["rows"]:
        low, high = row["tokens_per_second_interval"]
        assert 0 < low <= row["tokens_per_second"] <= high
    assert found["verify"].startswith("llama-bench -m ")
    assert found["verify"].endswith(" -dev none -t 1 -p 64,128 -n 16 -d 0,256")
    assert found["stale"] == []


def changed(folder, change):
    """A machine's file with its samples changed."""
    data = json.loads((folder / "machine.json").read_text())
    for device in data["devices"]:
        device["samples"] = change(device["samples"])
    path = folder / "changed.json"
    path.write_text(json.dumps(data))
    return path


def test_doubts_of_devices_that_compute_nothing_are_not_said(folder):
    data = json.loads((folder / "machine.json").read_text())
    data["doubts"] = ["CPU: no time was left", "gpu0: it was far away"]
    data["devices"].append({**data["devices"][0], "name": "gpu0"})
    path = folder / "doubted.json"
    path.write_text(json.dumps(data))
    words = ("cost", folder / "m.gguf", "--machine", path, "-d", "CPU", "-t", 1, "-p", 64, "-n", 0)
    assert json.loads(ok(*words, "--json"))["doubts"] == ["CPU: no time was left"]
    done = ok(*words)
    assert "doubt: CPU: no time was left" in done and "far away" not in done


def test_what_was_not_measured_makes_it_slower_and_that_is_said(folder):
    lacks = changed(folder, lambda all_: [s for s in all_ if not s["key"].startswith("MUL_MAT")])
    words = ("cost", folder / "m.gguf", "--machine", lacks, "-d", "CPU", "-t", 1, "-p", 64, "-n", 0)
    (row,) = json.loads(ok(*words, "--json"))["rows"]
    assert row["at_most"] and row["bound"] == "unknown" and row["unknown_nodes"]
    done = ok(*words)
    assert re.search(r"pp64 +\? +\d+% of the work not measured", done)
    assert "not measured, so it is slower than that: MUL_MAT " in done
    (known,) = rows(folder, "-p", "64", "-n", "0")["rows"]
    assert known["at_most"] is False and known["tokens_per_second"] < row["tokens_per_second"]


def test_a_machine_of_other_devices_knows_nothing(folder):
    path = changed(folder, lambda _all: [])
    said = fails("cost", folder / "m.gguf", "--machine", path, "-d", "CPU", "-p", 64, "-n", 0)
    assert f"{path} has measured CPU, and {folder / 'm.gguf'} computes on CPU, of which it knows " \
           "nothing: `ggml-py calibrate -d DEVICE`" in said  # fmt: skip


def test_a_context_that_is_too_small_is_refused(folder):
    said = fails("cost", folder / "m.gguf", "--machine", folder / "machine.json", "-d", "CPU",
                 "-p", 512, "-n", 0, "-c", 64, code=2)  # fmt: skip
    assert "-c 64: 512 tokens at depth 0 need 512" in said


def test_nothing_verifies_what_a_simulated_device_takes(folder):
    words = ("cost", folder / "m.gguf", "--machine", folder / "machine.json", "-p", 64, "-n", 0,
             "-d", "sim:gpu0,profile=rtx4090,memory=1G", "-d", "CPU")  # fmt: skip
    assert json.loads(ok(*words, "--json"))["verify"] is None
    done = ok(*words)
    assert "to verify" not in done and "from the data sheet of the rtx4090" in done


def test_more_threads_than_were_measured_are_stale(folder):
    done = ok("cost", folder / "m.gguf", "--machine", folder / "machine.json", "-d", "CPU",
              "-t", 2, "-p", 0, "-n", 8)  # fmt: skip
    assert "stale: it was measured with 1 thread, and 2 compute" in done


def test_the_table_has_the_inputs_and_the_line_to_verify(folder):
    done = ok("cost", folder / "m.gguf", "--machine", folder / "machine.json", "-d", "CPU",
              "-t", 1, "-p", 64, "-n", 0)  # fmt: skip
    was = Machine.load(folder / "machine.json").described
    assert f"{was.processor}, 1 thread, ggml {was.ggml}, {was.date}" in done
    assert re.search(r"pp64 +[\d.]+ +[\d.]+ and [\d.]+ +(bytes|flops|overhead)", done)
    assert "to verify: llama-bench -m" in done


def test_a_saved_plan_needs_no_native_library(folder):
    ok("plan", folder / "m.gguf", "-d", "CPU", "-t", 1, "-o", folder / "p.json.gz", "--force")
    done = ok("cost", folder / "p.json.gz", "--machine", folder / "machine.json", command=BLOCKED)
    assert "bound by" in done and "MUL_MAT" in done
    data = json.loads(ok("cost", folder / "p.json.gz", "--machine", folder / "machine.json",
                         "--json", command=BLOCKED))  # fmt: skip
    (split,) = data["splits"]
    assert data["seconds"] == pytest.approx(split["seconds"])
    assert split["seconds"] >= sum(node["seconds"] or 0.0 for node in data["nodes"]) > 0
    assert list(data) == ["seconds", "interval", "unmeasured", "bound", "unknown_nodes",
                          "unknown_copies", "stale", "assumed", "nodes", "copies", "outputs",
                          "splits"]  # fmt: skip


def test_a_run_is_compared_node_by_node(folder):
    ok("trace", folder / "m.gguf", "-d", "CPU", "-t", 1, "-n", 4, "--per-op", "-o",
       folder / "run.json", "--force")  # fmt: skip
    done = ok("cost", folder / "run.json", "--machine", folder / "machine.json", command=BLOCKED)
    assert re.search(r"^ +node +predicted +measured +miss +op +name$", done, re.M)
    assert "computed one by one" in done
    # Which nodes are among the greatest misses depends on the run: --json has all.
    misses = [abs(float(ms)) for ms in re.findall(r"(-?[\d.]+) ms  [A-Z_]+ +\S", done)]
    assert misses and misses == sorted(misses, reverse=True)
    data = json.loads(ok("cost", folder / "run.json", "--machine", folder / "machine.json",
                         "--json", command=BLOCKED))  # fmt: skip
    assert len(data["nodes"]) >= len(misses)
    assert all(node["measured"] > 0 for node in data["nodes"])


@pytest.mark.thorough("long")
def test_it_is_about_as_fast_as_predicted(folder, tmp_path):
    """Not how exact predictions are (benchmarks/cost_error.py): that they are about this."""
    measured = tmp_path / "machine.json"
    ok("calibrate", "-d", "CPU", "-t", 1, "--types", "f32,q4_0", "-o", measured)
    done = json.loads(ok("cost", folder / "m.gguf", "--machine", measured, "-d", "CPU", "-t", 1,
                         "-p", 0, "-n", 16, "--json"))  # fmt: skip
    (row,) = done["rows"]
    assert row["unknown_nodes"] == 0
    predicted = row["tokens_per_second"]
    with llama.open(folder / "m.gguf", n_threads=1) as model:
        model.eval([1])
        start = time.perf_counter()
        for _ in range(100):
            model.eval([2])
        measured = 100 / (time.perf_counter() - start)
    assert measured / 10 < predicted < measured * 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "0", "-n", "0"), "expected tokens to evaluate"),
        (("-p", "-1"), "expected numbers of tokens separated by commas"),
        (("--depth", "x"), "expected numbers of tokens separated by commas"),
    ],
)
def test_wrong_usage_is_said(folder, words, said):
    machine = folder / "machine.json"
    assert said in fails("cost", folder / "m.gguf", "--machine", machine, *words, code=2)


def test_another_file_is_no_machine(folder):
    error = fails("cost", folder / "m.gguf", "--machine", folder / "m.gguf")
    assert "is not a machine's file: expected one that `ggml-py calibrate" in error


def test_options_of_models_are_refused_for_a_plan(folder):
    ok("plan", folder / "m.gguf", "-d", "CPU", "-t", 1, "-o", folder / "p.json.gz", "--force")
    error = fails("cost", folder / "p.json.gz", "--machine", folder / "machine.json", "-t", 4,
                  code=2)  # fmt: skip
    assert "-t can only apply to a model" in error


def test_a_log_has_no_shapes(folder, tmp_path):
    (tmp_path / "log.txt").write_text("## SPLIT #0: CPU # 0 inputs\n")
    error = fails("cost", tmp_path / "log.txt", "--machine", folder / "machine.json", code=2)
    assert "log.txt is a log with a debug print of a plan: it lacks the shapes" in error


def test_an_existing_file_is_kept(folder):
    before = (folder / "machine.json").read_bytes()
    error = fails("calibrate", "-d", "CPU", "-o", folder / "machine.json")
    assert "already exists: --force replaces it" in error
    assert (folder / "machine.json").read_bytes() == before


def test_a_device_that_is_not_there_is_named(tmp_path):
    error = run("calibrate", "-d", "CUDA7", "-o", tmp_path / "x.json")
    assert error.returncode == 1 and "CUDA7" in error.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_machine_it_says_what_makes_one(folder):
    error = fails("cost", folder / "m.gguf", code=2)
    assert "cost needs --machine FILE, which `ggml-py calibrate -o FILE` writes" in error


def test_a_machine_that_is_not_there_is_named(folder):
    error = fails("cost", folder / "m.gguf", "--machine", folder / "none.json")
    assert "none.json: there is no such file; `ggml-py calibrate -o FILE` writes one" in error


def test_types_that_are_not_there_are_refused(tmp_path):
    error = fails("calibrate", "-d", "CPU", "--types", "q9", "-o", tmp_path / "x.json", code=2)
    assert "--types q9: type 'q9': expected one of" in error
