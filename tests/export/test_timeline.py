"""Timelines of runs and plans, and Chrome's trace format, which has its rules."""

import json
from collections import defaultdict
from dataclasses import replace

import pytest

import ggml_py as ggml
from ggml_py.export import timeline, to_chrome
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec
from ggml_py.plan import Plan

from ..support.sim_net import Net

HOSTILE = '</script>"\'\\ ä 日本 \u2028'


@pytest.fixture(scope="module")
def path(model_file):
    size = {"n_layer": 3, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 256, "n_vocab": 512}
    return model_file(LlamaSpec(**size))


@pytest.fixture(scope="module")
def sources(path):
    """Plans and runs, by what they are."""
    found = {}
    with load(path, devices=("sim:gpu5", "CPU"), n_threads=1, n_gpu_layers=2) as model:
        found["plan"] = model.plan(n_tokens=4)
        model.eval([1, 2, 3, 4])
        with model.record() as recording:
            model.generate([5], 3)
        found["run"] = recording.run
        with model.record(per_op=True) as recording:
            model.eval([5])
        found["nodes one by one"] = recording.run
    with Net(ggml.sim_device("gpu6"), parallel=True) as net:
        net.h.name, net.x.name = HOSTILE, HOSTILE + "x"
        found["hostile names"] = net.scheduler.plan(net.graph)
        with net.scheduler.record() as recording:
            for _ in range(3):
                net.run()
        found["hostile run"] = recording.run
    devices = [ggml.sim_device(f"gpu{i}", supports={op: True}) for i, op in PIPELINE]
    with Net(*devices, parallel=True) as net:
        with net.scheduler.record() as recording:
            for _ in range(6):
                net.scheduler.alloc_graph(net.graph)
                net.set_input()
                net.scheduler.compute_async(net.graph)
                net.scheduler.reset()
            net.scheduler.synchronize()
        found["pipeline"] = recording.run
    with Net() as net:
        found["one split"] = net.scheduler.plan(net.graph)
        with net.scheduler.record() as recording:
            pass
        found["empty run"] = recording.run
    plan = found["one split"]
    outcome = replace(plan.outcome, placements=(), copies=(), splits=())
    found["empty plan"] = Plan(replace(plan.capture, tensors=(), leaf_ids=()), outcome)
    return found


