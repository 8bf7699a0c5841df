"""Advice about plans that were read from debug logs, which tell less."""

from contextlib import ExitStack

import pytest

from ggml_py.advice import all_findings as advice

from ..support.advice_world import (
    World,
    attention,
    biased,
    gpu,
    ids,
    logged,
    names,
    no_quantised_cache,
)


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def found(plan):
    *findings, last = logged(plan).advice(min_bytes=1)
    assert last.id == "GP100"
    return {f.id: f for f in findings}


def test_gp100_says_what_was_not_checked(stack):
    w = World(stack, gpu(), "CPU")
    *others, last = logged(w.plan(attention(w))).advice(min_bytes=1)
    unanswered = [c.id for c in advice.CHECKS if c.sources == ("scheduler",) and not c.by_time]
    assert others == [] and last.id == "GP100" and last.severity == "note"
    assert len(unanswered) == 19 and all(id in last.text for id in unanswered)
    assert not any(c.id in last.text for c in advice.CHECKS if c.id not in unanswered)


def test_gp102_weights_by_their_names(stack):
    w = World(stack, gpu(), "CPU")
    a = w.tensor("blk.0.attn_q.weight", 256, 64, on="CPU")
    plan = w.plan(w.op("mul_mat", a, w.input("x", 256, 64), name="q"))
    assert ids(plan) == ["GP103"]
    finding = found(plan)["GP102"]
    assert names(finding) == ["blk.0.attn_q.weight"] and finding.bytes == 256 * 64 * 4
    assert "where MUL_MAT 'q' reads it." in finding.text  # no cause
    assert "It may also be op offload; the log does not say" in finding.suggestion
    assert r"-ot 'blk\.0\.attn_q\.weight=gpu0'" in finding.suggestion


def test_gp103_where_causes_are_printed(stack):
    w = World(stack, gpu(), "CPU")
    a = w.tensor("blk.0.attn_q.weight", 256, 64, on="CPU")
    plan = w.plan(w.op("mul_mat", a, w.input("x", 256, 64), name="q"))
    assert [f.id for f in logged(plan, causes=True).advice(min_bytes=1)] == ["GP103", "GP100"]


def test_gp104_a_cache_by_its_name(stack):
    w = World(stack, gpu(), "CPU")
    k = w.tensor("cache_k_l0", 256, 64, on="CPU", usage="any")
    q = w.op("mul_mat", w.tensor("w", 64, 256, on="gpu0"), w.input("x", 64, 4), name="q")
    out = w.op("mul_mat", w.tensor("o", 64, 64, on="gpu0"), w.context.mul_mat(k, q), name="out")
    finding = found(w.plan(out))["GP104"]
    assert names(finding) == ["cache_k_l0"] and "instead" not in finding.text


def test_gp115_flash_attention_on_the_cpu(stack):
    w = World(stack, gpu(supports=no_quantised_cache), "CPU")
    plan = w.plan(attention(w, "q8_0"))
    assert ids(plan) == ["GP101"]
    finding = found(plan)["GP115"]
    (same,) = plan.advice()
    assert names(finding) == ["kqv"] and finding.bytes == same.bytes
    assert "Node 'kqv' (FLASH_ATTN) runs on CPU between splits of gpu0" in finding.text


def test_gp115_not_where_a_weight_or_what_is_written_keeps_it(stack):
    w = World(stack, gpu(), "CPU")
    h = w.op("mul_mat", w.tensor("a.weight", 64, 64, on="gpu0"), w.input("x", 64, 4), name="h")
    cache = w.tensor("cache_k_l0", 64, 4, on="CPU", usage="any")
    written = w.op("cpy", h, cache, name="written")
    h = w.op("mul_mat", w.tensor("b.weight", 64, 64, on="gpu0"), h, name="h2")
    h = w.op("mul_mat", w.tensor("c.weight", 64, 64, on="CPU"), h, name="h3")
    h = w.op("mul_mat", w.tensor("d.weight", 64, 64, on="gpu0"), h, name="h4")
    plan = w.plan(written, h, op_offload=False)
    assert [s.backend for s in plan.splits] == ["gpu0", "CPU", "gpu0", "CPU", "gpu0"]
    assert "GP115" not in found(plan)


def test_gp115_not_where_a_bias_keeps_it(stack):
    w = World(stack, gpu(), "CPU")
    plan = w.plan(biased(w, "CPU"), op_offload=False)
    assert plan.n_splits == 7 and found(plan) == {}


def test_gp115_not_for_blas_which_has_no_memory_to_copy_to(stack):
    w = World(stack, "BLAS", "CPU")
    q = w.op("mul_mat", w.tensor("wq", 64, 64, on="CPU"), w.input("x", 64, 64), name="q")
    k, v = (w.tensor(f"cache_{n}_l0", 64, 256, on="CPU", type="f16", usage="any") for n in "kv")
    q = w.context.reshape_3d(q, 64, 64, 1)
    kqv = w.context.flash_attn_ext(q, k, v, None, 0.125, 0.0, 0.0)
    kqv = w.context.reshape_2d(kqv, 64, 64)
    plan = w.plan(w.op("mul_mat", w.tensor("wo", 64, 64, on="CPU"), kqv, name="out"))
    assert [s.backend for s in plan.splits] == ["BLAS", "CPU", "BLAS"] and found(plan) == {}


def test_gp115_is_for_logs_only(stack):
    w = World(stack, gpu(supports=no_quantised_cache), "CPU")
    assert "GP115" not in [f.id for f in w.plan(attention(w, "q8_0")).advice(min_bytes=1)]
