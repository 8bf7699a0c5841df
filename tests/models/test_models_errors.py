"""What a model refuses, that it says why, and that it works afterwards; how it lives and ends."""

from __future__ import annotations

import gc
import inspect
import logging
from dataclasses import fields
from functools import partial

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import ClosedError, Gguf, ModelError, UnknownDeviceError, models
from ggml_py.boundary.handle import LIVE
from ggml_py.llama import options as of_load

from ..support.changed_models import SPEC, changed

load = partial(models.load, n_threads=1)  # see test_models.py
EXPERTS = {"llama.expert_count": 8, "llama.expert_used_count": 2}
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def path(model_file):
    return model_file(SPEC)


@pytest.fixture
def model(path):
    with load(path) as model:
        yield model


# --- options


def test_options_are_the_arguments_of_load():
    """Each is checked in one place, and none of them twice."""
    names = list(inspect.signature(models.load).parameters)[1:]
    assert names[-3:] == ["graphs", "build", "header_only"]  # not of the model: load's own
    names = names[:-3]
    assert [field.name for field in fields(of_load.Options)] == names
    assert sorted(option.name for option in of_load.TABLE) == sorted(names)


# --- tokens


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "no tokens"),
        ([300], "token 300 is not in the vocabulary: ids are 0 to 299"),
        ([1, -1], "token -1 is not in the vocabulary"),
        ([2**40], "token 1099511627776 is not in the vocabulary"),
        ([2**70], f"token {2**70} is not in the vocabulary: ids are 0 to "),
        ([2**70, 0.5], "expected a list of token ids"),
        ([1.5], "expected a list of token ids"),
        (["a"], "expected a list of token ids"),
        ([[1], [2, 3]], "expected a list of token ids"),
        (7, "expected a list of token ids"),
        ([True], "expected a list of token ids"),
    ],
)
def test_bad_tokens(model, tokens, message):
    before = model.eval(PROMPT)
    with pytest.raises(ModelError, match=message):
        model.eval(tokens)
    assert model.n_past == len(PROMPT)
    model.reset()
    assert (model.eval(PROMPT) == before).all()


def test_a_full_context(path):
    with load(path, n_ctx=256) as model:
        model.eval([1] * 250)
        with pytest.raises(ModelError, match=r"250 of 256 tokens .*no room for 7 more"):
            model.eval([1] * 7)
        with pytest.raises(ModelError, match=r"250 of 256 tokens .*no room for 7 more"):
            model.generate([1], 7)
        assert model.n_past == 250
        assert len(model.generate([1], 6)) == 6
        assert model.n_past == model.n_ctx == 256


def test_numpy_tokens_and_rows(model):
    rows = model.eval(np.array(PROMPT, np.uint16), all_logits=True)
    assert rows.shape == (5, 300) and rows.dtype == np.float32
    model.reset()
    last = model.eval(PROMPT)
    assert last.shape == (300,)
    np.testing.assert_allclose(last, rows[-1], atol=1e-5)


# --- files


def test_unknown_architecture(tmp_path):
    target = changed(tmp_path, metadata={"general.architecture": "rwkv9"})
    with pytest.raises(ModelError, match=r"architecture 'rwkv9'; supported: .*llama, "):
        load(target)


def test_no_architecture(tmp_path):
    with pytest.raises(ModelError, match=r"names no architecture; supported: .*llama, "):
        load(changed(tmp_path, metadata={"general.architecture": None}))


def test_missing_tensor(tmp_path):
    target = changed(tmp_path, drop=["blk.1.ffn_up.weight"])
    with pytest.raises(ModelError, match=r"tensor 'blk.1.ffn_up.weight' \[64, 96\] is not among"):
        load(target)


def test_tensor_of_another_shape(tmp_path):
    target = changed(tmp_path, reshape=("blk.0.attn_k.weight", (64, 64)))
    expected = r"'blk.0.attn_k.weight' has ne \[64, 64, 1, 1\], expected \[64, 32, 1, 1\]"
    with pytest.raises(ModelError, match=expected):
        load(target)


