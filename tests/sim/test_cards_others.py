"""Cards of OpenCL, SYCL, WebGPU, CANN, Hexagon and ET: what upstream's source says of them."""

from __future__ import annotations

import pytest

import ggml_py as ggml
from ggml_py.sim.profiles.cards import CARDS
from ggml_py.tensors.live_call import call_of

from ..support import docs_ops
from ..support.profile_cases import parsed
from ..support.profile_more_cases import ALL_CASES

pytestmark = pytest.mark.needs(release="default", why="what is supported differs by release")

K_QUANTS = ("q4_k", "q5_k", "q6_k")


@pytest.fixture
def ctx():
    with ggml.Context() as context:
        yield context


def attention(ctx, head_size=128, k="f16", v=None, n_tokens=8, n_head_kv=8, v_size=None):
    q = ctx.new_tensor("f32", head_size, n_tokens, 32)
    keys = ctx.new_tensor(k, head_size, 256, n_head_kv)
    values = ctx.new_tensor(v or k, v_size or head_size, 256, n_head_kv)
    return ctx.flash_attn_ext(q, keys, values, ctx.new_tensor("f16", 256, 64), 1.0, 0.0, 0.0)


def product(ctx, type_="q4_k", n_tokens=8, rows_=4096, columns=4096):
    w = ctx.new_tensor(type_, columns, rows_)
    return ctx.mul_mat(w, ctx.new_tensor("f32", columns, n_tokens))


def experts(ctx, type_="q4_k", name="blk.0.ffn_up_exps.weight", rows_=1024):
    w = ctx.new_tensor(type_, 512, rows_, 8)
    w.name = name
    x = ctx.new_tensor("f32", 512, 2, 16)
    return ctx.mul_mat_id(w, x, ctx.new_tensor("i32", 2, 16))


def answers(node, *names):
    return [ggml.load_profile(name).supports(node) for name in names]


# ---- OpenCL


@pytest.mark.parametrize("type_", ["q4_0", "q4_1", "q8_0", "iq4_nl", "f16", "bf16", *K_QUANTS])
def test_opencl_multiplies_by_these_weights(ctx, type_):
    assert ggml.load_profile("opencl").supports(product(ctx, type_))
    assert ggml.load_profile("opencl").supports(product(ctx, type_, 512))


@pytest.mark.parametrize("type_", ["q2_k", "q3_k", "iq4_xs", "iq2_xxs", "tq1_0"])
def test_opencl_does_not_multiply_by_these_weights(ctx, type_):
    assert not ggml.load_profile("opencl").supports(product(ctx, type_))


def test_opencl_multiplies_long_batches_only_with_its_large_kernel(ctx):
    """From 512 columns on: types that have one, and rows in whole tiles (use_adreno_kernels)."""
    card = ggml.load_profile("adreno-x1")
    for node, supported in (
        (product(ctx, "q5_1", 511), True), (product(ctx, "q5_1", 512), False),
        (product(ctx, "q4_k", 512, rows_=4064), False), (product(ctx, "q4_1", 512, 4064), True),
        (product(ctx, "q4_k", 512, columns=256), False), (product(ctx, "q4_k", 511, 4064), True),
    ):  # fmt: skip
        assert card.supports(node) == supported, node


def test_opencl_leaves_the_output_of_large_vocabularies_to_the_cpu_on_some_gpus(ctx):
    """Those that get_adreno_gpu_gen calls A7X, which miscompile its kernels."""
    for type_ in K_QUANTS:
        small, large = product(ctx, type_, rows_=32640), product(ctx, type_, rows_=32768)
        names = ("adreno-740", "adreno-750", "adreno-830", "adreno-x1")
        assert answers(small, *names) == [True] * 4
        assert answers(large, *names) == [False, False, True, True]
    assert ggml.load_profile("adreno-740").supports(product(ctx, "q4_0", rows_=32768))


@pytest.mark.parametrize("size", [40, 64, 80, 96, 112, 128, 192, 256, 32, 72, 160, 576])
def test_opencl_has_attention_for_these_head_sizes(ctx, size):
    known = size in (40, 64, 80, 96, 112, 128, 192, 256)
    assert ggml.load_profile("opencl").supports(attention(ctx, size)) == known
    assert not ggml.load_profile("adreno-740").supports(attention(ctx, size))  # A7X, f16 cache


