"""Command lines of llama.cpp's programs, read by upstream's own parser."""

import json
import subprocess
import sys

import pytest

import ggml_py as ggml
from ggml_py import llama
from ggml_py.errors import GgmlError, ModelError

from ..support.cli_runs import fails, ok, run
from ..support.rpc_net import free_port, wait_for

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
DEVICES = ("sim:line0,profile=cuda,memory=8G", "CPU")

SERVER = """
import signal, sys
import ggml_py as ggml

signal.alarm(120)  # ends the server if nothing else does
sizes = [int(float(mib) * 2**20) for mib in sys.argv[2].split(",")]
served = [ggml.sim_device(f"served{i}", memory=size) for i, size in enumerate(sizes)]
devices = ggml.ffi.new("ggml_backend_dev_t[]", [device.ptr for device in served])
n = len(served)
ggml.lib.ggml_backend_rpc_start_server(sys.argv[1].encode(), ggml.ffi.NULL, 1, n, devices)
"""

FITTED = """
import sys
from ggml_py import llama

with llama.open_command_line(sys.argv[2:], devices=(sys.argv[1], "CPU")) as model:
    print(model.fit_arguments)
"""


@pytest.fixture(scope="module")
def file(oracle, tmp_path_factory):
    """A model with experts."""
    folder = tmp_path_factory.mktemp("line")
    oracle.run("test-llama-archs", "-a", "^qwen3moe$", "-s", 42, "-o", folder)
    (path,) = folder.glob("*.gguf")
    return path


@pytest.fixture(scope="module", params=["3", "6", "12,5", "4,2,4", "64"])
def small_devices(request):
    """The endpoint of a server with simulated GPUs that have so many MiB."""
    memory = request.param
    endpoint = f"127.0.0.1:{free_port()}"
    with subprocess.Popen([sys.executable, "-c", SERVER, endpoint, memory]) as process:
        try:
            wait_for(endpoint)
            yield endpoint
        finally:
            process.kill()


