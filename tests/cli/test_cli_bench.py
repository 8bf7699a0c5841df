"""`bench` beside the real llama-bench: the same keys, columns, rows and names of models."""

import csv
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from ggml_py import Gguf, models
from ggml_py.cli.bench import command
from ggml_py.cli.bench.output import times
from ggml_py.cli.bench.params import (
    PARAMS,
    TEST_PARAMS,
    LayerNumbers,
    Numbers,
    Setup,
    TensorSplits,
    setups,
    values_of,
)  # fmt: skip
from ggml_py.gguf.writer import write_gguf
from ggml_py.models import Model, desc
from ggml_py.models.file.hparams import HParams, Rope
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.arch_files import ARCHS, deeper
from ..support.cli_runs import COMMAND, fails, ok

pytestmark = pytest.mark.thorough("long", quick=10)

SHORT = ("-p", 8, "-n", 4, "-r", 2, "-t", 1)
OURS = {"build_commit", "build_number", "cpu_info", "backends"}
MEASURED = {"test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"}
SEVERAL = (
    "-p", "4-8*2,3", "-n", "0,2", "-pg", "3,2", "-d", "0,5", "-b", "4,2048", "-ub", "4", "-ctk",
    "f16,q8_0", "-ctv", "f16", "-fa", "1", "-t", "1", "-ngl", "0", "--repack", "0,1", "-r", 1,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=2, n_vocab=512, n_head=4, n_head_kv=4))
    return path


def bench(*arguments):
    """In this process."""
    done = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def both(oracle, *arguments):
    """What ours prints, and llama-bench."""
    model, *options = arguments
    return bench(model, *options), oracle.run("llama-bench", "-m", model, *options).stdout


# --- what is printed


def test_json(oracle, model):
    ours, theirs = map(json.loads, both(oracle, model, *SHORT, "-o", "json"))
    assert len(ours) == len(theirs) == 2
    for mine, their in zip(ours, theirs, strict=True):
        assert list(mine) == list(their)
        assert {k: type(v) for k, v in mine.items()} == {k: type(v) for k, v in their.items()}
        same = their.keys() - OURS - MEASURED
        assert {k: mine[k] for k in same} == {k: their[k] for k in same}
    assert json.loads(bench(model, *SHORT, "--json"))[1].keys() == theirs[1].keys()


def test_the_layout_of_json_is_llama_benchs(oracle, model):
    numbers = re.compile(r"[\d.]+(e\+\d+)?")
    ours, theirs = (
        [numbers.sub("0", line.split(":")[0]) for line in text.splitlines()]
        for text in both(oracle, model, *SHORT, "-o", "json")
    )
    assert ours == theirs


def test_products(oracle, model):
    """Every combination, in the same order."""
    ours, theirs = map(json.loads, both(oracle, model, *SEVERAL, "-o", "json"))
    fields = theirs[0].keys() - OURS - MEASURED
    assert len(ours) == 2**4 * 5
    assert [{k: r[k] for k in fields} for r in ours] == [{k: r[k] for k in fields} for r in theirs]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("-d", "0,5", "-fa", "0,1", "-ub", "64"),
        ("-b", "64,128", "-ctk", "q8_0", "-ctv", "q8_0", "-ngl", "1,2", "--repack", "0"),
        ("-pg", "2,2", "-p", 0, "-n", 0, "-dev", "none"),
        ("-ncmoe", "0,1", "-sm", "none,layer", "-lm", "none,mmap", "-mg", "0,1", "-r", 1),
        ("-ts", "3,2/0", "-ot", ",ffn_up=CPU;ffn_down=CPU", "-r", 1),
        ("--no-host", "0,1", "-nopo", "1,0", "-nkvo", "0,1", "-r", 1),
    ],
)
def test_the_table(oracle, model, options):
    """But for the backend's name and the times."""
    ours, theirs = (text.splitlines() for text in both(oracle, model, *SHORT, *options))
    assert ours[:2] == theirs[:2]
    assert len(ours) == len(theirs)
    for mine, their in zip(ours[2:], theirs[2:], strict=True):
        if mine.startswith("|"):
            assert len(mine) == len(their)
            cells, expected = mine.split("|"), their.split("|")
            assert cells[1:4] + cells[5:-2] == expected[1:4] + expected[5:-2]
            assert re.fullmatch(r" *\d+\.\d\d ± \d+\.\d\d ", cells[-2])
    assert ours[-1].startswith("build: ")


