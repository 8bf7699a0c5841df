"""What is recorded of computes: every split, copy and wait once, at its time, beside its plan."""

import itertools
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import ArgumentError, Run
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec
from ggml_py.trace.recorded import COMPUTE, COPY, NODES, WAIT, RunEvent, SchedulerRecord

from ..support.sim_net import Net

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def path(model_file):
    size = {"n_layer": 3, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 256, "n_vocab": 512}
    return model_file(LlamaSpec(**size))


@pytest.fixture(scope="module")
def model(path):
    """Half of its layers on a simulated GPU: splits on both sides, and copies."""
    with load(path, devices=("sim:gpu0", "CPU"), n_threads=1, n_gpu_layers=2) as model:
        model.eval(PROMPT)
        yield model


@pytest.fixture(scope="module")
def run(model):
    model.reset()
    with model.record() as recording:
        model.generate(PROMPT, 4)
    return recording.run


def of_kind(events, kind):
    return [e for e in events if e.kind == kind]


def test_each_compute_is_the_plan_once(run):
    """Every split's nodes in order, every input copied, and nothing else."""
    assert len(run.computes) == 4
    assert [c.plan.n_splits for c in run.computes] == [2, 2, 2, 2]
    assert len(run.plans) == 2  # the prompt's, and a token's for three
    for compute in run.computes:
        plan = compute.plan
        assert [s.index for s in compute.splits] == list(range(plan.n_splits))
        for split, planned in zip(compute.splits, plan.splits, strict=True):
            assert split.backend == planned.backend
            assert [(e.first, e.last) for e in split.nodes] == [(planned.start, planned.end)]
            copied = {(c.name, c.event.nbytes) for c in split.copies}
            assert copied == {(i.tensor.name, i.nbytes) for i in planned.inputs}


def test_times_are_in_order_and_inside_their_compute(run):
    for compute in run.computes:
        inner = [e for _i, e in compute.events if e.kind in (COPY, NODES)]
        assert inner == sorted(inner, key=lambda e: e.start)
        assert all(a.end <= b.start for a, b in itertools.pairwise(inner))
        assert compute.event.start <= inner[0].start and inner[-1].end <= compute.event.end
        for split in compute.splits:
            assert split.start <= split.nodes[0].start <= split.end <= compute.end
    starts = [c.event.start for c in run.computes]
    assert starts == sorted(starts) and run.events[0].start == 0


def test_waits_in_copies_say_whose_part_they_are(run):
    inside = [(run.events[e.inside], e) for e in of_kind(run.events, WAIT) if e.inside >= 0]
    assert inside
    for copy, wait in inside:
        assert copy.kind == COPY and copy.start <= wait.start <= wait.end <= copy.end
    for compute in run.computes:
        assert all(0 <= c.waited <= c.event.ns for s in compute.splits for c in s.copies)


def test_the_clock_is_right(path):
    """A backend that takes its time takes it in the record, and no other does."""
    with load(path, devices=("CPU",), n_threads=1) as model:
        model.eval(PROMPT)
        before = time.perf_counter_ns()
        with model.record() as recording:
            for token in range(20):
                model.eval([token])
        took = time.perf_counter_ns() - before
    summary = recording.run.summary()
    assert repr(summary) == f"<RunSummary: {summary.headline()}>"
    assert summary.n_computes == 20 and summary.computing.keys() == {"CPU"}
    assert 0 < summary.computing["CPU"] <= summary.wall <= took
    assert summary.computing["CPU"] + summary.between + summary.idle <= summary.wall * 1.001


@pytest.mark.parametrize("delay", [0, 20])
def test_what_a_node_takes_is_seen(delay):
    """A custom op that sleeps is as much dearer as it sleeps."""
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        x = ctx.new_tensor("f32", 8, name="x")
        x.set_input()
        y = ctx.map_custom1(ctx.sqr(x), lambda dst, a, ith, nth: _slowly(dst, a, delay), 1)
        y.name = "slow"
        graph = ctx.new_graph(16)
        graph.build_forward_expand(y)
        with ggml.Scheduler([cpu], graph_size=64) as sched:
            sched.alloc_graph(graph)
            x.set(np.arange(8))
            with sched.record(per_op=True) as recording:
                sched.compute(graph)
        times = {n.node.name: n.event.ns for n in recording.run.computes[0].nodes}
    assert len(times) == 2 and (times["slow"] >= delay * 1e6)
    assert delay == 0 or recording.run.summary().nodes[0].name == "slow"


