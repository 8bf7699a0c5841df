"""Whatever Python function C calls: its exception comes out once, of the call that ran it."""

from __future__ import annotations

import contextlib
import gc
import re
import signal
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary import callback

from ..support.sim_net import Net
from ..support.training import Model

Way = tuple[Callable[[Callable[[], None]], None], Callable[[], object]]
ROWS: dict[str, Callable[[], contextlib.AbstractContextManager[Way]]] = {}


def row(function: str, call: str, *, needs: str | None = None):
    """What makes (arm, call): `arm(f)` has f called in the next `call()`."""

    def add(make):
        marks = [pytest.mark.needs(needs)] if needs else []
        made = contextlib.contextmanager(make)
        ROWS[f"{function} {call}"] = pytest.param(function, made, marks=marks)
        return make

    return add


@contextlib.contextmanager
def chain(*devices, n=3):
    """A chain of nodes on the CPU, and a scheduler."""
    with contextlib.ExitStack() as stack:
        cpu = stack.enter_context(ggml.device("CPU").init(n_threads=1))
        context = stack.enter_context(ggml.Context())
        x = y = context.from_numpy(np.ones((4, 4), np.float32), "x")
        for _ in range(n):
            y = context.scale(y, 2)
        context.alloc(cpu)
        graph = context.new_graph(32)
        graph.build_forward_expand(y)
        scheduler = stack.enter_context(ggml.Scheduler([cpu]))
        yield SimpleNamespace(
            cpu=cpu, context=context, x=x, y=y, graph=graph, scheduler=scheduler, stack=stack
        )


def calling(f, answer=None):
    def called(*_args):
        f()
        return answer

    return called


# --- abort callbacks


def abort_row(call: str):
    def add(make_call):
        @row("gp_on_abort", call)
        def make() -> Iterator[Way]:
            with chain() as c:
                compute = make_call(c)
                yield lambda f: c.cpu.set_abort_callback(calling(f, False)), compute

        return make_call

    return add


abort_row("Backend.compute")(lambda c: lambda: c.cpu.compute(c.graph))
abort_row("Scheduler.compute")(lambda c: lambda: c.scheduler.compute(c.graph))
abort_row("GraphPlan.compute")(lambda c: c.cpu.graph_plan(c.graph).compute)


@abort_row("compare_graph_backend")
def _compare(c):
    other = c.stack.enter_context(ggml.device("CPU").init(n_threads=1))
    return lambda: ggml.compare_graph_backend(c.cpu, other, c.graph, lambda *_: True)


@abort_row("compare_graph_backend, the second")
def _compare_second(c):
    other = c.stack.enter_context(ggml.device("CPU").init(n_threads=1))
    return lambda: ggml.compare_graph_backend(other, c.cpu, c.graph, lambda *_: True)


@row("gp_on_abort", "CpuPlan.compute")
def _cpu_plan():
    with chain() as c:
        asked = [lambda: None]
        plan = ggml.CpuPlan(c.graph, abort_callback=lambda: bool(asked[0]()))
        yield lambda f: asked.__setitem__(0, f), plan.compute


@row("gp_on_abort", "Scheduler.compute, on a simulated device")
def _sim_abort():
    with ggml.sim_device("raised0") as device, Net(device) as net:
        net.scheduler.alloc_graph(net.graph)
        net.set_input()
        yield (
            lambda f: net.backends[0].set_abort_callback(calling(f, False)),
            lambda: net.scheduler.compute(net.graph),
        )


@row("gp_on_abort", "Scheduler.synchronize, of a simulated device")
def _sim_async():
    with ggml.sim_device("raised0") as device, Net(device) as net:
        net.scheduler.alloc_graph(net.graph)
        net.set_input()

        def call():
            net.scheduler.compute_async(net.graph)
            net.scheduler.synchronize()

        yield lambda f: net.backends[0].set_abort_callback(calling(f, False)), call


