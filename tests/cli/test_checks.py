"""Assertions about plans: what passes, what fails, and what a failure says."""

import subprocess
import sys
from dataclasses import replace

import pytest

import ggml_py as ggml
from ggml_py import checks

from ..support.two_layers import no_relu, two_layers


@pytest.fixture
def make(sims):
    def plan(**settings):
        with two_layers(sims, **settings) as (scheduler, graph):
            return scheduler.plan(graph)

    return plan


def fails(check, *args, **options):
    with pytest.raises(AssertionError) as caught:
        check(*args, **options)
    return str(caught.value)


def backends(plan):
    return {n.name: n.backend for n in plan.nodes}


def test_a_device_that_can_do_all_has_no_fallback(make):
    plan = make()
    assert backends(plan)["act-0"] == "gpu0" and backends(plan)["embd"] == "CPU"
    checks.assert_no_fallback(plan, allow="head")
    checks.assert_no_fallback(plan, op="UNARY")
    checks.assert_no_fallback(plan, op=["RELU", "ADD"], backend="gpu0")


def test_an_op_that_the_device_lacks_falls_back(make):
    plan = make(supports=no_relu)
    assert backends(plan)["act-0"] == "CPU"
    said = fails(checks.assert_no_fallback, plan, allow=["head"])
    assert said.startswith("2 nodes fall back to another backend:\n")
    assert "2× RELU on CPU, not on gpu0: 'act-0', 'act-1'" in said
    assert "op, pass 1: gpu0 does not support RELU(f32 [64, 8])" in said
    assert fails(checks.assert_no_fallback, plan, op="RELU").startswith("2 nodes")
    for fine in ({"op": "ADD"}, {"allow": ("head", "RELU")}, {"allow": ("head", "act-*")}):
        checks.assert_no_fallback(plan, **fine)


def test_a_weight_left_behind_brings_its_node_back(make):
    said = fails(checks.assert_no_fallback, make())
    assert said.startswith("1 node falls back to another backend:\n  1× MUL_MAT on CPU")
    assert "'head.weight'" in said and "move_weights" not in said


def test_a_node_that_only_lacks_support_falls_back_wherever_its_sources_are(make):
    """The first node on the GPU reads the CPU's table: nothing of it is on the GPU."""
    assert backends(make())["square"] == "gpu0"
    plan = make(supports=lambda t: t.name != "square")
    assert backends(plan)["square"] == "CPU"
    said = fails(checks.assert_no_fallback, plan, allow="head")
    assert said.startswith("1 node falls back") and "1× SQR on CPU, not on gpu0: 'square'" in said
    both = tuple(b._replace(readers=0b11) for b in plan.capture.bufts)
    shared = replace(plan, capture=replace(plan.capture, bufts=both))
    checks.assert_no_fallback(shared)  # nobody falls from a device without memory of its own


def test_what_the_caller_pinned_does_not_fall_back(sims):
    with two_layers(sims) as (scheduler, graph):
        node = next(n for n in graph.nodes if n.name == "act-0")
        scheduler.set_tensor_backend(node, scheduler.backends[-1])
        plan = scheduler.plan(graph)
    assert backends(plan)["act-0"] == "CPU"
    checks.assert_no_fallback(plan, allow="head")
    assert "'act-0'" in fails(checks.assert_no_fallback, plan, op="RELU")


def test_a_log_tells_of_fallbacks_too(make):
    log = ggml.Plan.from_debug_log(make(supports=no_relu).text())
    assert "2× RELU on CPU" in fails(checks.assert_no_fallback, log)


def test_a_backend_in_the_cpus_memory_needs_ops(mlp):
    checks.assert_no_fallback(mlp)
    checks.assert_no_fallback(mlp, op="MUL_MAT", backend="BLAS")
    assert "1× RELU on CPU, not on BLAS: " in fails(
        checks.assert_no_fallback, mlp, op="RELU", backend="blas"
    )
    with pytest.raises(ValueError, match="only BLAS and CPU"):
        checks.assert_no_fallback(mlp, op="MUL_MAT")
    with pytest.raises(ValueError, match="say which ops it should run with op="):
        checks.assert_no_fallback(mlp, backend="BLAS")