LINES = {
    "llama-cli -m {} -fit off -ngl 1 -c 512 --temp 0.3 -p hello": {
        "program": "cli", "n_gpu_layers": 1, "n_ctx": 512},
    "/usr/bin/llama-server -m {} -fit off -ngl all -c 2048 --port 1": {
        "program": "server", "n_gpu_layers": -1, "n_ctx": 2048},
    "llama-server --fit off --model {} -np 2 --n-gpu-layers 2 -ub 64 -ctk q8_0": {
        "program": "server", "n_seq_max": 2, "n_gpu_layers": 2, "n_ubatch": 64, "n_ctx": 0,
        "type_k": "q8_0"},
    "llama-completion -m {} -fit off -cmoe -nkvo -fa off --no-op-offload -b 128": {
        "program": "completion", "cpu_moe": True, "offload_kqv": False, "flash_attn": "off",
        "op_offload": False, "n_batch": 128, "n_gpu_layers": -1, "n_ctx": 0},
    "llama-perplexity -m {} -fit off -ngl 9 -ot exps=CPU,attn_q=line0": {
        "program": "perplexity", "tensor_overrides": {"exps": "CPU", "attn_q": "line0"},
        "n_gpu_layers": 9, "n_ctx": 512},
    "llama-cli -m {} -fit off -ngl 1 -lm mlock -c 256": {
        "program": "cli", "n_gpu_layers": 1, "load_mode": "none", "n_ctx": 256},
    "llama-cli -m {} -fit off -dev none": {
        "program": "cli", "devices": ("CPU",), "n_gpu_layers": -1, "n_ctx": 0},
    "llama-cli -m {} -fit off -dev line0 -sm none -mg 0 --no-host --no-repack": {
        "program": "cli", "n_gpu_layers": -1, "split_mode": "none", "no_host": True,
        "repack": False, "n_ctx": 0},
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_as_the_options_that_it_has(file, line):
    with (
        llama.open_command_line(line.format(file), devices=DEVICES) as read,
        llama.open(file, **{"devices": DEVICES, **LINES[line]}) as given,
    ):
        assert (read.n_ctx, read.n_seq_max, read.n_batch, read.n_ubatch) == (
            given.n_ctx, given.n_seq_max, given.n_batch, given.n_ubatch)  # fmt: skip
        assert sorted(read.memory) == sorted(given.memory)
        for n_tokens in (1, 33):
            assert read.plan(n_tokens).text() == given.plan(n_tokens).text()


@pytest.mark.parametrize(
    "more", ["", "-c 2048", "-c 4096 -ctk q8_0", "-fa off -ub 64", "-np 4 -c 0", "-ngl 1"]
)
def test_fit_is_that_of_llama_fit_params(oracle, file, small_devices, more):
    """An unmodified program, on devices of a server, whose memory does not change."""
    words = ["-m", str(file), "-fitt", "1", "-fitc", "256", *more.split()]
    fitted = oracle.run("llama-fit-params", "--rpc", small_devices, *words).stdout.strip()
    command = [sys.executable, "-c", FITTED, f"rpc:{small_devices}", "llama-fit-params", *words]
    ours = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ours.stdout.strip() == fitted, ours.stderr
    assert fitted.startswith("-c ")


SERVER_OUTPUTS = {  # beside the log of an unmodified llama-server
    "": 4, "--embedding": 512, "--reranking": 512, "--pooling mean": 2048, "-np 7": 7,
    "--pooling none": 4,
}  # fmt: skip


@pytest.mark.parametrize("more", SERVER_OUTPUTS)
def test_outputs_of_a_server(file, more):
    line = f"llama-server -m {file} -fit off -dev none -c 4096 {more}"
    with llama.open_command_line(line, devices=DEVICES) as model:
        assert model._state().n_outputs_max == SERVER_OUTPUTS[more]
        assert model.n_batch == (512 if more[2:] in ("embedding", "reranking") else 2048)
        if SERVER_OUTPUTS[more] == 4:
            with pytest.raises(ModelError, match="room for the outputs of 4 tokens, and 5 are"):
                model.eval([1, 2, 3, 4, 5], all_logits=True)
            assert model.eval([1, 2, 3, 4, 5]).ndim == 1


@pytest.mark.parametrize(
    ("more", "n_ctx", "n_seq_max", "unified"),
    [("", 2048, 4, False), ("--hellaswag -np 8", 4096, 8, True), ("-b 256", 512, 1, False),
     ("--ppl-stride 600", 3072, 4, False)],
)  # fmt: skip
def test_the_context_of_perplexity(file, more, n_ctx, n_seq_max, unified):
    """As tools/perplexity/perplexity.cpp; n_ctx is padded to 256 for each sequence."""
    line = f"llama-perplexity -m {file} -fit off {more}"
    with llama.open_command_line(line, devices=DEVICES) as model:
        assert (model.n_ctx, model.n_seq_max) == (n_ctx, n_seq_max)
        assert bool(model._params.context.kv_unified) == unified


@pytest.mark.parametrize(("words", "one", "many"), [("-t 1", 1, 1), ("-t 2 -tb 1", 2, 1)])
def test_threads_are_those_of_the_command_line(file, words, one, many):
    line = f"llama-cli -m {file} -fit off {words}"
    with llama.open_command_line(line, devices=("CPU",)) as model:
        for n_tokens, n_threads in ((1, one), (9, many)):
            assert {n.cpu.n_tasks for n in model.plan(n_tokens).nodes if n.cpu} <= {1, n_threads}
            assert any(n.cpu.n_tasks == n_threads for n in model.plan(n_tokens).nodes if n.cpu)


def test_the_environment_counts(file, monkeypatch):
    monkeypatch.setenv("LLAMA_ARG_N_GPU_LAYERS", "1")
    monkeypatch.setenv("LLAMA_ARG_FIT", "off")
    with llama.open_command_line(f"llama-cli -m {file}", devices=DEVICES) as model:
        layers = {node.name for node in model.plan(1).nodes if node.backend == "line0"}
    assert layers and not any(name.endswith("-0") for name in layers), layers


def test_what_a_plan_leaves_out_is_said(file, caplog):
    line = f"llama-server -m {file} --lora a.gguf -md draft.gguf --fit off -bs -mm m.gguf"
    with llama.open_command_line(line, devices=("CPU",)) as model:
        assert model.left_out == ("--lora", "--model-draft", "--mmproj", "--backend-sampling")
    assert f"{file}: not part of plans: --lora, --model-draft, --mmproj" in caplog.text


def test_a_log_file_is_not_emptied(file, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("what happened")
    with llama.open_command_line(f"llama-server -m {file} --log-file {log}", devices=("CPU",)):
        pass
    assert log.read_text() == "what happened"


BAD = {
    "": "command line of 'nothing': expected one of llama-server, llama-cli, llama-completion",
    "ls -l": "command line of 'ls': expected one of llama-server",
    "llama-server": "llama-server: expected a model, -m FILE",
    "llama-server -hf a/b": "models are not downloaded here",
    "llama-cli -hf a/b": "models are not downloaded here: give the file or its https address",
    "llama-cli -m {} -ngl many": 'error while handling argument "-ngl": stoi',
    "llama-cli -m {} --frobnicate": "llama-cli: invalid argument: --frobnicate",
    "llama-cli -m {} -t": 'error while handling argument "-t": expected value for argument',
    "llama-cli -m {} -dev CUDA7": "invalid device: CUDA7",
    "llama-cli -m {} -ot exps=CUDA7": "unknown buffer type",
    "llama-cli -m {} -h": "llama-cli: it makes the program print something and end",
    "llama-cli -m {} --list-devices": 'error while handling argument "--list-devices": ',
    "llama-cli -m {} -c -5": "n_ctx=-5: expected at least 0",
    "llama-server -m {} -hf a/b": "models are not downloaded here",
    "llama-perplexity -m {} -c 0": "llama-perplexity needs a --ctx-size above 0",
    "llama-cli -m {} -ot [=CPU": "regular expression|Mismatched|bracket",
    "llama-cli -m {} -dev stranger0": r"-dev stranger0: expected one of line0, CPU",
    "llama-cli -m {} --rpc 127.0.0.1:1": r"--rpc: give the server as a device, rpc:HOST:PORT",
    "llama-bench -m {}": r"llama-bench has options of its own.*\(--for bench\)",
    "llama-cli -m nothing.gguf": "nothing.gguf: no such file",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_command_line_is_an_error(file, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ggml.sim_device("stranger0")
    with pytest.raises(GgmlError, match=BAD[line]):
        llama.open_command_line(line.format(file), devices=DEVICES)
    with llama.open_command_line(f"llama-cli -m {file} -fit off", devices=DEVICES) as model:
        assert model.plan(1).n_splits  # nothing is left of it


def test_a_pattern_that_matches_nothing_is_said(file, caplog):
    line = f"llama-cli -m {file} -fit off -ot nope=CPU,exps=CPU -ncmoe 1"
    with llama.open_command_line(line, devices=DEVICES):
        texts = [r.getMessage() for r in caplog.records if r.name == "ggml_py"]
    (said,) = (text for text in texts if "nope" in text or "experts" in text)
    assert said.startswith("tensor_overrides (-ot): 'nope' matches none of the model's ")


def test_on_the_command_line(file):
    ours = ("plan", "-d", DEVICES[0], "--n-tokens", "8", "--json")
    words = ("llama-server", "-m", str(file), "-ot", "exps=CPU", "-fit", "off", "--jinja")
    assert "libllama's graph" in json.loads(ok(*ours, "--", *words))["headline"]
    explained = ok("explain", "-d", DEVICES[0], "ffn_moe_out-0", "--", *words)
    assert "ffn_moe_out-0" in explained
    refused = fails("plan", "-ngl", "1", "--", *words, code=2)
    assert "-ngl: give it in the command line behind --" in refused
    refused = fails("plan", "--", "llama-server", "-ngl", "1", code=2)
    assert "llama-server: expected -m MODEL in its command line" in refused
    fitted = run("plan", "-d", DEVICES[0], "--", "llama-cli", "-m", str(file))
    assert fitted.returncode == 0 and "--fit chose -c " in fitted.stderr
    with pytest.raises(ModelError):
        llama.open_command_line(["llama-server", "-m"])


def test_standard_output_is_the_plan(file, monkeypatch):
    """Not what upstream prints."""
    words = ("llama-server", "-m", str(file), "-fit", "off", "--log-jsonl", "-ngl", "1")
    words += ("-ngl", "2")
    json.loads(ok("plan", "-d", DEVICES[0], "--json", "--", *words))
    for more in (("-ot", "exps=CUDA9"), ("--list-devices",), ("-h",), ("--completion-bash",)):
        fails("plan", "-d", DEVICES[0], "--json", "--", *words, *more)
    monkeypatch.setenv("LLAMA_ARG_MODEL", str(file))
    json.loads(ok("plan", "-d", DEVICES[0], "--json", "--", "llama-cli", "-fit", "off", "-p", "-h"))


def test_fit_that_finds_nothing_says_so(file):
    small = "sim:small0,profile=cuda,memory=4M"
    words = ("llama-server", "-m", str(file), "-ngl", "9", "-c", "256")
    done = run("plan", "-d", small, "--", *words)
    assert done.returncode == 0 and "--fit changed nothing: llama.cpp found" in done.stderr
    with llama.open_command_line(words, devices=(small, "CPU")) as model:
        assert (model.fits, model.fit_arguments) == (False, "")
