"""The libraries that contain devices, registries and buffer types; they can be unloaded."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from sys import getrefcount
from types import FunctionType
from typing import Any

from ..errors import ClosedError
from .ffi import NULL, ffi, lib, own_pointer, text
from .handle import LIVE, MEMORY, Token, those_of

_LOADING: list[bool] = []  # load_backend was called: modules seen since then may be unloaded


class Opened(weakref.WeakSet[Any]):
    """The handles of a module. If it can be unloaded, also the tokens of their native objects:
    another thread may still be freeing an object whose handle is gone."""

    def __init__(self, may_go: bool) -> None:
        super().__init__()
        self._tokens: set[Token] | None = set() if may_go else None
        self._room = 256

    def add(self, item: Any) -> None:
        """Adds a handle whose native object exists."""
        super().add(item)
        if self._tokens is not None:
            self._tokens.add(item._token)
            if len(self._tokens) > self._room:
                self._room = 2 * len(self._there()) + 256

    def is_empty(self) -> bool:
        """Whether no native object is left. One that is being freed counts as left."""
        return not self._there()

    def still(self) -> list[Any]:
        """The open handles; none if another native object is just being freed."""
        there = self._there()  # first: a handle closed meanwhile must not count as freed
        open_now = [handle for handle in those_of(self) if handle._finalizer.alive]
        freed = there - {handle._token for handle in open_now}
        return [] if freed else open_now

    def _there(self) -> set[Token]:
        if self._tokens is None:
            return {handle._token for handle in those_of(self) if handle._finalizer.alive}
        gone = {token for token in list(self._tokens) if not (LIVE.has(token) or MEMORY.has(token))}
        self._tokens -= gone
        return set(self._tokens)


class Module:
    """The library that contains a static object, until `Registry.unload` unloads it.

    A library loaded later may have objects at the same addresses. So each object holds its Module
    and checks it first.
    """

    __slots__ = ("gone", "keep", "numa", "objects", "open", "what")

    def __init__(self) -> None:
        self.gone = ""  # what has happened to it
        self.what = "an unloaded backend"
        self.keep = ""  # why it cannot be unloaded
        self.numa = False  # numa_init was called
        self.open = Opened(bool(_LOADING))  # its handles, open or closed
        # If it may be unloaded, its InModule objects by id: calls in flight have their pointers.
        self.objects: weakref.WeakValueDictionary[int, InModule] | None = None
        if _LOADING:
            self.objects = weakref.WeakValueDictionary()

    def is_called(self) -> bool:
        """Whether a call with one of its objects is in progress: it holds the object's pointer."""
        refs = [] if self.objects is None else self.objects.valuerefs()  # threads may add some now
        return any((one := ref()) is not None and getrefcount(one._ptr) > 2 for ref in refs)

    def check(self, what: object) -> None:
        """Raises `ClosedError` if the library, which contained `what`, is gone."""
        if self.gone:
            raise ClosedError(f"this {type(what).__name__} is gone: {self.gone}")


# Held while upstream's lists of registries and devices are read or changed: they have no lock.
REGISTERING = threading.RLock()


_modules: dict[int, Module] = {}  # by the address of the registry
_BASE = Module()  # libggml-base
_SURVIVE_A_FORK = ("CPU", "BLAS")  # no connection, no driver


def module_of(registry: Any) -> Module:
    """The Module of a native registry; for NULL, that of the base library."""
    if registry == NULL:
        return _BASE
    return _modules.setdefault(int(ffi.cast("uintptr_t", registry)), Module())


def forget_module(registry: Any) -> None:
    """Forgets an unloaded registry: one at the same address later is a different one."""
    _modules.pop(int(ffi.cast("uintptr_t", registry)), None)


def _after_fork_in_child() -> None:
    global REGISTERING
    REGISTERING = threading.RLock()  # a thread that is gone may hold the old one
    for address, module in list(_modules.items()):
        mine = [handle for handle in those_of(module.open) if not handle.closed]
        registry = ffi.cast("ggml_backend_reg_t", address)
        if mine and text(lib.ggml_backend_reg_name(registry)) not in _SURVIVE_A_FORK:
            module.what = "the process that forked"
            module.gone = (
                "it was in use in the process that forked this one, and does not survive a fork; "
                "start processes by spawn, or fork before using it"
            )
            for handle in mine:
                handle._lose()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


_UNHELD = ("ptr", "closed", "unload", "_unload")  # they unload the library, or call nothing in it


def _held(function: Callable[..., Any] | None) -> Any:
    """Wraps `function`: while it runs, its object counts as called (`Module.is_called`)."""
    if function is None:
        return None

    @wraps(function)
    def call(self: InModule, *args: Any, **kwargs: Any) -> Any:
        held = self._ptr  # noqa: F841
        return function(self, *args, **kwargs)

    return call


class InModule:
    """A static object of a library. It is never closed, and gone when the library is unloaded. Two
    are equal if they are the same native object."""

    __slots__ = ("__weakref__", "_module", "_ptr")

    def __init_subclass__(cls) -> None:
        """Makes each method hold the object's pointer until it returns. So the library cannot be
        unloaded while a method reads a string or another object that C returned."""
        super().__init_subclass__()
        for name, value in list(vars(cls).items()):
            if name.startswith("__") or name in _UNHELD:
                continue
            if isinstance(value, property):
                setattr(cls, name, property(*map(_held, (value.fget, value.fset, value.fdel))))
            elif isinstance(value, FunctionType):
                setattr(cls, name, _held(value))

    def __init__(self, ptr: Any, registry: Any) -> None:
        self._ptr = own_pointer(type(self), ptr)
        self._module = module_of(registry)
        if self._module.objects is not None:
            self._module.objects[id(self)] = self

    @property
    def ptr(self) -> Any:
        """The native object. Raises `ClosedError` after its backend was unloaded."""
        self._module.check(self)
        return self._ptr

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InModule):
            return False
        same_kind = isinstance(other, type(self)) or isinstance(self, type(other))
        return same_kind and (self._ptr, self._module) == (other._ptr, other._module)

    def __copy__(self) -> InModule:
        return self  # there is one native object, and this one has no state of its own

    def __deepcopy__(self, _memo: object) -> InModule:
        return self

    def __reduce_ex__(self, _protocol: object) -> Any:
        raise TypeError(
            f"a {type(self).__name__} belongs to this process: pickle its name and look it up in "
            "the other process"
        )

    def __hash__(self) -> int:
        return hash(self._ptr)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return (
            f"<{kind} of {self._module.what}>" if self._module.gone else f"<{kind} {self._words()}>"
        )

    def _words(self) -> str:
        """The words for its repr."""
        raise NotImplementedError