def test_opencl_has_attention_of_512_for_prompts_only(ctx):
    card = ggml.load_profile("opencl")
    assert card.supports(attention(ctx, 512)) and not card.supports(attention(ctx, 512, n_tokens=1))
    assert not card.supports(attention(ctx, 512, "q8_0"))


@pytest.mark.parametrize("type_", ["q8_0", "q4_0", "f32", "q5_1", "q4_1", "bf16"])
def test_opencl_reads_these_caches(ctx, type_):
    known = type_ in ("q8_0", "q4_0", "f32")
    assert ggml.load_profile("opencl").supports(attention(ctx, 128, type_)) == known


def test_opencl_reads_two_caches_of_different_types(ctx):
    card = ggml.load_profile("opencl")
    assert card.supports(attention(ctx, 128, "q8_0", "f16"))
    assert not card.supports(attention(ctx, 128, "q8_0", "q5_1"))


def test_opencl_looks_at_the_names_of_experts(ctx, tmp_path):
    """Its kernels for K-quants of experts take weights that are called so (use_adreno_moe_kernels),
    also in plans and calls. q4_0 has a kernel for all."""
    card, old = ggml.load_profile("adreno-x1"), ggml.load_profile("adreno-750")
    for name, supported in (
        ("blk.0.ffn_up_exps.weight", True), ("blk.0.ffn_up.weight", False), ("", False),
    ):  # fmt: skip
        node = experts(ctx, name=name)
        assert card.supports(node) == card.supports(call_of(node)) == supported
        assert not old.supports(node) and card.supports(experts(ctx, "q4_0", name))
        graph = ctx.new_graph()
        graph.build_forward_expand(node)
        with ggml.sim_device("gpu0").init() as gpu, ggml.device("CPU").init() as cpu:
            plan = ggml.Scheduler([gpu, cpu]).plan(graph)
        assert card.supports(plan.nodes[-1]) == supported
        plan.to_json(tmp_path / "plan.json")
        assert card.supports(ggml.Plan.from_json(tmp_path / "plan.json").nodes[-1]) == supported
    assert not card.supports(experts(ctx, rows_=1000))  # no multiple of 32


def test_opencl_sorts_as_many_as_fit_a_work_group(ctx):
    card = ggml.load_profile("adreno-x1")
    wide = ggml.load_profile("adreno-x1", CL_KERNEL_WORK_GROUP_SIZE=1024)
    for n, known in ((500, [True, True]), (512, [True, True]), (513, [False, True]),
                     (1025, [False, False])):  # fmt: skip
        node = ctx.argsort(ctx.new_tensor("f32", n, 2), 0)
        assert [card.supports(node), wide.supports(node)] == known


def test_opencl_does_not_use_other_gpus():
    """Upstream's default build has Adreno's kernels, and refuses a GPU that is another."""
    for name, version in (
        ("Intel Arc A770", "OpenCL 3.0 NEO"), ("NVIDIA L4", "OpenCL 3.0 CUDA"),
        ("Qualcomm Adreno 506", "OpenCL 1.2 Adreno(TM) 506"),
    ):  # fmt: skip
        profile = ggml.load_profile("adreno-x1", name=name, CL_DEVICE_VERSION=version)
        with pytest.raises(ggml.ArgumentError, match="ggml-opencl does not use such a device"):
            ggml.sim_device("refused", profile=profile)
    assert "refused" not in [d.name for d in ggml.devices()]


def test_each_opencl_card_has_its_own_buffers():
    """Upstream keeps the largest size of the first device in a static variable."""
    with (
        ggml.sim_device("a", profile="adreno-x1") as a,
        ggml.sim_device("b", profile="adreno-750") as b,
        ggml.sim_device("c", profile="adreno-750", alignment=256) as c,
    ):
        assert [d.settings["max_size"] for d in (a, b)] == [2048 << 20, 1024 << 20]
        assert [d.settings["alignment"] for d in (a, b, c)] == [128, 128, 256]
        assert not a.supports_buft(b.buffer_type) and not a.props.caps.host_buffer
        with ggml.Context() as ctx, a.buffer_type.alloc(4096) as buffer:
            w = ctx.new_tensor("q6_k", 256, 2)
            assert buffer.alloc_size(w) == w.nbytes + 4 * 128  # room between its parts