@row("gp_on_abort", "Backend.synchronize, of a simulated device")
def _sim_backend():
    with ggml.sim_device("raised0") as device, Net(device) as net:
        net.scheduler.alloc_graph(net.graph)
        net.set_input()

        def call():
            net.scheduler.compute_async(net.graph)
            net.backends[0].synchronize()

        yield lambda f: net.backends[0].set_abort_callback(calling(f, False)), call


# --- callbacks of schedulers


@row("gp_on_eval", "Scheduler.compute, asked")
def _eval():
    with chain() as c:
        yield (
            lambda f: c.scheduler.set_eval_callback(calling(f, False)),
            lambda: c.scheduler.compute(c.graph),
        )


@row("gp_on_eval", "Scheduler.compute_async, shown")
def _eval_shown():
    with chain() as c:

        def arm(f):
            c.scheduler.set_eval_callback(lambda _tensor, ask: ask or not f())

        yield arm, lambda: c.scheduler.compute_async(c.graph)


@row("gp_on_copy", "Scheduler.compute", needs="ggml_backend_sched_set_copy_callback")
def _copy():
    with ggml.sim_device("raised0") as device, Net(device, weights=-1) as net:

        net.scheduler.alloc_graph(net.graph)

        def call():
            net.set_input()
            net.scheduler.compute(net.graph)

        yield lambda f: net.scheduler.set_copy_callback(calling(f, False)), call


@row("gp_on_compare", "compare_graph_backend")
def _compared():
    with chain() as c, ggml.device("CPU").init(n_threads=1) as other:
        shown = [lambda: None]
        yield (
            lambda f: shown.__setitem__(0, f),
            lambda: ggml.compare_graph_backend(c.cpu, other, c.graph, lambda *_: not shown[0]()),
        )


# --- custom ops

OPS = {
    "gp_on_custom1": lambda c, f: c.context.map_custom1(c.x, f),
    "gp_on_custom2": lambda c, f: c.context.map_custom2(c.x, c.x, f),
    "gp_on_custom3": lambda c, f: c.context.map_custom3(c.x, c.x, c.x, f),
    "gp_on_custom": lambda c, f: c.context.custom_4d("f32", 4, 4, 1, 1, [c.x], f),
}
CALLS = {
    "Backend.compute": lambda c, graph: lambda: c.cpu.compute(graph),
    "Scheduler.compute": lambda c, graph: lambda: c.scheduler.compute(graph),
    "GraphPlan.compute": lambda c, graph: c.cpu.graph_plan(graph).compute,
    "CpuPlan.compute": lambda c, graph: ggml.CpuPlan(graph).compute,
}


def custom_row(op: str, call: str) -> None:
    @row(op, call)
    def make() -> Iterator[Way]:
        with chain() as c:
            called = [lambda: None]
            graph = c.context.new_graph(32)
            graph.build_forward_expand(OPS[op](c, lambda *_: called[0]()))
            c.context.alloc(c.cpu)
            yield lambda f: called.__setitem__(0, f), CALLS[call](c, graph)


for _op in OPS:
    for _call in CALLS:
        custom_row(_op, _call)


@row("gp_on_custom1", "OptContext.eval")
def _trained():
    called = [lambda: None]
    with Model() as model:
        frozen = model.ctx.map_custom1(model.inputs, lambda *_: called[0]())
        outputs = model.ctx.mul_mat(model.params["w1"], frozen)
        with model.opt("sum", ggml.SGD(), outputs=outputs) as opt:

            def call():
                opt.alloc()
                opt.eval()

            yield lambda f: called.__setitem__(0, f), call


@row("gp_on_eval", "OptContext.eval")
def _trained_eval():
    with Model() as model, model.opt("sum", ggml.SGD()) as opt:

        def call():
            opt.alloc()
            opt.eval()

        yield lambda f: model.scheduler.set_eval_callback(calling(f, False)), call


