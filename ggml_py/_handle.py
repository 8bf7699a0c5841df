"""The base of every object that owns native memory, and the rules of lifetime.

1. A child holds its parents strongly; a parent knows its children weakly.
2. Closing a parent closes its children first.
3. `weakref.finalize` frees, on the raw pointer, with the parents as arguments: they outlive it
   whatever order Python collects in. There is no `__del__`.
4. `ptr` is a plain attribute that close() deletes: reading it costs nothing while open, and raises
   `ClosedError` afterwards. For that the object changes its class: were there a `__getattr__` on
   open ones, CPython would specialise none of their method calls (an op: 100 ns more).
5. An assertion of ggml that fails in the middle of changing an object leaves it half-changed. Calls
   that change one run in `_changing()`; then `ptr` goes too, and raises `SpoiledError`.
6. C runs without the GIL. Calls that take long, or change what they are given, run in `in_use()`:
   what another thread (or a callback) does with the objects meanwhile, closing too, is `BusyError`.
7. In the child of a fork, what does not survive one is closed by `_lose()`, which frees nothing:
   that is the parent's. Threads are `_bound_to_process()`, connections and GPUs are lost with their
   device (_device.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from .errors import AbortError, BusyError, ClosedError, LeftError, ServerLostError, SpoiledError

Self = TypeVar("Self", bound="Handle")
T = TypeVar("T")
Token = tuple[str, int]
Halfway = AbortError | ServerLostError | LeftError  # the call did not come to its end
User = tuple[str, int]  # what is done, on which thread


class Live(Mapping[str, int]):
    """How many native objects are open, by class name.

    Not a Counter: threads, and finalizers in between, would lose counts of each other.
    """

    def __init__(self) -> None:
        self._tokens: set[Token] = set()
        self._serial = itertools.count()

    def add(self, kind: str) -> Token:
        """Counts one; the token is for `remove`."""
        token = (kind, next(self._serial))
        self._tokens.add(token)
        return token

    def remove(self, token: Token) -> None:
        """It is no longer open."""
        self._tokens.discard(token)

    def __getitem__(self, kind: str) -> int:
        return sum(one == kind for one, _ in list(self._tokens))

    def __iter__(self) -> Iterator[str]:
        return iter({kind for kind, _ in list(self._tokens)})

    def __len__(self) -> int:
        return len({kind for kind, _ in list(self._tokens)})


LIVE = Live()
_CLOSING = "being closed"
_lock = threading.RLock()  # of every `_user`; held for moments, never while C runs
_bound: weakref.WeakSet[Handle] = weakref.WeakSet()


def those_of(handles: weakref.WeakSet[T]) -> list[T]:
    """Those that are there now. Other threads may add and remove some meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):  # the set's size changed
            return list(handles)


def _release(token: Token, free: Callable[[Any], None], ptr: Any, _parents: list[Handle]) -> None:
    LIVE.remove(token)
    free(ptr)


def take(user: User, handles: Sequence[Handle]) -> None:
    """Nothing else may use or close these while their `_user` is this very tuple. Raises
    `BusyError`, or `ClosedError`; some may have it then, too."""
    with _lock:
        mine: Sequence[Handle] = handles
        for handle in handles:
            if handle._user is not None:
                mine = [h for h in handles if h._user is None or h._check_idle(user)]
                break
        if user[0] != _CLOSING:
            for handle in handles:
                handle.ptr  # noqa: B018  raises when closed, just now by another thread
        for handle in mine:
            handle._user = user


def give_back(user: User, handles: Sequence[Handle]) -> None:
    """Those that `take` took, if it did."""
    for handle in handles:
        if handle._user is user:
            handle._user = None


class in_use:
    """Around a call: `take`, and `give_back` at its end."""

    __slots__ = ("_handles", "_user")

    def __init__(self, doing: str, *handles: Handle) -> None:
        self._user = (doing, threading.get_ident())
        self._handles = handles

    def __enter__(self) -> None:
        try:
            take(self._user, self._handles)
        except BaseException:
            give_back(self._user, self._handles)
            raise

    def __exit__(self, *_raised: object) -> None:
        give_back(self._user, self._handles)


