"""Options of llama.cpp's command lines, by what they have to do with a plan.

Every option of upstream's parser is in one of the sets, by its last name. One that is in none is of
a release that this table does not know: then it is not known whether a plan depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .library import Library
from .options import TABLE

SAMPLING, SPECULATIVE = "sampling", "speculative"  # upstream's own groups

# In the parameters of the model or its context, which a plan is made of.
PLANNED = frozenset({
    *(option.flags[-1] for option in TABLE if option.flags and option.kind != "program"),
    "--threads-batch", "--kv-unified-per-slot", "--perf", "--pooling", "--rope-scaling",
    "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx",
    "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast",
    "--lazy-mode", "--moe-cache-mib", "--fit", "--fit-target", "--fit-ctx", "--check-tensors",
    "--override-kv", "--model", "--embeddings", "--reranking", "--hellaswag", "--winogrande",
    "--multiple-choice", "--ppl-stride", "--spec-default",
})  # fmt: skip

# They change graphs, or ask for contexts besides the model's: a plan leaves them out, and says so.
LEFT_OUT = frozenset({
    "--mmproj", "--mmproj-url", "--mmproj-auto", "--mmproj-offload", "--mmproj-device",
    "--image-min-tokens", "--image-max-tokens", "--mtmd-batch-max-tokens", "--video", "--video-fps",
    "--video-timestamp-interval", "--video-ffmpeg-dir", "--lora", "--lora-scaled",
    "--lora-init-without-apply", "--control-vector", "--control-vector-scaled",
    "--control-vector-layer-range", "--backend-sampling", "--cache-type-k-draft",
    "--cache-type-v-draft", "--grp-attn-n", "--grp-attn-w", "--prompt-cache",
})  # fmt: skip

# What a program says, serves, reads or computes on the CPU's cores: no graph depends on it.
NEUTRAL = frozenset({
    "--usage", "--version", "--cache-list", "--completion-bash", "--cpu-mask", "--cpu-range",
    "--cpu-strict", "--prio", "--poll", "--cpu-mask-batch", "--cpu-range-batch",
    "--cpu-strict-batch", "--prio-batch", "--poll-batch", "--lookup-cache-static",
    "--lookup-cache-dynamic", "--n-predict", "--keep", "--swa-checkpoints", "--checkpoint-min-step",
    "--cache-ram", "--cache-idle-slots", "--context-shift", "--escape", "--reverse-prompt",
    "--special", "--warmup", "--spm-infill", "--defrag-thold", "--cont-batching", "--rpc", "--numa",
    "--list-devices", "--alias", "--tags", "--model-url", "--docker-repo", "--hf-repo", "--hf-file",
    "--hf-token", "--embd-normalize", "--host", "--port", "--reuse-port", "--path",
    "--cors-origins", "--cors-methods", "--cors-headers", "--cors-credentials", "--api-prefix",
    "--webui-config", "--webui-config-file", "--webui-mcp-proxy", "--tools", "--tools-runtime",
    "--mcp-servers-config", "--mcp-servers-json", "--agent", "--webui", "--api-key",
    "--api-key-file", "--ssl-key-file", "--ssl-cert-file", "--chat-template-kwargs", "--timeout",
    "--sse-ping-interval", "--threads-http", "--cache-prompt", "--cache-reuse", "--metrics",
    "--props", "--slots", "--slot-save-path", "--media-path", "--models-dir", "--models-preset",
    "--models-max", "--models-autoload", "--jinja", "--reasoning-format", "--reasoning",
    "--reasoning-effort", "--reasoning-budget", "--reasoning-budget-message",
    "--reasoning-preserve", "--chat-template", "--chat-template-file", "--skip-chat-parsing",
    "--prefill-assistant", "--slot-prompt-similarity", "--sleep-idle-seconds", "--log-disable",
    "--log-file", "--log-jsonl", "--log-prompts-dir", "--log-colors", "--log-verbose", "--offline",
    "--log-verbosity", "--log-prefix", "--log-timestamps", "--server-base", "--verbose-prompt",
    "--display-prompt", "--color", "--prompt", "--system-prompt", "--show-timings", "--file",
    "--system-prompt-file", "--binary-file", "--single-turn", "--multiline-input", "--output-file",
    "--simple-io", "--print-token-count", "--prompt-cache-all", "--prompt-cache-ro",
    "--conversation", "--interactive", "--interactive-first", "--in-prefix-bos", "--in-prefix",
    "--in-suffix", "--chunks", "--hellaswag-tasks", "--winogrande-tasks", "--multiple-choice-tasks",
    "--kl-divergence", "--kl-divergence-base", "--ppl-output-type", "--fit-print",
    "--embd-gemma-default", "--fim-qwen-1.5b-default", "--fim-qwen-3b-default",
    "--fim-qwen-7b-default", "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default",
    "--gpt-oss-20b-default", "--gpt-oss-120b-default", "--vision-gemma-4b-default",
    "--vision-gemma-12b-default",
})  # fmt: skip


class LineOption(NamedTuple):
    """An option of a program of llama.cpp."""

    names: tuple[str, ...]
    negative: tuple[str, ...]  # names that say no
    value: str  # a hint of its value; "" without one
    group: str  # SAMPLING, SPECULATIVE or ""

    @property
    def name(self) -> str:
        """The name that the sets have."""
        return self.names[-1]


def options_of(library: Library, program: str) -> tuple[LineOption, ...]:
    """The options of llama-`program` in upstream's parser. C++: common_params_parser_init"""
    ffi, lib = library.ffi, library.lib
    n = lib.gpl_options(program.encode(), ffi.NULL, 0)
    out = ffi.new("char[]", n + 1)
    lib.gpl_options(program.encode(), out, n)
    rows = (line.split("\t") for line in ffi.string(out).decode().splitlines())
    return tuple(LineOption(tuple(a.split()), tuple(b.split()), v, g) for a, b, v, g in rows)


def not_planned(
    given: Iterable[str], left_out: Iterable[str], known: Iterable[LineOption]
) -> tuple[str, ...]:
    """The options of a command line that a plan leaves out. `left_out` are those that its
    parameters show, whichever way they were given."""
    found = dict.fromkeys(left_out)
    speculates = any(name.startswith(("--spec-type", "--model-draft")) for name in found)
    groups = {option.name: option.group for option in known}
    for name in given:
        group = groups.get(name, "")
        if name in LEFT_OUT or (group == SPECULATIVE and not speculates):
            found[name] = None
        elif not group and name not in PLANNED and name not in NEUTRAL:
            found[f"{name} (not known whether plans depend on it)"] = None
    return tuple(found)
