"""Python functions that C calls: nothing that they raise is lost."""

from __future__ import annotations

import logging
import sys
import time

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import ffi, lib


@pytest.mark.parametrize("function", ["_on_eval", "_on_custom1", "_on_compare", "_on_abort"])
def test_what_a_signal_handler_raises_as_a_callback_begins_is_raised(function):
    """A handler can run before the first line of what C called; a tracer can raise there too."""

    def tracer(frame, event, arg):
        if frame.f_code.co_name == function:
            sys.settrace(None)
            raise KeyboardInterrupt(function)

    def custom(dst, a, ith, nth):
        dst[:] = a

    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as ctx:
        x = ctx.from_numpy(np.ones(4, np.float32))
        y = ctx.sqr(ctx.map_custom1(x, custom) if function == "_on_custom1" else ctx.neg(x))
        graph = ctx.new_graph()
        graph.build_forward_expand(y)
        ctx.alloc(cpu)

        def compute():
            if function == "_on_compare":
                with ggml.device("CPU").init(n_threads=1) as other:
                    ggml.compare_graph_backend(cpu, other, graph, lambda i, a, b: True)
            else:
                with ggml.Scheduler([cpu]) as sched:
                    if function == "_on_eval":
                        sched.set_eval_callback(lambda t, ask: True)
                    if function == "_on_abort":
                        cpu.set_abort_callback(lambda: False)
                    sched.compute(graph)

        sys.settrace(tracer)
        try:
            with pytest.raises(KeyboardInterrupt, match=function):
                compute()
        finally:
            sys.settrace(None)
        compute()  # and the next is as if nothing had been
        assert y.get().tolist() == [1.0] * 4


class TestLog:
    """Nobody waits for it, to raise what was stored."""

    @pytest.fixture
    def log(self):
        """Has ggml log a line, with a handler that raises `error`."""
        logger, added = logging.getLogger("ggml"), []

        def raising(error):
            class Raising(logging.Handler):
                def emit(self, _record):
                    raise error

            added.append(Raising())
            logger.addHandler(added[0])
            lib.gp_on_log(4, ffi.new("char[]", b"a line\n"), ffi.NULL)

        yield raising
        for handler in added:
            logger.removeHandler(handler)

    def test_a_ctrl_c_comes_again_when_c_has_returned(self, log):
        returned = False
        with pytest.raises(KeyboardInterrupt):
            log(KeyboardInterrupt)
            returned = True
            for _ in range(1000):  # a simulated signal wakes nobody
                time.sleep(0.01)
        assert returned

    def test_other_exceptions_are_shown(self, log, monkeypatch):
        shown = []
        monkeypatch.setattr(sys, "unraisablehook", lambda args: shown.append(args.exc_type))
        log(ZeroDivisionError)
        assert ZeroDivisionError in shown