PIPELINE = (8, "MUL_MAT"), (9, "RELU")
CASES = (
    "plan", "run", "nodes one by one", "hostile names", "hostile run", "pipeline", "one split",
    "empty run", "empty plan",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_chromes_rules(sources, case):
    """What the format's description demands, and Perfetto drops silently where it does not hold."""
    data = json.loads(json.dumps(to_chrome.render(sources[case])))
    events = data["traceEvents"]
    named, slices, flows, lasts = set(), defaultdict(list), defaultdict(list), {}
    for e in events:
        assert isinstance(e["pid"], int) and e["name"]
        if e["ph"] == "M":
            named.add((e["name"], e["pid"], e["tid"]))
            continue
        assert isinstance(e["ts"], (int, float)) and e["ts"] >= 0
        if e["ph"] == "X":
            assert e["dur"] >= 0 and isinstance(e["args"], dict)
            start = _ns(e["ts"])
            slices[e["pid"], e["tid"]].append((start, start + _ns(e["dur"])))
        elif e["ph"] == "C":
            assert all(isinstance(v, (int, float)) and v >= 0 for v in e["args"].values())
            assert lasts.get((e["pid"], e["name"]), 0) <= e["ts"]
            lasts[e["pid"], e["name"]] = e["ts"]
        else:
            assert e["ph"] in "stf"
            flows[e["pid"], e["id"]].append(e)
    for pid, tid in slices:
        assert ("process_name", pid, 0) in named and ("thread_name", pid, tid) in named
        _nested(slices[pid, tid])
    for (pid, _id), steps in flows.items():
        assert [e["ph"] for e in steps] in (["s", "f"], ["s", "t", "f"])
        assert [e["ts"] for e in steps] == sorted(e["ts"] for e in steps)
        for e in steps:
            assert any(a <= _ns(e["ts"]) <= b for a, b in slices[pid, e["tid"]])
        assert steps[-1]["bp"] == "e"
    assert bool(slices) == (not case.startswith("empty"))


def _ns(us):
    """As Perfetto reads a number (CoerceToTs): what is under a nanosecond is cut off."""
    return int(us * 1000)


def _nested(slices):
    """One after the other, or one in another: Perfetto drops what overlaps."""
    opened = []
    for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
        while opened and opened[-1] <= start:
            opened.pop()
        assert not opened or end <= opened[-1]
        opened.append(end)


def test_times_stay_to_the_nanosecond():
    """Of which every hundredth is another number when it was divided and multiplied by 1000."""
    times = [*range(20_000), *range(10**14, 10**14 + 20_000)]
    assert sum(_ns(ns / 1000) != ns for ns in times) > 100
    assert all(_ns(to_chrome._us(ns)) == ns for ns in times)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_same_every_time(sources, case):
    again = [json.dumps(to_chrome.render(sources[case])) for _ in range(2)]
    assert again[0] == again[1]


def test_every_node_and_copy_of_a_plan_is_there(sources):
    plan = sources["plan"]
    rows = timeline.of_plan(plan)
    assert not rows.measured
    nodes = [s for s in rows.slices if s.what == "nodes"]
    computed = [n for n in plan.nodes if not n.is_view_op]
    assert [s.details["node"] for s in nodes] == [n.index for n in computed]
    assert [s.track.name for s in nodes] == [n.backend for n in computed]
    copied = [(s.name, s.details["bytes"]) for s in rows.slices if s.what == "copy"]
    assert copied == [(i.tensor.name, i.nbytes) for s in plan.splits for i in s.inputs]
    assert len(rows.flows) == len(copied)
    carried = [f for f in rows.flows if len(f.slices) == 3]
    assert {f.name for f in carried} == {"ffn_out-1", "ffn_inp-1"} or carried
    for flow in carried:
        assert rows.slices[flow.slices[0]].name == flow.name


def test_every_split_and_copy_of_a_run_is_there(sources):
    run = sources["run"]
    rows = timeline.of_run(run)
    assert rows.measured
    splits = [s for c in run.computes for s in c.splits]
    nodes = [s for s in rows.slices if s.what == "nodes"]
    assert [(s.start, s.details["split"]) for s in nodes] == [
        (s.nodes[0].start, s.index) for s in splits
    ]
    assert [s.end for s in nodes] == [s.end for s in splits]
    copies = [s for s in rows.slices if s.what == "copy"]
    assert len(copies) == sum(len(s.copies) for s in splits) == len(rows.flows)
    assert sum(s.what == "compute" for s in rows.slices) == len(run.computes)
    assert {t.name for t in rows.tracks} == {"scheduler", "CPU", "gpu5", "gpu5 copies"}


def test_a_result_lives_until_it_is_copied():
    """`a` is read by the CPU only, after two more nodes of the GPU: it is there all the while."""
    gpu, cpu = ggml.sim_device("gpu8").init(), ggml.device("CPU").init(n_threads=1)
    with gpu, cpu, ggml.Context() as on_gpu, ggml.Context() as on_cpu, ggml.Context() as ctx:
        w, v = (c.new_tensor("f32", 64, 64) for c in (on_gpu, on_cpu))
        on_gpu.alloc(gpu, usage="weights")
        on_cpu.alloc(cpu, usage="weights")
        x = ctx.new_tensor("f32", 64, 64)
        x.set_input()
        a, b = ctx.mul_mat(w, x), ctx.mul_mat(w, x)
        c, d = ctx.mul_mat(w, b), ctx.mul_mat(v, a)
        graph = ctx.new_graph()
        for tensor in (a, b, c, d):
            graph.build_forward_expand(tensor)
        with ggml.Scheduler([gpu, cpu], op_offload=False) as sched:
            plan = sched.plan(graph)
    by_node = defaultdict(dict)
    for level in timeline.of_plan(plan).levels:
        by_node[level.start][level.buft] = level.nbytes
    one = plan.nodes[0].nbytes
    on_gpu = [levels["gpu8"] // one for _at, levels in sorted(by_node.items())]
    assert on_gpu == [2, 3, 3, 1]  # x and a; those and b; a, b and c; a, whose copy is made


def test_in_order_where_no_time_is_known(sources):
    data = to_chrome.render(sources["plan"])
    assert data["otherData"]["times"].startswith("only the order")
    assert to_chrome.render(sources["run"])["otherData"]["times"] == "measured"
