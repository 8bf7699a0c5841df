"""plan.text() is upstream's own debug print, line for line: captured from a pristine build."""

import logging
import os
import subprocess
import sys
from dataclasses import replace

import pytest

import ggml_py as ggml
from ggml_py import enums, lib
from ggml_py.export import to_text
from ggml_py.models import load

from ..support import graphs
from ..support.upstream_prints import LLAMAS, TREE, lines_of


def cause_column(text: str) -> list[str]:
    """The cause of each node: the second field in the first brackets of its line."""
    nodes = [line for line in text.splitlines() if line.startswith("node #")]
    return [line[line.index("[") + 7 :][:8] for line in nodes]


@pytest.mark.parametrize("name", graphs.CASES)
def test_text_equals_upstreams_print(name, upstream_prints):
    case = graphs.CASES[name]()
    plan = case.scheduler.plan(case.graph)
    assert lines_of(to_text.render(plan, causes=False)) == upstream_prints[name]
    case.close()


@pytest.mark.parametrize(("n_tokens", "flash_attn"), LLAMAS)
def test_text_of_a_llama_equals_upstreams_print(n_tokens, flash_attn, model, upstream_prints):
    with load(model, devices=("BLAS", "CPU"), flash_attn=flash_attn, repack=False) as m:
        plan = m.plan(n_tokens=n_tokens)
    assert plan.n_splits == (1 if n_tokens == 1 else 27)
    # llama.cpp's graph has a branch for embeddings as input, which is not selected
    unselected = [n for n in plan.nodes if not n.is_view_op and "compute" not in n.flags]
    if hasattr(enums.TensorFlag, "COMPUTE"):  # since 0.9.7; before, all is computed
        assert bool(unselected) == hasattr(lib, "ggml_build_forward_order")  # since 0.21.0
        assert not any(n.is_computed for n in unselected)
        n_computed = sum("compute" in n.flags and not n.is_view_op for n in plan.nodes)
        assert sum(plan.nodes_per_backend().values()) == n_computed
    printed = upstream_prints[f"{n_tokens} {flash_attn}"]
    assert lines_of(to_text.render(plan, causes=False)) == printed
    assert all(cause.strip() for cause in cause_column(plan.text()))


@pytest.mark.needs(release="0.25.0")
def test_text_of_each_slot_of_a_pipeline_is_the_print_with_its_causes(sims, monkeypatch, caplog):
    """Upstream prints before pass 6, which makes an input the current one of its copies."""
    monkeypatch.setenv("GGML_SCHED_DEBUG", "2")
    caplog.set_level(logging.DEBUG, "ggml")
    backends = [sims("gpu0").init(), sims("gpu1").init(), ggml.device("CPU").init()]
    weights, ctx = [ggml.Context() for _ in backends], ggml.Context()
    x = ctx.new_tensor("f32", 32, 4, name="x")
    x.set_input()
    y = x
    for i, (backend, own) in enumerate(zip(backends, weights, strict=True)):
        w = own.new_tensor("f32", 32, 32, name=f"w{i}")
        own.alloc(backend, usage="weights")
        y = ctx.add(ctx.mul_mat(w, y), x)  # every backend reads the input
    graph = ctx.new_graph()
    graph.build_forward_expand(y)
    slots = []
    with ggml.Scheduler(backends, parallel=True) as sched:
        for _ in range(5):
            caplog.clear()
            plan = sched.alloc_graph(graph)
            printed = [r.getMessage().rstrip() for r in caplog.records if r.name == "ggml"]
            printed = [line for line in printed if line.startswith(("## SPLIT", "node #"))]
            assert [line.rstrip() for line in lines_of(plan.text())] == printed
            assert "x (   0K) [  CPU    1.inp]" in plan.text()  # where the CPU's node reads it
            assert plan.node("x").cause.later.startswith("6.cpy") and plan.reference == plan
            slots.append(plan.settings.cur_copy)
            sched.reset()
    assert slots == [0, 1, 2, 3, 0]
    for handle in (ctx, *weights, *backends):
        handle.close()


@pytest.mark.needs("TensorFlag.COMPUTE")
@pytest.mark.parametrize(
    ("upstream", "op", "compute"),
    [("0.9.4", "UNARY", False), ("0.9.7", "UNARY", True), ("0.11.0", "RELU", True)],
)
def test_older_releases_print_less(upstream, op, compute):
    """As their own ggml_backend_sched_print_assignments does."""
    case = graphs.mlp()
    plan = case.scheduler.plan(case.graph)
    settings = plan.settings._replace(upstream=upstream)
    text = replace(plan, capture=replace(plan.capture, settings=settings)).text()
    assert f"({op:>10})" in text
    assert (",c=1:" in text) == compute
    case.close()


def test_the_cause_column_is_filled():
    case = graphs.mlp()
    text = case.scheduler.plan(case.graph).text()
    assert "[ BLAS   1.wgt0]" in text and "[  CPU   3.best]" in text
    case.close()


def test_a_pristine_build_says_that_it_has_no_trace(pristine):
    program = (
        f"import sys; sys.path.append({TREE!r}); import ggml_py\n"
        "from tests.support import graphs\n"
        "case = graphs.mlp()\n"
        "try: case.scheduler.plan(case.graph)\n"
        "except ggml_py.MissingFunctionError as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "GGML_PY_UPSTREAM": pristine},
    )  # fmt: skip
    assert "gp_sched_plan is not in this build" in done.stdout, done.stderr