def _slowly(dst, a, delay):
    time.sleep(delay / 1000)
    dst[:] = a


def test_nodes_one_by_one(model):
    """Each node that computes something, and the same results."""
    model.reset()
    expected = model.eval(PROMPT)
    model.reset()
    with model.record(per_op=True) as recording:
        logits = model.eval(PROMPT)
    (compute,) = recording.run.computes
    computed = [n.node.index for n in compute.nodes]
    nodes = [n for n in compute.plan.nodes if not n.is_view_op and "compute" in n.flags]
    assert computed == [n.index for n in nodes]
    assert recording.run.per_op and (logits == expected).all()
    model.reset()
    with model.record() as recording:
        model.eval(PROMPT)
    assert not recording.run.per_op
    assert all(e.last - e.first > 1 for e in of_kind(recording.run.events, NODES))


def test_several_schedulers_are_told_apart(path):
    with (
        load(path, devices=("CPU",), n_threads=1) as one,
        load(path, devices=("sim:g1", "CPU"), n_threads=1, n_gpu_layers=9) as other,
    ):
        one.eval(PROMPT), other.eval(PROMPT)
        schedulers = one._graphs._sched, other._graphs._sched
        with ggml.Recording(*schedulers) as recording:
            one.eval([1]), other.eval([1]), one.eval([2])
    run = recording.run
    assert [s.backends for s in run.schedulers] == [("CPU",), ("g1", "CPU")]
    assert [c.event.scheduler for c in run.computes] == [0, 1, 0]
    assert [len(c.plan.backends) for c in run.computes] == [1, 2, 1]
    summary = run.summary()
    assert set(summary.computing) == {"CPU", "g1"}
    # What one computes is not time between the computes of the other.
    assert summary.between + sum(c.event.ns for c in run.computes) <= summary.wall


def test_copies_of_a_pipeline_are_told_apart(sims):
    """With `parallel` each graph uses the next of four copies of its inputs."""
    with Net(sims("gpu7"), parallel=True) as net:
        used = []
        for _ in range(5):
            with net.scheduler.record() as recording:
                net.run()
            used.append({e.copy for e in recording.run.events if e.kind in (COPY, NODES)})
    assert [len(u) for u in used] == [1] * 5
    assert len(set.union(*used)) == 4


@pytest.fixture
def pipeline(sims):
    """Graphs given to two devices one after the other, without waiting for any."""
    devices = sims("gpu7", supports={"MUL_MAT": True}), sims("gpu8", supports={"RELU": True})
    with Net(*devices, parallel=True) as net:
        scheduler = net.scheduler
        with scheduler.record() as recording:
            for _ in range(6):
                scheduler.alloc_graph(net.graph)
                net.set_input()
                scheduler.compute_async(net.graph)
                scheduler.reset()
            scheduler.synchronize()
    return recording.run


def test_what_is_queued_is_done_when_somebody_waited_for_it(pipeline):
    """Of the same copy within a compute, where waits are for events; of all of them after it."""
    assert [c.event.copy for c in pipeline.computes] == [0, 1, 2, 3, 0, 1]
    last = max(c.event.end for c in pipeline.computes)
    waits = of_kind(pipeline.events, WAIT)
    for compute in pipeline.computes:
        for split in compute.splits:
            backend = split.nodes[0].backend
            for nodes, done in zip(split.nodes, split.done, strict=True):
                later = [w for w in waits if w.backend == backend and w.start >= nodes.end]
                sure = [w.end for w in later if w.copy == nodes.copy or w.start >= last]
                assert done == sure[0] if sure else done >= nodes.end
        assert compute.end >= compute.event.end
    assert any(c.end > c.event.end for c in pipeline.computes)
    summary = pipeline.summary()
    for name in ("gpu7", "gpu8"):  # though each has several graphs at a time
        assert 0 < summary.computing[name] + summary.idle_on[name] <= summary.wall


def test_a_graph_that_is_allocated_again_has_one_plan(pipeline):
    """One for each of the scheduler's copies, which are in a plan."""
    assert [c.plan.settings.cur_copy for c in pipeline.computes] == [0, 1, 2, 3, 0, 1]
    assert len(pipeline.plans) == 4


