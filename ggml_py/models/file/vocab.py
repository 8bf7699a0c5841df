"""The part of a file's vocabulary that generating needs: the tokens that end it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_DEFAULT_EOS = {"llama": 2, "gpt2": 11, "t5": 1, "plamo2": 2}  # by kind of tokenizer
# Files seldom have all the keys, so llama.cpp goes by these texts, too.
_TEXTS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[", "<|ifm|im_end|>",
}  # fmt: skip
_FIM_TEXTS = {  # these count for a kind unless a key names its token
    "fim_pad": {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    "fim_rep": {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    "fim_sep": {"<|file_sep|>", "<|plamo:file_separator|>"},
}


def eog_tokens(metadata: Mapping[str, Any]) -> frozenset[int]:
    """The tokens that end a generation, found in a GGUF file as llama.cpp finds them.

    Empty if the file has no vocabulary. C: llama_vocab_is_eog
    """
    texts = metadata.get("tokenizer.ggml.tokens")
    if texts is None:
        return frozenset()
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _KEYS}
    if ids["eos"] is None:
        ids["eos"] = _DEFAULT_EOS.get(str(metadata.get("tokenizer.ggml.model")))
    special = set.union(_TEXTS, *_FIM_TEXTS.values())
    by_text = {text: i for i, text in enumerate(texts) if text in special}
    found = {by_text[text] for text in _TEXTS & by_text.keys()}
    for name, kinds in _FIM_TEXTS.items():
        if ids[name] is None:
            found |= {by_text[text] for text in kinds & by_text.keys()}
    found |= {i for i in ids.values() if isinstance(i, int) and 0 <= i < len(texts)}
    return frozenset(found - _normal({texts[i]: i for i in found}))


def _normal(found: dict[str, int]) -> set[int]:
    """The tokens among them that do not end anything, because certain others are there, too."""
    normal = set()
    if found.keys() & {"<|call|>", "<|calls|>"} and found.keys() & {"<|return|>", "<|flush|>"}:
        normal.add("<|end|>")
    if found.keys() & {"<|tool_response>", "<|plamo:eos|>"}:
        normal.add("</s>")
    return {found[text] for text in normal & found.keys()}