# ---- SYCL


@pytest.mark.parametrize(
    "type_", ["f32", "f16", "bf16", "q8_0", "q4_0", "q5_1", "q5_0", "q4_1", "iq4_nl"]
)
def test_sycl_reads_these_caches(ctx, type_):
    """All that have a kernel: this release defines GGML_SYCL_FA_ALL_QUANTS in common.hpp."""
    known = type_ != "iq4_nl"
    assert ggml.load_profile("sycl").supports(attention(ctx, 128, type_)) == known


@pytest.mark.parametrize("size", [40, 64, 72, 80, 96, 112, 128, 256, 512, 32, 192, 160])
def test_sycl_has_attention_for_these_head_sizes(ctx, size):
    assert ggml.load_profile("sycl").supports(attention(ctx, size)) == (size not in (32, 192, 160))


def test_sycl_has_attention_of_mla_for_the_right_groups_only(ctx):
    card = ggml.load_profile("sycl")
    assert card.supports(attention(ctx, 128, "q8_0", "f16"))  # GGML_SYCL_FA_ALL_QUANTS
    assert card.supports(attention(ctx, 576, n_head_kv=1, v_size=512))
    assert not card.supports(attention(ctx, 576, n_head_kv=32, v_size=512))


def test_sycl_multiplies_by_all_but_ternary_weights(ctx):
    card = ggml.load_profile("sycl")
    for type_ in ("q2_k", "iq1_m", "iq4_xs", "mxfp4", "bf16"):
        assert card.supports(product(ctx, type_))
    assert not card.supports(product(ctx, "tq1_0")) and not card.supports(product(ctx, "tq2_0"))


def test_sycl_keeps_room_for_attention(ctx):
    """For oneDNN (its queries and output), which Alchemist's GPUs do not use for heads of 64."""
    sizes = {}
    for name in ("arc-a770", "arc-b580"):
        for changes in ({}, {"onednn_optimized_gemm": 0}):
            card = ggml.load_profile(name, **changes)
            with (
                ggml.sim_device("gpu0", profile=card) as gpu, gpu.buffer_type.alloc(4096) as buffer
            ):  # fmt: skip
                for head in (64, 128):
                    node = attention(ctx, head)
                    sizes[name, bool(changes), head] = buffer.alloc_size(node) - node.nbytes
    half = {64: 64 * 8 * 32 * 2, 128: 128 * 8 * 32 * 2}  # f16: as many as the queries
    room = {head: 2 * n + 128 for head, n in half.items()}  # 128: the scale's
    assert sizes["arc-a770", False, 64] == 0 and sizes["arc-a770", False, 128] == room[128]
    assert [sizes["arc-b580", False, head] for head in (64, 128)] == [room[64], room[128]]
    assert {n for (_, without, _), n in sizes.items() if without} == {0}


def test_sycl_cards_are_what_level_zero_says(ctx):
    with (
        ggml.sim_device("a", profile="arc-a770") as a, ggml.sim_device("b", profile="arc-140v") as b
    ):  # fmt: skip
        assert [d.type.name for d in (a, b)] == ["GPU", "IGPU"]
        assert a.props.caps.host_buffer and a.props.caps.events and a.props.caps.async_
        assert a.settings["max_size"] == 4294959104 and a.settings["alignment"] == 128
        assert a.offload_op(product(ctx, n_tokens=32)) and not a.offload_op(product(ctx))
        assert a.supports_buft(a.buffer_type) and not a.supports_buft(b.buffer_type)
        assert b.settings["max_size"] == 16 * (1 << 30) * 19 // 20
    with pytest.raises(ggml.ArgumentError, match="expected SYCL's name"):
        ggml.sim_device("gpu0", profile=ggml.load_profile("sycl", architecture="gfx1100"))


# ---- WebGPU


@pytest.mark.parametrize("type_", ["f32", "f16", "q8_0", "q4_0", "q5_1", "bf16"])
def test_webgpu_reads_these_caches(ctx, type_):
    known = type_ in ("f32", "f16", "q8_0", "q4_0")
    assert ggml.load_profile("webgpu").supports(attention(ctx, 128, type_)) == known


