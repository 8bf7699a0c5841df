"""Two users of one object at a time: threads, and callbacks that use what is computing.

An object is used by one thread at a time; different objects by as many as there are.
"""

import threading

import numpy as np

import ggml_py as ggml

from ..misuses import misuse

BUSY = ggml.BusyError


def _meanwhile(env, use):
    """`use` runs on this thread while another one computes the graph."""
    started, done = threading.Event(), threading.Event()

    def wait(tensor, ask):
        started.set()
        done.wait(10)
        return True

    env.allocated().x.set(np.ones((3, 8)))
    env.scheduler.set_eval_callback(wait)
    thread = threading.Thread(target=env.scheduler.compute, args=(env.graph,))
    thread.start()
    started.wait(10)
    try:
        use()
    finally:
        done.set()
        thread.join()


def _inside(env, use):
    """`use` runs in the eval callback of a compute."""
    env.allocated().x.set(np.ones((3, 8)))
    env.scheduler.set_eval_callback(lambda tensor, ask: use() is None)
    env.scheduler.compute(env.graph)


def _row(id, how, use, kind, *needs):
    """One use of a busy object, on another thread or in a callback."""
    return misuse(
        f"{how.__name__[1:]}/{id}",
        lambda e: how(e, lambda: use(e)),
        BUSY,
        f"this {kind} is computing",
        "wait until that returns",
        at=use,
        needs=needs,
    )


USES = [
    ("compute", lambda e: e.scheduler.compute(e.graph), "Graph"),
    ("plan-another", lambda e: e.scheduler.plan(_another(e)), "Scheduler"),
    ("reset", lambda e: e.scheduler.reset(), "Scheduler"),
    ("close-scheduler", lambda e: e.scheduler.close(), "Scheduler"),
    ("close-graph", lambda e: e.graph.close(), "Graph"),
    ("close-context", lambda e: e.context.close(), "Graph"),
    ("close-weights", lambda e: e.weights.close(), "Graph"),
    ("close-buffer", lambda e: e.buffer.close(), "Graph"),
    ("close-backend", lambda e: e.cpu.close(), "Backend"),
    ("backend-compute", lambda e: e.cpu.compute(_another(e)), "Backend"),
    ("other-scheduler", lambda e: e.later(ggml.Scheduler([e.cpu])).compute(_another(e)), "Backend"),
    ("pin", lambda e: e.scheduler.set_tensor_backend(e.y, e.cpu), "Scheduler"),
    ("eval-callback", lambda e: e.scheduler.set_eval_callback(None), "Scheduler"),
    ("n_threads", lambda e: setattr(e.cpu, "n_threads", 2), "Backend"),
    ("graph-plan", lambda e: e.cpu.graph_plan(e.graph), "Graph"),
    ("use_ref", lambda e: e.cpu.set_use_ref(True), "Backend", "ggml_backend_cpu_set_use_ref"),
    ("threadpool", lambda e: e.cpu.set_threadpool(e.later(ggml.ThreadPool(1))), "Backend"),
]


def _another(env):
    """A graph of its own, all in memory."""
    context = env.later(ggml.Context())
    graph = context.new_graph(8)
    graph.build_forward_expand(context.sqr(env.w))
    context.alloc(env.cpu)
    return graph


def _shared(env, use):
    """`use` runs while a graph computes that goes on from what the scheduler allocated."""
    env.allocated().x.set(np.ones((3, 8)))
    context = env.later(ggml.Context())
    graph = context.new_graph(8)
    graph.build_forward_expand(context.sqr(env.y))
    cpu = ggml.device("CPU").init(n_threads=1)
    other = ggml.Scheduler([cpu])
    env.later(other, cpu)
    other.set_eval_callback(lambda tensor, ask: use(env) is None)
    other.compute(graph)


SHARED = [
    ("reset", lambda e: e.scheduler.reset()),
    ("close-scheduler", lambda e: e.scheduler.close()),
    ("close-graph", lambda e: e.graph.close()),
]

MISUSES = [_row(id, how, *use) for how in (_meanwhile, _inside) for id, *use in USES]
MISUSES += [
    misuse(
        f"shared/{id}",
        lambda e, use=use: _shared(e, use),
        BUSY,
        "a Graph that is computing further up on this thread has tensors that this would change",
        "wait until that returns, or build the nodes once for each thread",
        at=use,
    )
    for id, use in SHARED
]
