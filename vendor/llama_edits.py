"""Edits of libllama: plans from a file's header alone, who may look inside, command lines, and text
that may be long or hostile.

Upstream's `no_alloc` loads a model without its weights, but only with `load_mode` none, which puts
weights elsewhere than `mmap`, the usual mode: into a GPU's host memory. With these edits it plans
either: files are mapped and not read.
"""

from __future__ import annotations

from .edit import Edit

_ACCEL = "if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_ACCEL"
_CHOSEN = f"{_ACCEL} && gpl_accelerator_is_used(dev)) {{\n"
_HOOK = '#include "llama_accel.h"\n\n'
_PROBE_HOOK = '#include "llama_accel.h"\n#include "llama_probe.h"\n\n'
_BUFT = "            auto * buft"

_CONTEXT = (
    Edit("hooks", "static llm_graph_type ctx_type_to_graph_type(", _PROBE_HOOK),
    Edit(
        "a fused op that a probe refuses",
        "            if (device_fused != device_layer) {\n",
        "                int gpl_i = ggml_graph_n_nodes(gf) - 1;\n"
        "                while (gpl_i >= 0 && ggml_graph_node(gf, gpl_i) != node.tensor) {\n"
        "                    gpl_i--;\n"
        "                }\n"
        "                gpl_note_probe({ probe.name, cparams, n_tokens_probe, n_seqs, gpl_i,\n"
        "                    node.il, device_layer, device_fused });\n",
        after=True,
        optional=True,  # releases before 0.24 decide about flash attention elsewhere
    ),
    Edit("accelerators of a context", f"{_ACCEL}) {{\n", _CHOSEN, replace=True),
)
_MODEL = (
    Edit("hook of accelerators", "static buft_list_t make_cpu_buft_list(", _HOOK),
    Edit(
        "accelerators' buffer types",
        f"{_ACCEL}) {{\n{_BUFT}",
        f"{_CHOSEN}{_BUFT}",
        replace=True,
    ),
    Edit(
        "files mapped and not read",
        "    ml.init_mappings(true, use_mlock ? &pimpl->mlock_mmaps : nullptr);\n",
        "    ml.init_mappings(!ml.no_alloc,\n"
        "        use_mlock && !ml.no_alloc ? &pimpl->mlock_mmaps : nullptr);\n",
        replace=True,
    ),
    Edit(
        "mapped buffers without weights",
        "            GGML_ASSERT(!ml.no_alloc);\n            for (uint32_t idx",
        "            for (uint32_t idx",
        replace=True,
    ),
    Edit(
        "weights of mapped buffers",
        "                bufs.emplace_back(buf);\n                buf_map.emplace(idx, buf);\n",
        "                for (ggml_tensor * t = ggml_get_first_tensor(ctx);\n"
        "                        ml.no_alloc && t; t = ggml_get_next_tensor(ctx, t)) {\n"
        "                    const auto * weight = ml.get_weight(ggml_get_name(t));\n"
        "                    if (weight && weight->idx == idx) {\n"
        "                        t->buffer = buf;\n"
        "                    }\n"
        "                }\n",
        after=True,
    ),
    Edit(
        "mappings outlive the loader",
        "    if (ml.no_alloc) {\n        return true;\n",
        "    if (ml.no_alloc) {\n"
        "        for (auto & mapping : ml.mappings) {\n"
        "            pimpl->mappings.emplace_back(std::move(mapping));\n"
        "        }\n"
        "        return true;\n",
        replace=True,
    ),
    Edit(
        "bytes of mapped buffers",
        "        if (hparams.no_alloc) {\n            GGML_ASSERT(bufs.size() == 1);\n",
        "        if (hparams.no_alloc && bufs.size() == 1 &&\n"
        "                ggml_backend_buffer_get_base(bufs[0].get()) == nullptr) {\n",
        replace=True,
    ),
)
_FRIEND = Edit(
    "friend of llama_context",
    "struct llama_context {\n",
    "    friend struct gpl_builder;\n\n",
    after=True,
)

# A command line that is refused, or that asks for help, does not end the process, and its error
# is not printed. Standard output is ours. No log file is opened: that would empty it.
_ARG = (
    Edit(
        "an option that ends the program, prints or logs",
        "using namespace common_arg_utils;\n",
        "\n#define exit(status) \\\n"
        '    throw std::invalid_argument("it makes the program print something and end")\n'
        "#define printf(...) fprintf(stderr, __VA_ARGS__)\n"
        "#define common_log_set_file(log, path) (void) path\n"
        "#define common_log_set_jsonl(jsonl) (void) jsonl\n",
        after=True,
    ),
    Edit(
        "help",
        "            common_params_print_usage(ctx_arg);\n            if (ctx_arg.print_usage)",
        "            exit(0);\n            if (ctx_arg.print_usage)",
        replace=True,
    ),
    Edit(
        "a command line that is refused",
        '        fprintf(stderr, "%s\\n", ex.what());\n        ctx_arg.params = params_org;\n',
        "        throw;\n",
        replace=True,
    ),
    Edit(
        "a command line that fails",
        '        fprintf(stderr, "%s\\n", ex.what());\n        exit(1);',
        "        throw;",
        replace=True,
    ),
)

