"""Lifetimes: what is closed says so, children go first, nothing leaks, and the counter counts."""

import gc
import random

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.handle import LIVE, Handle

from ..support import graphs
from ..support.closed_handles import check_use_after_close
from ..support.handle_kinds import KINDS, Stand


@pytest.fixture
def stand(tmp_path):
    made = Stand(tmp_path)
    yield made
    made.close()


BASES = {"ReadScheduler", "AnyContext", "AnyGraph", "Lender"}  # of kinds, made by nobody


def test_every_kind_of_handle_is_tested():
    def leaves(cls):
        for sub in cls.__subclasses__():
            ours = sub.__module__.startswith("ggml_py.")
            # tests/models and tests/llama test theirs.
            elsewhere = ("ggml_py.models", "ggml_py.llama", "ggml_py.scheduler.borrowed")
            if ours and not sub.__module__.startswith(elsewhere):
                yield sub.__name__
                yield from leaves(sub)

    assert all(getattr(ggml, kind) for kind in KINDS)  # loads the modules
    assert set(leaves(Handle)) - BASES == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_use_after_close_raises(kind, stand):
    check_use_after_close(kind, stand)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_go_back_to_zero_by_close_and_by_collection(kind, stand):
    gc.collect()
    before = LIVE[kind]
    handles = [KINDS[kind].make(stand) for _ in range(20)]
    assert LIVE[kind] == before + 20
    for handle in handles[:10]:
        handle.close()
    assert LIVE[kind] == before + 10
    del handles, handle
    gc.collect()
    assert LIVE[kind] == before


def test_closing_a_parent_closes_its_children_first():
    case = graphs.mlp()
    for backend in case.backends:
        backend.close()
    assert case.scheduler.closed
    case.context.close()
    assert case.graph.closed
    case.close()


def test_a_child_keeps_its_parent_alive():
    scheduler = ggml.Scheduler([ggml.device("CPU").init()], graph_size=16)
    gc.collect()
    assert scheduler.backends[0].name == "CPU"
    scheduler.close()


def test_any_order_of_closing_is_survived():
    rng = random.Random(0)
    for _ in range(50):
        case = graphs.mlp()
        case.scheduler.alloc_graph(case.graph)
        items = [case.scheduler, case.graph, case.context, case.weights, *case.backends]
        items += case.weights._buffers
        for item in rng.sample(items, len(items)):
            item.close()


def test_two_that_need_each_other_close_together():
    a, b = ggml.Context(), ggml.Context()
    x, y = a.new_tensor("f32", 4), b.new_tensor("f32", 4)
    a.add(x, y)
    b.add(x, y)
    a.close()
    assert a.closed
    assert b.closed


def test_a_tensor_of_a_closed_context_raises():
    with ggml.Context() as context:
        tensor = context.new_tensor("f32", 4)
    for use in (lambda: tensor.ne, lambda: tensor.get(), lambda: ggml.Context().sqr(tensor)):
        with pytest.raises(ggml.ClosedError):
            use()
    assert "closed" in repr(tensor)


def test_closing_a_buffer_takes_the_memory_from_its_tensors():
    with ggml.Context() as context, ggml.device("CPU").init() as cpu:
        tensor = context.from_numpy(np.ones(4, np.float32))
        buffer = context.alloc(cpu)
        assert tensor.get().sum() == 4
        buffer.close()
        with pytest.raises(ggml.NoDataError):
            tensor.get()


def test_the_counter_would_notice_a_leak():
    gc.collect()
    leaked = ggml.Context()
    before = LIVE["Context"]
    keep = [leaked]
    del leaked
    gc.collect()
    assert LIVE["Context"] == before  # still counted: something holds it
    keep.clear()
    gc.collect()
    assert LIVE["Context"] == before - 1


def test_a_class_method_of_a_closed_object_makes_an_open_one(tmp_path):
    closed = ggml.Dataset(np.ones((2, 2)))
    closed.close()
    made = closed.empty("f32", "f32", 2, 0, 4)
    assert not made.closed and made.ndata == 4
    made.close()
    assert made.closed and type(made) is type(closed)
