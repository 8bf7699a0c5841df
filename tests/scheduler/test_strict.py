"""`strict`: plans that are not as required are refused before anything is done."""

import asyncio
import pickle
import threading

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.two_layers import no_relu, two_layers

REFUSED = "2× RELU on CPU, not on gpu0: 'act-0', 'act-1'"


@pytest.fixture
def world(sims):
    with two_layers(sims, supports=no_relu) as made:
        yield made


def required():
    return ggml.strict(no_fallback=True, allow="head")


def compute(scheduler, graph, asynchronous=False):
    """An input has to be set for each compute: its memory is used for others later on."""
    next(t for t in graph.leafs if t.name == "ids").set(np.zeros(8, np.int32))
    (scheduler.compute_async if asynchronous else scheduler.compute)(graph)


ACTS = {
    "plan": lambda s, g: s.plan(g),
    "alloc_graph": lambda s, g: s.alloc_graph(g),
    "reserve": lambda s, g: s.reserve(g),
}


@pytest.mark.parametrize("act", ACTS)
def test_it_refuses_before_anything_is_allocated(world, act):
    scheduler, graph = world
    with required(), pytest.raises(ggml.PlacementError, match=REFUSED) as caught:
        ACTS[act](scheduler, graph)
    error = caught.value
    assert error.plan == scheduler.plan(graph)
    assert isinstance(error, RuntimeError) and not isinstance(error, AssertionError)
    assert [scheduler.buffer_size(b) for b in scheduler.backends] == [0, 0]
    ACTS[act](scheduler, graph)  # after the block, as ever
    with ggml.strict(no_fallback=True, allow=["head", "RELU"]):
        scheduler.reset()
        ACTS[act](scheduler, graph)


def test_a_compute_is_refused_too(world):
    scheduler, graph = world
    scheduler.alloc_graph(graph)
    with required():
        for _ in range(2):  # it is looked at again while it is refused
            with pytest.raises(ggml.PlacementError, match=REFUSED):
                compute(scheduler, graph)
    with ggml.strict(max_splits=7), ggml.strict(no_fallback=True, allow=("head", "act-*")):
        compute(scheduler, graph)
        compute(scheduler, graph)
    with required(), pytest.raises(ggml.PlacementError, match=REFUSED):
        compute(scheduler, graph, asynchronous=True)
    compute(scheduler, graph)
    assert graph.nodes[-1].get().shape == (8, 32)


def test_an_allocated_graph_is_planned_once_in_a_block(world, monkeypatch):
    scheduler, graph = world
    planned, plan = [], ggml.Scheduler._plan
    monkeypatch.setattr(ggml.Scheduler, "_plan", lambda s, g: planned.append(g) or plan(s, g))
    with ggml.strict(max_splits=7):
        scheduler.alloc_graph(graph)
        n = len(planned)
        for _ in range(3):
            compute(scheduler, graph)
    assert (n, len(planned)) == (1, 1)  # before the allocation, which reads its own plan
    compute(scheduler, graph)
    assert len(planned) == 1
    with ggml.strict(max_splits=7):
        compute(scheduler, graph)
        compute(scheduler, graph)
    assert len(planned) == 2


def test_limits(world):
    scheduler, graph = world
    plan = scheduler.plan(graph)
    with ggml.strict(max_splits=plan.n_splits, max_copy_bytes=plan.copy_bytes):
        scheduler.plan(graph)
        too_many = pytest.raises(ggml.PlacementError, match="7 splits, expected at most 6")
        with ggml.strict(max_splits=plan.n_splits - 1), too_many:
            scheduler.plan(graph)
        scheduler.plan(graph)
    with ggml.strict(max_copy_bytes=0), pytest.raises(ggml.PlacementError, match="at most 0"):
        scheduler.plan(graph)


def test_blocks_add_up_and_end_with_errors(world):
    scheduler, graph = world
    with required():
        with ggml.strict(max_splits=100), pytest.raises(ggml.PlacementError, match=REFUSED):
            scheduler.plan(graph)
        with pytest.raises(ggml.PlacementError), ggml.strict(max_splits=1, max_copy_bytes=1):
            scheduler.plan(graph)
    scheduler.plan(graph)


def test_other_threads_are_not_meant(world):
    scheduler, graph = world
    planned = []
    with required():
        thread = threading.Thread(target=lambda: planned.append(scheduler.plan(graph)))
        thread.start()
        thread.join()
        with pytest.raises(ggml.PlacementError):
            scheduler.plan(graph)
    assert len(planned) == 1


def test_other_tasks_are_not_meant(world):
    scheduler, graph = world
    inside, outside = asyncio.Event(), asyncio.Event()

    async def strict():
        with required():
            inside.set()
            await outside.wait()
            with pytest.raises(ggml.PlacementError):
                scheduler.plan(graph)

    async def free():
        await inside.wait()
        scheduler.plan(graph)
        outside.set()

    async def both():
        await asyncio.gather(strict(), free())

    asyncio.run(both())


def test_the_error_can_be_pickled(world):
    scheduler, graph = world
    with required(), pytest.raises(ggml.PlacementError) as caught:
        scheduler.plan(graph)
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value) and error.plan == caught.value.plan


def test_a_model_in_a_block(tmp_path):
    sizes = {"n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 192, "n_vocab": 300}
    write_llama(tmp_path / "m.gguf", LlamaSpec(2, **sizes))
    gpu = {"devices": ("sim:gpu0,profile=cuda", "CPU"), "n_gpu_layers": 99, "n_threads": 1}
    with ggml.strict(no_fallback=True), load(tmp_path / "m.gguf", **gpu) as model:
        expected = model.eval([1, 2, 3]).copy()
        model.plan(n_tokens=8)
    with load(tmp_path / "m.gguf", type_k="iq4_nl", type_v="iq4_nl", **gpu) as model:
        for act in (lambda: model.eval([1, 2, 3]), lambda: model.plan(n_tokens=8)):
            with ggml.strict(no_fallback=True), pytest.raises(ggml.PlacementError, match="FLASH"):
                act()
        assert model.eval([1, 2, 3]).shape == expected.shape
