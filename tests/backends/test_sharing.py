"""Graphs that share tensors: what one was lent is not taken back while the other computes."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.backends import sharing
from ggml_py.boundary import uses
from ggml_py.boundary.handle import LIVE

from ..support.pauses import switching


class Pair:
    """y = x² in memory of `lender`, and a graph that goes on from y on another scheduler."""

    def __init__(self, kind: str, n: int = 64) -> None:
        self.backends = [ggml.device("CPU").init(n_threads=1) for _ in range(2)]
        self.context = ctx = ggml.Context()
        self.x = ctx.new_tensor("f32", n)
        self.x.set_input()
        self.x.set_output()  # it is set once, and computed from several times
        y = ctx.sqr(self.x)
        y.set_output()
        self.first, self.second, self.same = (ctx.new_graph(64) for _ in range(3))
        self.first.build_forward_expand(y)
        self.same.build_forward_expand(y)
        z = ctx.view_1d(y, n // 2, 0) if "view" in kind else y
        for _ in range(20):
            z = ctx.sqr(z)
        self.second.build_forward_expand(z)
        if "allocator" in kind:
            self.lender = ggml.GraphAllocator(self.backends[0].buffer_type)
        else:
            self.lender = ggml.Scheduler(self.backends[:1])
        self.lender.alloc_graph(self.first)
        self.x.set(np.ones(n, np.float32))
        self.other = ggml.Scheduler(self.backends[1:])
        self.other.alloc_graph(self.second)

    def during(self, act) -> None:
        """`act()` while the second graph computes."""
        raised = []

        def once(_tensor, ask):
            if ask and not raised:
                try:
                    raised.append(act())
                except BaseException as error:
                    raised.append(error)
            return False

        self.other.set_eval_callback(once)
        self.other.compute(self.second)
        assert not uses.LATER  # the end of the compute did what finalizers left
        self.other.set_eval_callback(None)
        if isinstance(raised[0], BaseException):
            raise raised[0]

    def close(self) -> None:
        for handle in (self.other, self.context, *self.backends):
            handle.close()
        if getattr(self, "lender", None) is not None:
            self.lender.close()


WAYS = {
    "reset": lambda p: p.lender.reset(),
    "close": lambda p: p.lender.close(),
    "close the graph": lambda p: p.first.close(),
    "allocate anew": lambda p: p.lender.alloc_graph(p.first),
    "plan": lambda p: ggml.Scheduler(p.backends[:1]).plan(p.same),
}
KINDS = ("scheduler", "allocator", "scheduler, view", "allocator, view")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["reset", "close", "close the graph"])
def test_memory_is_not_taken_from_a_graph_that_computes(kind, way):
    with contextlib.closing(Pair(kind)) as pair:
        with pytest.raises(ggml.BusyError, match="a Graph that is computing further up on this "):
            pair.during(lambda: WAYS[way](pair))
        assert not pair.lender.closed and not pair.first.closed
        pair.other.compute(pair.second)
        assert (pair.second.nodes[-1].get() == 1).all()
        WAYS[way](pair)
        with pytest.raises(ggml.NoDataError):
            pair.other.compute(pair.second)


def test_nodes_are_not_planned_while_a_graph_of_theirs_computes():
    with contextlib.closing(Pair("allocator")) as pair:
        with pytest.raises(ggml.BusyError, match="has tensors that this would change"):
            pair.during(lambda: WAYS["plan"](pair))
        assert WAYS["plan"](pair).nodes


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_begins_while_memory_of_its_tensors_is_taken_back(kind):
    """Neither a compute nor a plan."""
    with contextlib.closing(Pair(kind)) as pair, ggml.Scheduler(pair.backends[:1]) as third:
        dup = pair.second.dup()
        with sharing.changing("being reset", pair.lender, lenders=(pair.lender,), nodes=False):
            for call in (lambda: pair.other.compute(pair.second), lambda: third.plan(dup)):
                with pytest.raises(ggml.BusyError, match="changes tensors of this Graph"):
                    call()
        pair.other.compute(pair.second)


def test_a_reset_that_waits_for_an_allocation_holds_up_no_other_graph():
    """Its tensors are known before it waits; a compute waited a second for the list, in vain."""
    pair, two = Pair("scheduler"), Pair("allocator")
    with contextlib.closing(pair), contextlib.closing(two), ggml.Context() as context:
        with sharing.allocating(context):
            thread = threading.Thread(target=pair.lender.reset)
            thread.start()
            time.sleep(0.05)
            two.other.compute(two.second)
            assert thread.is_alive()
        thread.join(60)
        assert not thread.is_alive()


def test_graphs_that_share_weights_alone_do_not_meet():
    with contextlib.closing(Pair("scheduler")) as pair, ggml.Context() as ctx:
        weights = pair.context.new_tensor("f32", 64)
        pair.context.alloc(pair.backends[0]).clear()
        graphs = [ctx.new_graph(16) for _ in range(2)]
        for graph in graphs:
            graph.build_forward_expand(ctx.sqr(weights))
        pair.other.reset()
        pair.other.alloc_graph(graphs[0])
        pair.second = graphs[0]

        def act():
            with ggml.Scheduler(pair.backends[:1]) as third:
                third.plan(graphs[1])
                third.alloc_graph(graphs[1])
                third.reset()

        pair.during(act)


@pytest.mark.parametrize("kind", ["scheduler", "allocator"])
def test_a_lender_that_is_dropped_lives_until_the_compute_is_over(kind):
    gc.collect()
    before = dict(LIVE)
    with contextlib.closing(Pair(kind)) as pair:
        seen = []

        def drop():
            pair.lender = None
            gc.collect()
            seen.append(len(uses.LATER))

        pair.during(drop)
        assert seen == [1] and not uses.LATER
        assert (pair.second.nodes[-1].get() == 1).all()
        with pytest.raises(ggml.NoDataError):
            pair.other.compute(pair.second)
    gc.collect()
    assert {kind: n for kind, n in LIVE.items() if n > before.get(kind, 0)} == {}


@pytest.mark.parametrize("kind", ["scheduler", "allocator"])
def test_a_lender_that_is_dropped_lives_until_an_allocation_is_over(kind):
    """A finalizer does not wait for it."""
    with contextlib.closing(Pair(kind)) as pair, ggml.Context() as context:
        with sharing.allocating(context):
            pair.lender = None
            gc.collect()
            assert len(uses.LATER) == 1
        assert not uses.LATER


def test_what_computes_and_what_changes_see_each_other_from_threads():
    """The same on two threads, in a child: before, each way ended it within a second."""
    child = subprocess.run(
        [sys.executable, "-m", __name__], timeout=120, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (child.returncode, child.stderr) == (0, "")
    assert "refused" in child.stdout


def race(kind: str, way: str, refused: list[str]) -> None:
    """`way` at some moment of another thread's computes."""
    pair, stop = Pair(kind, 1 << 14), []

    def compute():
        while not stop:
            with contextlib.suppress(ggml.BusyError, ggml.NoDataError):
                pair.other.compute(pair.second)

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    if way == "drop":
        pair.lender = None
        gc.collect(0)
    else:
        try:
            WAYS[way](pair)
        except ggml.BusyError:
            refused.append(way)
        except ggml.ArgumentError:
            pass  # a scheduler asks for a reset first
    stop.append(True)
    thread.join()
    pair.close()


