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
    without_rope_factors,
)

ROTATED = (
    *("llama", "qwen2", "qwen3", "smollm3", "olmo2", "phi3", "qwen3moe", "gemma2", "gemma3"),
    "gpt-oss",
)
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


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("edit", [fused, fused_but_biases])
@pytest.mark.parametrize("name", [*ROTATED, "llama-moe"])
def test_fused_qkv(agree, name, edit, flash_attn):
    agree(name, {"flash_attn": flash_attn}, edit=edit)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "smollm3", "phi3", "gpt2", "gemma3"])
def test_tied_output(agree, name):
    agree(name, edit=tied)


@pytest.mark.parametrize("name", ["llama", "phi3"])
@pytest.mark.parametrize("n_ctx_orig", [64, 512, 1024])
def test_factors_for_long_and_short_contexts(agree, name, n_ctx_orig):
    """The context has 512 tokens: the long ones' factors if the model was made for fewer."""
    longrope = {
        "rope__scaling__type": "longrope",
        "rope__scaling__attn_factor": 1.19,
        "rope__scaling__original_context_length": n_ctx_orig,
    }
    agree(name, edit=same if name == "phi3" else long_and_short, **longrope)


def long_and_short(tensors):
    freqs = tensors.pop("rope_freqs.weight")
    tensors["rope_factors_long.weight"] = abs(freqs) + 1
    tensors["rope_factors_short.weight"] = abs(freqs[::-1]) + 1


@pytest.mark.parametrize("name", ["phi3", "gemma2", "gemma3"])
def test_heads_rotated_in_part(agree, name):
    agree(
        name,
        edit=without_rope_factors,
        rope__dimension_count=96,
        rope__dimension_count_swa=96,
    )


@pytest.mark.parametrize("cap", [5.0, 77.7])
@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_soft_caps(agree, name, cap):
    agree(name, attn_logit_softcapping=cap, final_logit_softcapping=cap / 7)


@pytest.mark.parametrize("name", ["olmo2", "gemma3"])
def test_windows_are_optional(agree, name):
    agree(name, attention__sliding_window=0)


@pytest.mark.parametrize("name", ["olmo2", "gemma2", "gemma3", "gpt-oss"])
@pytest.mark.parametrize("pattern", [0, 3])
def test_patterns_of_windows(agree, name, pattern):
    """With 0 all layers have one, and the other cache is empty."""
    agree(name, attention__sliding_window_pattern=pattern)


def same(_tensors):
    pass


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
        ({"expert_count": 4, "expert_used_count": 1}, "only dense models of"),
    ],
)
def test_what_gemma2_refuses(arch_file, tmp_path, changes, message):
    path = tmp_path / "changed.gguf"
    deeper(arch_file("gemma2"), path, 4, "f16", **changes)
    with pytest.raises(ModelError, match=message):
        load(path)


def test_no_layer_with_a_window(arch_file, tmp_path):
    """libllama aborts; it is the model without windows."""
    rows = []
    for changes in ({"sliding_window_pattern": 1}, {"sliding_window": 0}):
        path = tmp_path / "changed.gguf"
        changes = {f"attention__{key}": value for key, value in changes.items()}
        deeper(arch_file("olmo2"), path, 4, "f16", **changes)
        with load(path) as model:
            rows.append(model.eval(PROMPTS[64]))
    np.testing.assert_array_equal(*rows)