def test_csv_and_sql(oracle, model):
    ours, theirs = both(oracle, model, *SHORT, "-o", "csv")
    mine, their = (list(csv.DictReader(io.StringIO(text))) for text in (ours, theirs))
    assert list(mine[0]) == list(their[0])
    assert {k for k in their[0] if mine[0][k] != their[0][k]} <= OURS | MEASURED
    ours, theirs = both(oracle, model, *SHORT, "-o", "sql")
    assert ours.split(";")[0] == theirs.split(";")[0]
    table = sqlite3.connect(":memory:")
    table.executescript(theirs + ours)  # one table takes both
    rows = table.execute("SELECT n_prompt, n_gen, avg_ts > 0 FROM llama_bench").fetchall()
    assert rows == [(8, 0, 1), (0, 4, 1)] * 2


def test_jsonl_and_a_table_on_standard_error(model):
    done = CliRunner().invoke(command, [str(model), *map(str, SHORT), "-o", "jsonl", "-oe", "md"])
    assert [json.loads(line)["n_prompt"] for line in done.stdout.splitlines()] == [8, 0]
    assert done.stderr.startswith("| model ") and "|             tg4 |" in done.stderr


def test_figures_are_made_of_samples_as_llama_bench_makes_them(oracle, model):
    said = oracle.run("llama-bench", "-m", model, *SHORT, "-r", 7, "-o", "json").stdout
    for row in json.loads(said):
        mine = times(row["samples_ns"], row["n_prompt"] + row["n_gen"])
        assert {k: mine[k] for k in ("avg_ns", "stddev_ns")} == {
            k: row[k] for k in ("avg_ns", "stddev_ns")
        }
        for key in ("avg_ts", "stddev_ts"):
            assert f"{mine[key]:.6f}" == f"{row[key]:.6f}"
        assert [float(f"{ts:g}") for ts in mine["samples_ts"]] == row["samples_ts"]
    assert times([5], 10)["stddev_ns"] == times([5], 10)["stddev_ts"] == 0


# --- what models are called


def named(oracle, path):
    """model_type, model_size, model_n_params of llama-bench."""
    said = oracle.run("llama-bench", "-m", path, "-p", 1, "-n", 0, "-r", 1, "-t", 1, "-o", "json")
    (row,) = json.loads(said.stdout)
    return row["model_type"], row["model_size"], row["model_n_params"]


def ours(path):
    with Gguf.open(path) as gguf, models.load(path, n_threads=1) as model:
        nbytes = sum(t.nbytes for t in gguf.tensors.values())
        return desc(gguf, model.hparams), nbytes, model.weights.n_params


@pytest.mark.parametrize("name", ARCHS)
def test_every_architecture(oracle, arch_file, name):
    assert ours(arch_file(name)) == named(oracle, arch_file(name))


LAYERS = (
    ("llama", 16), ("llama", 32), ("qwen2", 36), ("qwen3", 40), ("gemma2", 26), ("gemma3", 18),
    ("phi3", 24), ("olmo2", 16), ("smollm3", 36), ("gpt2", 12), ("gpt-oss", 24), ("qwen3moe", 48),
)  # fmt: skip


@pytest.mark.parametrize(("name", "n_layer"), LAYERS)
def test_sizes_by_layers(oracle, arch_file, tmp_path, name, n_layer):
    path = tmp_path / "deeper.gguf"
    deeper(arch_file(name), path, n_layer, "f16")
    found = ours(path)
    assert found == named(oracle, path)
    assert "?B" not in found[0]


