"""The smallest change that a device supports: planted reasons are found, exactly."""

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ggml_py as ggml
from ggml_py.boundary.handle import LIVE
from ggml_py.sim.profiles.call import Operand
from ggml_py.variants import change
from ggml_py.variants.nearest import MOST_ASKED
from ggml_py.variants.operand import changed
from ggml_py.variants.rebuild import Replay, node_of

from ..support.blas_device import blas

Type = ggml.enums.Type


@pytest.fixture(scope="module")
def gpu():
    """A simulated device; `ask` has it decide by a function."""
    with ggml.sim_device("nearest0") as device:
        yield device


def ask(gpu, node, supports):
    gpu.configure(supports=supports)
    return ggml.nearest(node, gpu)


@pytest.fixture
def ctx():
    with ggml.Context() as context:
        yield context


def attention(ctx, k="f16", v="f16", d=128, n_kv=4096, n_batch=8):
    q = ctx.new_tensor("f32", d, n_batch, 32, name="q")
    made = ctx.flash_attn_ext(
        q, ctx.new_tensor(k, d, n_kv, 8), ctx.new_tensor(v, d, n_kv, 8),
        ctx.new_tensor("f16", n_kv, 64), 0.1, 0.0, 0.0,  # 64: what 0.9.4 pads masks to
    )  # fmt: skip
    made.name = "__fattn__-0"
    return made


# ---- devices that are here


def test_cpu_names_the_type_of_a_copy(ctx):
    answer = ggml.nearest(ctx.cast(ctx.new_tensor("f32", 256, 4), "iq2_xxs"), ggml.device("CPU"))
    best = answer.variants[0]
    assert (answer.supported, answer.constructor, best.kind) == (False, "cast", "type")
    assert answer.text == "CPY: result iq4_xs instead of iq2_xxs"
    assert "f16" in best.also and "iq2_xs" not in best.also  # upstream has no iq2 from floats


def test_cpu_names_either_source_of_a_mul_mat(ctx):
    node = ctx.mul_mat(ctx.new_tensor("q4_0", 64, 32), ctx.new_tensor("f16", 64, 8))
    answer = ggml.nearest(node, ggml.device("CPU"))
    assert [v.text for v in answer.variants] == ["b f32 instead of f16", "a f16 instead of q4_0"]
    assert [(v.source, v.name, v.before, v.after) for v in answer.variants] == [
        (1, "b", "f16", "f32"), (0, "a", "q4_0", "f16"),
    ]  # fmt: skip


def test_cpu_names_a_parameter(ctx):
    a = ctx.new_tensor("f32", 64, 8)
    answer = ggml.nearest(ctx.soft_max_ext_back(a, a, 1.0, 8.0), ggml.device("CPU"))
    assert answer.text == "SOFT_MAX_BACK: max_bias 0 instead of 8"


def test_blas_names_the_batch_that_it_starts_from(ctx):
    node = ctx.mul_mat(ctx.new_tensor("q4_0", 4096, 4096), ctx.new_tensor("f32", 4096, 8))
    with blas().init() as backend:
        answer = ggml.nearest(node, backend)
    best = answer.variants[0]
    assert answer.text == "MUL_MAT: b ne1 ≥ 32 (here 8)"
    assert (best.kind, best.source, best.dim, best.before, best.limit) == ("dimension", 1, 1, 8, 32)


def test_blas_two_sizes_together(ctx):
    node = ctx.mul_mat(ctx.new_tensor("f32", 16, 4096), ctx.new_tensor("f32", 16, 1))
    best = ggml.nearest(node, blas()).variants[0]
    assert best.text == "a ne0 and b ne0 ≥ 32 (here 16); b ne1 ≥ 32 (here 1)"
    assert [(p.limit, p.tied) for p in best.parts] == [(32, ("b ne0",)), (32, ())]


def test_an_op_that_a_device_has_not(ctx):
    answer = ggml.nearest(ctx.argsort(ctx.new_tensor("f32", 4096, 8), "desc"), blas())
    assert not answer.supported and answer.variants == ()
    assert 100 < answer.tried < MOST_ASKED and "supports none of" in answer.text


