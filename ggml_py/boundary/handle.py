"""The base of every object that owns native memory. docs/HANDLES.md has its rules.

`ptr` is a plain attribute that close() deletes. Reading it costs nothing while the object is open
and raises `ClosedError` afterwards. For that a closed object changes its class: with a
`__getattr__` on open objects, CPython would not specialise their method calls (100 ns per op).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from sys import getrefcount
from types import TracebackType
from typing import Any, TypeVar

from ..errors import AbortError, ClosedError, LeftError, ServerLostError, SpoiledError
from .arguments import shown
from .dead_frames import clear_dead_frames
from .ffi import ffi, own_pointer
from .uses import CLOSING, closed_elsewhere, in_use, left_in_use

Self = TypeVar("Self", bound="Handle")
T = TypeVar("T")
Token = tuple[str, int]
Halfway = AbortError | ServerLostError | LeftError  # the call did not finish


class Live(Mapping[str, int]):
    """How many native objects are open, by class name. Not a Counter: threads and finalizers
    would lose each other's counts."""

    def __init__(self) -> None:
        self._tokens: set[Token] = set()
        self._serial = itertools.count()

    def add(self, kind: str) -> Token:
        """Counts one; returns the token for `remove`."""
        token = (kind, next(self._serial))
        self._tokens.add(token)
        return token

    def remove(self, token: Token) -> None:  # it is no longer open
        self._tokens.discard(token)

    def has(self, token: Token) -> bool:  # open, or just being freed
        return token in self._tokens

    def __getitem__(self, kind: str) -> int:
        return sum(one == kind for one, _ in list(self._tokens))

    def __iter__(self) -> Iterator[str]:
        return iter({kind for kind, _ in list(self._tokens)})

    def __len__(self) -> int:
        return len({kind for kind, _ in list(self._tokens)})


LIVE = Live()
MEMORY = Live()  # of buffers: arrays may view the memory of a closed one
_EXITING: list[bool] = []
_bound: weakref.WeakSet[Handle] = weakref.WeakSet()


def those_of(handles: weakref.WeakSet[T]) -> list[T]:
    """The handles in the set now. Other threads may add and remove some meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):  # the set's size changed
            return list(handles)


class Native:
    """A native object, and those that must exist until it is freed."""

    __slots__ = ("needs", "ptr", "token")

    def __init__(self, ptr: Any, token: Token) -> None:
        self.ptr, self.token = ptr, token
        self.needs: list[Native] = []


class Held:
    """What a finalizer also reads: a native that it needs at the moment, and its tensors."""

    __slots__ = ("native", "needs", "tensors")

    def __init__(self) -> None:
        self.native: Native | None = None
        self.needs: list[Native] = []  # the handle's own, for work that a finalizer postpones
        self.tensors: Any = ()


def _release(token: Token, free: Callable[[Any], None], ptr: Any, _needs: list[Native]) -> None:
    try:
        if not _EXITING or threading.active_count() == 1:  # a daemon may be in the middle of a call
            free(ptr)
    finally:
        LIVE.remove(token)  # now its code may be unloaded (Registry.unload)


def within(raw: Any, owner: Any) -> Any:
    """`raw`, which points into the native object of `owner`, as a pointer that holds `owner`."""
    return ffi.gc(raw, lambda _raw, _owner=owner: None)


def _once(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps `init`: raises TypeError if the object already has its native one."""

    @wraps(init)
    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(self, "_native"):
            raise TypeError(f"this {type(self).__name__} is already made: make another")
        init(self, *args, **kwargs)

    return first


