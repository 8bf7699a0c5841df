"""What changes numbers and upstream's small files do not show: against libllama, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ggml_py import ModelError

from ..support.arch_files import (
    PROMPTS,
    check,
    deeper,
    fused,
    fused_but_biases,
    load,
    tied,
)

ROTATED = ("llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss")
SCALINGS = {
    "linear": {"rope__scaling__factor": 4.0},
    "none": {"rope__scaling__type": "none", "rope__scaling__factor": 4.0},
    "yarn": {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 64,
        "rope__scaling__attn_factor": 1.25,
    },
    "base": {"rope__freq_base": 500000.0, "rope__freq_base_swa": 20000.0},
}


@pytest.fixture
def agree(oracle, arch_file, tmp_path):
    """`agree(name, options, **changes)`: the bar, for upstream's file with changes."""

    def agree(name, /, options=None, **changes):
        path = tmp_path / "changed.gguf"
        deeper(arch_file(name), path, 4, "f16", **changes)
        for n in (1, 64):
            check(oracle, path, PROMPTS[n], tmp_path, **(options or {}))

    return agree


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", ROTATED)
def test_rope_scaling(agree, name, scaling):
    agree(name, **SCALINGS[scaling])


LONG = {
    "rope__scaling__type": "longrope",
    "rope__scaling__attn_factor": 1.19,
    "rope__scaling__original_context_length": 64,
}


def long_and_short(tensors):
    freqs = tensors.pop("rope_freqs.weight")
    tensors["rope_factors_long.weight"] = abs(freqs) + 1
    tensors["rope_factors_short.weight"] = abs(freqs[::-1]) + 1


LACKING = {
    "fused": ("llama", {"edit": fused}, "'blk.0.attn_qkv.weight': queries, keys and values in one"),
    "fused, three biases": ("qwen2", {"edit": fused_but_biases}, "queries, keys and values in one"),
    "long contexts": ("llama", {"edit": long_and_short, **LONG}, "rope scaling 'longrope'"),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_our_own_graphs_lack_is_libllamas(agree, arch_file, tmp_path, case):
    """Without a word of the user: the same file, the same answers."""
    name, changes, message = LACKING[case]
    agree(name, **changes)
    path = tmp_path / "changed.gguf"
    with load(path) as model:
        assert model.graphs == "libllama"
    with pytest.raises(ModelError, match=message):
        load(path, graphs="ours")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_tied_output(agree, name):
    agree(name, edit=tied)


@pytest.mark.parametrize("pattern", [0, 3])
def test_patterns_of_windows(agree, pattern):
    """With 0 all layers have one, and the other cache is empty."""
    agree("gpt-oss", attention__sliding_window_pattern=pattern)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope__dimension_count_swa": 64}, "rope.dimension_count_swa' is 64: expected 128"),
        ({"attention__key_length_swa": 64}, "key_length_swa' is 64: expected 128, as in"),
        ({"attention__sliding_window": 0}, "sliding_window' is 0: expected at least 1"),
        (
            {"attention__sliding_window_pattern": np.array([1, 0], np.uint32)},
            "sliding_window_pattern' has 2 values: expected 4, one per layer",
        ),
        ({"attention__layer_norm_rms_epsilon": "much"}, "epsilon' is 'much': expected float"),
    ],
)
def test_what_a_window_refuses(arch_file, tmp_path, changes, message):
    path = tmp_path / "changed.gguf"
    deeper(arch_file("gpt-oss"), path, 4, "f16", **changes)
    with pytest.raises(ModelError, match=message):
        load(path, graphs="ours")


def test_experts_where_there_are_none(arch_file, tmp_path):
    path = tmp_path / "changed.gguf"
    deeper(arch_file("qwen2"), path, 4, "f16", expert_count=4, expert_used_count=1)
    with pytest.raises(ModelError, match="only dense models of"):
        load(path, graphs="ours")