def test_a_supported_node_is_not_varied(ctx):
    a = ctx.new_tensor("f32", 64)
    answer = ggml.nearest(ctx.relu(a), ggml.device("CPU"))
    assert (answer.supported, answer.variants, answer.tried) == (True, (), 1)
    assert answer.render() == "UNARY on CPU: supported as it is"


def test_a_buffer_that_only_mul_mat_reads(ctx):
    cpu = ggml.device("CPU")
    repacked = [b for b in cpu.extra_buffer_types if b.name == "CPU_REPACK"]
    if not repacked:
        pytest.skip("this CPU repacks nothing")
    with ggml.Context() as weights:
        w = weights.new_tensor("q4_0", 256, 64, name="token_embd.weight")
        weights.alloc(repacked[0])
        node = ctx.get_rows(w, ctx.new_tensor("i32", 4))
        answer = ggml.nearest(node, cpu)
    assert [v.kind for v in answer.variants] == ["buffer"]
    assert answer.text == "GET_ROWS: a in a buffer other than CPU_REPACK"


# ---- planted reasons


@pytest.mark.skipif("TOP_K" not in ggml.enums.Op.__members__, reason="a view of an argsort then")
def test_top_k(gpu, ctx):
    node = ctx.top_k(ctx.new_tensor("f32", 32768, 8), 40)
    answer = ask(gpu, node, lambda t: t.src[0].ne[0] <= 1024)
    assert answer.text == "TOP_K: ne0 ≤ 1024 (here 32768)"


def test_flash_attention_names_its_sources(gpu, ctx):
    answer = ask(gpu, attention(ctx, k="q5_1"), lambda t: t.src[1].type == Type.F16)
    assert answer.text == "FLASH_ATTN_EXT: K f16 instead of q5_1"
    node = attention(ctx)
    node.add_sinks(ctx.new_tensor("f32", 32))
    names = [Replay(node_of(node), ctx).name(place) for place in range(5)]
    assert names == ["Q", "K", "V", "mask", "sinks"]


def test_k_and_v_together(gpu, ctx):
    def supports(t):
        return t.src[1].type == t.src[2].type and t.src[1].type in (Type.F16, Type.Q8_0)

    best = ask(gpu, attention(ctx, "q5_1", "q5_1"), supports).variants[0]
    assert (best.kind, best.text) == ("together", "K and V q8_0 instead of q5_1")
    assert best.also == ("f16",) and [p.name for p in best.parts] == ["K", "V"]


def test_only_the_sources_that_must_be_contiguous(gpu, ctx):
    q, k, v = (
        ctx.permute(ctx.new_tensor(t, 64, n, 32), 0, 2, 1, 3)
        for t, n in (("f32", 8), ("f16", 8), ("f16", 8))
    )
    node = ctx.flash_attn_ext(q, k, v, None, 1.0, 0.0, 0.0)
    answer = ask(gpu, node, lambda t: t.src[1].is_contiguous and t.src[2].is_contiguous)
    assert answer.variants[-1].text == "K contiguous; V contiguous"


def test_a_type_first_where_the_other_has_no_blocks_of_that_size(gpu, ctx):
    """q4_0 has no rows of 7; what is not needed is taken back all the same."""
    node = ctx.mul_mat(ctx.new_tensor("q4_0", 64, 8), ctx.new_tensor("f32", 64, 4))
    answer = ask(gpu, node, lambda t: t.src[0].type == Type.F32 and t.src[0].ne[0] <= 7)
    assert answer.text == "MUL_MAT: a f32 instead of q4_0; a ne0 and b ne0 ≤ 7 (here 64)"


def test_a_device_is_asked_no_more_often_than_said(gpu, ctx, monkeypatch):
    monkeypatch.setattr(sys.modules["ggml_py.variants.nearest"], "MOST_ASKED", 30)
    answer = ask(gpu, attention(ctx), lambda t: False)
    assert (answer.supported, answer.tried) == (False, 30)


def test_sizes_that_belong_together(gpu, ctx):
    node = attention(ctx, n_kv=4096)
    best = ask(gpu, node, lambda t: t.src[1].ne[1] <= 777).variants[0]
    assert best.text == "K ne1, V ne1 and mask ne0 ≤ 777 (here 4096)"
    assert best.tied == ("V ne1", "mask ne0")
    node = attention(ctx, n_kv=128, d=128)  # equal by chance
    assert ask(gpu, node, lambda t: t.src[1].ne[1] <= 64).variants[0].tied == ("V ne1", "mask ne0")


