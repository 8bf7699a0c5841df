"""Advice about caches, offload, small weights, splits, inputs and embeddings."""

from contextlib import ExitStack
from pathlib import Path

import pytest

import ggml_py as ggml

from ..support.advice_world import (
    World,
    attention,
    biased,
    embedded,
    findings,
    gpu,
    ids,
    layers,
    names,
    net,
    only,
    residual,
)  # fmt: skip
from ..support.rpc_client import client, needs_rpc
from ..support.rpc_net import server


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def note(plan, id):
    return next((f for f in plan.advice(min_bytes=1) if f.id == id), None)


# --- GP104: what is kept from one evaluation to the next


def test_gp104_a_cache_on_the_other_side_than_its_attention(stack):  # llama.cpp #13648
    w = World(stack, gpu(), "CPU")
    plan = w.plan(attention(w, kv="CPU"))
    assert plan.node("kqv").backend == "gpu0"
    finding = only(plan, "GP104")
    assert names(finding) == ["k", "v"] and finding.bytes == 2 * plan.node("k").nbytes
    assert "'kqv' reads 'k' (2.sup: gpu0 supports it and spread down" in finding.text
    assert "On CPU instead: 3 splits instead of 1, 3.0 KiB copied instead of 65.0" in finding.text
    assert "-kvo" in finding.suggestion and "not checked" in finding.suggestion


def test_gp104_not_for_a_cache_beside_its_attention(stack):
    w = World(stack, gpu(), "CPU")
    assert ids(w.plan(attention(w, kv="gpu0"))) == []


# --- GP105, GP106: op offload that is not asked


def product(w, n_tokens, on="CPU", type="f32"):
    a = w.tensor("a", 256, 64, on=on, type=type)
    return w.op("mul_mat", a, w.input("x", 256, n_tokens), name="product")


def test_gp105_blas_outranks_the_cpu(stack):  # llama.cpp #12237
    w = World(stack, gpu(), "BLAS", "CPU")
    plan = w.plan(product(w, 48))
    assert plan.node("product").backend == "BLAS"
    finding = only(plan, "GP105")
    assert (names(finding), finding.bytes) == (["product"], 256 * 64 * 4)
    assert "Without BLAS, gpu0 computes it and 64.0 KiB of weights are copied" in finding.text
    plan = w.stack.enter_context(ggml.Scheduler([w.backends[0], w.backends[2]])).plan(w.graph)
    assert (plan.node("product").backend, ids(plan)) == ("gpu0", ["GP103"])


@pytest.mark.parametrize(
    ("device", "n_tokens", "options"),
    [
        (gpu(), 31, {}),
        (gpu(), 48, {"op_offload": False}),
        (gpu(supports={"ADD": True}), 48, {}),
        (gpu(offload_min_batch=64), 48, {}),
    ],
)
def test_gp105_not_where_nobody_wants_it(stack, device, n_tokens, options):
    w = World(stack, device, "BLAS", "CPU")
    assert ids(w.plan(product(w, n_tokens), **options)) == []


def repacked():
    return next(
        (t for t in ggml.device("CPU").extra_buffer_types if t.name == "CPU_REPACK"), None
    )


@pytest.mark.parametrize(("n_tokens", "expected"), [(48, ["GP106"]), (31, [])])
def test_gp106_repacked_weights(stack, n_tokens, expected):  # llama.cpp #12481
    buft = repacked()
    if buft is None:
        pytest.skip("this CPU has no layout of its own for weights")
    w = World(stack, gpu(), "CPU")
    plan = w.plan(product(w, n_tokens, on=buft, type="q4_0"))
    if plan.node("a").buft.name != "CPU_REPACK" or not plan.node("product").record.supports >> 1:
        pytest.skip("not for this type")
    assert ids(plan) == expected
    for finding in findings(plan):
        assert names(finding) == ["product"] and finding.bytes == plan.node("a").nbytes
        assert "its weight is in CPU_REPACK memory" in finding.text
        assert "--no-repack" in finding.suggestion


