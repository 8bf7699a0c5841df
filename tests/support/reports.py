"""Public reports: what people ran, and what llama.cpp printed for them.

Each model is rebuilt from the hyperparameters that the log prints; a quantisation is only given
where the log names one that upstream makes by rule. Devices stand for the cards of the report.
Figures are written as printed: "4155.99" is MiB with two decimals, "61223" whole MiB, and
"720.00+3600.00" two lines of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .real_headers import Spec

# Why no report's compute buffers are compared: a pinned context also reserves room for batches that
# mix tokens and embeddings (inp_mixed_embd in llm_graph_context::build_inp_embd), which came in
# autumn 2026, after every report. Graphs have other numbers of nodes since then, too.
YARN = (("rope.scaling.type", "yarn"), ("rope.scaling.original_context_length", 4096))


@dataclass(frozen=True)
class Report:
    """One log."""

    source: str  # the thread
    when: str  # date, and the build where the thread says which
    model: Spec
    devices: tuple[str, ...]  # GPUs; the CPU is added
    flags: str
    printed: dict[str, dict[str, str]]  # device: {weights, cache, outputs: MiB}
    splits: tuple[int, int] | None = None  # with n_ubatch tokens, and with one
    refused: tuple[tuple[str, str, int], ...] = field(default=())  # device, op, splits without it
    program: str = "llama-server"
    left_out: str = ""  # which figures are not compared, and why

    @property
    def name(self) -> str:
        return self.source.replace(" ", "")


LLAMA_70B = {
    "arch": "llama", "n_layer": 80, "n_embd": 8192, "n_head": 64, "n_head_kv": 8, "n_ff": 28672,
    "n_vocab": 128256, "n_ctx_train": 8192, "freq_base": 5e5,
}  # fmt: skip
QWEN35_27B = Spec(
    "qwen35", n_layer=65, n_embd=5120, n_head=24, n_head_kv=4, n_ff=17408, n_vocab=248320,
    n_ctx_train=262144, freq_base=1e7, quantised="q4_K", n_embd_head=256,
    more=(
        ("nextn_predict_layers", 1), ("full_attention_interval", 4), ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 6144), ("ssm.state_size", 128), ("ssm.time_step_rank", 48),
        ("ssm.group_count", 16), ("rope.dimension_count", 64),
        ("rope.dimension_sections", (11, 11, 10, 0)),
    ),
)  # fmt: skip
_DEEPSEEK = (
    *YARN, ("rope.scaling.factor", 40.0), ("rope.scaling.yarn_log_multiplier", 0.1),
    ("attention.q_lora_rank", 1536), ("attention.kv_lora_rank", 512),
    ("attention.key_length", 192), ("attention.value_length", 128), ("rope.dimension_count", 64),
)  # fmt: skip
DEEPSEEK_V2 = Spec(
    "deepseek2", n_layer=60, n_embd=5120, n_head=128, n_head_kv=128, n_ff=12288, n_vocab=102400,
    n_ctx_train=163840, freq_base=1e4, quantised="q4_K", n_embd_head=192, n_expert=160,
    n_expert_used=6, n_ff_exp=1536,
    more=(*_DEEPSEEK, ("leading_dense_block_count", 1), ("expert_shared_count", 2)),
)  # fmt: skip
DEEPSEEK_R1 = Spec(
    "deepseek2", n_layer=61, n_embd=7168, n_head=128, n_head_kv=128, n_ff=18432, n_vocab=129280,
    n_ctx_train=163840, freq_base=1e4, quantised="q4_K_M", n_embd_head=192, n_expert=256,
    n_expert_used=8, n_ff_exp=2048,
    more=(
        *_DEEPSEEK, ("leading_dense_block_count", 3), ("expert_shared_count", 1),
        ("expert_gating_func", 2),
    ),
)  # fmt: skip
QWEN3MOE_30B = Spec(
    "qwen3moe", n_layer=48, n_embd=2048, n_head=32, n_head_kv=4, n_ff=6144, n_vocab=151936,
    n_ctx_train=40960, freq_base=1e6, quantised="q4_K_M", n_embd_head=128, n_expert=128,
    n_expert_used=8, n_ff_exp=768,
)  # fmt: skip
GPT_OSS_120B = Spec(
    "gpt-oss", n_layer=36, n_embd=2880, n_head=64, n_head_kv=8, n_ff=2880, n_vocab=201088,
    n_ctx_train=131072, freq_base=150000.0, quantised="bf16", n_embd_head=64, n_swa=128,
    n_expert=128, n_expert_used=4, n_ff_exp=2880, experts="mxfp4",
    more=(*YARN, ("rope.scaling.factor", 32.0)),
)  # fmt: skip

REPORTS = (
    Report(
        "llama.cpp #11004", "2025-01",
        Spec(
            "qwen2", n_layer=64, n_embd=5120, n_head=40, n_head_kv=8, n_ff=27648, n_vocab=152064,
            n_ctx_train=131072, freq_base=1e6, quantised="q4_K_M",
        ),
        ("sim:Vulkan0,profile=rx7900xtx,memory=24G", "sim:Vulkan1,profile=vulkan,memory=2G"),
        "-ngl 99 -c 4096 -b 512 -fa off -ts 60,5",
        {
            "Vulkan0": {"weights": "16708.36", "cache": "960.00"},
            "Vulkan1": {"weights": "1799.99", "cache": "64.00"},
            "CPU": {"weights": "417.66"},
        },
    ),
    Report(
        "ollama #16416", "2026-06",
        GPT_OSS_120B,
        ("sim:ROCm0,profile=strix-halo,memory=120G",),
        "-ngl 99 -c 262144 -b 1024 -ub 1024 -fa on -np 2",
        {"ROCm0": {"weights": "61223", "cache": "9216.00+90.00"}, "CPU": {"weights": "1104"}},
    ),
    Report(
        "llama.cpp #12728", "2025-04", DEEPSEEK_V2,
        ("sim:Vulkan0,profile=vulkan,memory=200G",),
        "-ngl 99 -c 4096 -fa off",
        {"Vulkan0": {"cache": "19200.00"}},
        splits=(2, 2),
    ),
    Report(
        "llama.cpp #12728, q8_0 keys", "2025-04", DEEPSEEK_V2,
        ("sim:Vulkan0,profile=vulkan,memory=200G",),
        "-ngl 99 -c 4096 -fa off -ctk q8_0",
        {"Vulkan0": {"cache": "13800.00"}},
    ),
    Report(
        "llama.cpp #11397", "2025-03, a comment", DEEPSEEK_R1,
        ("sim:CUDA0,profile=rtx4090",),
        "-ngl 99 -c 1024 -b 1024 -fa off -ot exps=CPU",
        {"CUDA0": {"cache": "4880.00"}, "CPU": {"outputs": "0.49"}},
        splits=(176, 118),
        program="llama-perplexity",  # all programs reserved logits for every token then
    ),
    Report(
        "LLamaSharp #1099", "2025-02, b4701",
        Spec(
            "qwen2", n_layer=36, n_embd=2048, n_head=16, n_head_kv=2, n_ff=11008, n_vocab=151936,
            n_ctx_train=32768, freq_base=1e6, quantised="q4_K_M", tied=True,
        ),
        ("sim:CUDA0,profile=rtx4080",),
        "-ngl 99 -c 4096 -fa off",
        {"CUDA0": {"cache": "144.00"}, "CPU": {"outputs": "0.58"}},
        splits=(2, 2),
    ),
    Report(
        "ollama #16031", "2026",
        Spec(
            "qwen3", n_layer=36, n_embd=2560, n_head=32, n_head_kv=8, n_ff=9728, n_vocab=151936,
            n_ctx_train=262144, freq_base=5e6, quantised="q4_K_M", n_embd_head=128, tied=True,
        ),
        ("sim:CUDA0,profile=rtx4090", "sim:CUDA1,profile=rtx4090"),
        "-ngl 99 -c 262144 -ub 2048 -b 2048 -ts 17,20 -lm none",
        {
            "CUDA0": {"weights": "974.88"},
            "CUDA1": {"weights": "1401.03"},
            "CPU": {"weights": "304.28"},
        },
    ),
    Report(
        "LM Studio #1395", "2026-01",
        Spec(
            "gemma3", n_layer=48, n_embd=3840, n_head=16, n_head_kv=8, n_ff=15360, n_vocab=262208,
            n_ctx_train=131072, freq_base=1e6, quantised="q4_K_M", n_embd_head=256, n_swa=1024,
            tied=True, more=(("rope.scaling.type", "linear"), ("rope.scaling.factor", 8.0)),
        ),
        ("sim:ROCm0,profile=rx7900xtx",),
        "-ngl 99 -c 11520 -fa off --swa-full",
        {"ROCm0": {"cache": "720.00+3600.00"}, "CPU": {"outputs": "1.00"}},
    ),
    Report(
        "llama.cpp #11807", "2025-02",
        Spec(
            "llama", n_layer=22, n_embd=2048, n_head=32, n_head_kv=4, n_ff=5632, n_vocab=32000,
            n_ctx_train=2048, freq_base=1e4, quantised="q4_0",
        ),
        (),
        "-c 4096 -fa off -nr",
        {"CPU": {"weights": "606.53", "cache": "88.00", "outputs": "0.12"}},
        splits=(1, 1),
        left_out="repacked weights: the report's CPU has other layouts than this one",
    ),
    Report(
        "llama.cpp #9881", "2024-10",
        Spec(
            "llama", n_layer=32, n_embd=4096, n_head=32, n_head_kv=8, n_ff=14336, n_vocab=128256,
            n_ctx_train=8192, freq_base=5e5, quantised="q4_0",
        ),
        ("sim:CUDA0,profile=rtx4090",),
        "-ngl 99 -c 8192 -fa off",
        {"CUDA0": {"weights": "4155.99"}, "CPU": {"weights": "281.81"}},
    ),
    Report(
        "llama.cpp #27761", "2026-08, b10639", QWEN35_27B,
        ("sim:ROCm0,profile=rx7900xtx",),
        "-ngl 99 -c 4096 -fa on -ctk q8_0 -ctv q8_0",
        {},
        splits=(2, 2),
    ),
    Report(
        "llama.cpp #27761, q5_0 values", "2026-08, b10639", QWEN35_27B,
        ("sim:ROCm0,profile=rx7900xtx",),
        "-ngl 99 -c 4096 -fa on -ctk q8_0 -ctv q5_0",
        {},
        refused=(("ROCm0", "FLASH_ATTN_EXT", 34),),
        left_out="that the card refuses it: the pinned release does not any more (fattn.cu)",
    ),
    Report(
        "ggml #1611", "2026-08", QWEN35_27B,
        ("sim:Vulkan0,profile=vulkan",),
        "-ngl 99 -c 32768 -ctk q4_0 -ctv q4_0",
        {"Vulkan0": {"cache": "725"}},
        splits=(2, 2),
    ),
    Report(
        "KoboldCpp #1225", "2024-11",
        Spec(
            "llama", n_layer=40, n_embd=5120, n_head=40, n_head_kv=40, n_ff=13824, n_vocab=32000,
            n_ctx_train=4096, freq_base=17794.7, quantised="q5_K_M",
        ),
        ("sim:CUDA0,profile=rtx4080",),
        "-ngl 99 -c 6272 -b 512 -fa off -nkvo",
        {
            "CUDA0": {"weights": "8694.21", "cache": "0.00"},
            "CPU": {"weights": "107.42", "outputs": "0.12"},
        },
        left_out="the cache: a context is padded to 256 tokens now, 6272 is no multiple",
    ),
    Report(
        "KoboldCpp #1609", "2025-06, 1.93", Spec(**LLAMA_70B, quantised="q5_K_M"),
        ("sim:CUDA0,profile=rtx4080", "sim:CUDA1,profile=rtx4080"),
        "-ngl 55 -ot ^output=CPU -c 4096 -b 512 -fa off -lm none -nr",
        {"CPU": {"weights": "15871.80+688.88"}},
        left_out="-ngl 54 as given: it meant 54 layers without the output, which 55 has now",
    ),
    Report(
        "ollama #11986", "2025-08", Spec(**LLAMA_70B, quantised="q8_0", rope_freqs=True),
        ("sim:CUDA0,profile=h100", "sim:CUDA2,profile=h100"),
        "-ngl 99 -c 4096 -ts 28,53",
        {
            "CUDA0": {"weights": "24277.75"},
            "CUDA2": {"weights": "46151.91"},
            "CPU": {"weights": "1064.62"},
        },
    ),
    Report(
        "llama.cpp #13661", "2025-05", QWEN3MOE_30B,
        tuple(f"sim:CUDA{i},profile=rtx3090" for i in range(4)),
        "-ngl 99 -c 30016 -fa off",
        {},
        splits=(5, 5),
        left_out="the cache: a context is padded to 256 tokens now, 30016 is no multiple",
    ),
)  # fmt: skip