def test_an_island_of_sizes_is_no_rule(gpu, ctx):
    node = attention(ctx, d=100)
    answer = ask(gpu, node, lambda t: t.src[0].ne[0] in (64, 80, 96, 112, 128, 256))
    sizes = [(v.before, v.after, v.rule) for v in answer.variants]
    assert sizes == [(100, 96, ""), (100, 112, "")]
    assert answer.variants[0].also == ("64", "80", "112", "128", "256")
    assert answer.variants[0].text.endswith("96 instead of 100 (at 97 it is not)")


def test_heads_change_with_their_groups(gpu, ctx):
    """32 heads on 8: other numbers of heads must be multiples of 8."""
    best = ask(gpu, attention(ctx), lambda t: t.src[0].ne[2] <= 20).variants[0]
    assert (best.name, best.dim, best.limit) == ("Q", 2, 16)


def test_rope_sizes_and_modes(gpu, ctx):
    node = ctx.rope(ctx.new_tensor("f32", 128, 32, 8), ctx.new_tensor("i32", 8), 128, 2)
    best = ask(gpu, node, lambda t: t.src[0].ne[0] <= 64).variants[0]
    assert (best.limit, best.tied) == (64, ("n_dims",))  # which may not be above ne0
    answer = ask(gpu, node, lambda t: t._ptr.op_params[2] == 0)
    assert answer.text == "ROPE: mode normal instead of neox"
    plain = ctx.rope(ctx.new_tensor("f32", 128, 32, 8), ctx.new_tensor("i32", 8), 128, 0)
    answer = ask(gpu, plain, lambda t: t._ptr.op_params[2] == 2)
    assert answer.text == "ROPE: mode neox instead of normal"


def test_what_was_set_on_the_node_has_its_name(gpu, ctx):
    node = attention(ctx)
    node.set_prec("f32")
    words = list(node._ptr.op_params)
    at = next(i for i in range(16) if words[i] == ggml.enums.Prec.F32 and i > 2)
    answer = ask(gpu, node, lambda t: t._ptr.op_params[at] == 0)
    assert answer.text == "FLASH_ATTN_EXT: prec default instead of f32"


def test_a_node_that_no_constructor_makes(gpu, ctx):
    """get_rows_back takes its shape from a tensor that is no source."""
    grad, ids = ctx.new_tensor("f16", 64, 4), ctx.new_tensor("i32", 4)
    node = ctx.get_rows_back(grad, ids, ctx.new_tensor("f32", 64, 100))
    answer = ask(gpu, node, lambda t: t.src[0].type == Type.F32)
    assert answer.constructor in ("", "get_rows_back")
    assert answer.variants[0].after == "f32" and answer.variants[0].source == 0


def test_a_custom_op_is_asked_about_as_it_is(gpu, ctx):
    node = ctx.map_custom1(ctx.new_tensor("f32", 8), lambda dst, a, ith, nth: None, 1)
    assert ask(gpu, node, lambda t: True).variants == ()