def test_gp106_not_for_the_same_weight_in_plain_host_memory(stack):
    w = World(stack, gpu(), "CPU")
    assert ids(w.plan(product(w, 48, type="q4_0"))) == ["GP103"]


def experts(w, n_tokens=64):
    a = w.tensor("blk.0.ffn_up_exps.weight", 64, 64, 8, on="CPU")
    used = w.input("ids", 2, n_tokens, type="i32")
    return w.op("mul_mat_id", a, w.input("x", 64, 1, n_tokens), used, name="experts")


@pytest.mark.parametrize(("release", "told"), [
    ("0.26.0", "All experts are copied, unless"),
    ("0.25.3", "Of the experts, ggml copies only the used ones"),
])
def test_gp103_experts_by_release(stack, release, told):
    w = World(stack, gpu(), "CPU")
    finding = only(w.plan(experts(w)).what_if(upstream=release), "GP103")
    assert told in finding.suggestion
    assert ("set_copy_callback" in finding.suggestion) == (release == "0.26.0")


def test_gp105_not_told_again_as_an_avoidable_split(stack, tmp_path):
    """Where activations are larger than the weights, pinning to the GPU would copy less, too."""
    w = World(stack, gpu(), "BLAS", "CPU")
    h = w.op("mul_mat", w.tensor("a", 64, 64, on="gpu0"), w.input("x", 64, 512), name="h")
    h = w.op("mul_mat", w.tensor("b", 64, 64, on="CPU"), h, name="on_blas")
    plan = w.plan(w.op("mul_mat", w.tensor("c", 64, 64, on="gpu0"), h, name="out"))
    assert plan.node("on_blas").backend == "BLAS" and ids(plan) == ["GP105"]


# --- GP107: small weights


def test_gp107_biases_on_the_cpu(stack):
    w = World(stack, gpu(), "CPU")
    plan = w.plan(biased(w, "CPU"))
    assert plan.n_splits == 7
    finding = only(plan, "GP107")
    assert names(finding) == ["biased0", "biased1", "biased2"]
    assert finding.bytes == 6 * 64 * 8 * 4  # down and up again
    assert "1 split instead of 7, 2.0 KiB copied instead of 14.0 KiB" in finding.text
    assert r"-ot 'blk\.(0|1|2)\.bias=gpu0'" in finding.suggestion


@needs_rpc
def test_gp107_on_a_server(tmp_path):
    """The client is a process of its own: a server that goes takes it along."""
    program = """
        import sys
        sys.path.append(sys.argv[1])
        from contextlib import ExitStack
        import ggml_py as ggml
        from tests.support.advice_world import World, biased

        with ExitStack() as stack:
            remote = ggml.rpc_devices(sys.argv[2])[0]
            w = World(stack, remote, "CPU")
            w.plan(biased(w, "CPU", remote.name)).to_json(sys.argv[3])
        print("true")
    """
    with server() as process:
        client(program, str(Path(__file__).parents[2]), process.endpoint, str(tmp_path / "p.json"))
    finding = only(ggml.Plan.from_json(tmp_path / "p.json"), "GP107")
    assert names(finding) == ["biased0", "biased1", "biased2"]
    assert "1 split instead of 7" in finding.text


def test_gp107_not_for_biases_beside_their_products(stack):
    w = World(stack, gpu(), "CPU")
    assert ids(w.plan(biased(w, "gpu0"))) == []


def test_gp107_not_at_the_border_of_two_layers(stack):
    w = World(stack, gpu(), "CPU")
    t = w.op("mul_mat", w.tensor("a", 64, 64, on="gpu0"), w.input("x", 64, 8), name="h")
    t = w.op("mul", w.context.rms_norm(t, 1e-5), w.tensor("norm", 64, on="CPU"), name="normed")
    plan = w.plan(w.op("mul_mat", w.tensor("b", 64, 64, on="CPU"), t, name="out"))
    assert plan.node("normed").backend == "CPU" and ids(plan) == []


