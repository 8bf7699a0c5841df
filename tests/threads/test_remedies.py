"""Slow set-ups of public threads, and the change of flags that mended them there."""

import json
import re
from dataclasses import dataclass

import pytest

from ..support.cli_runs import ok, run
from ..support.real_headers import Spec
from ..support.reports import DEEPSEEK_R1

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
ALL_LAYERS = r"-ngl (all|99)\b"


@dataclass(frozen=True)
class Slow:
    """A set-up, and what its owner changed."""

    source: str
    model: Spec
    devices: tuple[str, ...]
    flags: str
    remedy: str  # a pattern: the change, as a user would type it
    seen: str  # tokens per second before and after, or the thread's words in short


SLOW = (
    Slow(
        "llama.cpp #20714",
        Spec(
            "qwen2", n_layer=48, n_embd=5120, n_head=40, n_head_kv=8, n_ff=13824, n_vocab=152064,
            n_ctx_train=131072, freq_base=1e6, quantised="q4_K_M",
        ),
        ("sim:ROCm0,profile=rx7900xtx,memory=20G",),
        "-ngl 48 -c 4096",
        ALL_LAYERS,
        "37.2 and 57.1",
    ),
    Slow(
        "llama-gpt #105",
        Spec(
            "llama", n_layer=48, n_embd=8192, n_head=64, n_head_kv=8, n_ff=22016, n_vocab=32000,
            n_ctx_train=16384, freq_base=1e6, quantised="q4_0",
        ),
        ("sim:CUDA0,profile=rtx3090,memory=48G",),  # an A6000
        "-ngl 10 -c 4096",
        ALL_LAYERS,
        "no figures: much quicker with all layers",
    ),
    Slow(
        "llama.cpp #11397",
        DEEPSEEK_R1,
        ("sim:CUDA0,profile=rtx4090",),
        "-ngl 99 -c 1024 -fa off -ot exps=CPU -nkvo",
        r"(without -nkvo|(?<!no)-kvo|--kv-offload)",
        "no figure before: attention was the bottleneck",
    ),
    Slow(
        "llama-cpp-python #960",
        Spec(
            "llama", n_layer=32, n_embd=4096, n_head=32, n_head_kv=32, n_ff=11008, n_vocab=32000,
            n_ctx_train=4096, freq_base=1e4, quantised="q4_K_M",
        ),
        ("sim:CUDA0,profile=t4",),
        "-ngl 20 -c 512",
        ALL_LAYERS,
        "no figures: the answer is all layers",
    ),
    Slow(
        "llama.cpp #2128",
        Spec(
            "llama", n_layer=80, n_embd=8192, n_head=64, n_head_kv=64, n_ff=22016, n_vocab=32000,
            n_ctx_train=2048, freq_base=1e4, quantised="q4_0",
        ),
        ("sim:CUDA0,profile=a100",),  # the thread does not say which
        "-ngl 0 -c 2048",
        ALL_LAYERS,
        "no figures: -ngl mended it",
    ),
)  # fmt: skip


def offered(path, slow):
    """The remedies of `plan`, then the findings of --advice, in their order."""
    devices = [word for name in (*slow.devices, "CPU") for word in ("-d", name)]
    options = [*devices, *slow.flags.split(), "-n", 1, "--graphs", "libllama", "--json"]
    why = json.loads(ok("plan", path, *options))["why"]
    findings = json.loads(ok("plan", path, *options, "--advice"))["advice"]
    return [json.dumps(said) for said in (why["remedy"], *findings) if said]


@pytest.mark.parametrize("slow", SLOW, ids=lambda slow: slow.source.replace(" ", ""))
def test_the_change_that_helped_is_among_the_first_two(slow, tmp_path):
    said = offered(slow.model.write(tmp_path / "model.gguf"), slow)[:2]
    assert any(re.search(slow.remedy, text) for text in said), said


@pytest.mark.parametrize("slow", SLOW, ids=lambda slow: slow.source.replace(" ", ""))
def test_check_says_it_first(slow, tmp_path):
    path = slow.model.write(tmp_path / "model.gguf")
    devices = [word for name in (*slow.devices, "CPU") for word in ("-d", name)]
    done = run("check", path, *devices, *slow.flags.split(), "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert re.search(slow.remedy, data["verdict"]), data["verdict"]
    assert data["remedy"]["seconds"][1] < data["remedy"]["seconds"][0]
