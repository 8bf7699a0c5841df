"""Cards: upstream's own answers for devices that are not here, and the devices made of them."""

from __future__ import annotations

import gc
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.graphs.node import N_SOURCES
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.sim.card import _MEMORY, card_backends, card_names, card_properties
from ggml_py.sim.profiles.cards import CARDS, OF_BACKEND
from ggml_py.sim.text import sim_device_of
from ggml_py.tensors.live_call import call_of

from ..support.docs_ops import answers
from ..support.profile_cases import parsed
from ..support.profile_more_cases import ALL_CASES

pytestmark = pytest.mark.needs(release="default", why="what is supported differs by release")


@pytest.fixture
def ctx():
    with ggml.Context() as context:
        yield context


def attention(ctx, head_size=128, type_="f16", n_head_kv=8, v_size=None, n_kv=256):
    q = ctx.new_tensor("f32", head_size, 8, 32)
    k = ctx.new_tensor(type_, head_size, n_kv, n_head_kv)
    v = ctx.new_tensor(type_, v_size or head_size, n_kv, n_head_kv)
    return ctx.flash_attn_ext(q, k, v, ctx.new_tensor("f16", n_kv, 64), 1.0, 0.0, 0.0)


def product(ctx, type_="q4_0", n_tokens=8):
    return ctx.mul_mat(ctx.new_tensor(type_, 512, 64), ctx.new_tensor("f32", 512, n_tokens))


# ---- answers; the expected ones are read in upstream's source, not in ours


@pytest.mark.parametrize("size", [40, 64, 72, 80, 96, 112, 128, 256, 32, 48, 160, 8])
def test_cuda_has_attention_for_these_head_sizes(ctx, size):
    supported = size in (40, 64, 72, 80, 96, 112, 128, 256)  # ggml_cuda_get_best_fattn_kernel
    assert ggml.load_profile("cuda").supports(attention(ctx, size)) == supported


@pytest.mark.parametrize("size", [32, 40, 48, 64, 80, 128, 192, 576, 8, 24, 160, 384])
def test_metal_has_attention_for_these_head_sizes(ctx, size):
    sizes = (32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576)
    assert ggml.load_profile("metal").supports(attention(ctx, size)) == (size in sizes)


def test_metal_needs_what_the_family_has(ctx):
    """Matrix units from Apple7 on, reductions also with Metal 3: init code that is cut, too."""
    mac, navi = ggml.load_profile("m1"), ggml.load_profile("radeon-pro-5500m")
    assert mac.supports(attention(ctx)) and not navi.supports(attention(ctx))
    assert navi.supports(product(ctx, "f16")) and navi.supports(ctx.soft_max(product(ctx)))
    old = ggml.load_profile("radeon-pro-5500m", family_metal=2)
    assert not old.supports(product(ctx, "f16"))
    bf16 = product(ctx, "bf16")
    assert mac.supports(bf16) and not old.supports(bf16)


def test_cuda_has_attention_of_mla_for_the_right_groups_only(ctx):
    card = ggml.load_profile("rtx4090")
    assert card.supports(attention(ctx, 576, v_size=512, n_head_kv=1))
    assert not card.supports(attention(ctx, 576, v_size=512, n_head_kv=32))  # no groups
    assert not card.supports(attention(ctx, 576, v_size=256, n_head_kv=1))


@pytest.mark.parametrize(
    "type_", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q4_k"]
)
def test_cuda_reads_these_caches(ctx, type_):
    size = 256 if type_ == "q4_k" else 128
    supported = type_ not in ("iq4_nl", "q4_k")
    assert ggml.load_profile("cuda").supports(attention(ctx, size, type_)) == supported


@pytest.mark.parametrize("type_", ["q4_k", "q6_k", "iq2_xxs", "iq4_xs", "iq1_m", "mxfp4"])
def test_cuda_gets_rows_of_k_and_i_quants(ctx, type_):
    got = ctx.get_rows(ctx.new_tensor(type_, 512, 64), ctx.new_tensor("i32", 3))
    assert ggml.load_profile("cuda").supports(got)


