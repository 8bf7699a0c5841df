"""What is set on a node after its op has made it does what it says, and only where it may."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import enums
from ggml_py.boundary.ffi import lib

RNG = np.random.default_rng(0)
N_HEAD, N = 4, 8


@pytest.fixture
def stand():
    with ggml.device("CPU").init(n_threads=2) as cpu, ggml.Context() as context:
        yield cpu, context


def computed(cpu, context, node):
    context.alloc(cpu)
    graph = context.new_graph(32)
    graph.build_forward_expand(node)
    cpu.compute(graph)
    return node.get()


def needs(name):
    return pytest.mark.skipif(name not in dir(lib), reason=f"this release has no {name}")


def test_sinks_take_part_of_the_soft_max(stand):
    cpu, context = stand
    scores = RNG.standard_normal((N_HEAD, 3, N), np.float32)
    sinks = RNG.standard_normal(N_HEAD, np.float32)
    node = context.soft_max_ext(context.from_numpy(scores), None, 1.0, 0.0)
    node.add_sinks(context.from_numpy(sinks))
    with pytest.raises(ggml.ArgumentError, match="already has sinks"):
        node.add_sinks(context.from_numpy(sinks))
    top = np.maximum(scores.max(-1, keepdims=True), sinks[:, None, None])
    e = np.exp(scores - top)
    want = e / (e.sum(-1, keepdims=True) + np.exp(sinks[:, None, None] - top))
    np.testing.assert_allclose(computed(cpu, context, node), want, rtol=1e-5)
    node.add_sinks(None)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    graph = context.new_graph(8)
    graph.build_forward_expand(node)
    cpu.compute(graph)
    np.testing.assert_allclose(node.get(), e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_sinks_of_flash_attention(stand):
    cpu, context = stand
    q, k, v = (RNG.standard_normal((N_HEAD, n, 32), np.float32) for n in (3, N, N))
    sinks = RNG.standard_normal(N_HEAD, np.float32)
    args = (context.from_numpy(x) for x in (q, k, v))
    node = context.flash_attn_ext(*args, None, 0.25, 0.0, 0.0)
    node.add_sinks(context.from_numpy(sinks))
    node.set_prec("f32")
    scores = 0.25 * q @ k.transpose(0, 2, 1)
    e = np.exp(scores)
    p = e / (e.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])
    want = (p @ v).transpose(1, 0, 2)  # [n_tokens, n_head, n_embd]
    np.testing.assert_allclose(computed(cpu, context, node), want, rtol=2e-3, atol=2e-3)


def test_sinks_set_too_late_are_no_crash(stand):
    cpu, context = stand
    node = context.soft_max_ext(context.from_numpy(np.ones((1, 1, 4), np.float32)), None, 1.0, 0.0)
    context.alloc(cpu)
    graph = context.new_graph(8)
    graph.build_forward_expand(node)
    node.add_sinks(context.new_tensor("f32", 1, name="late"))
    with pytest.raises(ggml.NoDataError, match="'late' of the graph has no memory"):
        cpu.compute(graph)


@needs("ggml_rope_set_offset")
def test_a_rope_with_an_offset_leaves_what_is_before(stand):
    cpu, context = stand
    x = RNG.standard_normal((1, 2, 10), np.float32)
    node = context.rope(context.from_numpy(x), context.from_numpy(np.array([3], np.int32)), 4, 0)
    node.set_rope_offset(2)
    out = computed(cpu, context, node)
    same = [out.reshape(2, 10)[0, i] == x[0, 0, i] for i in range(10)]
    assert same == [True, True] + 4 * [False] + 4 * [True]
    with pytest.raises(ggml.ArgumentError, match="n_offs=7: expected 0 to 6"):
        node.set_rope_offset(7)


def test_settings_are_where_upstream_reads_them(stand):
    _cpu, context = stand
    a = context.new_tensor("f16", 32, 4)
    product = context.mul_mat(a, context.new_tensor("f32", 32, 4))
    product.set_prec(enums.Prec.F32)
    assert product.ptr.op_params[0] == enums.Prec.F32
    heads = [context.new_tensor("f16", 32, 4, 1) for _ in range(2)]
    attention = context.flash_attn_ext(context.new_tensor("f32", 32, 4, 1), *heads, None, 1, 0, 0)
    attention.set_prec("f32")
    assert lib.ggml_flash_attn_ext_get_prec(attention.ptr) == enums.Prec.F32


@needs("ggml_prec_set_src")
def test_newer_settings(stand):
    _cpu, context = stand
    a = context.new_tensor("f16", 32, 4)
    product = context.mul_mat(a, context.new_tensor("f32", 32, 4))
    product.set_prec_src("q8")
    product.set_hint("src0_is_hadamard")
    assert list(product.ptr.op_params[1:4]) == [1, 0, enums.Prec.Q8]
    heads = [context.new_tensor("f16", 32, 4, 1) for _ in range(2)]
    attention = context.flash_attn_ext(context.new_tensor("f32", 32, 4, 1), *heads, None, 1, 0, 0)
    attention.set_n_kv_max(7)
    assert attention.ptr.op_params[4] == 7


def test_other_ops_refuse_them(stand):
    _cpu, context = stand
    y = context.relu(context.new_tensor("f32", 4, name="x"))
    y.name = "y"
    for use in (lambda: y.set_prec("f32"), lambda: y.add_sinks(None)):
        with pytest.raises(ggml.ArgumentError, match=r"'y' is a unary: .*flash_attn_ext"):
            use()
    soft = context.soft_max_ext(context.new_tensor("f32", 4, 3, 2), None, 1.0, 0.0)
    with pytest.raises(ggml.ArgumentError, match=r"f32 ne0 3, expected f32 .* of 2 heads"):
        soft.add_sinks(context.new_tensor("f32", 3))
    with pytest.raises(TypeError, match="expected a Tensor, got int"):
        soft.add_sinks(3)