@pytest.mark.parametrize("async_", [True, False])
def test_nodes_one_by_one_of_a_backend_that_goes_on_alone(sims, async_):
    """The time of a node lasts until it was waited for, not until it was handed over."""
    with Net(sims("gpu7", async_=async_)) as net:
        net.run()
        with net.scheduler.record(per_op=True) as recording:
            net.run()
    run = recording.run
    (compute,) = run.computes
    assert [n.node.name for n in compute.nodes] == ["h", "node_1", "out"]
    for node in compute.nodes:
        at = run.events.index(node.event)
        wait = run.events[at + 1]
        assert (wait.kind, wait.backend) == (WAIT, node.event.backend)
        assert node.end == (wait.end if async_ else node.event.end)
    summary = run.summary()
    assert sum(s.ns for s in summary.nodes) == sum(s.ns for s in summary.ops)
    assert sum(n.ns for n in compute.nodes) == summary.computing["gpu7"]


def test_results_and_speed_of_a_scheduler_are_as_before(model):
    """What is recorded ends with the block."""
    model.reset()
    with model.record() as recording:
        model.eval(PROMPT)
    n = len(recording.run.events)
    model.eval([1])
    assert len(recording.run.events) == n
    assert model._graphs._sched._recording is None


def test_recordings_do_not_mix(model):
    with model.record() as first:
        with pytest.raises(ArgumentError, match="is being recorded already"):
            model.record().__enter__()
        with pytest.raises(ArgumentError, match="read it after the `with` block"):
            _ = first.run
        model.eval([1])
    assert len(first.run.computes) == 1
    with first:
        model.eval([1]), model.eval([2])
    assert len(first.run.computes) == 2


def test_an_eval_callback_stays(path):
    with load(path, n_threads=1) as model:
        model.eval(PROMPT)
        sched, seen = model._graphs._sched, []
        sched.set_eval_callback(lambda tensor, ask: seen.append(tensor.name) or True)
        with pytest.raises(ArgumentError, match="has one: call set_eval_callback"):
            model.record(per_op=True).__enter__()
        with model.record() as recording:
            model.eval([1])
        assert seen and len(of_kind(recording.run.events, NODES)) > 20
        sched.set_eval_callback(None)
        with model.record(per_op=True):
            model.eval([1])


def test_too_many_events_are_counted(model):
    sched = model._graphs._sched
    with ggml.Recording(sched, max_events=7) as recording:
        model.eval([1])
        model.eval([2])
    run = recording.run
    assert len(run.events) == 7 and run.lost > 7
    assert f"{run.lost} events were not kept" in str(run.summary())


def test_a_failed_compute_is_recorded_as_far_as_it_went(path):
    with load(path, n_threads=1) as model:
        model.eval(PROMPT)
        sched = model._graphs._sched
        with model.record() as recording:
            model.eval([1])
            sched.set_eval_callback(_fail)
            with pytest.raises(RuntimeError, match="no more"):
                model.eval([2])
            sched.set_eval_callback(None)
        assert len(recording.run.computes) == 2
        assert str(recording.run.summary())
        model.eval([3])


def _fail(tensor, ask):
    raise RuntimeError("no more")


def test_an_exception_in_the_block_keeps_what_was_recorded(model):
    recording = model.record()
    with pytest.raises(KeyError), recording:
        model.eval([1])
        raise KeyError
    assert len(recording.run.computes) == 1


def test_a_scheduler_that_is_closed_meanwhile(path):
    with load(path, n_threads=1) as model:
        model.eval(PROMPT)
        with model.record() as recording:
            model.eval([1])
            model.close()
    assert recording.run.events == ()
    assert recording.run.schedulers[0].backends == ("CPU",)


def test_computes_on_another_thread_are_recorded(model):
    with model.record() as recording:
        thread = threading.Thread(target=model.eval, args=([1],))
        thread.start()
        thread.join()
    assert len(recording.run.computes) == 1


def test_nothing_was_computed():
    with Net() as net, net.scheduler.record() as recording:
        net.scheduler.plan(net.graph)
    run = recording.run
    assert run.events == () and run.plans == () and run.computes == ()
    assert "0 computes in 0: nothing" in str(run.summary())


def _event(kind, start, end, **more):
    none = dict.fromkeys(RunEvent._fields, -1) | {"how": ""}
    rest = {"scheduler": 0, "compute": 0, "copy": 0, "nbytes": 0}
    return RunEvent(**{**none, **rest, "kind": kind, "start": start, "end": end, **more})


