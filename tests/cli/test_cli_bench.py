"""`bench` beside an unmodified llama-bench: rows, keys and columns; devices; how it ends."""

import contextlib
import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ggml_py import Gguf
from ggml_py.boundary.ffi import BUILD
from ggml_py.cli.bench import command
from ggml_py.gguf.writer import write_gguf
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support import rpc_net
from ..support.cli_runs import COMMAND, fails, ok, run
from ..support.rpc_client import needs_rpc

pytestmark = pytest.mark.thorough("programs")

SHORT = ("-p", 8, "-n", 4, "-r", 2, "-t", 1)
OURS = {"build_commit", "build_number", "cpu_info", "backends"}
MEASURED = {"test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"}
SEVERAL = (
    "-p", "4-8*2,3", "-n", "0,2", "-pg", "3,2", "-d", "0,5", "-b", "4,2048", "-ub", "4", "-ctk",
    "f16,q8_0", "-ctv", "f16", "-fa", "1", "-t", "1", "-ngl", "0", "--repack", "0,1", "-r", 1,
)  # fmt: skip
SIM = "sim:gpu0,profile=rtx4090"


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


def rows(*arguments):
    return json.loads(bench(*arguments, "--json"))


def both(oracle, model, *options):
    """The output of ours and of the unmodified program."""
    return bench(model, *options), oracle.run("llama-bench", "-m", model, *options).stdout


# --- what is printed


@pytest.mark.parametrize("options", [SHORT, SEVERAL], ids=["short", "several"])
def test_rows_and_keys(oracle, model, options):
    """Every combination, in the same order, with the same values."""
    ours, theirs = map(json.loads, both(oracle, model, *options, "-o", "json"))
    assert len(ours) == len(theirs) > 1
    for mine, their in zip(ours, theirs, strict=True):
        assert list(mine) == list(their)
        same = their.keys() - OURS - MEASURED
        assert {k: mine[k] for k in same} == {k: their[k] for k in same}
        assert mine["avg_ts"] > 0
        assert (mine["build_commit"], mine["build_number"]) == (BUILD["key"], BUILD["llama_build"])


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("-d", "0,5", "-fa", "0,1", "-ub", "64"),
        ("-pg", "2,2", "-p", 0, "-n", 0, "-dev", "none", "-ncmoe", "0,1", "-ts", "3,2/0"),
    ],
)
def test_the_table(oracle, model, options):
    """But for the backend's name and the times."""
    ours, theirs = (text.splitlines() for text in both(oracle, model, *SHORT, *options))
    assert ours[:2] == theirs[:2]
    assert len(ours) == len(theirs)
    for mine, their in zip(ours[2:], theirs[2:], strict=True):
        cells, expected = mine.split("|"), their.split("|")
        assert cells[1:4] + cells[5:-2] == expected[1:4] + expected[5:-2]
    assert ours[-1] == f"build: {BUILD['key']} ({BUILD['llama_build']})"


@pytest.mark.parametrize("form", ["csv", "sql", "jsonl"])
def test_other_formats(oracle, model, form):
    ours, theirs = both(oracle, model, *SHORT, "-o", form)
    if form == "csv":
        ours, theirs = (csv.DictReader(io.StringIO(text)).fieldnames for text in (ours, theirs))
    elif form == "jsonl":
        ours, theirs = ([*map(list, map(json.loads, t.splitlines()))] for t in (ours, theirs))
    else:
        ours, theirs = ours.split(";")[0], theirs.split(";")[0]
    assert ours == theirs


def test_standard_error_has_the_progress_and_a_second_table(model):
    done = CliRunner().invoke(
        command, [str(model), *map(str, SHORT), "--progress", "-o", "jsonl", "-oe", "md"]
    )
    assert [json.loads(line)["n_prompt"] for line in done.stdout.splitlines()] == [8, 0]
    assert "| model " in done.stderr and "|             tg4 |" in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("llama-bench: ")]
    assert said[-1] == "llama-bench: benchmark 2/2: generation run 2/2"
    assert len(said) == 2 * (1 + 1 + 2)


def test_a_terminal_shows_a_bar_beside_the_table(model):
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [*COMMAND, "bench", str(model), "-p", "2000", "-n", "0", "-t", "1", "-r", "3"],
        stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    table, _ = done.communicate(timeout=60)
    os.set_blocking(ours, False)
    said = os.read(ours, 1 << 16).decode()
    assert "benchmark 1/1" in said and "llama-bench: benchmark" not in said
    assert len(table.splitlines()) == 5 and "pp2000" in table


def test_models_one_after_the_other(model, tmp_path):
    other = tmp_path / "other.gguf"
    write_llama(other, LlamaSpec(n_layer=1, n_vocab=512))
    found = rows(model, "-m", f"{other},{model}", "-p", 1, "-n", 0, "-r", 1, "-t", 1)
    assert [Path(row["model_filename"]) for row in found] == [model, other, model]


def test_the_help_names_llama_benchs():
    said = ok("bench", "--help")
    assert said.startswith("Usage: ggml-py bench [MODEL]... [OPTIONS] [LLAMA-BENCH'S OPTIONS]\n")
    assert "`ggml-py bench -- --help`" in " ".join(said.split())
    assert "--n-depth" not in said
    assert "-d, --n-depth <n>" in ok("bench", "--", "--help")


def test_an_architecture_that_we_do_not_write(model, tmp_path):
    with Gguf.open(model) as gguf:
        keys = {key.replace("llama.", "xverse."): value for key, value in gguf.metadata.items()}
        keys["general.architecture"] = "xverse"
        tensors = [(t.name, gguf.data(t.name), t.type, t.ne) for t in gguf.tensors.values()]
        write_gguf(tmp_path / "xverse.gguf", keys, tensors)
    assert {row["model_type"] for row in rows(tmp_path / "xverse.gguf", *SHORT)} == {
        "xverse ?B Q4_0"
    }