def test_the_properties_of_a_card_decide(ctx):
    """Which kernel computes attention; on cards without tensor cores another one."""
    answers = {
        name: [ggml.load_profile(name).supports(attention(ctx, size)) for size in (64, 256, 40)]
        for name in card_names() if CARDS[name].backend in ("cuda", "hip", "metal", "musa")
    }
    # MUSA's host code has no flash attention: FLASH_ATTN_AVAILABLE needs its __MUSA_ARCH__.
    without = {name for name in answers if CARDS[name].backend == "musa"} | {"radeon-pro-5500m"}
    assert answers == {name: [name not in without] * 3 for name in answers}
    one = attention(ctx, 64)
    lines = {name: ggml.load_profile(name).decide(one).row for name in ("rtx4090", "p40")}
    assert lines["rtx4090"] != lines["p40"]  # another kernel


def test_bare_names_mean_one_card_and_say_which():
    for backend, name in OF_BACKEND.items():
        if backend in card_backends():
            profile = ggml.load_profile(backend)
            assert (profile.name, profile.card) == (name, CARDS[name])
            with ggml.sim_device("named", profile=backend) as device:
                assert CARDS[name].title in device.description


def test_every_card_opens_and_has_the_memory_that_it_says():
    assert set(card_backends()) == {card.backend for card in CARDS.values()} == set(_MEMORY)
    assert len(card_names()) == len(CARDS)
    for name in card_names():
        with ggml.sim_device("any", profile=name) as device:
            assert device.memory == (CARDS[name].memory,) * 2
            properties = CARDS[name].properties
            integrated = properties.get("integrated") or properties.get("deviceType") == 1
            assert device.type.name == ("IGPU" if integrated else "GPU")


# ---- where an answer comes from


def test_an_answer_names_lines_of_upstreams_source(ctx):
    found = ggml.load_profile("cuda").decide(attention(ctx, 32))
    assert found.basis == "source" and not found
    assert re.fullmatch(r"ggml-cuda\.cu:\d+, fattn\.cu:\d+, fattn\.cu:\d+", found.row)
    assert found.text == f"no: {found.row} of ggml {BUILD['label']}"
    assert re.fullmatch(r"ggml-cuda\.cu:\d+", ggml.load_profile("cuda").decide(product(ctx)).row)


def test_live_recorded_and_plain_calls_get_one_answer(ctx):
    card = ggml.load_profile("cuda")
    nodes = [attention(ctx, 32), attention(ctx, 64), product(ctx), ctx.top_k(product(ctx), 5)]
    graph = ctx.new_graph()
    for node in nodes:
        graph.build_forward_expand(node)
    with ggml.sim_device("one").init() as one, ggml.device("CPU").init() as cpu:
        plan = ggml.Scheduler([one, cpu]).plan(graph)
    for node in graph.nodes:
        recorded = plan.node(graph.nodes.index(node))
        assert card.decide(node) == card.decide(call_of(node)) == card.decide(recorded)
    answers = card.answers(plan, "one")
    assert [answers["one", n.id] for n in plan.nodes] == [card.supports(n) for n in graph.nodes]
    assert {n.backend for n in plan.what_if(supports=answers).nodes} == {"one", "CPU"}


# ---- devices


def test_a_card_has_what_the_backend_has(ctx):
    with ggml.sim_device("gpu0", profile="rtx4090") as gpu:
        caps = gpu.props.caps
        assert caps.async_ and caps.events and caps.host_buffer and caps.mmap_support
        assert gpu.settings["alignment"] == 128 and gpu.settings["max_size"] is not None
        assert gpu.host_buffer_type.name == "gpu0_Host"
        # ggml-cuda pads rows of quantised matrices to 512 elements
        odd = ctx.new_tensor("q4_0", 544, 3)
        with gpu.buffer_type.alloc(4096) as buffer:
            assert buffer.alloc_size(odd) == odd.nbytes + (1024 - 544) // 32 * 18
    with ggml.sim_device("gpu0", profile="spark") as gpu:
        assert gpu.type.name == "IGPU" and not gpu.props.caps.mmap_support