@row("gp_on_abort", "OptContext.eval")
def _trained_abort():
    with Model() as model, model.opt("sum", ggml.SGD()) as opt:

        def call():
            opt.alloc()
            opt.eval()

        yield lambda f: model.backends[0].set_abort_callback(calling(f, False)), call


# --- simulated devices


def sim_row(function: str, call: str, setting: str, answer: Callable[..., object]):
    def add(do):
        needs = "ggml_backend_sched_reserve_size" if function == "gp_on_order" else None

        @row(function, call, needs=needs)
        def make() -> Iterator[Way]:
            called = [lambda: None]

            def asked(what):
                called[0]()
                return answer(what)

            with ggml.sim_device("raised0", **{setting: asked}) as device, Net(device) as net:
                yield lambda f: called.__setitem__(0, f), lambda: do(net)

        return do

    return add


@sim_row("gp_on_supports", "Scheduler.alloc_graph", "supports", lambda _tensor: True)
@sim_row("gp_on_order", "Scheduler.alloc_graph", "graph_optimize", list)
def _allocated(net):
    net.scheduler.reset()
    net.scheduler.alloc_graph(net.graph)


sim_row("gp_on_supports", "Scheduler.plan", "supports", lambda _tensor: True)(
    lambda net: net.scheduler.plan(net.graph)
)
sim_row("gp_on_order", "Scheduler.plan", "graph_optimize", list)(
    lambda net: net.scheduler.plan(net.graph)
)
sim_row("gp_on_supports", "Scheduler.reserve", "supports", lambda _tensor: True)(
    lambda net: net.scheduler.reserve(net.graph)
)
sim_row("gp_on_supports", "Backend.supports_op", "supports", lambda _tensor: True)(
    lambda net: net.backends[0].supports_op(net.h)
)


# --- all of them


class Mine(Exception):
    pass