# --- devices


def test_a_simulated_device_and_a_depth(model):
    found = rows(model, "-d", SIM, "-d", "CPU", "-d", "0,4", *SHORT, "-ngl", "0,9")
    assert [(row["n_depth"], row["n_gpu_layers"]) for row in found[::2]] == [
        (0, 0), (4, 0), (0, 9), (4, 9)
    ]  # fmt: skip
    for row in found:
        assert row["devices"] == "gpu0" and "SIM" in row["backends"].split(",")
        assert row["gpu_info"] == "simulated by ggml_py: NVIDIA GeForce RTX 4090"


def backends_of(model, *options):
    """The backends of the splits that the scheduler of a prompt prints."""
    words = (model, "-p", 64, "-n", 0, "-r", 1, "-t", 1, "-v", *options)
    done = run("bench", *words, env={"GGML_SCHED_DEBUG": "1"})
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^## SPLIT #\d+: (\w+)", done.stderr, re.M))


@pytest.mark.skipif("blas" not in BUILD["backends"], reason="built without BLAS")
def test_the_accelerators_are_those_that_are_named(tmp_path):
    model = tmp_path / "f32.gguf"
    write_llama(model, LlamaSpec(n_layer=1, n_vocab=512, type="f32"))
    assert backends_of(model) == {"BLAS", "CPU"}
    assert backends_of(model, "-d", "CPU") == backends_of(model, "-dev", "CPU") == {"CPU"}
    assert backends_of(model, "-d", "BLAS", "-d", "CPU") == {"BLAS", "CPU"}
    assert backends_of(model, "-d", "sim:gpu0") == {"gpu0", "CPU"}


@needs_rpc
def test_a_server(model):
    with rpc_net.server(1) as process:
        found = rows(model, "-d", f"rpc:{process.endpoint}", "-d", "CPU", *SHORT)
    assert [row["devices"] for row in found] == ["RPC0"] * 2
    said = fails("bench", model, "-d", f"rpc:127.0.0.1:{rpc_net.free_port()}", *SHORT)
    assert re.fullmatch(
        r"error: llama-bench: RPC server .* cannot be reached .*\(SIGABRT\)\n", said
    )


# --- how it ends


@pytest.mark.parametrize("form", ["json", "md"])
def test_ctrl_c_ends_with_the_rows_that_are_done(model, form):
    child = subprocess.Popen(
        [*COMMAND, "bench", str(model), "-p", "8", "-n", "300000", "-t", "1", "-o", form],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    seen = ""
    for line in child.stdout:
        seen += line
        if "samples_ns" in line or "pp8" in line:
            break
    child.send_signal(signal.SIGINT)
    rest, errors = child.stdout.read(), child.stderr.read()
    child.wait(60)
    assert child.returncode == 130 and errors.strip() == "stopped"
    if form == "json":
        (row,) = json.loads(seen + rest)
        assert row["n_prompt"] == 8


def benches_of(pid):
    """The processes of llama-bench that another one has started."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if Path(f"/proc/{child}/comm").read_text() == "llama-bench\n":
                found.append(child)
    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_llama_bench_is_left_behind(model, how):
    parent = subprocess.Popen(
        [*COMMAND, "bench", str(model), "-p", "100000", "-n", "0", "-t", "1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not (found := benches_of(parent.pid)):
        assert time.monotonic() < deadline
    (pid,) = map(int, found)
    time.sleep(0.2)  # it has begun
    parent.send_signal(how)
    parent.wait(30)
    try:
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'MODEL'"),
        (("-p", 8, "MODEL"), "Missing argument 'MODEL': it comes before llama-bench's options"),
        (("MODEL", "-d", "CPU", "-dev", "none"), "-d and -dev both name the devices"),
        (("MODEL", "-p", "x"), "llama-bench: invalid range format; invalid parameter for "),
        (("MODEL", "-ctk", "q9"), "llama-bench: invalid parameter for argument: -ctk"),
        (("MODEL", "-dev", "X"), "llama-bench: invalid device: X; "),
        (("MODEL", "-ot", "x=FOO"), "llama-bench: unrecognized buffer type 'FOO'; "),
        (("MODEL", "-o", "xml"), "invalid parameter for argument: -o"),
        (("a,b.gguf",), "a,b.gguf: llama-bench separates models by commas"),
    ],
)  # fmt: skip
def test_wrong_usage(model, arguments, message):
    given = [model if one == "MODEL" else one for one in arguments]
    assert message in " ".join(fails("bench", *given, code=2).split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nowhere.gguf",), "error: /nowhere.gguf: no such file: expected a GGUF file\n"),
        (("MODEL", "-d", "X"), "error: no device named 'X'; there are: .*sim:X,profile=cuda\n"),
        (("MODEL", "-d", "CPU,memory=1G"), "error: -d CPU,memory=1G: another program has .*\n"),
        (("MODEL", "-sm", "none", "-mg", 5, "-d", "sim:gpu0"),
         "error: llama-bench: .*invalid value for main_gpu: 5 .*; failed to load model "
         r"'.*m\.gguf' \(exit status 1\)\n"),
        (("-hf", "a/b"), "error: llama-bench: models are not downloaded here: .*\n"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_nothing_else(model, arguments, message):
    given = [model if one == "MODEL" else one for one in arguments]
    assert re.fullmatch(message, fails("bench", *given, *SHORT, "--json"))