def test_where_time_went_to_the_nanosecond():
    """Two backends, one of them asynchronous, and a caller who waits late."""
    nodes = {"split": 0, "first": 0, "last": 4}
    events = (
        _event(COMPUTE, 0, 100), _event(COPY, 10, 30, split=0, backend=0, input=0, nbytes=200),
        _event(WAIT, 12, 17, backend=0, inside=1), _event(NODES, 40, 45, backend=0, **nodes),
        _event(NODES, 50, 95, backend=1, **{**nodes, "split": 1}),
        _event(WAIT, 300, 320, backend=0),  # after work of the caller's
        _event(COMPUTE, 400, 500, compute=1),
        _event(NODES, 400, 410, compute=1, backend=0, **nodes),
        _event(WAIT, 500, 510, compute=1, backend=0),
    )  # fmt: skip
    run = Run((), (SchedulerRecord(("gpu0", "CPU"), (True, False), (-1, -1)),), events, memcpy=1e9)
    summary = run.summary()
    assert summary.computing == {"gpu0": 280 + 110, "CPU": 45}
    assert summary.idle_on == {"gpu0": 40, "CPU": (320 - 45) + 110}
    assert (summary.wall, summary.between) == (510, 200 + 80)
    assert (summary.copying, summary.waiting, summary.copied) == (15, 5 + 20 + 10, 200)
    assert summary.copy_bandwidth == 200 / 15 * 1e9 and summary.queued == 0
    assert summary.idle == 10 + 10 + 5 + 5 + 90 == sum(gap.ns for gap in summary.gaps)
    assert summary.gaps[0] == (410, 90, "nodes 0 to 3 on gpu0")
    named = [(idle.name, idle.backend, idle.times, idle.ns) for idle in summary.idles]
    assert named == [
        ("after nodes 0 to 3", "CPU", 1, 225), ("before its first nodes", "CPU", 2, 50 + 110),
        ("before its first nodes", "gpu0", 1, 40),
    ]  # fmt: skip


def test_a_copy_that_was_handed_over_tells_no_bandwidth(run):
    """Upstream waits for the other side before it copies what a backend did not take itself."""
    assert not any(c.queued for k in run.computes for s in k.splits for c in s.copies)
    assert run.summary().queued == 0
    old = [e._replace(how="") for e in run.events]  # of a file that does not say how
    queued = replace(run, events=tuple(e for e in old if e.inside < 0))
    copies = [c for k in queued.computes for s in k.splits for c in s.copies]
    assert {c.name for c in copies if not c.queued} == {"inp_pos", "inp_out_ids"} & {
        c.name for c in copies
    } | {c.name for c in copies if "input" in c.input.tensor.flags}
    summary = queued.summary()
    assert summary.queued == sum(c.event.nbytes for c in copies if c.queued) > 0
    known = [c.event for c in copies if not c.queued]
    assert summary.copy_bandwidth == sum(e.nbytes for e in known) / sum(e.ns for e in known) * 1e9
    assert {"CPU -> gpu0", "CPU -> gpu0, queued"} == {s.what for s in summary.copies}
    assert "more were handed over to backends that copy later" in str(summary)


def test_a_summary_is_one_of_numbers(run):
    summary = run.summary()
    data = json.loads(json.dumps(summary.as_dict()))
    assert data["n_copies"] == sum(len(p.splits[1].inputs) for p in (c.plan for c in run.computes))
    assert data["copied"] == sum(c.plan.copy_bytes for c in run.computes)
    assert summary.copied == sum(e.nbytes for e in of_kind(run.events, COPY))
    assert summary.wall == max(e.end for e in run.events)
    assert len(of_kind(run.events, COMPUTE)) == summary.n_computes
    names = {s.name for s in summary.copies}
    assert "inp_pos" in names and len(summary.copies) <= 10
    text = str(summary)
    assert "computing on gpu0" in text and "of a plain memcpy here" in text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), TypeError, "expected at least one Scheduler to record"),
        ((3,), TypeError, "expected Schedulers, got"),
    ],
)
def test_what_cannot_be_recorded(arguments, error, message):
    with pytest.raises(error, match=message):
        ggml.Recording(*arguments)


def test_a_closed_scheduler_is_not_recorded(path):
    with load(path, n_threads=1) as model:
        recording = model.record()
    with pytest.raises(ggml.ClosedError):
        recording.__enter__()
    with pytest.raises(ggml.ClosedError):
        model.record()