def test_splits(make):
    plan = make(supports=no_relu)
    n = plan.n_splits
    checks.assert_max_splits(plan, n)
    said = fails(checks.assert_max_splits, plan, n - 1)
    assert said.startswith(f"{n} splits, expected at most {n - 1}:\n")
    assert "  2× on CPU from RELU [3.best]: 'act-0', 'act-1'\n" in said
    assert "act-0 (RELU(f32 [64, 8])) is on CPU, not on gpu0" in said


def test_copies(make):
    plan = make(supports=no_relu)
    checks.assert_max_copy_bytes(plan, plan.copy_bytes)
    said = fails(checks.assert_max_copy_bytes, plan, 2048)
    assert said.startswith(f"{plan.copy_bytes} bytes (")
    assert "expected at most 2048 (2.0 KiB)" in said
    assert "2.0 KiB of up-0: gpu0 → CPU" in said and "its reader: " in said


def test_pins(make):
    plan = make(supports=no_relu)
    checks.assert_pins(plan, {"up-*": "gpu0", "embd": "CPU", "w1": "gpu0"})
    said = fails(checks.assert_pins, plan, {"up-*": "gpu0", "act-*": "gpu0", "w0": "CPU"})
    assert said.startswith("3 tensors are not where expected:")
    assert "2× on CPU, not on gpu0: 'act-0', 'act-1'" in said
    assert "1× on gpu0, not on CPU: 'w0'" in said
    with pytest.raises(KeyError, match="no node named 'upp-\\*'"):
        checks.assert_pins(plan, {"upp-*": "gpu0"})
    with pytest.raises(KeyError, match="no backend 'gpu7'"):
        checks.assert_pins(plan, {"up-*": "gpu7"})


def test_same_plan(make):
    plan, other = make(), make(supports=no_relu)
    checks.assert_same_plan(plan, make())
    said = fails(checks.assert_same_plan, plan, other)
    assert said.startswith("2 of 9 nodes moved from gpu0 to CPU; splits 3 → 7")
    assert "\n  2× on CPU from act-* (RELU): 1 node, 1 copied in (2.0 KiB)\n" in said
    assert "2× act-* (RELU): gpu0 2.sup → CPU 3.best" in said
    assert "act-0 (RELU(f32 [64, 8])) is on CPU: 3.best" in said  # explain
    assert "gpu0 does not support RELU" in said  # why_not
    saved = ggml.Plan.from_snapshot(plan.snapshot())
    assert "2× act-* (RELU)" in fails(checks.assert_same_plan, saved, other)


def test_supported(sims):
    with two_layers(sims, supports=no_relu) as (scheduler, graph):
        gpu, cpu = scheduler.backends
        checks.assert_supported(graph, cpu)
        checks.assert_supported(graph, cpu.device)
        said = fails(checks.assert_supported, graph, gpu)
        assert said.startswith("gpu0 does not support 2 of 9 nodes:\n  2× UNARY: 'act-0', 'act-1'")
        assert "UNARY 'act-0' on gpu0: not supported" in said


def test_plans_are_checked_where_the_native_module_is_blocked(make, tmp_path):
    make(supports=no_relu).to_json(tmp_path / "p.json")
    program = (
        "import sys; sys.modules['ggml_py._ggml'] = None\n"
        "import ggml_py\n"
        "from ggml_py import checks\n"
        f"plan = ggml_py.Plan.from_json({str(tmp_path / 'p.json')!r})\n"
        "checks.assert_max_splits(plan, 7)\n"
        "try: checks.assert_no_fallback(plan, allow='head')\n"
        "except AssertionError as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2× RELU on CPU, not on gpu0" in done.stdout
