"""Python functions that C calls, and how the exceptions they raise reach the caller.

1. C has one of the functions at the end of this file (vendor/bindgen.py declares them) and, as its
   user data, the handle of a `Callback`, which knows the user's function. Whoever gives C the
   handle keeps the Callback alive as long as C has it.
2. C chooses the thread. Eval, copy and compare callbacks are called on the thread that called
   `compute`. An abort callback is called where its backend computes: on the same thread, or on the
   thread of a simulated device. A custom op is called on all threads of the compute, several at a
   time. Simulated devices are asked on any thread that plans. Each call holds the GIL.
3. A function may do anything except change, close or compute with the objects that the call in
   progress uses: those raise `BusyError` (docs/HANDLES.md). Some tensors are lent to it for one
   call. If it keeps them, they raise `ClosedError` later.
4. No exception can pass through C. `Callback.__call__` keeps the first one in the Callback and
   notes that in `STORED`; this is the only way in. C gets an answer that ends its work where
   possible. After an abort, eval or compare callback the compute stops (`stops`); after a copy
   callback or a custom op it runs to its end. The function is not called again until the exception
   has been taken.
5. `take_raised` is the only way out. The call that waits for a compute takes the exceptions of that
   compute's callbacks and raises: `computing` (backends/computing.py), or `synchronize` after
   `compute_async`. So an exception is raised once, by the call that ran the callback. (Any other
   call that waits, as `Tensor.get` may, only raises the `ComputeError` of rule 7.)
6. If one compute has several exceptions, one is raised: Ctrl-C and the like before all others, then
   those that stopped the compute, then the first. The rest are dropped.
7. If the native call itself raised (an assertion of ggml, a Ctrl-C noticed in C), its exception is
   raised and the callbacks' exceptions are dropped. A `ComputeError` is different: it only says
   that something stopped the compute, so the callback's exception replaces it.
8. When a compute begins, earlier exceptions of its callbacks are dropped. They come from a call of
   C through `lib` that nobody waited for.
9. The functions of simulated devices are called by every native call that plans, on several threads
   at a time. Their exceptions belong to the thread (`of_thread`). native/module.h takes one at
   once, calls no more functions, and raises it when the native call returns.
10. A signal handler may raise before the first line of `Callback.__call__` or after the last. cffi
   hands that exception to `_called_from_c`, which stores it too.
11. No call waits for ggml's log (log.py). A Ctrl-C is raised again when C has returned; any other
   exception goes to `sys.unraisablehook`.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from types import TracebackType
from typing import Any, ClassVar

from ..errors import ComputeError
from .ffi import ffi

STORED: set[weakref.ref[Callback]] = set()  # callbacks with an exception that nobody has taken yet
_serial = itertools.count()


class Callback:
    """The user data of native code. A subclass implements the call in `_run`."""

    __slots__ = ("__weakref__", "_raised", "handle")

    stops: ClassVar[bool] = True  # whether its exception ends the compute: rule 4
    of_thread: ClassVar[bool] = False  # whether its exception belongs to the thread: rule 9

    def __init__(self) -> None:
        # By thread, or 0 for all: (not a Ctrl-C, does not stop, number, exception), as in rule 6.
        self._raised: dict[int, tuple[bool, bool, int, BaseException]] = {}
        self.handle = ffi.new_handle(self)  # lives as long as this object: hold it

    def __call__(self, *args: Any) -> Any:
        """The result of `_run`; None if it raised, now or earlier."""
        if not self._raised or self._whose() not in self._raised:
            try:
                return self._run(*args)
            except BaseException as error:  # KeyboardInterrupt too
                self._store(error)
        return None

    def _run(self, *args: Any) -> Any:
        raise NotImplementedError

    def _whose(self) -> int:
        return get_ident() if self.of_thread else 0

    def _store(self, error: BaseException) -> None:
        new = (isinstance(error, Exception), not self.stops, next(_serial), error)
        first = self._raised.setdefault(self._whose(), new)  # maybe from another thread
        if new < first:  # a Ctrl-C
            self._raised[self._whose()] = new
        STORED.add(weakref.ref(self, STORED.discard))


def take_raised(callbacks: Iterable[Callback | None]) -> BaseException | None:
    """Takes the exceptions of these callbacks; returns the one to raise (rule 6)."""
    found = []
    for callback in callbacks:
        if callback is not None:
            STORED.discard(weakref.ref(callback))  # first: another thread may enter it again
            raised = callback._raised.pop(callback._whose(), None)
            if raised is not None:
                found.append(raised)
    return min(found)[-1] if found else None


def raise_taken(callbacks: Iterable[Callback | None]) -> None:
    """Takes the exceptions of these callbacks and raises the exception chosen by rule 6."""
    error = take_raised(callbacks)
    if error is not None:
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context  # an exception being handled here did not cause it
            del error  # a cycle with its traceback would keep the call's handles open


def raise_instead(error: BaseException, callbacks: Iterable[Callback | None]) -> None:
    """Applies rule 7 to `error` of a native call."""
    if isinstance(error, ComputeError):
        raise_taken(callbacks)
    else:
        take_raised(callbacks)


@contextlib.contextmanager
def raising(callbacks: Iterable[Callback | None]) -> Iterator[None]:
    """Around a native call that waits for a compute; raises the exception of its callbacks."""
    try:
        yield
    except BaseException as error:
        raise_instead(error, callbacks)
        raise
    if STORED:
        raise_taken(callbacks)


def raise_stored(address: int) -> None:
    """`raise_taken` for the Callback with this handle. Called by the native module (module.h)."""
    raise_taken([ffi.from_handle(ffi.cast("void *", address))])


class AbortCallback(Callback):
    """Asks between the nodes of a compute whether to stop.

    Native code has the address of `cell`, which holds NULL without a predicate. So a new predicate
    also applies to plans made earlier, and without one no Python is called."""

    __slots__ = ("_predicate", "cell")

    def __init__(self, predicate: Callable[[], bool] | None = None) -> None:
        super().__init__()
        self.cell = ffi.new("void *[1]")
        self.predicate = predicate

    @property
    def predicate(self) -> Callable[[], bool] | None:
        """The user's function."""
        return self._predicate

    @predicate.setter
    def predicate(self, predicate: Callable[[], bool] | None) -> None:
        self._predicate = predicate
        self.cell[0] = ffi.NULL if predicate is None else self.handle

    def _run(self) -> bool:
        predicate = self.predicate  # another thread may be removing it
        return predicate is not None and bool(predicate())