def test_tensor_that_nobody_uses(tmp_path):
    extra = ("blk.0.attn_q_norm.weight", np.ones(16, np.float32), "f32", (16,))
    with pytest.raises(
        ModelError, match=r"1 tensor that .* does not use: blk.0.attn_q_norm.weight"
    ):
        load(changed(tmp_path, add=[extra]), graphs="ours")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.block_count": None}, "metadata 'llama.block_count' is missing"),
        ({"llama.block_count": 0}, "'llama.block_count' is 0: expected at least 1"),
        ({"llama.block_count": "two"}, "'llama.block_count' is 'two': expected int"),
        ({"llama.attention.head_count_kv": [2, 1]}, r"differs between layers \(\[2, 1\]\)"),
        ({"llama.attention.head_count_kv": 3}, "4 heads cannot share 3 key/value heads"),
        ({"llama.expert_count": 8}, "metadata 'llama.expert_used_count' is missing"),
        (
            {"llama.expert_count": 8, "llama.expert_used_count": 9},
            "'llama.expert_used_count' is 9: expected at most 8 experts",
        ),
        (
            {**EXPERTS, "llama.expert_group_count": 2},
            "2 groups of experts: our own graphs have one",
        ),
        (EXPERTS, r"tensor 'blk.0.ffn_gate_inp.weight' \[64, 8\] is not among"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count' is 8: expected 16, all ele"),
        ({"llama.rope.scaling.type": "su"}, "rope scaling 'su': expected none, linear"),
        ({"llama.attention.layer_norm_rms_epsilon": True}, "epsilon' is True: expected float"),
    ],
)
def test_bad_metadata(tmp_path, metadata, message):
    with pytest.raises(ModelError, match=message):
        load(changed(tmp_path, metadata=metadata), graphs="ours")


def test_one_value_per_layer(tmp_path, path):
    same = {"llama.attention.head_count_kv": [2, 2], "llama.feed_forward_length": [96, 96]}
    with load(changed(tmp_path, metadata=same)) as model, load(path) as usual:
        assert model.hparams == usual.hparams
        assert (model.eval(PROMPT) == usual.eval(PROMPT)).all()


def test_no_gguf_file(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUX")
    with pytest.raises(ggml.GgufError):
        load(tmp_path / "x.gguf")


def test_unaligned_file_is_copied(tmp_path, path):
    """A mapped tensor must be aligned as the backend wants it; general.alignment can be less."""
    target = changed(tmp_path, metadata={"general.alignXXXX": np.uint32(8)})
    raw = target.read_bytes().replace(b"general.alignXXXX", b"general.alignment")
    target.write_bytes(raw)
    with Gguf.open(target) as gguf:
        start = gguf.data_offset
    assert start % 32, "the header happens to end where the data is aligned: name it otherwise"
    target.write_bytes(raw[:start] + raw[-(-start // 32) * 32 :])
    with load(target) as model, load(path) as usual:
        assert (model.eval(PROMPT) == usual.eval(PROMPT)).all()


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ubatch": 0}, "n_ubatch=0: expected at least 1"),
        ({"n_batch": 0}, "n_batch=0: expected at least 1"),
        ({"n_ctx": -1}, "n_ctx=-1: expected at least 0"),
        ({"n_threads": 0}, "n_threads=0: expected at least 1"),
        ({"n_cpu_moe": -1}, "n_cpu_moe=-1: expected at least 0"),
        ({"split_mode": "rows"}, "split_mode='rows': expected one of layer, none"),
        ({"tensor_split": (1, -1)}, r"tensor_split=\(1, -1\): expected numbers >= 0, like"),
        ({"flash_attn": "maybe"}, "flash_attn='maybe': expected one of auto, on, off"),
        ({"type_k": "i32"}, "type_k=i32: a cache can have the types f32, f16, bf16, q8_0"),
        ({"type_k": "q8_0"}, "type_k=q8_0 has blocks of 32 elements, .* have 16, .*: use f16"),
        ({"type_v": "q8_0", "flash_attn": "off"}, "type_v=q8_0: a quantised V cache needs flash"),
    ],
)
def test_bad_options(path, options, message):
    with pytest.raises(ModelError, match=message):
        load(path, **options)


def test_unknown_device(path):
    with pytest.raises(UnknownDeviceError, match=r"no device named 'CUDA7'; there are: .*CPU"):
        load(path, devices=("CUDA7",))


def test_devices(path):
    with load(path, devices=("BLAS",)) as model:
        assert [b.name for b in model.placement.backends] == ["BLAS", "CPU"]
    with load(path, devices=(ggml.device("cpu"), "CPU")) as model:
        assert [b.name for b in model.placement.backends] == ["CPU"]


def test_a_ubatch_beyond_the_batch_is_said(path, caplog):
    with caplog.at_level(logging.WARNING, "ggml_py"), load(path, n_batch=64) as model:
        assert model.n_ubatch == 64 and caplog.text == ""  # 512 is only the default
    with caplog.at_level(logging.WARNING, "ggml_py"), load(path, n_batch=64, n_ubatch=128) as model:
        assert model.n_ubatch == 64
    assert "n_ubatch=128 (-ub) is more than n_batch=64 (-b): as in llama.cpp" in caplog.text


def test_layers_for_a_gpu_that_is_not_there(path, caplog):
    with caplog.at_level(logging.WARNING, "ggml_py"), load(path, n_gpu_layers=9) as model:
        model.eval(PROMPT)
    assert "n_gpu_layers=9 has no effect: no GPU among the devices (CPU)" in caplog.text


def test_n_ctx_of_the_file(path):
    with load(path, n_ctx=0) as model:
        assert model.n_ctx == SPEC.n_ctx
    with load(path, n_ctx=257, n_batch=1000, n_ubatch=600) as model:
        # As in llama.cpp, a batch is limited before the context is padded.
        assert (model.n_ctx, model.n_batch, model.n_ubatch) == (512, 257, 257)


# --- plans


def test_plan_changes_nothing(model):
    model.eval(PROMPT)
    expected = model.generate([3], 4)
    model.reset()
    first = model.plan()
    model.eval(PROMPT)
    assert model.plan() == first
    assert model.plan(64, 17) == model.plan(64, 17)
    assert model.generate([3], 4) == expected


def test_plan_of_a_model_that_never_ran(path):
    with load(path, devices=("BLAS", "CPU")) as model:
        plan = model.plan(n_tokens=64)
        assert {"BLAS", "CPU"} == {s.backend for s in plan.splits}
        assert plan.node("norm-0").cause.code == "2.sup"
        assert model.plan(n_tokens=31).node("norm-0").cause.code == "usr"
        assert not model._graphs._reserved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "n_tokens=0: one graph takes 1 to 512 tokens"),
        ((513, 0), "n_tokens=513: one graph takes 1 to 512 tokens"),
        ((1, 512), "n_past=512 and n_tokens=1: expected .* at most 512 tokens"),
        ((1, -1), "n_past=-1 and n_tokens=1"),
    ],
)
def test_bad_plans(model, arguments, message):
    with pytest.raises(ModelError, match=message):
        model.plan(*arguments)