class Handle:
    """Owns one native object. Subclasses pass the pointer, how to free it, and its parents."""

    __slots__ = (
        "__weakref__", "_children", "_closed", "_finalizer", "_native", "_parents", "_spoiled_by",
        "_token", "ptr",
    )  # fmt: skip

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):  # it begins before ours
            cls.__init__ = _once(vars(cls)["__init__"])  # type: ignore[method-assign]

    @_once
    def __init__(self, ptr: Any, free: Callable[[Any], None], *parents: Handle) -> None:
        if isinstance(self, _WithoutPtr):  # made by a class method of a closed one
            self.__class__ = type(self).__mro__[2]
        self.ptr = own_pointer(type(self), ptr)
        self._token = LIVE.add(type(self).__name__)
        self._native = native = Native(self.ptr, self._token)
        self._closed = False
        self._spoiled_by: Halfway | None = None
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._parents: list[Handle] = []
        needs = native.needs if self._needs_parents else []
        self._finalizer = weakref.finalize(self.ptr, _release, self._token, free, ptr, needs)
        for parent in parents:
            self._depend(parent)

    _needs_parents = True  # the parents must exist until it is freed
    _lends = False  # it lends memory to tensors that outlive it, until it is closed

    def _closing(self, handles: Sequence[Handle]) -> in_use:
        """Around the closing of `handles`. This is the first that lends, or the one to close."""
        return in_use(CLOSING, *handles)

    def _depend(self, parent: Handle) -> None:
        """Makes `parent` outlive this object."""
        if parent is not self and parent not in self._parents:
            native = parent._native
            parent.ptr  # noqa: B018  raises when closed; until here `native` was not freed
            parent._children.add(self)  # first: close() of the parent checks once more
            if (use := closed_elsewhere(parent)) is not None:
                parent._children.discard(self)
                raise use.refuses(parent)
            self._native.needs.append(native)
            self._parents.append(parent)

    def _drop_ptr(self) -> None:
        self.__class__ = _without_ptr(type(self))  # first: another thread may read `ptr` now
        del self.ptr

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def close(self) -> None:
        """Frees the native object, after its children. Closing twice is harmless.

        Raises `BusyError` while this object, or one that would be closed with it, is computing.
        """
        if closed_elsewhere(self) is not None:
            return
        while not self._closed:
            found: dict[int, Handle] = {}
            self._reach(found)
            handles = [*found.values()]
            with next((h for h in handles if h._lends), self)._closing(handles):
                again: dict[int, Handle] = {}
                self._reach(again)
                if again.keys() <= found.keys():  # else another thread has just made a child
                    self._close()
                    return

    def _close(self) -> None:
        if not self._closed:
            children = those_of(self._children)
            self._children.clear()  # ends the recursion for two that need each other
            for child in children:
                child._close()
            if self._closed:
                return  # it was one of two that need each other
            self._before_free()
            self._closed = True
            for parent in self._parents:
                parent._children.discard(self)
            if self._spoiled_by is None:
                self._drop_ptr()
            self._free()

    def _free(self) -> None:
        """Frees the native object now, or when the last reference to its pointer goes."""
        native, finalizer = self._native, self._finalizer
        self._native = _FREED
        if getrefcount(native) > 2 or getrefcount(native.ptr) > 2:
            clear_dead_frames(native.ptr)
        if getrefcount(native) > 2:
            return  # another closed object needs it, and is in use
        ptr = native.ptr
        del native
        if getrefcount(ptr) == 2:
            finalizer()  # called here, so its exceptions reach the caller

    def _reach(self, found: dict[int, Handle]) -> None:
        """Adds, by id, every handle that closing this one changes."""
        if id(self) not in found:
            found[id(self)] = self
            for child in those_of(self._children):
                child._reach(found)

    def _bound_to_process(self) -> None:
        """Marks it as not surviving a fork."""
        _bound.add(self)

    def _lose(self) -> None:
        """In the child of a fork: forgets the native object, which the parent process keeps."""
        if not self._closed:
            for child in those_of(self._children):
                child._lose()
            self._before_loss()
            self._closed = True
            self._finalizer.detach()
            self._native = _FREED  # the natives that it needed may be freed
            LIVE.remove(self._token)
            if self._spoiled_by is None:
                self._drop_ptr()

    def _before_loss(self) -> None:
        """Like `_before_free`, but must not send anything or wait."""

    def _changing(self) -> _Changing:
        """Around a call that changes the native object: an abort in it spoils the object."""
        return _Changing(self)

    def _spoil(self, error: Halfway) -> None:
        """Marks it as left half-changed."""
        self._spoiled_by = error
        self._drop_ptr()

    def _before_free(self) -> None:
        """A subclass's cleanup while the object is still whole."""

    def __reduce_ex__(self, _protocol: object) -> Any:
        raise TypeError(
            f"a {type(self).__name__} owns a native object, so it cannot be copied or pickled. "
            "Make another in the process that uses it"
        )

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
    """Mixed into the class of a closed or spoiled handle."""

    __slots__ = ()
    _parents: list[Any]
    _spoiled_by: Halfway | None
    closed: bool

    def __getattr__(self, name: str) -> Any:
        if name == "ptr":
            kind, spoiled_by = shown(type(self)), self._spoiled_by
            if spoiled_by is None or self.closed:
                root = _closed_root(self)  # its children were closed with it
                what = "it" if root is None else f"the {shown(type(root))} that it needs"
                raise ClosedError(f"this {kind} is closed: make another, or close {what} later")
            raise SpoiledError(
                f"this {kind} was left half-changed when {spoiled_by.call} failed "
                f"({spoiled_by.condition}): close it and make another"
            )
        return object.__getattribute__(self, name)  # a property's AttributeError, or no attribute


def _closed_root(handle: Any) -> Any:
    """The closed parent that has no closed parents itself; None if all parents are open, or need
    each other."""
    seen = [handle]
    while closed := [parent for parent in seen[-1]._parents if parent.closed]:
        if closed[0] in seen:
            return None
        seen.append(closed[0])
    return seen[-1] if len(seen) > 1 else None


_FREED = Native(None, ("", -1))
_FREED.needs = deque(maxlen=0)  # type: ignore[assignment]  # keeps nothing that is added late
_CLOSED: dict[type[Handle], type[Handle]] = {}


def _without_ptr(cls: type[Handle]) -> type[Handle]:
    """The class of closed objects of `cls`: the same, but reading `ptr` raises the reason."""
    if cls not in _CLOSED:
        body = {"__slots__": (), "__module__": cls.__module__}
        _CLOSED[cls] = type(cls.__name__, (_WithoutPtr, cls), body)
    return _CLOSED[cls]


def _after_fork_in_child() -> None:
    for handle in [*those_of(_bound), *left_in_use()]:  # pools first: they leave their backends
        handle._lose()


if hasattr(os, "register_at_fork"):
    # `logging` is imported, so its hook, which takes a lock that imports need, runs after this one.
    _package = sys.modules[__name__.partition(".")[0]]
    os.register_at_fork(before=_package.import_before_fork, after_in_child=_after_fork_in_child)


def _at_exit() -> None:
    _EXITING.append(True)
    if threading.active_count() > 1:  # a daemon may use any object: none is freed with its module
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(gc.get_objects()))


def exiting() -> bool:
    """Whether the interpreter is exiting. Handles are then freed in reverse order of creation, and
    the changes that they would make to each other do not matter."""
    return bool(_EXITING)


weakref.finalize(LIVE, lambda: None).detach()  # makes weakref register its exit handler first
atexit.register(_at_exit)  # so this runs before it