def test_a_change_of_a_graph_that_is_closed_by_now_is_over():
    """A compute that reads the list of changes may be late: those in it have ended since."""
    with ggml.Context() as mine, ggml.Context() as other, ggml.device("CPU").init() as cpu:
        graphs = []
        for c in (mine, other):
            graphs.append(graph := c.new_graph(16))
            graph.build_forward_expand(c.sqr(c.new_tensor("f32", 8)))
        with ggml.Scheduler([cpu], graph_size=16) as scheduler:
            change = sharing.changing("planning", scheduler, graphs[1], graph=graphs[1])
            with change:
                assert not change.meets(graphs[0].ptr)
                assert change.meets(graphs[1].ptr)
            graphs[1].close()
            assert not change.meets(graphs[0].ptr)


def test_a_change_that_has_ended_since_refuses_nothing(monkeypatch):
    """It was in the set that a compute reads, and ended before the compute came to it."""

    class Late(set):
        def __iter__(self):
            return iter([*super().__iter__(), change])

    with ggml.Context() as c, ggml.device("CPU").init() as cpu:
        y = c.sqr(c.new_tensor("f32", 8))
        first, second = c.new_graph(16), c.new_graph(16)
        for graph in (first, second):
            graph.build_forward_expand(y)
        with ggml.Scheduler([cpu], graph_size=16) as scheduler:
            change = sharing.changing("planning", scheduler, first, graph=first)
            change.changes = True
            mine = sharing.using("computing", second)
            monkeypatch.setattr(sharing, "USES", Late())
            sharing.check_changes(second, mine)
            sharing.USES.add(change)
            with pytest.raises(ggml.BusyError):
                sharing.check_changes(second, mine)