def test_settings_that_are_given_win(ctx):
    card = {"profile": "rtx4090", "memory": 1 << 30, "host_buffer": False, "async_": False}
    with ggml.sim_device("gpu0", **card, alignment=256, offload_min_batch=4) as gpu:
        assert gpu.memory[1] == 1 << 30 and gpu.host_buffer_type is None
        assert not gpu.props.caps.async_ and gpu.settings["alignment"] == 256
        assert gpu.offload_op(product(ctx, n_tokens=4))
        assert not gpu.offload_op(product(ctx, n_tokens=3))


def test_its_own_function_says_what_is_offloaded(ctx):
    with ggml.sim_device("gpu0", profile="rtx4090") as gpu:
        assert gpu.offload_op(product(ctx, n_tokens=32))
        assert not gpu.offload_op(product(ctx, n_tokens=31))
        ids = ctx.new_tensor("i32", 99)
        assert not gpu.offload_op(ctx.get_rows(ctx.new_tensor("q4_0", 512, 100), ids))


def test_a_card_does_not_compute_from_another_cards_memory(ctx):
    """As upstream's check that all sources are on this device."""
    with (
        ggml.sim_device("a", profile="rtx4090") as a, ggml.sim_device("b", profile="rtx4090") as b,
        ggml.sim_device("c", profile="mi300x") as c,
    ):  # fmt: skip
        w = ctx.new_tensor("f32", 64, 8)
        y = ctx.mul_mat(w, ctx.new_tensor("f32", 64, 2))
        with a.init() as backend, ggml.Context() as other:
            assert a.supports_op(y) and b.supports_op(y) and c.supports_op(y)
            mine = other.new_tensor("f32", 64, 8)
            with other.alloc(backend):
                z = ctx.mul_mat(mine, ctx.new_tensor("f32", 64, 2))
                assert a.supports_op(z) and not b.supports_op(z)
                assert c.supports_op(z)  # upstream's HIP does not look into CUDA's buffers
        kinds = [a.buffer_type, b.buffer_type, a.host_buffer_type, ggml.device("CPU").buffer_type]
        assert [a.supports_buft(kind) for kind in kinds] == [True, False, False, False]


def test_changing_the_card_changes_the_answers(ctx):
    small = attention(ctx, 32)
    with ggml.sim_device("gpu0") as gpu:
        assert gpu.supports_op(small)
        gpu.configure(profile="rtx4090")
        assert not gpu.supports_op(small) and gpu.memory[1] == 24 << 30
        gpu.configure(profile=None, supports=True)
        assert gpu.supports_op(small) and gpu.memory[1] == 8 << 30
        with gpu.init(), pytest.raises(ggml.ArgumentError, match="in use"):
            gpu.configure(profile="rtx4090")
        assert gpu.supports_op(small)


def room_for_cards():
    """How many more devices of CUDA there can be. Profiles and devices of other tests have some."""
    devices = []
    try:
        with pytest.raises(ggml.ArgumentError, match="at most 16"):
            for i in range(17):
                devices.append(ggml.sim_device(f"many{i}", profile="rtx4090"))
        return len(devices)
    finally:
        for device in devices:
            device.close()


def test_cards_are_given_back():
    """There is room for 16 devices of a backend at a time, as in upstream."""
    gc.collect()
    before = room_for_cards()
    for _ in range(40):
        with ggml.sim_device("again", profile="rtx4090"):
            pass
    gc.collect()
    assert room_for_cards() >= before > 8


