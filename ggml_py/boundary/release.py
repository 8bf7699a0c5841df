"""Errors for names that another release's build lacks and the default one has (`since.SINCE`).

Using such a name raises `MissingFunctionError`, which names the first release that has it. Nothing
here runs for the default build. Enum numbers and op methods are the build's own: enums.py and
graphs/ take them from the files that were generated with it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import EnumMeta
from types import ModuleType
from typing import Any

from ..errors import MissingFunctionError
from .since import SINCE


class Release:
    """A build of another release, by its label."""

    def __init__(self, label: str) -> None:
        self.label = label

    def lacks(self, name: str) -> MissingFunctionError:
        """The error for a name of `SINCE` that this release lacks."""
        return MissingFunctionError(
            f"{name.removeprefix('Context.')} is not in ggml {self.label}, the loaded build; "
            f"ggml {SINCE[name]} is the first release with it. GGML_PY_UPSTREAM chooses the build "
            "at start; `ggml-py build --list` lists the builds"
        )

    def fit_lib(self, lib: Any) -> Any:
        """A stand-in for `lib`: the same functions, and an error for those that it lacks."""
        return _Lib(self, lib)

    def fit_enums(self, module: ModuleType) -> None:
        """Makes enums and members that the module lacks raise the error."""

        class Meta(EnumMeta):
            def __getattr__(cls, name: str) -> Any:
                if f"{cls.__name__}.{name}" in SINCE:
                    raise release.lacks(f"{cls.__name__}.{name}")
                inherited = getattr(EnumMeta, "__getattr__", None)  # until Python 3.11
                if inherited is None:
                    raise AttributeError(f"enum {cls.__name__} has no member '{name}'")
                return inherited(cls, name)

        def of_module(name: str) -> Any:
            if name in new:
                raise release.lacks(name)
            raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")

        release = self
        new = {name for name in SINCE if name.isidentifier()}
        for value in vars(module).values():
            if type(value) is EnumMeta and value.__module__ == module.__name__:
                value.__class__ = Meta
        module.__getattr__ = of_module  # type: ignore[method-assign]

    def fit_ops(self, ops: type) -> None:
        """Makes ops and op parameters that the class lacks raise the error."""
        newer: dict[str, set[str]] = {}  # parameters by op
        for name in SINCE:
            if name.startswith("Context."):
                op, _, parameter = name.removeprefix("Context.").partition("(")
                if not hasattr(ops, op):
                    setattr(ops, op, _Lacking(self, f"Context.{op}"))
                elif parameter:
                    newer.setdefault(op, set()).add(parameter[:-1])
        for op, names in newer.items():
            method = getattr(ops, op)
            missing = names - set(inspect.signature(method).parameters)
            if missing:
                setattr(ops, op, self._narrower(method, sorted(missing)))

    def _narrower(self, method: Callable[..., Any], missing: list[str]) -> Callable[..., Any]:
        """Wraps `method`: a parameter of a later release gets a better message."""
        n_parameters = len(inspect.signature(method).parameters)

        @functools.wraps(method)
        def op(*args: Any, **kwargs: Any) -> Any:
            given = [name for name in missing if name in kwargs]
            if given or len(args) > n_parameters:
                raise self.lacks(f"Context.{method.__name__}({(given or missing)[0]})")
            return method(*args, **kwargs)

        return op


class _Lib:
    """Functions and constants are plain attributes, as fast to read as those of `lib` itself."""

    def __init__(self, release: Release, lib: Any) -> None:
        vars(self).update({name: getattr(lib, name) for name in dir(lib)})
        self._release, self._lib = release, lib

    def __getattr__(self, name: str) -> Any:
        if name in SINCE:
            raise self._release.lacks(name)
        return getattr(self._lib, name)  # cffi's own message


class _Lacking:
    """Stands for a missing op: reading it from a Context or from the class raises the error."""

    def __init__(self, release: Release, name: str) -> None:
        self.release, self.name = release, name

    def __get__(self, _instance: object, _owner: type) -> Any:
        raise self.release.lacks(self.name)