class Handle:
    """Owns one native object. Subclasses pass the pointer, how to free it, and what it needs."""

    __slots__ = (
        "__weakref__", "_children", "_finalizer", "_parents", "_spoiled_by", "_token", "_user",
        "ptr",
    )  # fmt: skip

    def __init__(self, ptr: Any, free: Callable[[Any], None], *parents: Handle) -> None:
        self.ptr = ptr
        self._spoiled_by: Halfway | None = None
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._user: User | None = None  # what it is in the middle of
        self._token = LIVE.add(type(self).__name__)
        self._parents: list[Handle] = []  # the finalizer's own list: what is added later counts
        self._finalizer = weakref.finalize(self, _release, self._token, free, ptr, self._parents)
        for parent in parents:
            self._depend(parent)

    def _depend(self, parent: Handle) -> None:
        """Makes `parent` outlive this object."""
        if parent is not self and parent not in self._parents:
            self._parents.append(parent)
            parent._children.add(self)

    def _drop_ptr(self) -> None:
        del self.ptr
        self.__class__ = _without_ptr(type(self))

    @property
    def closed(self) -> bool:
        """True after close()."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Frees the native object, its children before it. Closing twice is harmless.

        Raises `BusyError` while it, or what would be closed with it, is computing.
        """
        user = self._user
        if user is not None and user[0] == _CLOSING and user[1] != threading.get_ident():
            return
        if self._finalizer.alive:
            found: dict[int, Handle] = {}
            self._reach(found)
            with in_use(_CLOSING, *found.values()):
                self._close()

    def _close(self) -> None:
        if self._finalizer.alive:
            children = those_of(self._children)
            self._children.clear()  # so that two that need each other end
            for child in children:
                child._close()
            if not self._finalizer.alive:
                return  # it was such a one
            self._before_free()
            self._finalizer()
            for parent in self._parents:
                parent._children.discard(self)  # not before: closing them would not wait for us
            if self._spoiled_by is None:
                self._drop_ptr()

    def _reach(self, found: dict[int, Handle]) -> None:
        """Adds, by id, all that closing this one changes."""
        if id(self) not in found:
            found[id(self)] = self
            for child in those_of(self._children):
                child._reach(found)

    def _check_idle(self, user: User) -> bool:
        """Whether `user` may take it; False if its thread has it already, for closing."""
        if self._user is None:
            return True
        if self._user == (_CLOSING, user[1]):
            return False
        doing, thread = self._user
        where = "further up on this thread" if thread == user[1] else "on another thread"
        raise BusyError(
            f"this {type(self).__name__} is {doing} {where}: wait until that returns, "
            "or make one for each thread"
        )

    def _bound_to_process(self) -> None:
        """It does not survive a fork."""
        _bound.add(self)

    def _lose(self) -> None:
        """In the child of a fork: forgets the native object, which is the parent's."""
        if self._finalizer.alive:
            for child in those_of(self._children):
                child._lose()
            self._before_loss()
            self._finalizer.detach()
            LIVE.remove(self._token)
            if self._spoiled_by is None:
                self._drop_ptr()

    def _before_loss(self) -> None:
        """As `_before_free`, but nothing may be sent or waited for."""

    def _changing(self) -> _Changing:
        """Around a call that changes the native object: an abort in it spoils the object."""
        return _Changing(self)

    def _spoil(self, error: Halfway) -> None:
        """It was left half-changed."""
        self._spoiled_by = error
        self._drop_ptr()

    def _before_free(self) -> None:
        """What a subclass does while the object is still whole."""

    def __enter__(self: Self) -> Self:
        self.ptr  # noqa: B018  raises when closed
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Changing:
    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: object, _traceback: object) -> None:
        if isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, LeftError):
            error = error.__context__
        if isinstance(error, Halfway):
            self._handle._spoil(error)


class _WithoutPtr:
    """Mixed into the class of a handle that was closed or spoiled."""

    __slots__ = ()
    _spoiled_by: Halfway | None
    closed: bool

    def __getattr__(self, name: str) -> Any:
        if name == "ptr":
            kind, spoiled_by = type(self).__name__, self._spoiled_by
            if spoiled_by is None or self.closed:
                raise ClosedError(f"this {kind} is closed: make another, or close it later")
            raise SpoiledError(
                f"this {kind} was left half-changed when {spoiled_by.call} failed "
                f"({spoiled_by.condition}): close it and make another"
            )
        return object.__getattribute__(self, name)  # a property's own AttributeError, or none such


_CLOSED: dict[type[Handle], type[Handle]] = {}


def _without_ptr(cls: type[Handle]) -> type[Handle]:
    """The class of closed objects of `cls`: the same, but that reading `ptr` says why not."""
    if cls not in _CLOSED:
        body = {"__slots__": (), "__module__": cls.__module__}
        _CLOSED[cls] = type(cls.__name__, (_WithoutPtr, cls), body)
    return _CLOSED[cls]


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that is gone may hold the other
    for handle in those_of(_bound):
        handle._lose()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