# Text is tokenised on any thread, and may be the user's megabytes (llama_steps.h).
_STEPS = Edit(
    "steps of tokenising", '#include "unicode.h"\n', '#include "llama_steps.h"\n', after=True
)
_VOCAB = (
    _STEPS,
    Edit(  # as many as needed each time: each call would copy all that there are
        "bytes without a token",
        "            output.reserve(output.size() + symbol.n);\n",
        "",
        replace=True,
        optional=True,
    ),
    Edit(
        "a step for each look at the vocabulary",
        "llama_token llama_vocab::text_to_token(const std::string & text) const {\n",
        "    gpl_step();\n",
        after=True,
    ),
    Edit(
        "a step for each special token in the text",
        "                    auto source = std::distance(buffer.begin(), it);\n",
        "                    gpl_step();\n",
    ),
)
_SPLIT = "bpe_offsets = unicode_regex_split_stl("
_UNICODE = (
    _STEPS,
    Edit(
        "a step for each character of an expression",
        "    using BidirIt = typename std::basic_string<CharT>::const_iterator;\n",
        "    using BidirIt = gpl_place<CharT>;\n",
        replace=True,
        optional=True,  # releases before 0.25 have one function for each kind of text
    ),
    *(
        Edit(
            f"stack of an expression on {text}",
            f"                {_SPLIT}{text}, {given}, bpe_offsets);\n",
            f"                gpl_on_stack({text}.size(), [&] {{\n"
            f"                    {_SPLIT}{text}, {given}, bpe_offsets);\n"
            "                });\n",
            replace=True,
        )
        for text, given in (("text_collapsed", "regex_expr_collapsed"), ("wtext", "wregex_expr"))
    ),
)

# llama-chat has no model: it is told what the vocabulary adds.
_CHAT = (
    Edit(
        "what the vocabulary adds",
        "common_chat_templates_ptr common_chat_templates_init(",
        "__attribute__((weak)) extern bool gpl_adds[2];\n\n",
    ),
    *(
        Edit(
            f"whether the vocabulary adds {token}",
            f"    bool        add_{token}   = false;\n",
            f"    bool        add_{token}   = gpl_adds != nullptr && gpl_adds[{i}];\n",
            replace=True,
        )
        for i, token in enumerate(("bos", "eos"))
    ),
    Edit(  # a copy of it is a plain std::exception without the words
        "why a template is not parsed",
        "or using another chat template\\n\", __func__);\n        throw e;\n",
        "or using another chat template\\n\", __func__);\n        throw;\n",
        replace=True,
        optional=True,
    ),
)

_STATES = "ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft);\n        if (!buf) {\n"
_SIZES = "    for (const auto & [_, buf] : ctxs_bufs) {\n"
_SIZE = "] += ggml_backend_buffer_get_size(buf.get());\n"


def _states(first: str, type_: str, before: str = "") -> tuple[Edit, ...]:
    """Upstream allocates recurrent states also for a context that only plans (llama_states.h)."""
    return (
        Edit("states that are not allocated", f'#include "{first}"\n',
             '\n#include "llama_states.h"\n', after=True),
        Edit("allocation of states", _STATES,
             "gpl_alloc_states(ctx.get(), buft, hparams.no_alloc);\n        if (!buf) {\n",
             replace=True),
        Edit("bytes of states", f"{_SIZES}{before}        ret[{type_}{_SIZE}",
             "    for (const auto & [ctx, buf] : ctxs_bufs) {\n"
             "        ret[ggml_backend_buffer_get_type(buf.get())] += "
             "gpl_states_size(ctx.get(), buf.get());\n", replace=True),
    )  # fmt: skip


_OF_TYPE = "ggml_backend_buffer_get_type(buf.get())"

EDITS: dict[str, tuple[Edit, ...]] = {
    "src/llama-context.h": (_FRIEND,),
    "src/llama-context.cpp": _CONTEXT,
    "src/llama-model.cpp": _MODEL,
    "src/llama-memory-recurrent.cpp": _states("llama-memory-recurrent.h", _OF_TYPE),
    "src/llama-kv-cache-dsv4.cpp": _states(
        "llama-kv-cache-dsv4.h",
        "buft",
        f"        ggml_backend_buffer_type_t buft = {_OF_TYPE};\n",
    ),
    "src/llama-vocab.cpp": _VOCAB,
    "src/unicode.cpp": _UNICODE,
    "common/arg.cpp": _ARG,
    "common/chat.cpp": _CHAT,
}
