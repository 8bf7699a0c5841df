"""place --measure: llama-bench runs the quickest few and the given flags; its figures decide."""

import json
import os
import re
import shlex
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ggml_py import llama
from ggml_py.cost import Machine
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.place import Flags, Way, Workload
from ggml_py.place.measure import Measured, bench_line, find_program, measure, noise

from ..support.cli_runs import ok, run
from ..support.measured import knows_all

# A llama-bench whose seconds are those in its environment, by the number of threads.
FAKE = """#!{python}
import json, os, sys
words = sys.argv[1:]
value = {{flag: words[words.index(flag) + 1] for flag in ("-t", "-p", "-n", "-d")}}
with open(os.environ["FAKE_LOG"], "a") as log:
    print(json.dumps(words), file=log)
seconds = json.loads(os.environ["FAKE_SECONDS"])[value["-t"]]
if seconds is None:
    sys.exit("error: no such thing")
n = int(value["-p"]) + int(value["-n"])
print(json.dumps({{"n_prompt": int(value["-p"]), "n_gen": int(value["-n"]),
                  "n_depth": int(value["-d"]), "avg_ns": seconds * 1e9, "avg_ts": n / seconds}}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """m.gguf; one.json and two.json, machines of one and two threads, two being twice as fast."""
    path = tmp_path_factory.mktemp("measure")
    write_llama(path / "m.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    with llama.open(path / "m.gguf", n_ctx=128, program="server", n_threads=1) as model:
        plans = [model.plan(n, past) for n in (1, 16, 64) for past in (0, 48)]
        for name, n in (("one", 1), ("two", 2)):
            knows_all(plans, n_threads=n, gflops=0.1, gbps=0.1).save(path / f"{name}.json")
    return path


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """`bench({"1": seconds, "2": seconds})` is the path of a llama-bench with those seconds."""
    path = tmp_path / "llama-bench"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))

    def made(seconds):
        monkeypatch.setenv("FAKE_SECONDS", json.dumps(seconds))
        return path

    made.log = tmp_path / "log"
    return made


def placed(folder, program, *words):
    return ("place", folder / "m.gguf", "-d", "CPU", "--machine", folder / "one.json", "--machine",
            folder / "two.json", "--prompt", 64, "--gen", 16, "--reserve", 0, "--measure",
            "--llama-bench", program, *words)  # fmt: skip


def test_what_was_measured_decides(folder, bench):
    """Two threads are predicted to be quicker; this machine is slower with them."""
    words = placed(folder, bench({"1": 1.0, "2": 3.0}), "-t", 1)
    data = json.loads(ok(*words, "--json"))
    assert data["keep"] and "nothing that was measured is quicker" in data["text"]
    assert data["measured"][0]["seconds"] == [2.0] * 5  # a prompt and a generation in each round
    assert data["measured"][0]["rows"] == {"pp64": 64.0, "tg16 @ d64": 16.0}
    assert any(one["seconds"] == [6.0] * 5 for one in data["measured"])


def test_a_gain_that_was_measured_is_taken(folder, bench):
    done = ok(*placed(folder, bench({"1": 3.0, "2": 1.0}), "-t", 1, "--rounds", 2))
    assert done.splitlines()[0].startswith("66.7% less time was measured; rounds tell gains from")
    assert "measured   pp64 64.0 t/s, tg16 @ d64 16.0 t/s: " in done
    assert re.search(r"^to run: llama-server -m .* -t 2", done, re.M)


def test_a_gain_within_the_noise_is_none(folder, bench):
    data = json.loads(ok(*placed(folder, bench({"1": 1.0, "2": 0.995}), "-t", 1), "--json"))
    assert data["keep"] and data["text"].startswith("keep what you have: 0.5% less time")


def test_rounds_take_turns(folder, bench):
    ok(*placed(folder, bench({"1": 1.0, "2": 1.0}), "-t", 1, "--rounds", 2))
    lines = [json.loads(line) for line in bench.log.read_text().splitlines()]
    threads = [line[line.index("-t") + 1] for line in lines]
    half = len(threads) // 2
    assert threads[:half] == threads[half:] and set(threads[:half]) == {"1", "2"}


def test_a_program_that_fails_is_said(folder, bench):
    done = run(*placed(folder, bench({"1": None, "2": 1.0}), "-t", 1))
    assert done.returncode == 1 and "nothing was measured: " in done.stderr
    assert "failed (1):" in done.stderr and "error: no such thing" in done.stderr
    assert "to run: llama-server" in done.stdout  # what was predicted is not lost


def test_others_are_measured_where_one_fails(folder, bench):
    data = json.loads(ok(*placed(folder, bench({"1": 1.0, "2": None}), "-t", 1), "--json"))
    (one,) = data["measured"]
    assert data["keep"] and "-t 1" in one["flags"]
    lines = [json.loads(line) for line in bench.log.read_text().splitlines()]
    assert sum(line[line.index("-t") + 1] == "2" for line in lines) == 1  # not in later rounds


def test_what_llama_bench_does_not_know_is_not_measured(folder, bench):
    """llama-server takes a cache of f32."""
    words = placed(folder, bench({"1": 1.0, "2": 0.5}), "-t", 1)
    ok(*words, "--cache-types", "f32,f16", "--json")
    assert "f32" not in bench.log.read_text()


def test_the_commands_of_the_page(folder, bench, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "PLACE.md").read_text()
    commands = re.findall(r"^\$ ggml-py (.*)$", page, re.M)
    (tmp_path / "model.gguf").write_bytes((folder / "m.gguf").read_bytes())
    one = Machine.load(folder / "one.json")
    monkeypatch.chdir(tmp_path)
    fake = bench({"4": 1.0, "8": 1.0})
    for words in map(shlex.split, commands):
        if words[0] == "calibrate":  # it takes 90 seconds
            n = int(words[words.index("-t") + 1])
            replace(one, described=replace(one.described, n_threads=n)).save(words[-1])
            continue
        more = ("--llama-bench", fake) if "--measure" in words else ()
        assert "to run: llama-server -m model.gguf" in ok(*words, "-d", "CPU", *more)


def test_noise_is_that_of_the_rounds():
    def one(*seconds):
        return Measured(Way(Flags(), (), (), {}), seconds, {})

    quiet, loud = one(1.0, 1.0, 1.0, 1.0), one(0.8, 0.9, 1.1, 1.2)
    assert noise((quiet,)) == 0.01
    assert noise((quiet, loud)) > 0.1
    assert noise((one(0.8, 0.9, 1.1, 1.2),)) > noise((one(*[0.8, 0.9, 1.1, 1.2] * 4),))


# --- upstream's own


def test_llama_bench_takes_every_flag(oracle, folder):
    flags = [
        Flags(n_threads=1), Flags(n_threads=2, n_gpu_layers=3, n_ubatch=64, n_batch=128),
        Flags(n_threads=1, flash_attn="on", type_k="q8_0", type_v="q8_0"),
        Flags(n_threads=1, groups=(("dense", 1), ("attention", 1)), n_cpu_moe=1),
        Flags(n_threads=1, cpu_moe=True, n_cpu_ffn=1, op_offload=False, offload_kqv=False),
        Flags.of({"n_threads": 1, "repack": False, "no_host": True, "load_mode": "none",
                  "split_mode": "none"}),
    ]  # fmt: skip
    names = {"n_threads": "n_threads", "n_gpu_layers": "n_gpu_layers", "n_ubatch": "n_ubatch",
             "type_k": "type_k", "repack": "repack", "no_host": "no_host", "n_cpu_moe": "n_cpu_moe",
             "split_mode": "split_mode", "load_mode": "load_mode"}  # fmt: skip
    for one in flags:
        way = Way(one, (), (), {})
        line = bench_line(oracle.bin / "llama-bench", str(folder / "m.gguf"), way, Workload(4, 0),
                          ("CPU",), 1)  # fmt: skip
        done = oracle.run("llama-bench", *line[1:], "-r", 1, "-o", "jsonl")
        (row,) = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
        for name, key in names.items():
            wanted = one.options[name]
            assert wanted is None or row[key] == wanted, (one, name)
        assert row["no_op_offload"] == int(not one.op_offload)
        assert row["no_kv_offload"] == (not one.offload_kqv)
        overrides = [pattern for pattern, _where in one.patterns()]
        assert all(pattern in row["tensor_buft_overrides"] for pattern in overrides)


def test_it_measures_with_upstreams_program(oracle, folder):
    way = Way(Flags(n_threads=1), (), (), {})
    for rounds in (1, 2):
        (found,) = measure(oracle.bin / "llama-bench", str(folder / "m.gguf"), [way],
                           [Workload(64, 8)], ("CPU",), 1, rounds=rounds)  # fmt: skip
        assert list(found.rows) == ["pp64", "tg8 @ d64"] and len(found.seconds) == rounds
        expected = 64 / found.rows["pp64"] + 8 / found.rows["tg8 @ d64"]
        # The median of two rates is their mean, and 1 / x of a mean is less than the mean of 1 / x.
        assert 0 < expected <= max(found.seconds) * 1.001
        assert rounds > 1 or found.usual == pytest.approx(expected, rel=1e-3)
    assert find_program().name == "llama-bench" and os.access(find_program(), os.X_OK)
