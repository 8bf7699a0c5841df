"""How the CPU computes nodes, by its own word: threads, scratch memory, kernels of extra buffer
types and the layout of their weights, and what it fuses."""

import contextlib
import json

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import CpuPlan, Plan
from ggml_py.boundary.ffi import BUILD
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec

from ..support.cli_runs import ok

N = 128


def repack():
    """The buffer type that the CPU repacks weights in, if it has one here."""
    bufts = ggml.device("CPU").extra_buffer_types
    return next((b for b in bufts if b.name == "CPU_REPACK"), None)


@pytest.fixture
def ctx():
    with ggml.Context() as ctx:
        yield ctx


def graph_of(ctx, *tensors):
    graph = ctx.new_graph(32)
    for tensor in tensors:
        graph.build_forward_expand(tensor)
    return graph


def test_threads_and_scratch_memory_are_those_of_the_plan(ctx):
    """The most of all nodes is what ggml_graph_plan asks for, less its cache lines."""
    w, x = ctx.new_tensor("q4_0", N, 64), ctx.new_tensor("f32", N, 8)
    y = ctx.soft_max(ctx.mul_mat(w, x))
    view = ctx.reshape_1d(y, 64 * 8)
    for n_threads in (1, 3):
        with CpuPlan(graph_of(ctx, y, view), n_threads) as plan:
            nodes = plan.nodes
            assert [n.node.name for n in nodes] == [n.name for n in plan.graph.nodes]
            assert {n.n_threads for n in nodes} == {plan.n_threads} == {n_threads}
            assert [n.n_tasks for n in nodes] == [n_threads, n_threads, 1]
            assert nodes[0].work_size == 8 * N // 32 * 34  # x as q8_0
            most = max(n.work_size for n in nodes)
            assert plan.work_size == most + 64 * n_threads
            assert {(n.buft, n.kernel, n.layout) for n in nodes} == {("", "", "")}


def test_the_layout_that_a_weight_is_repacked_to():
    buft = repack()
    if buft is None:
        pytest.skip("the CPU has no CPU_REPACK here")
    with ggml.Context() as weights, ggml.Context() as ctx:
        w = weights.new_tensor("q4_0", N, 64, name="w")
        weights.alloc(buft, usage="weights")
        w.set(np.ones((64, N)))
        y = ctx.mul_mat(w, ctx.new_tensor("f32", N, 8))
        with CpuPlan(graph_of(ctx, y), 2) as plan:
            (node,) = plan.nodes
    assert node.buft == "CPU_REPACK"
    # Upstream's own name for it: rows side by side, and how much of each stays together.
    assert node.layout in ("q4_0_4x4", "q4_0_4x8", "q4_0_8x8", "q4_0_16x1")
    assert node.kernel == f"{node.layout}_q8_0"


def fusing(ctx, used_twice=False, half=False, usage="compute"):
    """A norm with its weights, on memory of this test's own, by which is seen what was computed."""
    x = ctx.new_tensor("f32", N, 4, name="x")
    w = ctx.new_tensor("f32", N, name="w")
    norm = ctx.rms_norm(x, 1e-5)
    y = ctx.mul(norm, w)
    out = ctx.add(y, norm) if used_twice else ctx.sqr(y)
    norm.name, y.name, out.name = "norm", "y", "out"
    graph = graph_of(ctx, out)
    ctx.alloc(ggml.device("CPU").buffer_type, usage)
    for tensor in (norm, y, out):
        tensor.set(np.full((4, N), -77.0))
    x.set(np.random.default_rng(0).standard_normal((4, N)))
    w.set(np.ones(N))
    return graph, norm


@pytest.mark.parametrize("used_twice", [False, True])
@pytest.mark.parametrize("use_ref", [False, True])
def test_what_is_fused_is_what_the_cpu_does_not_write(ctx, used_twice, use_ref):
    """A norm that is fused into its product leaves its own memory as it was."""
    graph, norm = fusing(ctx, used_twice)
    with CpuPlan(graph, 2, use_ref=use_ref) as plan:
        told = [tuple(n.name for n in node.fused) for node in plan.nodes]
        plan.compute()
    values = np.empty((4, N), np.float32)
    ggml.lib.ggml_backend_tensor_get(norm.ptr, ggml.ffi.from_buffer(values), 0, values.nbytes)
    untouched = bool((values == -77).all())
    with pytest.raises(ggml.NoDataError) if untouched else contextlib.nullcontext():
        norm.get()
    assert untouched == (told[0] == ("norm", "y"))
    assert told == ([("norm", "y")] * 2 + [()] if untouched else [()] * 3)
    if used_twice or use_ref:
        assert not untouched
    elif BUILD["ggml_version"] == "0.26.0":  # releases before it may not fuse
        assert untouched