def test_the_predicates_exception_is_the_callers(gpu, ctx):
    node = ctx.sqr(ctx.new_tensor("f32", 64))
    with pytest.raises(ZeroDivisionError):
        ask(gpu, node, lambda t: 1 // 0)


def test_in_place_and_shared_sources_stay_so(gpu, ctx):
    a = ctx.new_tensor("f32", 64, 8)
    seen = []

    def supports(t):
        seen.append((t.src[0] == t.src[1], t.view_src == t.src[0]))
        return False

    ask(gpu, ctx.mul_inplace(a, a), supports)
    assert len(seen) > 50 and set(seen) == {(True, True)}


SIZES = st.integers(1, 5000)
SEVERAL = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K"}
SEVERAL |= {"IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0"}
TYPES = st.sampled_from([t for t in Type if t.name in SEVERAL])
PLANTED = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@PLANTED
@given(size=st.integers(2, 5000), limit=SIZES, dim=st.integers(0, 3))
def test_a_planted_limit_is_found_exactly(gpu, size, limit, dim):
    limit = 1 + limit % (size - 1)
    ne = [size if d == dim else 3 for d in range(4)]
    with ggml.Context() as ctx:
        answer = ask(gpu, ctx.argsort(ctx.new_tensor("f32", *ne), "asc"),
                     lambda t: t.src[0].ne[dim] <= limit)  # fmt: skip
    assert answer.text == f"ARGSORT: ne{dim} ≤ {limit} (here {size})"
    assert [v.limit for v in answer.variants] == [limit]


@PLANTED
@given(size=SIZES, more=SIZES)
@pytest.mark.thorough("long")
def test_a_planted_minimum_is_found_exactly(gpu, size, more):
    with ggml.Context() as ctx:
        node = ctx.mul_mat(ctx.new_tensor("q4_0", 64, 8), ctx.new_tensor("f32", 64, size))
        answer = ask(gpu, node, lambda t: t.src[1].ne[1] >= size + more)
    assert answer.text == f"MUL_MAT: b ne1 ≥ {size + more} (here {size})"


@pytest.mark.thorough("long")
@PLANTED
@given(size=st.integers(2, 3000), power=st.integers(1, 9))
def test_a_planted_multiple_is_found_exactly(gpu, size, power):
    factor = 1 << power
    size += size % factor == 0
    with ggml.Context() as ctx:
        node = ctx.rms_norm(ctx.new_tensor("f32", size, 4), 1e-6)
        answer = ask(gpu, node, lambda t: t.src[0].ne[0] % factor == 0)
    near = {size // factor * factor, (size // factor + 1) * factor} - {0}
    assert {v.limit for v in answer.variants} == near
    assert {v.rule for v in answer.variants} == {f"ne0 a multiple of {factor}"}


@PLANTED
@given(now=TYPES, wanted=st.sets(TYPES, min_size=1))
@pytest.mark.thorough("long")
def test_planted_types_are_found_nearest_first(gpu, now, wanted):
    wanted -= {now}
    with ggml.Context() as ctx:
        node = ctx.mul_mat(ctx.new_tensor(now, 512, 8), ctx.new_tensor("f32", 512, 4))
        answer = ask(gpu, node, lambda t: t.src[0].type in wanted)
    if not wanted:
        assert answer.variants == ()
        return
    order = [t for t in change.types_near(now.name.lower()) if Type[t.upper()] in wanted]
    first = answer.variants[0]
    assert [first.name, first.after.lower(), *map(str.lower, first.also)] == ["a", *order]


def test_sources_that_no_tensor_is_like():
    turned = Operand("f32", (64, 32, 1, 1), (128, 4, 8192, 8192))
    assert changed(turned, "f16", turned.ne).nb[:2] == (64, 2)
    assert changed(turned, "q4_0", turned.ne) is None  # its blocks would not be along ne0
    wide = Operand("f32", (8, 4, 1, 1), (4, 1 << 40, 1 << 42, 1 << 42))
    assert changed(wide, "f32", (8, 8, 1, 1)).nb[1] == 1 << 40
    assert changed(wide, "f32", (8, 1 << 20, 1, 1)) is None


def test_which_types_are_near():
    """By bits, of two equally far the larger one; after the family what most devices have."""

    def near(name):
        return [t.upper() for t in change.types_near(name.lower())]

    assert near("Q5_0")[:4] == ["Q5_1", "Q4_1", "Q4_0", "Q8_0"]
    assert near("Q4_K")[:4] == ["Q5_K", "Q3_K", "Q2_K", "Q6_K"]
    assert near("Q4_K")[4:9] == ["F16", "F32", "BF16", "Q8_0", "Q4_0"]
    assert "Q8_1" not in near("Q8_0") and "Q8_0" not in near("Q8_0")


@pytest.mark.thorough("long")
@PLANTED
@given(axes=st.permutations(range(4)), cut=st.booleans())
def test_a_planted_contiguity_is_found(gpu, axes, cut):
    with ggml.Context() as ctx:
        a = ctx.new_tensor("f32", 8, 6, 5, 4)
        if cut:
            a = ctx.view_4d(a, 4, 6, 5, 4, *a.nb[1:], 0)
        node = ctx.sqr(ctx.permute(a, *axes))
        if node.src[0].is_contiguous:
            return
        answer = ask(gpu, node, lambda t: t.src[0].is_contiguous)
    assert answer.text == "SQR: a contiguous"


@PLANTED
@given(limit=st.integers(1, 4095), at_least=st.integers(2, 64), type_=TYPES)
@pytest.mark.thorough("long")
def test_several_planted_reasons_are_all_found(gpu, limit, at_least, type_):
    """A type (of two that the device has), a minimum and a maximum: none alone helps."""
    has = {type_, Type.F16}
    with ggml.Context() as ctx:
        a = ctx.new_tensor("q5_0" if type_ != Type.Q5_0 else "f32", 512, 4096)
        node = ctx.mul_mat(a, ctx.new_tensor("f32", 512, 1))
        answer = ask(
            gpu, node,
            lambda t: t.src[0].type in has and t.ne[0] <= limit and t.ne[1] >= at_least,
        )  # fmt: skip
    (found,) = answer.variants
    assert found.kind == "together"
    assert {(p.kind, p.source, p.dim, p.limit) for p in found.parts} == {
        ("type", 0, None, None), ("dimension", 0, 1, limit), ("dimension", 1, 1, at_least),
    }  # fmt: skip
    near = next(t for t in change.types_near(a_type(found)) if Type[t.upper()] in has)
    assert next(p.after for p in found.parts if p.kind == "type").lower() == near


def a_type(found):
    return next(p.before for p in found.parts if p.kind == "type").lower()


# ---- cards


def test_a_card_names_the_types_of_the_cache(ctx):
    with ggml.sim_device("nearest1", profile="cuda") as device:
        best = ggml.nearest(attention(ctx, "iq4_nl", "f16", n_batch=1), device).variants[0]
        types = (best.after or best.parts[0].after, *best.also)
        assert best.name == "K" and "f16" in types
        for type_ in types:
            assert device.supports_op(attention(ctx, type_, "f16", n_batch=1)), type_


def test_a_card_names_a_parameter(ctx):
    with ggml.sim_device("nearest1", profile="cuda") as device:
        a = ctx.new_tensor("f32", 64, 8)
        answer = ggml.nearest(ctx.soft_max_ext_back(a, a, 1.0, 8.0), device)
    assert answer.text == "SOFT_MAX_BACK: max_bias 0 instead of 8"


# ---- plans that were saved


def test_a_saved_plan_answers_as_the_node_did(gpu, tmp_path):
    gpu.configure(supports=lambda t: t.op != ggml.enums.Op.FLASH_ATTN_EXT)
    with ggml.Context() as ctx, gpu.init() as fast, ggml.device("CPU").init() as cpu:
        node = attention(ctx, k="q5_1")
        ctx.permute(node, 0, 2, 1, 3)
        graph = ctx.new_graph()
        graph.build_forward_expand(node)
        with ggml.Scheduler([fast, cpu]) as scheduler:
            plan = scheduler.plan(graph)
        plan.to_json(tmp_path / "plan.json")
        saved = ggml.Plan.from_json(tmp_path / "plan.json").node("__fattn__-0")
        for supports in (
            lambda t: t.src[1].type == Type.F16,
            lambda t: t.src[1].ne[1] <= 1000,
            lambda t: t.ne[0] <= 64 and t.src[3].ne[0] <= 64,
            lambda t: False,
            lambda t: True,
        ):
            live = ask(gpu, node, supports)
            there = ask(gpu, saved, supports)
            assert (live.supported, live.variants) == (there.supported, there.variants)


def test_nothing_stays_open(gpu, ctx):
    node = attention(ctx)
    before = dict(LIVE)
    ask(gpu, node, lambda t: False)
    assert dict(LIVE) == before and sum(1 for _ in ctx) == 5


def test_a_sample_of_the_page(gpu, ctx):
    node = attention(ctx, "q5_1", "f16")
    answer = ask(gpu, node, lambda t: t.src[1].type in (Type.F16, Type.F32))
    assert answer.render().splitlines() == [
        "FLASH_ATTN_EXT '__fattn__-0' on nearest0: not supported, but would be with:",
        "  type        K f16 instead of q5_1 (or f32)",
    ]
