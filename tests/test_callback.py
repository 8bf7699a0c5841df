"""Python functions that C calls: nothing that they raise is lost."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import ggml_py as ggml


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