@pytest.mark.parametrize(
    ("arch", "numbers", "size"),
    [
        ("llama", {"n_layer": 32, "n_vocab": 49152}, "3B"),
        ("llama", {"n_layer": 32, "n_vocab": 128256}, "8B"),
        ("llama", {"n_layer": 80, "n_head_kv": 8}, "70B"),
        ("qwen2", {"n_layer": 24, "n_embd": 1024}, "0.5B"),
        ("qwen2", {"n_layer": 24}, "1B"),
        ("qwen2", {"n_layer": 28, "n_embd": 1536}, "1.5B"),
        ("qwen2", {"n_layer": 40, "n_head": 20}, "4B"),
        ("qwen3", {"n_layer": 28, "n_embd": 1024}, "0.6B"),
        ("qwen3", {"n_layer": 36, "n_embd": 2560}, "4B"),
        ("mamba", {"n_layer": 48, "n_embd": 2048}, "1.5B"),
        ("mamba", {"n_layer": 64, "n_embd": 4096}, "?B"),
        ("mamba2", {"n_layer": 64, "n_embd": 4096}, "7B"),
        ("llama", {"n_layer": 31}, "?B"),
    ],
)
def test_sizes_that_go_by_more_than_layers(model, arch, numbers, size):
    """Too large to make here; read in llama.cpp's source."""
    whole = {"n_vocab": 32000, "n_ctx_train": 8, "n_embd": 64, "n_head": 16, "n_head_kv": 16}
    rope = Rope(4, 0, 8, 1e4, 1.0, 0.0, 1.0)
    hp = HParams(arch=arch, n_embd_head=4, n_ff=4, rope=rope, **{**whole, **numbers})
    with Gguf.open(model) as gguf:
        assert desc(gguf, hp) == f"{arch} {size} Q4_0"


@pytest.mark.parametrize("file_type", [*range(42), 1026, None])
def test_types(oracle, tmp_path, file_type):
    spec = LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=1, n_ff=32, n_vocab=64, type="f16")
    header = {**spec.header(), "general.file_type": file_type}
    path = tmp_path / "typed.gguf"
    write_gguf(path, {k: v for k, v in header.items() if v is not None}, spec.tensors())
    assert ours(path)[0] == named(oracle, path)[0]


@pytest.mark.parametrize(
    "types", [("q4_0", "f16", "bf16"), ("q8_0", "f16", "q8_0"), ("q4_0", "q4_0", "f16")]
)
def test_a_guessed_type(oracle, tmp_path, types):
    """Of the types with most tensors the one that is there first; norms are f32 always."""
    spec = LlamaSpec(n_layer=12, n_embd=32, n_head=2, n_head_kv=1, n_ff=32, n_vocab=64, type="f32")
    tensors = [
        (name, data, types[i % 3] if len(ne) == 2 else type_, ne)
        for i, (name, data, type_, ne) in enumerate(spec.tensors())
    ]
    path = tmp_path / "guessed.gguf"
    header = {k: v for k, v in spec.header().items() if k != "general.file_type"}
    write_gguf(path, header, tensors)
    assert "(guessed)" in ours(path)[0]
    assert ours(path)[0] == named(oracle, path)[0]


# --- what is timed


@pytest.fixture
def calls(monkeypatch):
    """Numbers of tokens that are evaluated; 0 for a new sequence."""
    seen = []
    eval_, reset = Model.eval, Model.reset
    monkeypatch.setattr(
        Model, "eval", lambda self, t, *a, **k: (seen.append(len(t)), eval_(self, t, *a, **k))[1]
    )
    monkeypatch.setattr(Model, "reset", lambda self: (seen.append(0), reset(self))[1])
    return seen


def test_warm_up_depth_and_batches(model, calls):
    bench(model, "-p", 10, "-n", 0, "-pg", "3,2", "-b", 4, "-d", 5, "-r", 2, "-t", 1)
    first = [0, *[4, 4, 2], *[0, *[4, 1], *[4, 4, 2]], *[0, *[4, 4, 2]]]  # put back, not computed
    second = [0, 3, 1, *[0, 3, 1, 1] * 2]
    assert calls == first + second
    calls.clear()
    bench(model, "-p", 3, "-n", 2, "-r", 1, "-t", 1, "--no-warmup")
    assert calls == [0, 0, 3, 0, 0, 1, 1]


def test_the_depth_is_there_in_all_repetitions(model, monkeypatch):
    depths = []
    monkeypatch.setattr("ggml_py.cli.bench._generate", lambda m, n: depths.append(m.n_past))
    bench(model, "-p", 0, "-n", 2, "-d", "3,7,3", "-r", 2, "-t", 1, "--no-warmup")
    assert depths == [3, 3, 7, 7, 3, 3]


def test_progress(model):
    done = CliRunner().invoke(command, [str(model), *map(str, SHORT), "--progress"])
    said = done.stderr.splitlines()
    assert len(said) == 2 * (1 + 1 + 2)
    assert said[-1] == "ggml-py bench: benchmark 2/2: generation run 2/2"