if __name__ == "__main__":
    refused: list[str] = []
    for round_ in range(5):
        for kind in KINDS:
            for way in (*WAYS, "drop"):
                with switching("at any line" if round_ == 4 else "often"):
                    race(kind, way, refused)
    print("refused:", len(refused))


class View:
    """b = x² in memory that `lender` lends, and c = v² of a view v of b, from another context."""

    def __init__(self, lender: str, allocated_by: str) -> None:
        self.cpu = cpu = ggml.device("CPU").init(n_threads=1)
        self.context, self.other = ggml.Context(), ggml.Context()
        self.x = self.context.new_tensor("f32", 64)
        self.x.set_input()
        b = self.context.sqr(self.x)
        b.set_output()
        self.first = self.context.new_graph(16)
        self.first.build_forward_expand(b)
        self.v = self.other.view_1d(b, 32, 128)
        self.second = self.other.new_graph(16)
        self.c = self.other.sqr(self.v)
        self.c.set_output()
        self.second.build_forward_expand(self.c)
        self.lender = self.made(lender)
        self.lender.alloc_graph(self.first)
        if allocated_by == "context":
            self.owner = self.other.alloc(cpu)
        else:
            self.owner = self.made(allocated_by)
            self.owner.alloc_graph(self.second)

    def made(self, kind: str) -> ggml.Scheduler | ggml.GraphAllocator:
        if kind == "scheduler":
            return ggml.Scheduler([self.cpu])
        return ggml.GraphAllocator(self.cpu.buffer_type)


@pytest.mark.parametrize("first", ["plan", "get", "supports", "allocate"])
@pytest.mark.parametrize("end", ["reset", "close", "drop"])
@pytest.mark.parametrize("allocated_by", ["scheduler", "allocator", "context"])
@pytest.mark.parametrize("lender", ["scheduler", "allocator"])
def test_a_view_elsewhere_does_not_keep_what_was_taken_back(lender, allocated_by, end, first):
    """Upstream points a view to memory once; it pointed to what was freed, and plans died of it."""
    w = View(lender, allocated_by)
    if end == "drop":
        w.lender = None
        gc.collect()
    else:
        getattr(w.lender, end)()
    if allocated_by != "context":
        w.owner.reset()
    if first == "get":
        with pytest.raises(ggml.NoDataError):
            w.v.get()
    elif first == "supports":
        w.cpu.supports_op(w.c)
        w.cpu.device.offload_op(w.c)
    elif first == "plan":
        with ggml.Scheduler([w.cpu]) as scheduler:
            assert scheduler.plan(w.second).nodes[-1].backend == "CPU"
            scheduler.reserve(w.second)
    again = w.made(lender)
    again.alloc_graph(w.first)
    if allocated_by != "context":
        w.owner.alloc_graph(w.second)
    w.x.set(np.arange(64))
    w.cpu.compute(w.second)
    np.testing.assert_array_equal(w.c.get(), np.arange(32.0, 64) ** 4)