class Fault:
    """A function that raises where it is told to."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


def unrelated() -> None:
    with chain() as c:
        c.scheduler.compute(c.graph)
        c.cpu.compute(c.graph)
        assert (c.y.get() == 8).all()


@pytest.mark.parametrize(("function", "make"), ROWS.values(), ids=ROWS.keys())
def test_an_exception_comes_out_once_of_the_call_that_ran_it(function, make):
    fault = Fault()
    with make() as (arm, call):
        call()
        arm(fault)
        unrelated()
        assert fault.calls == 0
        call()
        assert fault.calls > 0
        for number in range(2):
            fault.error = Mine(number)
            cause = fault.error.__cause__ = LookupError("its cause")
            with pytest.raises(Mine) as caught:
                call()
            assert caught.value is fault.error
            assert caught.value.__cause__ is cause and caught.value.__context__ is None
            names = [frame.name for frame in traceback.extract_tb(caught.tb)]
            assert names[0] == "test_an_exception_comes_out_once_of_the_call_that_ran_it"
            assert names[-1] == "__call__" and "_run" in names
            assert not callback.STORED
            fault.error = None
            unrelated()
        calls = fault.calls
        call()
        assert fault.calls > calls
        assert not callback.STORED


def test_the_table_has_all_that_c_calls():
    module = Path(callback.__file__).read_text()
    served = set(re.findall(r'@_called_from_c\("(\w+)"', module))
    assert served == {param.values[0] for param in ROWS.values()}
    declared = (Path(__file__).parents[2] / "vendor" / "bindgen.py").read_text()
    assert set(re.findall(r'(?m)^extern "Python" \w+ (\w+)\(', declared)) == served | {"gp_on_log"}


# --- several


def raising_all(c, *functions):
    """A graph whose custom op raises, under an eval and an abort callback that do."""
    op, eval_, abort = functions
    graph = c.context.new_graph(32)
    y = c.context.map_custom1(c.x, lambda *_: op())
    graph.build_forward_expand(c.context.map_custom1(c.context.neg(y), lambda *_: late()))
    c.context.alloc(c.cpu)

    def late():
        raise AssertionError("of two ops the first counts")

    c.scheduler.set_eval_callback(lambda _tensor, ask: ask or not eval_())
    c.cpu.set_abort_callback(lambda: bool(abort()))
    return lambda: c.scheduler.compute(graph)


class Op(Exception):
    pass


class Eval(Exception):
    pass


class Abort(Exception):
    pass


def fail(error):
    def function():
        raise error

    return function


def nothing():
    pass


@pytest.mark.parametrize(
    ("functions", "out"),
    [
        ((fail(Op), nothing, nothing), Op),
        ((fail(Op), fail(Eval), nothing), Eval),  # it stopped the compute
        ((fail(Op), nothing, fail(Abort)), Abort),
        ((nothing, fail(Eval), fail(Abort)), Abort),  # first: it is asked within the node
        ((fail(KeyboardInterrupt), fail(Eval), fail(Abort)), KeyboardInterrupt),
        ((fail(Op), fail(KeyboardInterrupt), nothing), KeyboardInterrupt),
    ],
)
def test_of_several_one_comes_out_and_none_stays(functions, out):
    with chain() as c:
        compute = raising_all(c, *functions)
        for _ in range(2):
            with pytest.raises(out) as caught:
                compute()
            assert type(caught.value) is out
            assert not callback.STORED
        c.scheduler.reset()
        c.scheduler.set_eval_callback(None)
        c.cpu.set_abort_callback(None)
        c.scheduler.compute(c.graph)


def test_what_the_native_call_itself_raises_comes_out():
    """An abort in a node, after a custom op that raised."""
    with chain() as c:
        rows = c.context.from_numpy(np.full(2, 99, np.int32))
        y = c.context.map_custom1(c.x, lambda *_: fail(Op)())
        graph = c.context.new_graph(32)
        graph.build_forward_expand(c.context.get_rows(y, rows))
        c.context.alloc(c.cpu)
        with pytest.raises(ggml.AbortError):
            c.cpu.compute(graph)
        assert not callback.STORED


# --- how long


def test_an_exception_that_nobody_takes_goes_with_its_callback():
    """The store holds nobody: the traceback has the callback's frames, and those the user's."""

    class Held:
        pass

    def use(kept):
        raise Mine

    with chain() as c:
        held = Held()
        c.scheduler.alloc_graph(c.graph)
        alive = weakref.ref(held)
        c.scheduler.set_eval_callback(lambda _tensor, _ask, held=held: use(held))
        ggml.lib.ggml_backend_sched_graph_compute(c.scheduler.ptr, c.graph.ptr)
        assert len(callback.STORED) == 1
        c.scheduler.set_eval_callback(None)
        del held
        gc.collect()
        assert alive() is None and not callback.STORED


def test_what_came_out_keeps_nothing_once_it_is_forgotten():
    gc.collect()
    gc.disable()
    try:
        with chain() as c:
            c.scheduler.set_eval_callback(lambda _tensor, _ask: fail(Mine)())
            for call in (c.scheduler.compute, c.cpu.compute):
                try:
                    call(c.graph)
                except Mine as error:
                    gone = weakref.ref(error)
                assert gone() is None  # no cycle, so it does not wait for the collector
                c.cpu.set_abort_callback(fail(Mine))
    finally:
        gc.enable()


def test_a_signals_handler_that_raises_beside_it():
    """Ctrl-C while a function raises: one of both comes out, and the next compute is clean."""

    def pressed():
        signal.raise_signal(signal.SIGINT)
        raise Mine

    with chain() as c:
        c.cpu.set_abort_callback(calling(pressed, False))
        with pytest.raises(KeyboardInterrupt):
            c.cpu.compute(c.graph)
        assert not callback.STORED
        c.cpu.set_abort_callback(None)
        c.cpu.compute(c.graph)