def test_cards_are_asked_and_made_on_several_threads():
    def work(seed):
        names = [n for n in card_names() if CARDS[n].backend != "metal"][seed::4]
        with ggml.Context() as ctx:
            node = attention(ctx, 64)
            for name in names * 5:
                assert ggml.load_profile(name).supports(node) == known[name]

    with ggml.Context() as ctx:
        one = attention(ctx, 64)
        known = {name: ggml.load_profile(name).supports(one) for name in card_names()}
    assert len(set(known.values())) == 2
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_what_the_cpu_does_not_support_is_planned(ctx):
    """Upstream's CPU refuses copies between tensors of these types; CUDA takes them."""
    copy = ctx.cpy(ctx.new_tensor("iq2_xxs", 256, 2), ctx.new_tensor("iq2_xxs", 256, 2))
    assert not ggml.device("CPU").supports_op(copy)
    with ggml.sim_device("gpu0", profile="rtx4090") as gpu:
        assert gpu.supports_op(copy)


def test_a_division_by_zero_in_upstreams_function_is_raised(ctx):
    """No such op can be built; a file may have one."""
    call = call_of(attention(ctx))
    k = call.operands[1]._replace(ne=(128, 256, 0, 1))
    call = replace(call, operands=(call.operands[0], k, k, *call.operands[3:]))
    with pytest.raises(ggml.AbortError, match=r"integer division by zero at fattn\.cu"):
        ggml.load_profile("rtx4090").decide(call)


def test_an_op_without_its_sources_is_refused(ctx):
    """Upstream's functions read them without looking."""
    card = ggml.load_profile("rtx4090")
    for node in (attention(ctx), product(ctx), ctx.set_rows(product(ctx), product(ctx),
                 ctx.new_tensor("i64", 8))):  # fmt: skip
        call = call_of(node)
        assert card.decide(call).basis == "source"
        need = N_SOURCES[call.kind]
        for n in range(need):
            with pytest.raises(ggml.ArgumentError, match=f"with {n} of its sources: .* has {need}"):
                card.decide(replace(call, places=call.places[:n]))


def chosen_experts(ctx):
    """The router of a mixture of experts, as llama.cpp builds it."""
    graph = ctx.new_graph()
    probs = ctx.soft_max(ctx.new_tensor("f32", 16, 8))
    order = ctx.argsort(probs, "desc")
    chosen = ctx.view_2d(order, 4, 8, order.nb[1], 0)
    for node in (probs, ctx.reshape_3d(probs, 1, 16, 8), chosen):
        graph.build_forward_expand(node)
    weights = ctx.get_rows(graph.nodes[1], chosen)
    graph.build_forward_expand(ctx.relu(weights))
    return graph


@pytest.mark.parametrize(
    ("profile", "settings", "kept"),
    [("rtx4090", {}, {"SOFT_MAX", "RESHAPE", "ARGSORT", "VIEW", "GET_ROWS", "NONE"}),
     ("rtx4090", {"graph_optimize": "none"}, set()), ("vulkan", {}, {"NONE"})],
)  # fmt: skip
def test_what_upstream_fuses_stays_allocated(ctx, profile, settings, kept):
    """CUDA computes the router in one kernel, so none of its tensors may take another's place."""
    graph = chosen_experts(ctx)
    with (
        ggml.sim_device("gpu0", profile=profile, **settings) as device, device.init() as gpu,
        ggml.device("CPU").init() as cpu,
    ):  # fmt: skip
        (split,) = ggml.Scheduler([gpu, cpu]).plan(graph).splits
        assert {dep.tensor.op for dep in split.alloc_deps} == kept


# ---- names and properties


