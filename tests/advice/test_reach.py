"""Memory out of a backend's reach: what a card would lose is named before anything is computed."""

import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec
from ggml_py.trace.answers import reach

from ..support.advice_world import World, gpu, logged
from ..support.reach_cases import case


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


N = 16
ONES = np.ones(N, np.float32)


def _on_gpu(w, name="h"):
    """Computed in gpu0's memory, by the scheduler's own choice."""
    bias = w.tensor(f"{name}.bias", N, on="gpu0")
    return w.op("add", bias, w.input(f"{name}.x", N), name=name)


def in_place(w):
    return w.op("scale_inplace", _on_gpu(w), 2.0, name="bad"), []


def in_place_of_two(w):
    return w.op("mul_inplace", _on_gpu(w), w.input("y", N), name="bad"), []


def copied_into(w):
    return w.op("cpy", w.op("sqr", w.input("y", N), name="src"), _on_gpu(w), name="bad"), []


def into_a_part(w):
    part = w.context.view_1d(_on_gpu(w), N // 2, 4 * N // 2)
    return w.op("scale_inplace", part, 2.0, name="bad"), []


def through_a_reshape(w):
    return w.op("scale_inplace", w.context.reshape_2d(_on_gpu(w), 4, N // 4), 2.0, name="bad"), []


def pinned(w):
    bad = w.op("sub", _on_gpu(w), w.input("y", N), name="not in place")
    bad = w.op("add_inplace", bad, _on_gpu(w, "other"), name="bad")
    return bad, [(bad, "CPU"), (bad.src[0], "gpu0")]


def a_pinned_view(w):
    view = w.context.view_1d(_on_gpu(w), N, 0)
    return w.op("sqr", view, name="bad"), [(view, "CPU")]


def python(w):
    def double(dst, a, ith, nth):
        np.multiply(a, 2, out=dst)

    bad = w.context.map_custom1_inplace(_on_gpu(w), double)
    bad.name = "bad"
    return bad, []


def the_cpus_from_the_gpu(w):
    x = w.input("x", N)
    bad = w.op("add_inplace", x, w.tensor("bias", N, on="gpu0"), name="bad")
    return bad, []


ADDS = gpu(supports={"ADD": True, "SUB": True, "CPY": False})
STORIES = (in_place, in_place_of_two, copied_into, into_a_part, through_a_reshape, pinned,
           a_pinned_view, python, the_cpus_from_the_gpu)  # fmt: skip


@pytest.mark.parametrize("async_", [True, False])
@pytest.mark.parametrize("story", STORIES)
def test_it_is_found_refused_and_nothing_computed(stack, story, async_, tmp_path):
    w = World(stack, {**ADDS, "async_": async_}, "CPU")
    out, pins = story(w)
    scheduler = w.scheduler(out)
    for tensor, backend in pins:
        scheduler.set_tensor_backend(tensor, w.backend(backend))
    plan = scheduler.plan(w.graph)
    (finding,) = [f for f in plan.advice() if f.id == "GP117"]
    assert [t.name for t in finding.tensors] == ["bad"] and finding.severity == "risk"
    with ggml.strict(), pytest.raises(ggml.PlacementError, match="out of reach"):
        scheduler.plan(w.graph)
    plan.to_json(tmp_path / "plan.json")
    assert "GP117" in [f.id for f in ggml.Plan.from_json(tmp_path / "plan.json").advice()]
    assert "GP117" in logged(plan).advice(min_bytes=1)[-1].text  # GP100: not checked
    seen = []
    scheduler.set_eval_callback(lambda t, ask: seen.append(t.name) or False)
    scheduler.alloc_graph(w.graph)
    for leaf in w.graph.leafs:
        leaf.set(ONES)
    with pytest.raises(ggml.AbortError, match=r"'bad' .* memory: .* cannot reach it"):
        scheduler.compute(w.graph)
    assert not seen
    scheduler.reset()  # and can be used


def test_the_same_in_memory_of_its_own_is_right(stack):
    w = World(stack, ADDS, "CPU")
    h = _on_gpu(w)
    out = w.op("add", w.op("scale", h, 2.0, name="scaled"), h, name="out")
    scheduler = w.scheduler(out)
    plan = scheduler.plan(w.graph)
    assert [n.backend for n in plan.nodes] == ["gpu0", "CPU", "gpu0"]
    assert reach.unreached(plan) == []
    with ggml.strict(max_splits=99):
        scheduler.alloc_graph(w.graph)
        for leaf in w.graph.leafs:
            leaf.set(ONES)
        scheduler.compute(w.graph)
    np.testing.assert_array_equal(out.get(), 6 * ONES)


def test_the_cpu_alone_looks_too(sims):
    with sims().init() as sim, ggml.device("CPU").init() as cpu, ggml.Context() as c:
        y = c.sqr(c.from_numpy(ONES))
        graph = c.new_graph(16)
        graph.build_forward_expand(y)
        c.alloc(sim)
        with pytest.raises(ggml.AbortError, match=r"\(SQR\) on CPU writes to .* gpu0 memory"):
            ggml.lib.ggml_backend_graph_compute(cpu.ptr, graph.ptr)
        sim.compute(graph)
        np.testing.assert_array_equal(y.get(), ONES)


@pytest.mark.parametrize("momenta", ["gpu0", "CPU"])
def test_an_optimizer_step_that_updates_copies(stack, momenta):
    w = World(stack, gpu(), "CPU")
    weight = w.tensor("w", N, on="gpu0", usage="any")
    weight.set_param()
    m, v = (w.tensor(name, N, on=momenta, usage="any") for name in "mv")
    grad = w.input("grad", N)
    step = w.op("opt_step_adamw", weight, grad, m, v, w.input("params", 7), name="step")
    scheduler = w.scheduler(step)
    plan = scheduler.plan(w.graph)
    found = [f for f in plan.advice() if f.id == "GP117"]
    scheduler.alloc_graph(w.graph)
    for t in (weight, m, v, grad):
        t.set(ONES)
    w.graph["params"].set(np.array([0.1, 0.9, 0.99, 1e-8, 0, 1, 1]))
    if momenta == "gpu0":
        assert not found
        scheduler.compute(w.graph)
        assert not np.array_equal(weight.get(), ONES)
    else:
        assert "updates a copy of tensor 'm'" in found[0].text
        assert "Allocate 'm' where gpu0" in found[0].suggestion
        with pytest.raises(ggml.AbortError, match=r"'step' .* updates 'm' in a copy.*lost"):
            scheduler.compute(w.graph)


_TOUCH = """
import ctypes, numpy as np, ggml_py as ggml
with ggml.Context() as c, ggml.sim_device("gpu0").init() as gpu:
    x = c.from_numpy(np.ones(8, np.float32))
    c.alloc(gpu)
    assert x.get().tolist() == [1] * 8
    address = int(ggml.ffi.cast("uintptr_t", x.ptr.data))
    print(address, flush=True)
    ctypes.string_at(address, 4)
"""


def test_its_addresses_are_nobody_elses():
    done = subprocess.run(
        [sys.executable, "-c", _TOUCH], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert int(done.stdout) >> 54 == 1


def test_plans_say_what_computes_do():
    counts = Counter(case(n) for n in range(80))
    assert counts["refused"] > 3 and counts["computed"] > 30, counts


@pytest.mark.thorough("sample")
def test_many_plans_say_what_computes_do():
    counts = Counter(case(n) for n in range(60, 660))
    assert counts["refused"] > 45, counts


MODELS = [
    {"n_gpu_layers": ngl, "flash_attn": fa, "offload_kqv": kqv, "op_offload": kqv == (ngl == 2)}
    for ngl in (0, 2, 99)
    for fa in ("on", "off")
    for kqv in (True, False)
]


@pytest.mark.parametrize("profile", ["cuda", "vulkan"])
def test_no_model_is_accused(sims, model_file, profile):
    if profile not in ggml.profiles():
        pytest.skip(f"this release has no record of {profile}")
    path = model_file(LlamaSpec(n_layer=3, n_vocab=300, type="q8_0"))
    sims("gpu0", profile=profile, host_buffer=True)
    for options in MODELS:
        with load(path, devices=("sim:gpu0", "CPU"), n_ctx=64, **options) as model:
            for n_tokens in 1, 40:
                assert reach.unreached(model.plan(n_tokens)) == [], options