def test_webgpu_needs_matrices_or_subgroups_for_attention(ctx):
    """Matrices if the head is a multiple of theirs, otherwise tiles, which need subgroups."""
    none = {f"subgroupMatrix{x}": 0 for x in "MNK"}
    cards = [
        ggml.load_profile("webgpu-m3max", **more)
        for more in ({}, none, {"subgroups": 0}, {**none, "subgroups": 0})
    ]
    assert [card.supports(attention(ctx, 128)) for card in cards] == [True, True, True, False]
    assert [card.supports(attention(ctx, 36)) for card in cards] == [True, True, False, False]


def test_webgpu_takes_no_tensor_that_it_cannot_bind(ctx):
    small = ggml.load_profile("webgpu-m3max", maxStorageBufferBindingSize=1 << 20)
    assert small.supports(product(ctx, "q4_0", rows_=64))
    assert not small.supports(product(ctx, "q4_0", rows_=4096))


def test_webgpu_answers_by_its_last_value(ctx):
    """Its function keeps the answer in a variable: the line is that of the last assignment."""
    card = ggml.load_profile("webgpu")
    yes, no = card.decide(product(ctx, "q4_0")), card.decide(ctx.mean(product(ctx)))
    assert yes and not no and yes.row != no.row
    assert yes.row.startswith("ggml-webgpu.cpp:") and no.row.startswith("ggml-webgpu.cpp:")


def test_webgpu_cards_do_not_share_memory():
    with (
        ggml.sim_device("a", profile="webgpu-m3max") as a,
        ggml.sim_device("b", profile="webgpu-rtx4090") as b,
    ):
        assert [a.supports_buft(d.buffer_type) for d in (a, b)] == [True, False]
        assert a.settings["alignment"] == 32 and b.settings["alignment"] == 256
        assert a.memory[1] == 72 << 30 and b.settings["max_size"] == (4 << 30) - 4


# ---- CANN


def test_cann_has_another_build_for_310p(ctx):
    """Without attention, bf16 and products by quantised weights."""
    names = ("ascend-910b", "ascend-310p")
    for node, known in (
        (attention(ctx), [True, False]), (attention(ctx, 128, "q8_0"), [False, False]),
        (attention(ctx, 192, v_size=128), [False, False]), (product(ctx, "f16"), [True, True]),
        (product(ctx, "bf16"), [True, False]), (product(ctx, "q8_0"), [True, False]),
        (product(ctx, "q4_0"), [True, False]), (product(ctx, "q4_1"), [False, False]),
        (product(ctx, "q4_k"), [False, False]),
    ):  # fmt: skip
        assert answers(node, *names) == known, node


def test_cann_offloads_by_ne1(ctx):
    with ggml.sim_device("npu", profile="cann") as npu:
        assert npu.offload_op(product(ctx, "f16", 32))
        assert not npu.offload_op(product(ctx, "f16", 31))
        assert npu.props.caps.host_buffer and not npu.props.caps.async_
        assert npu.memory[1] == 64 << 30 and npu.settings["alignment"] == 128
        odd = ctx.new_tensor("q4_0", 544, 3)
        with npu.buffer_type.alloc(4096) as buffer:
            assert buffer.alloc_size(odd) == odd.nbytes + (1024 - 544) // 32 * 18


# ---- Hexagon and ET


@pytest.mark.parametrize(
    "type_", ["q4_0", "q4_1", "q8_0", "iq4_nl", "mxfp4", "q2_k", "q6_k", "f16", "q5_0", "bf16"]
)
def test_hexagon_multiplies_by_these_weights(ctx, type_):
    card = ggml.load_profile("hexagon")
    assert card.supports(product(ctx, type_)) == (type_ not in ("q5_0", "bf16"))


def test_hexagon_needs_its_fast_memory(ctx):
    """What a kernel takes of it is computed by upstream's functions."""
    node = attention(ctx, 128)
    assert ggml.load_profile("hexagon").supports(node)
    assert not ggml.load_profile("hexagon", vtcm_size=1 << 14).supports(node)
    assert not ggml.load_profile("hexagon").supports(attention(ctx, 128, "q4_0"))


