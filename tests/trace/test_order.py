"""The order that backends compute their nodes in, after `graph_optimize`: plans tell it, the times
of runs follow it; simulated devices have one of the user's, or upstream's own for Metal."""

import itertools
import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

import ggml_py as ggml
from ggml_py import ArgumentError, Plan
from ggml_py.cli import cli
from ggml_py.export.json import plan_file as to_json
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec
from ggml_py.sim.calls import check_order
from ggml_py.trace import reference
from ggml_py.trace import split as order

from ..support.sim_net import Net

PROMPT = [5, 6, 7, 8]


class Diamond:
    """o = a·x + (x²)², all on a simulated device: p and the squares do not need one another."""

    def __init__(self, graph_optimize, **options):
        self.device = ggml.sim_device("order0", graph_optimize=graph_optimize, **options)
        self.backends = [d.init(n_threads=1) for d in (self.device, ggml.device("CPU"))]
        self.weights, self.ctx = ggml.Context(), ggml.Context()
        a = self.weights.new_tensor("f32", 64, 64, name="a")
        self.weights.alloc(self.backends[0], usage="weights")
        a.set(np.eye(64))
        c = self.ctx
        self.x = c.new_tensor("f32", 64, 8, name="x")
        self.x.set_input()
        p, q = c.mul_mat(a, self.x), c.sqr(self.x)
        r = c.sqr(q)
        self.o = c.add(p, r)
        p.name, q.name, r.name, self.o.name = "p", "q", "r", "o"
        self.graph = c.new_graph()
        self.graph.build_forward_expand(self.o)
        self.sched = ggml.Scheduler(self.backends)

    def run(self, **options):
        self.sched.alloc_graph(self.graph)
        self.x.set(np.full((8, 64), 2))
        with self.sched.record(**options) as recording:
            self.sched.compute(self.graph)
        result = self.o.get()
        self.sched.reset()
        assert (result == 2 + 16).all()
        return recording.run

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in (self.sched, self.ctx, self.weights, *self.backends, self.device):
            handle.close()


def by_name(*names):
    return lambda nodes: [next(n for n in nodes if n.name == name) for name in names]


def names(tensors):
    return [t.name for t in tensors]


def test_the_order_before_and_after():
    with Diamond(by_name("q", "r", "p", "o")) as net:
        plan = net.sched.plan(net.graph)
        assert names(plan.nodes) == ["p", "q", "r", "o"]  # what upstream prints: it asks later
        assert re.findall(r"node #.*?: +(\w+) \(", plan.text()) == ["p", "q", "r", "o"]
        assert names(plan.order) == names(plan.splits[0].order) == ["q", "r", "p", "o"]
        assert names(plan.moved) == ["p"]  # one node was moved, not two
        assert net.sched.plan(net.graph) == plan and names(net.graph.nodes) == names(plan.nodes)
        assert reference.plan(plan.capture) == plan and plan.reference.order == tuple(
            plan.reference.tensor(t.id) for t in plan.order
        )
        net.device.configure(graph_optimize=lambda nodes: range(len(nodes)))
        same = net.sched.plan(net.graph)
        assert names(same.order) == names(same.nodes) and same.moved == () and same != plan


def test_times_are_of_the_nodes_that_took_them():
    """Found wrong: the nodes in the graph's order got the times of those in the backend's."""
    for async_ in (True, False):
        with Diamond(by_name("q", "r", "p", "o"), async_=async_) as net:
            run = net.run(per_op=True)
            (compute,) = run.computes
            assert [n.node.name for n in compute.nodes] == ["q", "r", "p", "o"]
            starts = [n.event.start for n in compute.nodes]
            assert starts == sorted(starts)
            whole = net.run()
            (nodes,) = whole.computes[0].splits[0].nodes
            assert names(whole.computes[0].given(nodes)) == ["q", "r", "p", "o"]


def test_tensors_that_are_kept():
    def keeping(nodes):
        p, q, r, o = nodes
        nodes.add_alloc_dep(q, until=o)
        nodes.add_alloc_dep(q.src[0], until=r)
        return p, q, r, o

    with Diamond(keeping) as net:
        plan = net.sched.plan(net.graph)
        kept = [(d.tensor.name, d.until.name) for d in plan.splits[0].alloc_deps]
        assert kept == [("order0#x#0", "r"), ("q", "o")] and plan.moved == ()
        net.run()
        more = net.sched.reserve_size(net.graph)["order0"]
        net.device.configure(graph_optimize=list)
        assert not net.sched.plan(net.graph).splits[0].alloc_deps
        assert net.sched.reserve_size(net.graph)["order0"] < more  # q's memory was r's, too