@pytest.mark.parametrize(("release", "expected"), [("0.17.0", ["GP107"]), ("0.18.0", [])])
def test_gp107_attention_sinks_by_release(stack, release, expected):  # llama.cpp #25800
    """On the CPU but for attention, which is offloaded for its sinks. The rules are 0.17.0's."""
    w = World(stack, gpu("gpu0", offload_min_batch=4), "CPU")
    q = w.input("q", 64, 1, 8)
    q = w.op("scale", q, 1.0, name="scaled")
    k, v = (w.tensor(n, 64, 256, 8, on="CPU", type="f16", usage="any") for n in ("k", "v"))
    kqv = w.op("flash_attn_ext", q, k, v, None, 0.125, 0.0, 0.0, name="kqv")
    kqv.add_sinks(w.tensor("blk.0.attn_sinks.weight", 8, on="CPU"))
    plan = w.plan(w.op("scale", kqv, 1.0, name="out")).what_if(upstream=release)
    assert ids(plan) == expected
    for finding in findings(plan):
        assert plan.node("kqv").cause.code == "1.off" and names(finding) == ["kqv"]
        assert finding.bytes >= 2 * plan.node("k").nbytes
        assert "because of weight 'blk.0.attn_sinks.weight' of 32 B" in finding.text
        assert "--no-op-offload" in finding.suggestion and "0.18.0" in finding.suggestion


# --- GP108: splits


def test_gp108_a_split_that_a_pin_makes(stack):
    w = World(stack, gpu(), "CPU")
    relu, out = net(w)
    plan = w.plan(out, pins=[(relu, "CPU")])
    finding = only(plan, "GP108")
    assert names(finding) == ["relu"] and finding.bytes == 2 * 64 * 8 * 4
    assert "1 split instead of 3" in finding.text and "because the caller pinned" in finding.text
    assert finding.suggestion == "Remove its pin."


def test_gp108_not_without_the_pin(stack):
    w = World(stack, gpu(), "CPU")
    assert ids(w.plan(net(w)[1])) == []


def test_gp108_not_where_more_would_be_copied(stack):
    w = World(stack, gpu(), "CPU")
    h = w.op("mul_mat", w.tensor("a", 64, 64, on="gpu0"), w.input("x", 64, 8), name="h")
    big = w.op("mul_mat", w.tensor("large", 64, 512, on="CPU"), h, name="big")
    out = w.op("mul_mat", w.tensor("b", 512, 64, on="gpu0"), big, name="out")
    plan = w.plan(out, op_offload=False)
    assert (plan.n_splits, ids(plan)) == (3, [])


# --- GP109: inputs


def test_gp109_a_large_input_that_only_a_device_reads(stack):
    w = World(stack, gpu(), "CPU")
    plan = w.plan(product(w, 2048, on="gpu0"))
    finding = note(plan, "GP109")
    assert names(finding) == ["x"] and finding.bytes == plan.copy_bytes == 256 * 2048 * 4
    assert "On gpu0: 0 B copied instead of 2.0 MiB" in finding.text
    assert plan.advice() == (finding,) and plan.advice(finding.bytes + 1) == ()
    x = w.graph.leafs[1]
    assert x.name == "x"
    pinned = w.stack.enter_context(ggml.Scheduler(w.backends))
    pinned.set_tensor_backend(x, w.backend("gpu0"))
    plan = pinned.plan(w.graph)
    assert plan.copy_bytes == 0 and plan.advice(1) == ()


def test_gp109_not_for_an_input_that_both_sides_read(stack):
    w = World(stack, gpu(), "CPU")
    x = w.input("x", 256, 64)
    up = w.op("mul_mat", w.tensor("a", 256, 64, on="gpu0"), x, name="up")
    down = w.op("mul_mat", w.tensor("b", 256, 64, on="CPU"), x, name="down")
    plan = w.plan(up, down, op_offload=False)
    assert plan.copy_bytes and note(plan, "GP109") is None


def test_gp109_not_for_an_input_that_the_other_side_reads_in_part(stack):
    """It would be less to copy the part, but then not one side alone reads the input."""
    w = World(stack, gpu(), "CPU")
    x = w.input("x", 256, 64)
    up = w.op("mul_mat", w.tensor("a", 256, 64, on="gpu0"), x, name="up")
    part = w.context.view_2d(x, 256, 8, x.nb[1], 0)
    down = w.op("mul_mat", w.tensor("b", 256, 64, on="CPU"), part, name="down")
    plan = w.plan(up, down, op_offload=False)
    assert plan.copy_bytes and note(plan, "GP109") is None


