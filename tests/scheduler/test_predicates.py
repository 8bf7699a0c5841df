"""Python predicates that raise, are interrupted, or change what is being planned."""

import itertools
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import ggml_py as ggml
from ggml_py.boundary.callback import take_raised
from ggml_py.sim import sim_device as sim
from ggml_py.sim.calls import Predicate

from ..support import native_counts
from ..support.sim_net import Net, cpu_result


def state(net):
    """The graph as it is now: who reads what, where it lies, what it is marked as."""
    return [
        (t.name, tuple(s.name for s in t.src), t.flags, t.buffer is None)
        for t in (*net.graph.nodes, *net.graph.leafs)
    ]


@pytest.fixture
def world():
    """A net on a simulated device whose predicate does what the test says before it answers."""
    hooks = []

    def supports(tensor):
        for hook in hooks:
            hook(tensor)
        return tensor.name != "h"

    with ggml.sim_device("ask0", supports=supports) as device, Net(device) as net:
        yield net, hooks


def ways(net):
    """The calls that ask backends, each on a scheduler that is in its state for it."""

    def read():
        return net.scheduler.plan(net.graph)

    return {
        "plan": (lambda: None, read),
        "plan of the graph that is allocated": (lambda: net.scheduler.alloc_graph(net.graph), read),
        "alloc_graph": (lambda: None, lambda: net.scheduler.alloc_graph(net.graph)),
        "reserve": (lambda: None, lambda: net.scheduler.reserve(net.graph)),
        "reserve_size": (lambda: None, lambda: net.scheduler.reserve_size(net.graph)),
    }


WAYS = (
    "plan", "plan of the graph that is allocated", "alloc_graph", "reserve", "reserve_size"
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_wherever_a_predicate_raises_everything_is_as_before(world, way):
    net, hooks = world
    plain, before = net.scheduler.plan(net.graph), state(net)
    for k in itertools.count():
        prepare, call = ways(net)[way]
        prepare()
        asked = itertools.count()

        def hook(_tensor, k=k, asked=asked):
            if next(asked) == k:
                raise LookupError(f"question {k}")

        hooks[:] = [hook]
        try:
            call()
        except LookupError as error:
            assert str(error) == f"question {k}"
        else:
            break
        finally:
            hooks.clear()
        net.scheduler.reset()
        assert state(net) == before
        assert net.scheduler.plan(net.graph) == plain
    assert k >= 3  # the nodes that are computed, at least
    net.scheduler.reset()
    assert (net.run() == cpu_result()).all()


def test_a_plan_that_a_predicate_broke_off_leaves_no_memory_behind(world):
    net, hooks = world
    net.scheduler.plan(net.graph)
    asked = itertools.count()
    hooks[:] = [lambda _t: next(asked)]
    net.scheduler.plan(net.graph)
    n = next(asked)

    def once():
        count = itertools.count()

        def hook(_tensor):
            if next(count) == n - 1:  # the last one, when the plan is read already
                raise LookupError

        hooks[:] = [hook]
        with pytest.raises(LookupError):
            net.scheduler.plan(net.graph)

    for _ in range(20):
        once()
    before = native_counts.count()
    for _ in range(300):
        once()
    assert native_counts.count().malloc - before.malloc < 300 * 100


MEDDLING = {
    "plans the same": lambda net: net.scheduler.plan(net.graph),
    "allocates": lambda net: net.scheduler.alloc_graph(net.graph),
    "resets": lambda net: net.scheduler.reset(),
    "closes the scheduler": lambda net: net.scheduler.close(),
    "closes the graph": lambda net: net.graph.close(),
    "closes the context": lambda net: net.context.close(),
    "closes the backend": lambda net: net.backends[0].close(),
    "pins": lambda net: net.scheduler.set_tensor_backend(net.h, net.backends[1]),
    "adds to the graph": lambda net: net.graph.build_forward_expand(net.context.relu(net.h)),
    "plans it elsewhere": lambda net: ggml.Scheduler(net.backends).plan(net.graph),
    "closes the device": lambda net: sim.existing("ask0").close(),
    "other memory": lambda net: ggml.sim_device("ask0", memory=1 << 20),
}


@pytest.mark.parametrize("way", ("plan", "plan of the graph that is allocated", "alloc_graph"))
@pytest.mark.parametrize("meddling", MEDDLING)
def test_a_predicate_cannot_change_what_is_being_planned(world, way, meddling):
    net, hooks = world
    plain = net.scheduler.plan(net.graph)
    prepare, call = ways(net)[way]
    prepare()
    refused = []

    def hook(_tensor):
        hooks.clear()  # once
        try:
            MEDDLING[meddling](net)
        except (ggml.BusyError, ggml.ArgumentError) as error:
            refused.append(error)

    hooks[:] = [hook]
    assert call() == plain
    assert len(refused) == 1, "it was not refused"
    net.scheduler.reset()
    assert net.scheduler.plan(net.graph) == plain
    assert (net.run() == cpu_result()).all()


def test_a_predicate_can_plan_another_graph(world):
    net, hooks = world
    with Net(ggml.device("ask0")) as other:
        expected = other.where()
        seen = []

        def hook(_tensor):
            hooks.clear()
            seen.append(other.where())

        hooks[:] = [hook]
        net.scheduler.plan(net.graph)
        assert seen == [expected]


def test_threads_that_plan_on_one_device_see_their_own_exceptions(world):
    net, hooks = world
    numbers = threading.local()

    def hook(_tensor):
        if getattr(numbers, "mine", None) is not None:
            raise LookupError(numbers.mine)

    plain = net.where()
    hooks[:] = [hook]
    start, before = threading.Barrier(4), sys.getswitchinterval()

    def work(i):
        with Net(ggml.device("ask0")) as own:
            start.wait()
            for _ in range(60):
                numbers.mine = i if i % 2 else None
                if i % 2:
                    with pytest.raises(LookupError, match=str(i)):
                        own.scheduler.plan(own.graph)
                else:
                    assert own.where() == plain
            numbers.mine = None
            assert own.where() == plain

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, i) for i in range(4)]:
                done.result(timeout=120)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_ends_a_plan_whose_predicate_takes_long(world, way):
    net, hooks = world
    plain, before = net.scheduler.plan(net.graph), state(net)
    prepare, call = ways(net)[way]
    prepare()
    asking = threading.Event()

    def hook(_tensor):
        asking.set()
        time.sleep(0.3)

    def press():
        asking.wait(10)
        signal.raise_signal(signal.SIGINT)

    hooks[:] = [hook]
    presser = threading.Thread(target=press)
    presser.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call()
    presser.join()
    assert time.monotonic() - start < 2
    hooks.clear()
    net.scheduler.reset()
    assert state(net) == before
    assert net.scheduler.plan(net.graph) == plain


def test_what_a_predicate_raised_is_the_threads_that_asked():
    """Between its raising and its being raised another thread may ask: it gets its own answer."""

    class Direct(Predicate):
        def _run(self, answer):
            return self.function(answer)

    predicate, error = Direct(bool), LookupError()
    predicate._store(error)
    assert predicate(1) is None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(predicate, 1).result() is True
        assert pool.submit(take_raised, [predicate]).result() is None
    assert take_raised([predicate]) is error
    assert predicate(1) is True