# --- called by C: the last argument is the handle of a Callback, which returns None if it raised


def _called_from_c(name: str, failed: int | None = None) -> Callable[..., Any]:
    """Makes the decorated function the C function `name`. An exception raised outside of
    `Callback.__call__` is stored here, and C gets `failed`."""

    def store(
        _type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> int | None:
        if error is not None and traceback is not None:
            ffi.from_handle(traceback.tb_frame.f_locals["user_data"])._store(error)
        return failed

    decorator: Callable[..., Any] = ffi.def_extern(name=name, onerror=store)
    return decorator


@_called_from_c("gp_on_abort", failed=True)
def _on_abort(user_data: Any) -> bool:
    answer = ffi.from_handle(user_data)()
    return True if answer is None else answer


@_called_from_c("gp_on_eval", failed=False)
def _on_eval(tensor: Any, ask: bool, user_data: Any) -> bool:
    answer = ffi.from_handle(user_data)(tensor, ask)
    # To stop, ask for the node, then answer False when it is shown.
    return ask if answer is None else answer


@_called_from_c("gp_on_copy", failed=False)
def _on_copy(backend: Any, src: Any, dst: Any, graph: Any, user_data: Any) -> bool:
    return bool(ffi.from_handle(user_data)(backend, src, dst, graph))  # None: ggml copies


@_called_from_c("gp_on_compare", failed=False)
def _on_compare(index: int, t1: Any, t2: Any, user_data: Any) -> bool:
    return bool(ffi.from_handle(user_data)(index, t1, t2))  # None: stop


@_called_from_c("gp_on_custom1")
def _on_custom1(dst: Any, _a: Any, ith: int, nth: int, user_data: Any) -> None:
    ffi.from_handle(user_data)(dst, ith, nth)


@_called_from_c("gp_on_custom2")
def _on_custom2(dst: Any, _a: Any, _b: Any, ith: int, nth: int, user_data: Any) -> None:
    ffi.from_handle(user_data)(dst, ith, nth)


@_called_from_c("gp_on_custom3")
def _on_custom3(dst: Any, _a: Any, _b: Any, _c: Any, ith: int, nth: int, user_data: Any) -> None:
    ffi.from_handle(user_data)(dst, ith, nth)


@_called_from_c("gp_on_custom")
def _on_custom(dst: Any, ith: int, nth: int, user_data: Any) -> None:
    ffi.from_handle(user_data)(dst, ith, nth)


@_called_from_c("gp_on_supports", failed=-1)
def _on_supports(tensor: Any, user_data: Any) -> int:
    answer = ffi.from_handle(user_data)(tensor)
    return -1 if answer is None else int(answer)


@_called_from_c("gp_on_order", failed=-1)
def _on_order(nodes: Any, n: int, order: Any, keep: Any, user_data: Any) -> int:
    answer = ffi.from_handle(user_data)(nodes, n, order, keep)
    return -1 if answer is None else int(answer)
