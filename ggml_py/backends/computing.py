"""What is around every compute of a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ..boundary.callback import STORED, raise_instead, raise_taken, take_raised
from ..boundary.ffi import lib
from ..boundary.handle import COMPUTING, give_back, take
from ..errors import GgmlError, NoDataError
from .sharing import LATER, free_later, use
from .threadpool import as_worker_0

if TYPE_CHECKING:
    from ..boundary.callback import Callback
    from ..boundary.handle import Handle
    from .above import AnyGraph
    from .backend import Backend
    from .threadpool import ThreadPool

    Callbacks = Callable[[], Iterable[Callback | None]]


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
) -> Any:
    """`call(*args)`, which computes `graph`; its result.

    Nothing else uses the graph, `handles`, `pools` and the pools of `backends` (which are among
    `handles`) meanwhile: paused in between, their threads would never come. All tensors have memory
    (with `checked` the call looks itself), `check` finds nothing, and this thread is where worker 0
    of the pools belongs. What one of `callbacks` or a custom op raised is raised at the end, by the
    rules of boundary/callback.py. `held` has the graph that is still allocated where it computes,
    if it has to be. A compute that fails is over then on all of `settling`, and nothing of it is
    raised later on.

    This is one function without `with`, for after a compute nothing of it is in the caches: each
    line takes ten times what it does in a loop.
    """
    user, used = (doing, get_ident()), (*handles, graph, *pools)
    try:
        take(user, used)
        for backend in backends:  # nobody gives it another pool now
            if (pool := backend.threadpool) is not None and pool not in pools:
                take(user, (pool,))
                used, pools = (*used, pool), (*pools, pool)
        try:
            if held is not None and (not held or held[0] is not graph):
                raise NoDataError(_RESET)
            if not checked:
                if lib.gp_changes() != graph._whole_at:  # a method takes as long again
                    graph._check_data()
            elif graph._whole_at < 0:
                use(graph)
                graph._whole_at = 0
            if check is not None:
                check()
            if STORED:
                take_raised(_all(graph, callbacks))  # of a compute that was called through `lib`
            for pool in pools:
                if pool.is_placed:
                    with as_worker_0(pools):
                        result = call(*args)
                    break
            else:
                result = call(*args)
            if STORED:
                raise_taken(_all(graph, callbacks))
        except BaseException as error:
            try:
                _settle(settling, error)
            except BaseException:  # Ctrl-C, once more
                take_raised(_all(graph, callbacks))
                raise
            raise_instead(error, _all(graph, callbacks))
            raise
    finally:
        try:
            for handle in used:
                if handle._user is user:
                    handle._user = None
        except BaseException:  # of a signal's handler, which may run between any two
            give_back(user, used)
            raise
        if LATER:
            free_later()
    return result


def _all(graph: AnyGraph, callbacks: Callbacks) -> list[Callback | None]:
    return [*graph._failed_ops(), *callbacks()]


def _settle(backends: Sequence[Backend], error: BaseException) -> None:
    """Waits until nothing of a compute that failed goes on. Not on a server that Ctrl-C left: it
    may be stalled, and nobody waits for it again."""
    for backend in backends:
        if isinstance(error, Exception) or not backend.is_remote:
            with contextlib.suppress(GgmlError):
                lib.ggml_backend_synchronize(backend.ptr)
