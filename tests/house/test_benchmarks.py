"""The benchmarks run and compare what they claim to. Their figures are not tested."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def table(*options):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "table.py"), *options],
        capture_output=True, text=True, check=False, env=os.environ, timeout=300,
    )  # fmt: skip


@pytest.mark.thorough("long")
def test_the_table_compares_each_thing_with_a_peer():
    done = table("--rounds", "1", "--only", "startup,ops,copies,computes,memory", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {"raw cffi, guarded", "memcpy", "numpy", "python + import numpy"} <= {
        row["peer"] for row in rows
    }
    assert len(rows) >= 15
    for row in rows:
        assert min(row["ours"], row["theirs"], row["ratio"]) > 0, row
        assert row["low"] <= row["ratio"] <= row["high"], row


@pytest.mark.thorough("long")
def test_an_unknown_part_is_named():
    done = table("--only", "ops,music")
    assert done.returncode == 2
    assert "unknown part music: known are startup, ops" in done.stderr


def test_the_differential_run_counts_plans(tmp_path):
    out = tmp_path / "differential.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "differential.py"), "--cases", "20", "--out", str(out)],
        capture_output=True, text=True, check=False, env=os.environ, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(out.read_text())["outcomes"]
    assert sum(int(plans.split()[0]) * n for plans, n in outcomes.items()) > 40


@pytest.mark.thorough("long")
def test_planning_is_measured_and_a_plan_file_is_small():
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "planning.py"), "--sizes", "5000", "--rounds", "1",
         "--json"],
        capture_output=True, text=True, check=False, env=os.environ, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["file"] < 3e6
    assert min(row.values()) > 0


@pytest.mark.thorough("programs")
def test_models_are_compared_with_llama_bench_and_libllama(tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "models.py"), "--models", "tiny-q4_0", "--rounds", "1",
         "--threads", "1", "--folder", str(tmp_path), "--json"],
        capture_output=True, text=True, check=False, env=os.environ, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["peer"] for row in rows] == [
        *["llama-bench"] * 2, *["llama-bench --repack 0"] * 2, *["libllama"] * 3
    ]  # fmt: skip
    assert [row["what"].split(",")[:-1] for row in rows[4:]] == [
        ["load and first token"], ["its peak memory"], ["load and first token", " cold"]
    ]  # fmt: skip
    assert all(min(row["ours"], row["theirs"]) > 0 for row in rows)
    alone = json.loads(done.stderr[done.stderr.index("{") :])
    assert set(alone) == {"tiny-q4_0", "32 layers"}
    assert all(figure > 0 for figures in alone.values() for figure in figures.values())


def test_processes_that_stay_take_turns(tmp_path, oracle):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "steady.py"), "--models", "tiny-q4_0", "--launches", "2",
         "--rounds", "2", "--threads", "1", "--folder", str(tmp_path), "--json"],
        capture_output=True, text=True, check=False, env=os.environ, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["what"].split()[0] for row in rows] == ["prompt", "decode"]
    assert all(0 < row["sure"][0] <= row["ratio"] <= row["sure"][1] for row in rows)
    assert rows[0]["theirs"] < rows[1]["theirs"]  # a prompt's token is faster than a single one


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("name", ["models.py", "steady.py"])
def test_what_they_cannot_measure_is_refused(name):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), "--what", "decode,token"],
        capture_output=True, text=True, check=False, env=os.environ, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.search(r"--what: expected some of prompt,decode.*, got 'decode,token'", done.stderr)


def test_sampling_is_compared_with_llama_cpps(oracle):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "sampling.py"), "--rounds", "1", "--json"],
        capture_output=True, text=True, check=False, env=os.environ, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 3 and {row["peer"] for row in rows} == {"llama.cpp"}
    assert all(min(row["ours"], row["theirs"]) > 0 for row in rows)


@pytest.mark.thorough("long")
def test_a_decoding_step_is_taken_apart(tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "decode_step.py"), "--model", "tiny-q4_0", "--threads",
         "1", "--tokens", "40", "--folder", str(tmp_path), "--json"],
        capture_output=True, text=True, check=False, env=os.environ, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["native_us"] + result["python_us"] == pytest.approx(result["token_us"])
    assert result["python_share"] == pytest.approx(result["python_us"] / result["token_us"])
    by_function = {f["function"]: f for f in result["functions"]}
    assert sum(f["us"] for f in result["functions"]) == pytest.approx(result["python_us"])
    assert "models/own_model.py: _likeliest_after" in by_function
    assert not any("graph_compute" in name for name in by_function)


def parity(*options):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "parity.py"), "--only", "llama,gpt-oss", *options],
        capture_output=True, text=True, check=False, env=os.environ, timeout=300,
    )  # fmt: skip


def test_parity_is_a_table_of_architectures_and_settings(oracle):
    done = parity("--quick", "--json")
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)
    assert [(c["architecture"], c["type"], c["setting"]) for c in cells] == [
        (name, type_, setting)
        for name in ("llama", "gpt-oss")
        for type_ in ("f16", "q4_0")
        for setting in ("plain", "repacked")
    ]
    assert all(c["exact"] and c["tokens_equal"] and c["delta"] == 0 for c in cells)
    assert "'music': expected some of f32" in parity("--types", "music").stderr


@pytest.mark.parametrize(
    ("change", "text"), [(1.0, "exact"), (1 + 1e-6, "e-0"), (1.01, "1.0e-02"), (-1.0, "tokens")]
)
def test_parity_notices_differences(oracle, tmp_path, monkeypatch, change, text):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import parity

    path = parity.file_of(oracle, "llama", "f16", tmp_path)
    real = parity.logits

    def changed(*arguments):
        tokens, rows = real(*arguments)
        return (tokens if change > 0 else [t + 1 for t in tokens]), rows * np.float32(change)

    monkeypatch.setattr(parity, "logits", changed)
    found = parity.cell(oracle, path, "llama", "f16", "plain", (7,), 4, tmp_path)
    assert text in found.text
    assert found.exact == (change == 1.0) and found.good == (change in (1.0, 1 + 1e-6))


def test_the_parity_table_shows_the_worst(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from parity import Cell, show

    found = [
        Cell("llama", "f32", "plain", [1], 4, True, 0.0, True),
        Cell("llama", "f16", "plain", [1], 4, False, 1e-7, True),
        Cell("llama", "f32", "flash", [1], 4, False, 0.1, True),
        Cell("llama", "f16", "flash", [1], 4, False, 0.0, False),
    ]
    show(found, ["plain", "flash"], by_type=False, markdown=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| llama | 1.0e-07 | tokens |"
    assert lines[-1] == "1 of 4 exact; the worst: tokens (llama, f16, flash)"
    show(found[:3], ["plain", "flash"], by_type=True, markdown=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["| llama | f32 | exact | 1.0e-01 |", "| llama | f16 | 1.0e-07 |  |"]


# --- benchmarks/advice.py


@pytest.fixture
def setups(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("setups")


def test_a_recommendation_of_two_overrides_is_followed_whole(setups):
    assert setups.change_of("-ngl 25 -ot 'a=gpu0' -ot 'ffn=CPU'") == {
        "-ngl": "25", "-ot": "a=gpu0,ffn=CPU",
    }  # fmt: skip


def test_the_largest_buffer_counts_on_every_card(setups, tmp_path):
    """With ops of Vulkan, too: such a simulated device refuses a larger one."""
    setup = setups.drawn(1581)
    assert setup.cards[0].profile == "vulkan" and setup.cards[0].max_size
    path = setup.spec.write(tmp_path / "model.gguf")
    with setup.opened(path, setup.options()) as model:
        assert "is larger than gpu0's largest buffer" in setups.too_large(setup, model)