def test_models_one_after_the_other(model, tmp_path):
    other = tmp_path / "other.gguf"
    write_llama(other, LlamaSpec(n_layer=1, n_vocab=512))
    said = bench(model, "-m", f"{other},{model}", "-p", 1, "-n", 0, "-r", 1, "-t", 1, "--json")
    assert [Path(row["model_filename"]) for row in json.loads(said)] == [model, other, model]


# --- how it ends


@pytest.mark.parametrize("form", ["json", "md"])
def test_ctrl_c_ends_with_the_rows_that_are_done(model, form):
    child = subprocess.Popen(
        [*COMMAND, "bench", str(model), "-p", "8", "-n", "30000", "-t", "1", "-o", form],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    seen = ""
    for line in child.stdout:
        seen += line
        if "samples_ts" in line or "pp8" in line:
            break
    child.send_signal(signal.SIGINT)
    rest, errors = child.stdout.read(), child.stderr.read()
    child.wait(60)
    assert child.returncode == 130 and errors.strip() == "stopped"
    if form == "json":
        (row,) = json.loads(seen + rest)
        assert row["n_prompt"] == 8
    else:
        assert (seen + rest).splitlines()[-1].startswith("build: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'MODEL'"),
        (("m", "-p", 0, "-n", 0), "nothing to time: -p, -n and -pg are all 0"),
        (("m", "-p", "x"), "'x': expected whole numbers from 0 on, separated by commas"),
        (("m", "-p", "1,"), "'': expected whole numbers"),
        (("m", "-ngl", "1,auto"), "'auto': expected a number of layers, or all"),
        (("m", "-ngl", "1,many"), "'many': expected whole numbers from -1 on"),
        (("m", "-p", "1-9999999999"), "first-last*factor, of at most 10000 numbers"),
        (("m", "-p", "4-1"), "'4-1': expected whole numbers"),
        (("m", "-p", "1-4*1"), "'1-4*1': expected whole numbers"),
        (("m", "-p", "0-4*2"), "'0-4*2': expected whole numbers"),
        (("m", "-t", 0), "'0': expected whole numbers from 1 on"),
        (("m", "-pg", "1"), "'1': expected two numbers of tokens, like 512,128"),
        (("m", "-fa", "maybe"), "'maybe': expected one of on,"),
        (("m", "--repack", "2"), "'2': expected one of 0, 1"),
        (("m", "-ts", "a/b"), "'a/b': expected numbers separated by /"),
        (("m", "-ctk", "f16,"), "'': expected one of types"),
        (("m", "-lm", "dio"), "'dio': expected one of auto, mmap, none"),
        (("m", "-r", 0), "0 is not in the range x>=1"),
        (("m", "-o", "xml"), "'xml' is not one of"),
    ],
)
def test_wrong_usage(arguments, message):
    assert message in " ".join(fails("bench", *arguments, code=2).split())


def test_errors_are_one_line(model, tmp_path):
    assert fails("bench", tmp_path / "none.gguf").startswith("error: ")
    assert "no device named 'X'" in fails("bench", model, "-dev", "X/CPU")
    assert "type 'q9'" in fails("bench", model, "-ctk", "q9")


def test_parts_are_printed_as_llama_bench_prints_them(oracle, model):
    said = oracle.run("llama-bench", "-m", model, *SHORT, "-ts", "3/1/0,0", "-o", "json").stdout
    found = TensorSplits().convert("3/1/0,0", None, None)
    assert [row["tensor_split"] for row in json.loads(said)] == [found[0]] * 2 + [found[1]] * 2
    (setup,) = setups(["m"], [], values_of({p.field: [] for p in (*TEST_PARAMS, *PARAMS)}))
    assert setup.load_options()["tensor_split"] is None
    split = Setup("m", {**setup.values, "tensor_split": found[0]}, setup.tests)
    assert split.load_options()["tensor_split"] == (3.0, 1.0)


def test_ranges():
    assert LayerNumbers(-1).convert("all,3,1-2", None, None) == [-1, 3, 1, 2]
    convert = Numbers(0).convert
    assert convert("1,3-5,8-16+4,2-20*3", None, None) == [1, 3, 4, 5, 8, 12, 16, 2, 6, 18]


def test_it_is_a_verb(model):
    assert ok("bench", model, *SHORT).startswith("| model ")
