"""Command lines of llama-bench behind --. Upstream's own llama-bench says what a line asks for: the
line that we print for it asks for the same."""

import json
import subprocess

import pytest

from ggml_py.errors import ArgumentError
from ggml_py.llama.bench_line import read_bench_line
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import fails, ok, run

LINES = [
    "",
    "-ngl 7 -b 96 -ub 32 -t 3",
    "-fa 1 -ctk q8_0 -ctv q5_1",
    "--flash-attn off --cache_type_k q4_0",
    "-nkvo 1 -nopo 1 --no-host 1 --repack 0",
    "-nkvo 0 --no-op-offload 0",
    "-ts 3/1 -sm layer -mg 0",
    "-ncmoe 2",
    "-ot ffn_up=CPU;ffn_gate=CPU",
    "-p 64 -n 16 -d 32 -r 2 -o md --progress --no-warmup",
]
DEVICES = ("-d", "sim:bench0", "-d", "sim:bench1", "-d", "CPU")
WHAT = (
    "n_batch", "n_ubatch", "n_threads", "type_k", "type_v", "n_gpu_layers", "n_cpu_moe",
    "split_mode", "main_gpu", "no_kv_offload", "flash_attn", "tensor_split",
    "tensor_buft_overrides", "no_op_offload", "no_host",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=2, n_vocab=64))
    return path


@pytest.mark.thorough("programs")
@pytest.mark.parametrize("line", LINES)
def test_the_line_that_we_print_asks_upstream_for_the_same(line, model, oracle):
    given = line.split()
    plan = json.loads(ok("plan", *DEVICES, "--json", "--", "llama-bench", "-m", model, *given))
    printed = plan["provenance"]["flags"]
    assert plan["provenance"]["program"] == "llama-bench"
    n_ctx = int(read_bench_line(given).words[-1])  # which a batch cannot exceed
    assert _asked(oracle, model, printed, n_ctx) == _asked(oracle, model, given, n_ctx)


def _asked(oracle, model, words, n_ctx):
    program = oracle.bin / "llama-bench"
    tests = ["-p", "1", "-n", "0", "-d", "0", "-r", "1", "-o", "json"]
    done = subprocess.run(
        [program, "-m", model, *words, *tests], capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    row = json.loads(done.stdout)[0]
    sizes = {name: min(row[name], n_ctx) for name in ("n_batch", "n_ubatch")}
    return {name: row[name] for name in WHAT} | sizes


def test_the_context_is_as_large_as_the_tests_need():
    for line, n_ctx in (("", 512), ("-p 64 -n 16 -d 32", 96), ("-p 0 -n 200-300", 200),
                        ("-pg 600,100", 700)):  # fmt: skip
        words = read_bench_line(["-m", "m.gguf", *line.split()]).words
        assert words[-2:] == ["-c", str(n_ctx)]


def test_of_several_values_the_first_counts(model):
    more = ("-fa", "0,1", "-p", "8,16", "-t", "1-4+1", "-b", 64, "-b", 32)
    done = run("plan", "-d", "CPU", "--", "./llama-bench.exe", "-m", model, *more)
    assert done.returncode == 0
    for left_out in ("-fa 1", "-p 16", "-t 1-4+1", "-b 32"):
        assert f"{left_out}: left out" in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-ngl", "-ngl: expected a value behind it"),
        ("-c 4096", "-c: cannot be looked at here"),  # llama-bench has none
        ("--frobnicate", "--frobnicate: cannot be looked at here"),
        ("-nkvo 2", "-nkvo 2: expected 0 or 1"),
        ("-p many", "-p many: expected a number of tokens"),
        ("-hf some/model", "-hf: cannot be looked at here; `ggml-py bench`"),
    ],
)
def test_a_line_that_cannot_be_read(line, said, model):
    with pytest.raises(ArgumentError, match=f"^llama-bench: {said}"):
        read_bench_line(line.split())
    assert said in fails("plan", "--", "llama-bench", "-m", model, *line.split(), code=2)


def test_without_a_model():
    assert "expected -m MODEL" in fails("check", "--", "llama-bench", "-ngl", "3", code=2)