def test_gp109_an_input_that_was_allocated_where_nobody_reads_it(stack):
    w = World(stack, gpu(), "CPU")
    x = w.tensor("x", 256, 64, on="gpu0", usage="any")
    x.set_input()
    out = w.op("mul_mat", w.tensor("a", 256, 64, on="CPU"), x, name="out")
    finding = note(w.plan(out, op_offload=False), "GP109")
    assert names(finding) == ["x"] and "only CPU reads it" in finding.text
    assert finding.suggestion.startswith("Allocate it in memory of CPU")


# --- GP116: a sum that goes to where its operands are not


def test_gp116_a_sum_that_a_sweep_takes_up(stack):
    w = World(stack, gpu(), "CPU")
    plan = w.plan(residual(w, "CPU"), op_offload=False)
    total = plan.node("sum")
    assert (total.backend, total.cause.code, plan.n_inputs) == ("gpu0", "2.sup", 2)
    finding = only(plan, "GP116")
    assert names(finding) == ["sum"] and finding.bytes == total.nbytes
    assert "16.0 KiB copied instead of 32.0 KiB" in finding.text
    assert ids(plan, total.nbytes + 1) == []
    pinned = w.stack.enter_context(ggml.Scheduler(w.backends, op_offload=False))
    pinned.set_tensor_backend(w.graph.nodes[total.index], w.backend("CPU"))
    plan = pinned.plan(w.graph)
    assert plan.copy_bytes == total.nbytes and ids(plan) == []


def test_gp116_not_where_one_operand_is_there(stack):
    w = World(stack, gpu(), "CPU")
    plan = w.plan(residual(w, "gpu0"), op_offload=False)
    assert plan.node("sum").backend == "gpu0" and "GP116" not in ids(plan)


# --- GP113: weights by turns


def test_gp113_layers_by_turns(stack):
    w = World(stack, gpu(), "CPU")
    plan = w.plan(layers(w, ["CPU", "gpu0"] * 4))
    finding = only(plan, "GP113")
    assert "in 8 runs in graph order" in finding.text
    assert "2 splits instead of 8, 2.0 KiB copied instead of 14.0 KiB" in finding.text
    assert names(finding) == ["blk.1.w", "blk.3.w", "blk.4.w", "blk.6.w"]
    assert finding.bytes == 12 * 1024


@pytest.mark.parametrize(
    "places", [["CPU"] * 4 + ["gpu0"] * 4, ["gpu0"] * 4 + ["CPU"] * 4, ["CPU", "gpu0", "CPU"]]
)
def test_gp113_not_for_layers_in_a_few_pieces(stack, places):
    w = World(stack, gpu(), "CPU")
    assert ids(w.plan(layers(w, places))) == []


# --- GP114: the embedding


def test_gp114_an_embedding_before_two_devices(stack):  # llama.cpp #22926
    w = World(stack, gpu("gpu0"), gpu("gpu1"), "CPU")
    plan = w.plan(embedded(w, ["gpu0", "gpu1"]))
    finding = note(plan, "GP114")
    assert names(finding) == ["embd"] and plan.n_splits == 3
    assert "2 splits instead of 3" in finding.text and "128.0 KiB" in finding.text
    assert "-ot '^token_embd=gpu0'" in finding.suggestion


@pytest.mark.parametrize(
    ("device", "places", "on"),
    [
        (gpu("gpu0"), ["gpu0", "gpu0"], "CPU"),
        (gpu("gpu0"), ["gpu0", "gpu1"], "gpu0"),
        (gpu("gpu0", supports={"MUL_MAT": True}), ["gpu0", "gpu1"], "CPU"),
    ],
)
def test_gp114_not_for_one_device_nor_where_it_would_not_help(stack, device, places, on):
    w = World(stack, device, gpu("gpu1"), "CPU")
    assert note(w.plan(embedded(w, places, on)), "GP114") is None