# --- lifetime


def test_decoding_builds_nothing(model, monkeypatch):
    """Inputs are set, the graph computed; what builds, plans or allocates is not reached."""
    model.eval(PROMPT)
    model.eval([1])
    monkeypatch.setattr(model._graphs, "_build", None)
    monkeypatch.setattr(type(model._graphs._sched), "alloc_without_plan", None)
    for token in range(20):
        model.eval([token])


def test_few_graphs_are_kept(path):
    with load(path) as model:
        for n in range(1, 12):
            model.reset()
            model.eval([1] * n)
        graphs = model._graphs._kept
        assert len(graphs) == 4 and not any(g.ctx.closed for g in graphs.values())


def test_a_stopped_compute_leaves_a_working_model(model, monkeypatch):
    expected = model.eval(PROMPT)
    model.reset()
    compute = model._graphs._sched.compute
    with monkeypatch.context() as patch:
        patch.setattr(type(model._graphs._sched), "compute", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.eval(PROMPT)
    assert model.n_past == 0 and model._graphs._sched.compute == compute
    assert (model.eval(PROMPT) == expected).all()


def _interrupted(self, graph):
    raise KeyboardInterrupt


def test_close(path):
    gc.collect()
    before = dict(LIVE)
    model = load(path, devices=("BLAS", "CPU"))
    model.eval(PROMPT)
    model.eval([1])
    model.close()
    model.close()
    assert model.closed and before == dict(LIVE)
    assert repr(model) == "<Model closed>"
    for call in (lambda: model.eval([1]), model.reset, model.plan, lambda: model.generate([1], 1)):
        with pytest.raises(ClosedError):
            call()


def test_a_model_that_is_dropped_or_fails_to_load_is_freed(path, tmp_path):
    gc.collect()
    before = dict(LIVE)
    model = load(path)
    model.eval(PROMPT)
    del model
    for options in ({"type_k": "q8_0"}, {"devices": ("BLAS", "CUDA7")}):
        with pytest.raises((ModelError, UnknownDeviceError)):
            load(path, **options)
    with pytest.raises(ModelError):
        load(changed(tmp_path, drop=["output_norm.weight"]))
    gc.collect()
    assert before == dict(LIVE)


@pytest.mark.needs(release="default")
@pytest.mark.thorough("programs")
def test_a_file_that_neither_takes(tmp_path):
    """Both reasons are in the error."""
    with pytest.raises(ModelError, match=r"does not use: extra\..* Of libllama: .*wrong number"):
        load(changed(tmp_path, add=[("extra.weight", np.zeros(4, np.float32), "f32", (4,))]))
