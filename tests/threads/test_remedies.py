"""Slow set-ups of public threads, and the change of flags that mended them there."""

import json
import re
from dataclasses import dataclass

import pytest

from ..support.cli_runs import run
from ..support.real_headers import LLAMA_8B, Spec
from ..support.reports import DEEPSEEK_R1, GPT_OSS_120B, QWEN3MOE_30B

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
    Slow(
        "llama.cpp #9881",
        LLAMA_8B,
        ("sim:CUDA0,profile=a100",),
        "-ngl 0 -c 512",
        ALL_LAYERS,
        "0.07 before",
    ),
    Slow(
        "llama.cpp #12614",
        Spec(
            "qwen2", n_layer=28, n_embd=3584, n_head=28, n_head_kv=4, n_ff=18944, n_vocab=152064,
            n_ctx_train=131072, freq_base=1e4, quantised="f16",
        ),
        ("sim:CUDA0,profile=rtx4090",),  # the thread does not say which
        "-ngl 0 -c 4096 -fa off",
        ALL_LAYERS,
        "no figures: 0 of 29 layers were on the GPU",
    ),
    Slow(
        "llama.cpp #12237",
        Spec(
            "llama", n_layer=40, n_embd=5120, n_head=32, n_head_kv=8, n_ff=32768, n_vocab=131072,
            n_ctx_train=32768, freq_base=1e8, quantised="q4_K_M", n_embd_head=128,
        ),
        ("sim:CUDA0,profile=rtx3060", "BLAS"),
        "-ngl 30 -fa on -c 2048 -ctk q4_0 -ctv q4_0 -t 12",
        r"BLAS",
        "prompts 111 and 543",
    ),
    Slow(
        "ollama #11772",
        QWEN3MOE_30B,  # the thread's has 35 B and the same three active ones
        ("sim:CUDA0,profile=rtx5080",),
        "-ngl 0 -c 4096",
        r"-ngl (all|99)\b.*(-ncmoe|-cmoe|-ot)|(-ncmoe|-cmoe|-ot)",
        "14.6 and 36.5, prompts 46 and 692",
    ),
    Slow(
        "hardware-corner.net, gpt-oss offloading MoE layers",
        GPT_OSS_120B,
        ("sim:CUDA0,profile=rtx3090",),
        "-ngl 13 -c 4096",
        r"-ncmoe \d+.*-ngl all|-ngl all.*-ncmoe \d+",
        "0.9 and 1.6, prompts 42 and 173 with -ngl 99 --n-cpu-moe 27",
    ),
)  # fmt: skip


@pytest.mark.parametrize("slow", SLOW, ids=lambda slow: slow.source.replace(" ", ""))
def test_check_says_it_first(slow, tmp_path):
    path = slow.model.write(tmp_path / "model.gguf")
    devices = [word for name in (*slow.devices, "CPU") for word in ("-d", name)]
    done = run("check", path, *devices, *slow.flags.split(), "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    said = [data["verdict"], *map(json.dumps, data["reasons"][:2])]
    assert any(re.search(slow.remedy, text) for text in said), said
    if data["remedy"]["seconds"]:
        assert data["remedy"]["seconds"][1] < data["remedy"]["seconds"][0]