@pytest.mark.parametrize(
    ("optimize", "error", "message"),
    [
        (by_name("p", "r", "q", "o"), ArgumentError, r"'r' \(SQR\) before 'q'.*whose result"),
        (lambda nodes: nodes[:-1], ArgumentError, r"3 nodes for a split of 4.*missing: \['o'\]"),
        (lambda nodes: [*nodes[:3], nodes[0]], ArgumentError, r"more than once: \['p'\]"),
        (lambda nodes: [0, 1, 2, 4], ArgumentError, "4, which is not in the split of 4 nodes"),
        (lambda nodes: ["p"], ArgumentError, "'p', which is not in"),
        (lambda nodes: None, TypeError, "returned NoneType: expected the nodes in another order"),
        (lambda nodes: nodes.add_alloc_dep(nodes[0], nodes[1].src[0]), ValueError, "until="),
        (lambda nodes: 1 // 0, ZeroDivisionError, "zero"),
    ],
)  # fmt: skip
def test_what_is_no_order_is_the_callers_error(optimize, error, message):
    with Diamond(optimize) as net:
        for call in (net.sched.plan, net.sched.alloc_graph, net.sched.reserve):
            with pytest.raises(error, match=message):
                call(net.graph)
        net.sched.reset()
        net.device.configure(graph_optimize=by_name("q", "p", "r", "o"))
        assert net.run() is not None


def test_nodes_are_lent_for_the_call():
    seen = []

    def keep(nodes):
        seen.extend(nodes)
        return nodes

    with Diamond(keep) as net:
        net.sched.plan(net.graph)
        with pytest.raises(ggml.ClosedError, match="graph_optimize function for one call"):
            seen[0].ptr  # noqa: B018


def test_writing_over_what_is_read_later():
    """A copy into a cache stays behind the node that reads what was there."""
    with Diamond(list) as net, ggml.Context() as ctx:
        cache = ctx.new_tensor("f32", 64, name="cache")
        first = ctx.scale(cache, 2.0)
        write = ctx.cpy(ctx.new_tensor("f32", 64, name="new"), cache)
        last = ctx.scale(cache, 3.0)
        nodes = (first, write, last)
        check_order(nodes, [0, 1, 2])
        for wrong, why in (([1, 0, 2], "reads 'cache' that it overwrites"), ([0, 2, 1], "writes")):
            with pytest.raises(ArgumentError, match=why):
                check_order(nodes, wrong)
        assert net.run() is not None


def test_the_fewest_nodes_that_moved():
    for size in range(7):
        for permutation in itertools.permutations(range(size)):
            rest = [i for i in permutation if i not in order.moved(permutation)]
            assert rest == sorted(rest)
            longest = max(
                (n for n in range(size + 1) for part in itertools.combinations(permutation, n)
                 if list(part) == sorted(part)),
                default=0,
            )  # fmt: skip
            assert len(rest) == longest


def test_files_say_the_order(tmp_path):
    with Diamond(by_name("q", "r", "p", "o")) as net:
        plan, run = net.sched.plan(net.graph), net.run(per_op=True)
    plan.to_json(tmp_path / "p.json")
    again = Plan.from_json(tmp_path / "p.json")
    assert again == plan and names(again.order) == ["q", "r", "p", "o"]
    run.to_json(tmp_path / "r.json")
    assert [n.node.name for n in ggml.Run.from_json(tmp_path / "r.json").computes[0].nodes] == [
        "q", "r", "p", "o",
    ]  # fmt: skip
    data = json.loads((tmp_path / "p.json").read_text())
    jsonschema.validate(data, json.loads(json.dumps(to_json.schema())))
    for edit in (
        lambda d: d["optimized"][0].update(order=[0, 0, 1, 2]),
        lambda d: d["optimized"][0].update(alloc_deps=[[0, 9]]),
        lambda d: d.update(optimizers=8),
    ):
        wrong = json.loads(json.dumps(data))
        edit(wrong)
        with pytest.raises(ValueError, match="damaged plan: optimize"):
            to_json.plan_of(wrong, "p")


@pytest.mark.parametrize(("device", "known"), [("CPU", True), ("gpu0", False), ("CUDA0", False)])
def test_old_files_do_not_say_it(device, known):
    """Of a backend that may have reordered its nodes nobody knows."""
    with Net(ggml.sim_device("gpu0")) as net, net.scheduler.record(per_op=True) as recording:
        net.run()
    plan = recording.run.plans[0]
    data = json.loads(json.dumps(plan.to_json()))
    data["schema"] = 3
    del data["optimizers"], data["optimized"], data["cpu"]
    data["backends"][0].update(device=device)
    old = to_json.plan_of(data, "old")
    assert (old.order is not None) == known == (old.splits[0].order is not None)
    assert old.moved == old.splits[0].alloc_deps == (() if known else None)
    run = ggml.Run((old,), recording.run.schedulers, recording.run.events, True)
    assert bool(list(run.computes[0].nodes)) == known


def test_other_circumstances_have_another_order():
    with Diamond(by_name("q", "r", "p", "o")) as net:
        plan = net.sched.plan(net.graph)
    assert plan.what_if(pins={"r": "CPU"}).order is None  # nobody asked
    assert names(plan.what_if().order) == names(plan.order)
    moved = plan.what_if(drop=["order0"], move_weights={"a": "CPU"})
    assert names(moved.order) == names(moved.nodes)


@pytest.mark.parametrize("name", ["gpu0", "Foo0", "SYCL0", "RPC0[host:50052]", "CPU2", "order0"])
@pytest.mark.parametrize("optimize", [list, "metal", None])
def test_logs_and_snapshots_do_not_say_it(name, optimize, tmp_path):
    """Found wrong: a name that is none of upstream's counted as one that does not reorder."""
    with Net(ggml.sim_device(name, graph_optimize=optimize)) as net:
        plan = net.scheduler.plan(net.graph)
    assert plan.order is not None
    log, page = Plan.from_debug_log(plan.text()), Plan.from_snapshot(plan.snapshot())
    log.to_json(tmp_path / "p.json")
    for read in (log, page, Plan.from_json(tmp_path / "p.json")):
        on_device = [s for s in read.splits if s.backend == name]
        assert on_device and read.order is read.moved is None
        assert all(s.order is s.moved is s.alloc_deps is None for s in on_device)
        assert all(s.moved == () for s in read.splits if s.backend == "CPU")
        assert "order" in " ".join(read.unknown)
    data = json.loads(Path(tmp_path / "p.json").read_text()) | {"optimizers": 0}
    assert to_json.plan_of(data, "an older one").order is None
    (tmp_path / "a.log").write_text(plan.text())
    told = CliRunner().invoke(cli, ["plan", str(tmp_path / "a.log"), "--order"]).output
    assert f"on {name}: not known: the backend may reorder nodes" in told
    told = CliRunner().invoke(cli, ["plan", str(tmp_path / "a.log"), "--order", "--json"]).output
    row = next(row for row in json.loads(told)["order"] if row["backend"] == name)
    assert row["order"] is row["moved"] is row["alloc_deps"] is None


def test_a_log_of_the_cpu_says_it():
    with Net(ggml.sim_device("gpu0")) as net:
        plan = net.scheduler.plan(net.graph).what_if(drop=["gpu0"], move_weights={"*": "CPU"})
    log = Plan.from_debug_log(plan.text())
    assert log.order is not None and log.moved == ()


def test_upstreams_own_for_metal(model_file):
    """A model's nodes in Metal's order: other than the graph's, the same results."""
    path = model_file(LlamaSpec(n_layer=2, n_embd=64, n_head=4, n_head_kv=2, n_vocab=256))
    logits, orders = [], []
    for optimize in (None, "metal"):
        with (
            ggml.sim_device("metal0", graph_optimize=optimize) as device,
            load(path, devices=(device, "CPU"), n_threads=1, n_gpu_layers=9) as model,
        ):
            plan = model.plan(n_tokens=4)
            orders.append(plan.order)
            assert bool(plan.moved) == (optimize is not None)
            logits.append(model.eval(PROMPT))
            with model.record(per_op=True) as recording:
                model.eval([9])
            (compute,) = recording.run.computes
            order_ = [n for n in compute.plan.order if n.is_computed]
            assert [n.node for n in compute.nodes] == order_
    assert (logits[0] == logits[1]).all()
    assert [n.id for n in orders[0]] != [n.id for n in orders[1]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cuda", "expected a function of the split's nodes, or 'card', 'metal', 'none'"),
        ("card", "expected a card whose backend orders nodes"),
        (7, "got|expected"),
    ],
)
def test_what_is_no_graph_optimize(given, message):
    with pytest.raises(ArgumentError, match=message):
        ggml.sim_device("order1", graph_optimize=given)