def test_what_has_memory_of_its_own_is_not_fused_away(ctx):
    """Whoever has the tensor can read it; a graph's memory is used again for later nodes."""
    graph, norm = fusing(ctx, usage="any")
    with CpuPlan(graph, 2) as plan:
        assert not any(node.fused for node in plan.nodes)
        plan.compute()
    assert not (norm.get() == -77).any()


def model_plan(model_file, **options):
    path = model_file(LlamaSpec(n_layer=2, n_embd=128, n_head=4, n_head_kv=2, n_vocab=256))
    return path, load(path, devices=("CPU",), n_threads=2, **options)


def test_a_models_nodes(model_file, tmp_path):
    path, opened = model_plan(model_file)
    with opened as model:
        plan = model.plan(n_tokens=4)
        model.eval([1, 2, 3])
        with model.record() as recording:
            model.eval([4])
        with model.record(per_op=True) as alone:
            model.eval([5])
    products = [n for n in plan.nodes if n.op == "MUL_MAT"]
    assert all(n.cpu.n_tasks == 2 == n.cpu.n_threads and n.cpu.work_size for n in products)
    if repack() is not None:
        of_weights = [n for n in products if n.srcs[0].buft and n.srcs[0].buft.name == "CPU_REPACK"]
        assert of_weights and all(n.cpu.buft == "CPU_REPACK" and n.cpu.layout for n in of_weights)
    assert all(n.cpu.buft == "" for n in plan.nodes if n.op != "MUL_MAT")
    run = recording.run
    groups = {tuple(n.op for n in group) for group in run.computes[0].fused}
    assert groups <= {("RMS_NORM", "MUL")}
    n_norms = sum(n.op == "RMS_NORM" for n in run.computes[0].plan.nodes)
    assert len(run.computes[0].fused) in (0, n_norms)  # releases that fuse do it with all of them
    assert run.summary().fused == ({"RMS_NORM + MUL": n_norms} if groups else {})
    assert alone.run.computes[0].fused == ()  # one by one nothing is fused
    if groups:
        assert f"fused by the CPU: RMS_NORM + MUL, {n_norms} times" in str(run.summary())
        times = {n.node.op for n in alone.run.computes[0].nodes}
        assert "RMS_NORM" in times  # which has a time of its own only there
    plan.to_json(tmp_path / "p.json")
    again = Plan.from_json(tmp_path / "p.json")
    assert again.on_cpu == plan.on_cpu and again.node(products[0].id).cpu == products[0].cpu
    assert plan.what_if(pins={products[0].id: "CPU"}).node(0).cpu is None  # nobody asked
    shown = ok("plan", tmp_path / "p.json", "--cpu")
    assert "MUL_MAT" in shown and ("weight as q4_0_" in shown) == (repack() is not None)
    data = json.loads(ok("plan", tmp_path / "p.json", "--cpu", "--order", "--json"))
    assert data["cpu"][0]["node"] == 0 and data["order"][0]["moved"] == []
    assert "as in the graph" in ok("plan", tmp_path / "p.json", "--order")
    assert path.exists()


def test_devices_answer_for_themselves(tmp_path):
    """What a simulated device computes is no node of the CPU backend."""
    with ggml.Context() as ctx, ggml.sim_device("cpu9").init(n_threads=1) as gpu:
        x = ctx.new_tensor("f32", N, 4)
        graph = graph_of(ctx, ctx.sqr(x))
        with (
            ggml.device("CPU").init(n_threads=1) as cpu,
            ggml.Scheduler([gpu, cpu], op_offload=False) as sched,
        ):
            for backend in (gpu, cpu):
                sched.set_tensor_backend(graph.nodes[0], backend)
                plan = sched.plan(graph)
                (node,) = plan.nodes
                assert (node.cpu is not None) == (node.backend == "CPU") == (backend is cpu)
                plan.to_json(path := tmp_path / f"{node.backend}.json")
                shown = ok("plan", path, "--cpu")
                assert (shown == "the CPU computes no node of this plan\n") == (backend is gpu)
        moved = ok("plan", tmp_path / "cpu9.json", "--cpu", "--what-if", "drop=cpu9")
        assert "not known: this plan does not say how the CPU computes its nodes" in moved
