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
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from .errors import AbortError, ClosedError, SpoiledError

LIVE: Counter[str] = Counter()  # open native objects by class name
Self = TypeVar("Self", bound="Handle")


def _release(kind: str, free: Callable[[Any], None], ptr: Any, _parents: list[Handle]) -> None:
    LIVE[kind] -= 1
    free(ptr)


class Handle:
    """Owns one native object. Subclasses pass the pointer, how to free it, and what it needs."""

    __slots__ = ("__weakref__", "_children", "_finalizer", "_parents", "_spoiled_by", "ptr")

    def __init__(self, ptr: Any, free: Callable[[Any], None], *parents: Handle) -> None:
        self.ptr = ptr
        self._spoiled_by: AbortError | None = None
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        kind = type(self).__name__
        LIVE[kind] += 1
        self._parents: list[Handle] = []  # the finalizer's own list: what is added later counts
        self._finalizer = weakref.finalize(self, _release, kind, free, ptr, self._parents)
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
        """Frees the native object, its children before it. Closing twice is harmless."""
        if self._finalizer.alive:
            children = list(self._children)
            self._children.clear()  # so that two that need each other end
            for child in children:
                child.close()
            for parent in self._parents:
                parent._children.discard(self)
            self._before_free()
            self._finalizer()
            if self._spoiled_by is None:
                self._drop_ptr()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Around a call that changes the native object: an abort in it spoils the object."""
        try:
            yield
        except AbortError as error:
            self._spoiled_by = error
            self._drop_ptr()
            raise

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


class _WithoutPtr:
    """Mixed into the class of a handle that was closed or spoiled."""

    __slots__ = ()
    _spoiled_by: AbortError | None
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
