"""Python functions that C calls, and what becomes of the exceptions that they raise.

1. C has one of the functions at the end of this file (vendor/bindgen.py declares them) and, as its
   user data, the handle of a `Callback`, which knows the user's function. Whoever gives C the
   handle holds the Callback as long as C has it.
2. C chooses the thread. Eval, copy and compare callbacks are called on the thread that called
   `compute`. An abort callback is asked where its backend computes: on the same thread, or on that
   of a simulated device. A custom op is called on all threads of the compute, several at a time.
   Simulated devices are asked on any thread that plans. Each call holds the GIL.
3. A function may do anything but change, close or compute with the objects that the call in
   progress uses: that is `BusyError` (rule 8 of handle.py). Some tensors are lent to it for one
   call; if it keeps them, they raise `ClosedError` later.
4. No exception can pass through C. `Callback.__call__` keeps the first one in the Callback, and
   notes in `STORED` that it did: this is the only way in. C gets an answer that ends its work where
   that is possible. After an abort, eval or compare callback the compute stops (`stops`); after a
   copy callback or a custom op it goes on to its end. Until the exception was taken, the function
   is not called again.
5. `take_raised` is the only way out. The call that waits for a compute takes what the callbacks of
   this compute have raised, and raises it: `computing` (backends/computing.py), or `synchronize`
   where `compute_async` did not wait. So an exception comes out once, of the call that ran it.
   (Any other call that waits, as `Tensor.get` may, only has the `ComputeError` of rule 7.)
6. Of several exceptions of one compute a single one is raised: Ctrl-C and its like before all
   others, then those that stopped the compute, then the first. The rest are forgotten.
7. If the native call itself raised (an assertion of ggml, a Ctrl-C that C noticed), that comes out,
   and the exceptions of callbacks are forgotten. A `ComputeError` is different: it only says that
   something stopped the compute, so the callback's exception takes its place.
8. A compute that begins forgets what its callbacks raised before it: someone called C through
   `lib`, and nobody waited for that.
9. The functions of simulated devices are asked in any call that plans, by several threads at a
   time. What they raise belongs to the thread (`of_thread`). native/module.h takes it at once, asks
   nothing more, and raises it when the native call returns.
10. A signal's handler may raise before the first line of `Callback.__call__`, or after the last.
   cffi hands that exception to `_called_from_c`, which stores it, too.
11. For ggml's log (log.py) no call waits. A Ctrl-C comes again when C has returned; any other
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

STORED: set[weakref.ref[Callback]] = set()  # those whose exception nobody has taken yet
_serial = itertools.count()


class Callback:
    """What native code has as its user data. A subclass says what a call does in `_run`."""

    __slots__ = ("__weakref__", "_raised", "handle")

    stops: ClassVar[bool] = True  # whether what it raises ends the compute: rule 4
    of_thread: ClassVar[bool] = False  # whether what it raises is the thread's: rule 9

    def __init__(self) -> None:
        # By thread, or 0 for all: (is no Ctrl-C, does not stop, number, exception), as in rule 6.
        self._raised: dict[int, tuple[bool, bool, int, BaseException]] = {}
        self.handle = ffi.new_handle(self)  # lives as long as this object: hold it

    def __call__(self, *args: Any) -> Any:
        """The result of `_run`; None when it raised, now or before."""
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
        first = self._raised.setdefault(self._whose(), new)  # another thread's, maybe
        if new < first:  # a Ctrl-C
            self._raised[self._whose()] = new
        STORED.add(weakref.ref(self, STORED.discard))


def take_raised(callbacks: Iterable[Callback | None]) -> BaseException | None:
    """Takes what these callbacks have raised out of the store: that of it which is to be raised."""
    found = []
    for callback in callbacks:
        if callback is not None:
            STORED.discard(weakref.ref(callback))  # first, for another thread may enter it again
            raised = callback._raised.pop(callback._whose(), None)
            if raised is not None:
                found.append(raised)
    return min(found)[-1] if found else None


def raise_taken(callbacks: Iterable[Callback | None]) -> None:
    """Takes, and raises what is to be raised."""
    error = take_raised(callbacks)
    if error is not None:
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context  # whatever is being handled here did not cause it
            del error  # a cycle with its traceback would keep the handles of the call open


def raise_instead(error: BaseException, callbacks: Iterable[Callback | None]) -> None:
    """Rule 7, for `error` of a native call."""
    if isinstance(error, ComputeError):
        raise_taken(callbacks)
    else:
        take_raised(callbacks)


@contextlib.contextmanager
def raising(callbacks: Iterable[Callback | None]) -> Iterator[None]:
    """Around a native call that waits for a compute; raises what its callbacks raised in it."""
    try:
        yield
    except BaseException as error:
        raise_instead(error, callbacks)
        raise
    if STORED:
        raise_taken(callbacks)


def raise_stored(address: int) -> None:
    """The same for the Callback with that handle. Called by the native module (module.h)."""
    raise_taken([ffi.from_handle(ffi.cast("void *", address))])


class AbortCallback(Callback):
    """Asked between the nodes of a compute whether it shall stop.

    Native code has the address of `cell`, which is empty without a predicate: so setting one counts
    for plans that were made before, and without one no Python is called."""

    __slots__ = ("_predicate", "cell")

    def __init__(self, predicate: Callable[[], bool] | None = None) -> None:
        super().__init__()
        self.cell = ffi.new("void *[1]")
        self.predicate = predicate

    @property
    def predicate(self) -> Callable[[], bool] | None:
        """What is asked."""
        return self._predicate

    @predicate.setter
    def predicate(self, predicate: Callable[[], bool] | None) -> None:
        self._predicate = predicate
        self.cell[0] = ffi.NULL if predicate is None else self.handle

    def _run(self) -> bool:
        return self.predicate is not None and bool(self.predicate())


# --- what C calls: the last argument is the handle of a Callback, whose answer is None if it raised


def _called_from_c(name: str, failed: int | None = None) -> Callable[..., Any]:
    """Makes the decorated function the C function `name`. What is raised outside of
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