def test_hexagon_forgets_the_weights_that_it_was_asked_about(ctx):
    """Upstream remembers them by address until they have memory: rows are read in another way."""
    card, w = ggml.load_profile("hexagon"), ctx.new_tensor("q8_0", 256, 64)
    rows_ = ctx.get_rows(ctx.view_2d(w, 256, 32, w.nb[1], 0), ctx.new_tensor("i32", 4))
    before = card.decide(rows_)
    assert card.supports(ctx.mul_mat(w, ctx.new_tensor("f32", 256, 8)))
    assert card.decide(rows_) == before


def test_hexagon_keeps_tiles_of_weights():
    with (
        ggml.sim_device("npu", profile="hexagon") as npu, ggml.Context() as ctx,
        npu.buffer_type.alloc(4096) as buffer,
    ):  # fmt: skip
        assert npu.settings["alignment"] == 128 and npu.host_buffer_type is None
        assert buffer.alloc_size(ctx.new_tensor("q4_0", 64, 32)) == 64 * 32 // 32 * 18
        assert buffer.alloc_size(ctx.new_tensor("q4_0", 64, 1)) == 64 * 32 // 32 * 18  # 32 rows


def test_et_offloads_all_but_rows_and_needs_whole_cache_lines(ctx):
    with ggml.sim_device("et0", profile="et") as et:
        assert et.offload_op(product(ctx, "q8_0", 1)) and et.settings["alignment"] == 64
        assert et.memory[1] == 32 << 30
    card = ggml.load_profile("et")
    for type_, known in (("q8_0", True), ("q4_0", True), ("f16", True), ("q4_k", False)):
        assert card.supports(product(ctx, type_)) == known
    assert card.supports(ctx.sqr(ctx.new_tensor("f32", 32)))
    assert not card.supports(ctx.sqr(ctx.new_tensor("f32", 33)))


# ---- against upstream's record


def yes(ops):
    return dict.fromkeys(ops.split(), True)


# Where upstream's records are not the source: op, and what the source says.
NEWER = {
    "opencl": {
        **yes(
            "ABS CEIL CONCAT CONT CPY CUMSUM DIAG DUP ELU EXP EXPM1 FILL FLASH_ATTN_EXT FLOOR "
            "HARDSIGMOID HARDSWISH L2_NORM MUL_MAT NEG ROUND SET SET_ROWS SGN SOFTPLUS SOLVE_TRI "
            "SSM_SCAN STEP TRI TRUNC UPSCALE"
        ),
        "TANH": False,  # of f16, which overflows on Adreno
    },
    "hexagon": yes(
        "CPY DUP GEGLU GEGLU_ERF GEGLU_QUICK GELU_ERF GET_ROWS MUL_MAT MUL_MAT_ID POOL_1D POOL_2D "
        "SWIGLU SWIGLU_CLAMP"
    ),
    "et": {},
    "sycl": {},
    "webgpu": yes("CONT CPY DUP FLASH_ATTN_EXT GET_ROWS MUL_MAT MUL_MAT_ID SET_ROWS"),
    "cann": yes(
        "CONT CPY CUMSUM DIAG FILL FLASH_ATTN_EXT GET_ROWS MUL_MAT SET SET_ROWS SOFTPLUS SOLVE_TRI "
        "TRI"
    ),
}
# That of WebGPU is of an adapter without matrices: attention with heads of 512 fits.
PROPERTIES = {"webgpu": {"subgroupMatrixM": 0}}


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize(
    "name", ["adreno-x1", "arc-a770", "webgpu-m3max", "ascend-910b", "hexagon-v79", "et-soc-1"]
)
def test_the_record_agrees_but_for_what_is_newer(name):
    backend = CARDS[name].backend
    card = ggml.load_profile(name, **PROPERTIES.get(backend, {}))
    record, newer = docs_ops.answers(backend), NEWER[backend]
    n = 0
    for op in sorted(record.keys() & ALL_CASES.keys()):
        for text, supported in record[op][::7]:  # types come in fives
            with ggml.Context() as context:
                try:
                    tensor = ALL_CASES[op](context, parsed(text))
                except ggml.GgmlError:
                    continue  # by checks of ours (vendor/op_edits.py)
                found = card.decide(tensor)
                if found.supported != supported:
                    assert newer.get(op) == found.supported, (op, text, found.text)
                n += 1
    assert n > 1200
