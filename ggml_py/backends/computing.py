"""The checks and bookkeeping around every compute of a graph."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..boundary.callback import STORED, raise_instead, raise_taken, take_raised
from ..boundary.ffi import lib
from ..boundary.uses import COMPUTING, LATER, USES, do_later
from ..errors import GgmlError, NoDataError
from .sharing import using
from .threadpool import as_worker_0

if TYPE_CHECKING:
    from ..boundary.callback import Callback
    from ..boundary.handle import Handle
    from .above import AnyGraph
    from .backend import Backend
    from .threadpool import ThreadPool

    Callbacks = Callable[[], Iterable[Callback | None]]


_turns = itertools.count()

_RESET = (
    "another thread has just reset this scheduler, so the graph has no memory: call alloc_graph "
    "and set the inputs again"
)


def computing(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    graph: AnyGraph,
    handles: tuple[Handle, ...],
    callbacks: Callbacks,
    pools: Sequence[ThreadPool] = (),
    settling: Sequence[Backend] = (),
    doing: str = COMPUTING,
    checked: bool = False,
    held: Sequence[AnyGraph] | None = None,
    check: Callable[[], None] | None = None,
    backends: Sequence[Backend] = (),
    runs: Any = None,
) -> Any:
    """Computes `graph` with `call(*args)` and returns its result.

    Meanwhile nothing else may use the graph, `handles`, `pools` or the pools of `backends` (which
    are among `handles`): a pool that was paused in between would never answer. First, all tensors
    must have memory (with `checked` the call checks that itself) and `check` must not raise. If
    `held` is given, it must contain `graph`: the graph that is still allocated where it computes.
    `runs` is the native graph that is computed, if that is a copy (a scheduler's). Its leafs must
    have data (native/blank.h).
    The call runs with the CPUs and priority of worker 0 of the pools. An exception of one of
    `callbacks` or of a custom op is raised at the end, by the rules of boundary/callback.py. If
    the compute fails, this waits until it is over on all of `settling`, so none of its errors is
    raised later.

    It is one function without `with`, because after a compute its code is no longer in the CPU's
    caches: each line takes ten times as long as in a loop.
    """
    use = using(doing, graph, *handles, *pools)
    try:
        use.enter()
        if len(USES) > 1:
            use.meet()
        for backend in backends:  # it is taken, so its pool stays the same
            if (pool := backend.threadpool) is not None and pool not in pools:
                use.also(pool)
                pools = (*pools, pool)
        try:
            if held is not None and (not held or held[0] is not graph):
                raise NoDataError(_RESET)
            if not checked and lib.gp_changes() != graph._whole_at:  # in line: a method costs twice
                graph._check_data()
            if check is not None:
                check()
            if STORED:
                take_raised(_all(graph, callbacks))  # left by a compute called through `lib`
            if runs is None:
                runs = graph.ptr
            if graph._reused is None:
                graph._find_reused(runs)
            if leaf := lib.gp_blank_compute(runs):
                graph._never_set(leaf)
            graph._turn = next(_turns)
            for pool in pools:
                if pool.is_placed:
                    with as_worker_0(pools):
                        result = call(*args)
                    break
            else:
                result = call(*args)
            if STORED:
                raise_taken(_all(graph, callbacks))
            if graph._reused:  # not if it stops in the middle: then nobody knows
                lib.gp_blank_lose(*graph._reused)
        except BaseException as error:
            try:
                _settle(settling, error)
            except BaseException:  # Ctrl-C again
                take_raised(_all(graph, callbacks))
                raise
            raise_instead(error, _all(graph, callbacks))
            raise
    finally:
        USES.discard(use)  # at once: a signal handler may run before a function of Python begins
        if LATER:
            do_later()
    return result


def _all(graph: AnyGraph, callbacks: Callbacks) -> list[Callback | None]:
    return [*graph._failed_ops(), *callbacks()]


def _settle(backends: Sequence[Backend], error: BaseException) -> None:
    """Waits until a failed compute has ended everywhere. After Ctrl-C it does not wait for RPC
    servers, which may be stalled."""
    for backend in backends:
        if isinstance(error, Exception) or not backend.is_remote:
            with contextlib.suppress(GgmlError):
                lib.ggml_backend_synchronize(backend.ptr)
