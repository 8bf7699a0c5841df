"""What is recorded of computes: every split, copy and wait once, at its time, beside its plan."""

import itertools
import json
import threading
import time

import numpy as np
import pytest
from sim_net import Net

import ggml_py as ggml
from ggml_py import ArgumentError, Run
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.trace.run import COMPUTE, COPY, NODES, WAIT

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "m.gguf"
    size = {"n_layer": 3, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 256, "n_vocab": 512}
    write_llama(path, LlamaSpec(**size))
    return path


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
    assert [c.event.scheduler for c in run.computes] == [0, 0, 1]
    assert len(run.computes[2].plan.backends) == 2
    assert set(run.summary().computing) == {"CPU", "g1"}


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
        with pytest.raises(ArgumentError, match="when its `with` block has ended"):
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
        with pytest.raises(ArgumentError, match="has one: set_eval_callback"):
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
    assert "0 computes in 0 ns: nothing" in str(run.summary())


# --- files


def test_json_is_the_run(run, tmp_path):
    for name in ("r.json", "r.json.gz"):
        run.to_json(tmp_path / name)
        again = Run.from_json(tmp_path / name)
        assert again == run and again.summary() == run.summary()
    assert (tmp_path / "r.json.gz").stat().st_size < (tmp_path / "r.json").stat().st_size / 4


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(kind="ggml_py plan"), "it was not written by its to_json, it is a"),
        (lambda d: d.update(schema=99), "has schema 99; this ggml_py reads 1"),
        (lambda d: d.pop("events"), "is a damaged run: KeyError"),
        (lambda d: d["events"]["kind"].__setitem__(0, "sleep"), "event 0 is a 'sleep'"),
        (lambda d: d["events"]["end"].__setitem__(3, -9), "is a damaged run: event 3 is"),
        (lambda d: d["events"]["backend"].__setitem__(1, 7), "event 1 is on backend 7"),
        (lambda d: d["events"]["compute"].__setitem__(1, 70), "event 1 is of compute 70"),
        (lambda d: d["events"]["scheduler"].__setitem__(1, 7), "event 1 is of scheduler 7"),
        (lambda d: d["events"]["split"].__setitem__(1, 7), "event 1 is of split 7 of 2"),
        (lambda d: d["events"]["start"].__setitem__(1, 0.5), "expected whole numbers"),
        (lambda d: d["events"]["last"].__setitem__(1, 7000), "event 1 is of nodes 0 to 7000"),
        (lambda d: d["events"]["first"].pop(), "is a damaged run"),
        (lambda d: d["schedulers"][0]["plans"].__setitem__(0, 9), "compute 0 has plan 9"),
        (lambda d: d["plans"][0].update(leafs=[-5]), "a plan of .* is a damaged plan"),
    ],
)
def test_damaged_files(run, tmp_path, edit, message):
    data = json.loads(json.dumps(run.to_json()))
    edit(data)
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        Run.from_json(tmp_path / "r.json")


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
        ((), TypeError, "expected the Schedulers to record"),
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