def test_properties_can_be_changed(ctx):
    assert ggml.load_profile("rtx4090", minor=6).properties["minor"] == "6"
    device = sim_device_of("gpu0,profile=rtx4090,set.totalGlobalMem=1000000,set.integrated=1")
    with device:
        assert device.memory[1] == 1000000 and device.type.name == "IGPU"
    assert set(card_properties("cuda")) >= {"major", "minor", "multiProcessorCount"}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("rtx4090", {"majr": 9}, r"rtx4090 has no property 'majr'.*major"),
        ("mine.csv", {"major": 9}, "is a record, which has no properties"),
        ("metal", {"major": 9}, r"m3max has no property 'major'"),
        ("vulkan", {"subgroup": 9}, "vulkan-rx7900xtx has no property 'subgroup'.*subgroupSize"),
    ],
)
def test_a_property_that_is_not_there(name, changes, said):
    with pytest.raises(ggml.ArgumentError, match=said):
        ggml.load_profile(name, **changes)


@pytest.mark.parametrize("value", ["nine", "", "9x", 8.5, "99999999999999999999"])
def test_a_property_that_is_no_number(value):
    profile = ggml.load_profile("rtx4090", major=value)
    with pytest.raises(ggml.ArgumentError, match=r"major=.*expected an integer"):
        ggml.sim_device("gpu0", profile=profile)
    assert "gpu0" not in [d.name for d in ggml.devices()]


def test_unknown_names_list_what_there_is():
    with pytest.raises(ggml.UnknownDeviceError, match=r"no device profile 'rtx4091'.*rtx4090"):
        ggml.load_profile("rtx4091")


# ---- against upstream's record


# Where upstream's records are older than the source: op, and what the source says now.
NEWER = {
    "cuda": {
        "FLASH_ATTN_EXT": True, "GET_ROWS": True, "TOP_K": True, "CONCAT": True, "PAD": True,
        "SOLVE_TRI": True, "SUM_ROWS": True, "IM2COL_3D": False, "XIELU": False,
    },
    "metal": {
        **dict.fromkeys(("ADD", "SUB", "MUL", "DIV", "LEAKY_RELU", "PAD", "ROPE_BACK"), True),
        **dict.fromkeys(("GEGLU", "GEGLU_ERF", "GEGLU_QUICK", "REGLU", "SWIGLU"), True),
        "SILU_BACK": True, "CONV_2D_DW": True, "MUL_MAT": False,
    },
    "vulkan": dict.fromkeys(
        ("DSV4_HC_COMB", "DSV4_HC_POST", "DSV4_HC_PRE", "LIGHTNING_INDEXER", "PAD_REFLECT_1D",
         "TOP_K"), True
    ),
}  # fmt: skip


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("name", ["rtx4090", "h200", "m3max", "vulkan-rtx4090", "vulkan"])
def test_the_record_agrees_but_for_what_is_newer(name):
    card = ggml.load_profile(name)
    record, newer = answers(card.card.backend), NEWER[card.card.backend]
    n = 0
    for op in sorted(record.keys() & ALL_CASES.keys()):
        for text, supported in record[op][::5]:
            with ggml.Context() as context:
                try:
                    tensor = ALL_CASES[op](context, parsed(text))
                except ggml.GgmlError:
                    continue  # by checks of ours (vendor/op_edits.py)
                found = card.decide(tensor)
                views = parsed(text).get("v") == 1  # CUDA's unary ops take views by now
                if found.supported != supported:
                    assert newer.get(op, views) == found.supported, (op, text, found.text)
                n += 1
    assert n > 2000


def test_q4_k_on_adreno_is_planned_by_the_source(tmp_path):
    """Upstream's record (docs/ops) has no Q4_K on OpenCL: it is older than the source."""
    path = tmp_path / "q4_K.gguf"
    # Adreno's kernels want matrices of 512 rows and more.
    wide = LlamaSpec(n_layer=1, type="q4_K", n_embd=1024, n_head=8, n_head_kv=4, n_ff=1024,
                     n_vocab=512)  # fmt: skip
    write_llama(path, wide)
    with (
        ggml.sim_device("gpu0", profile="opencl") as device,
        load(path, devices=(device, "CPU"), n_gpu_layers=-1, repack=False) as model,
    ):
        assert model.plan(64).n_splits == 2
