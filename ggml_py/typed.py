"""Checks arguments against the annotations of public functions, before these do anything.

    @typed
    def cost(plan: Plan, machine: Machine, n_past: int | None = None) -> Cost: ...

    cost(plan, "here")     # TypeError: machine: expected a Machine, got str 'here'

`typed` takes a function, or a class for its constructor, methods and setters. It looks at what is
in lists, dicts and arrays, and not at what an iterator will give. What an annotation cannot say (a
range, a name that must exist) stays with the function. It costs a microsecond, so what runs for
each op or token checks by itself (boundary/arguments.py).
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import cache, wraps
from importlib.util import resolve_name
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, overload

from .errors import ArgumentError

T = TypeVar("T", bound=Callable[..., Any])
_PACKAGE = Path(__file__).resolve().parents[1]
_LISTS = ("Sequence", "list", "tuple")
_SEVERAL = (*_LISTS, "Collection", "Iterable", "Iterator", "frozenset", "set")
_MAPPINGS = ("Mapping", "dict")


def describe(value: object) -> str:
    """Describes a value for messages: its type, and the value itself if it is short."""
    shown = repr(value) if isinstance(value, int | float | str | None) else ""
    kind = type(value).__name__
    return kind if value is None or not 0 < len(shown) <= 40 else f"{kind} {shown}"


@overload
def typed(name: str, /, *names: str) -> Callable[[T], T]: ...
@overload
def typed(thing: T, /) -> T: ...
def typed(*things: Any) -> Any:
    """Checks the arguments of a function, or of all that is public in a class. `typed("a", "b")`
    checks these parameters only: a function's own words say more of the others."""
    if things and isinstance(things[0], str):
        return lambda function: _wrapped(function, things)
    (thing,) = things
    if not isinstance(thing, type):
        return _wrapped(thing)
    for name, value in list(vars(thing).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(value, property) and value.fset is not None:
            setattr(thing, name, value.setter(_wrapped(value.fset)))
        elif isinstance(value, classmethod | staticmethod):
            setattr(thing, name, type(value)(_wrapped(value.__func__)))
        elif inspect.isfunction(value):
            setattr(thing, name, _wrapped(value))
    return thing


def _wrapped(function: Any, only: tuple[str, ...] = ()) -> Any:
    known: Any = None

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal known
        if known is None:
            known = _parameters(function, only)
        by_place, rest, by_name, other = known
        for index, value in enumerate(args):
            name, kind = by_place[index] if index < len(by_place) else rest
            if kind is not None and not kind.fits(value):
                kind.refuse(name, value)
        for name, value in options.items():
            kind = by_name.get(name, other)
            if kind is not None and not kind.fits(value):
                kind.refuse(name, value)
        return function(*args, **options)

    return call


class Kind(NamedTuple):
    """What an annotation takes."""

    fits: Callable[[Any], bool]
    words: Callable[[], str]
    is_path: bool = False
    inside: Callable[[str, Any], None] = lambda _name, _value: None  # raises for a part of it

    def refuse(self, name: str, value: Any) -> None:
        """Raises TypeError, or `ArgumentError` for a path that no file can have."""
        if self.is_path and isinstance(value, str | os.PathLike):
            raise ArgumentError(
                f"{name} {str(value)!r}: expected a path: text without NUL that UTF-8 can encode"
            )
        self.inside(name, value)
        got = describe(value)
        if isinstance(value, list | tuple | dict | set):
            got = f"{got} {reprlib.repr(value)}"
        raise TypeError(f"{name}: expected {self.words()}, got {got}")


def _parameters(
    function: Any, only: tuple[str, ...]
) -> tuple[Any, Any, dict[str, Kind | None], Kind | None]:
    """The parameters by place with their kinds, that of *args, those by name, that of **options."""
    by_place, by_name = [], {}
    rest: tuple[str, Kind | None] = "", None
    other = None
    for p in inspect.signature(function).parameters.values():
        told = p.annotation is not p.empty and (not only or p.name in only)
        kind = _of(p.annotation, function.__module__) if told else None
        if p.kind is p.VAR_POSITIONAL:
            rest = p.name, kind
        elif p.kind is p.VAR_KEYWORD:
            other = kind
        else:
            by_name[p.name] = kind
            if p.kind is not p.KEYWORD_ONLY:
                by_place.append((p.name, kind))
    return by_place, rest, by_name, other


def _of(annotation: Any, module: str) -> Kind | None:
    """The kind of an annotation in a module; None for what takes anything or cannot be told."""
    if isinstance(annotation, str):
        return _of_node(ast.parse(annotation.strip(), mode="eval").body, module)
    if get_origin(annotation) is Annotated:
        return _of(get_args(annotation)[0], module)
    if get_origin(annotation) in (Union, UnionType):
        return _either([_of(part, module) for part in get_args(annotation)])
    if annotation is type(None):
        return _KINDS["None"]
    if hasattr(annotation, "__forward_arg__"):
        return _of(annotation.__forward_arg__, module)
    if get_origin(annotation) is not None:  # an alias: Callable[[int], Plan]
        return _of(str(annotation), module)
    if isinstance(annotation, type):
        return _KINDS.get(annotation.__name__) or _of_class(annotation)
    return None


def _of_node(node: ast.expr, module: str) -> Kind | None:
    if isinstance(node, ast.Constant):
        return _KINDS["None"] if node.value is None else _of(node.value, module)
    if isinstance(node, ast.BinOp):
        return _either([_of_node(node.left, module), _of_node(node.right, module)])
    inside: list[ast.expr] = []
    if isinstance(node, ast.Subscript):
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        node = node.value
    name = ast.unparse(node).rpartition(".")[2]
    if name == "Annotated":
        return _of_node(inside[0], module)
    if name in _SEVERAL:
        return _several(name, [_of_node(n, module) for n in inside if not _is_dots(n)], inside)
    if name in _MAPPINGS:
        return _mapping([_of_node(n, module) for n in inside])
    if name in _KINDS:
        return _KINDS[name]
    return _named(name, module) if isinstance(node, ast.Name) else None


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _either(kinds: list[Kind | None]) -> Kind | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    text, path = _KINDS["str"], _KINDS["PathLike"]
    if any(kind.is_path for kind in known) and text in known and path:  # a text is a path, too
        known = [path, *(kind for kind in known if not kind.is_path and kind != text)]
    if len(known) == 1:
        return known[0]

    def inside(name: str, value: Any) -> None:
        for kind in known:
            kind.inside(name, value)

    return Kind(
        lambda value: any(kind.fits(value) for kind in known),
        lambda: " or ".join(dict.fromkeys(kind.words() for kind in known)),
        any(kind.is_path for kind in known),
        inside,
    )


def _several(name: str, kinds: list[Kind | None], nodes: list[ast.expr]) -> Kind:
    """A list, tuple, set or iterator, each of whose values is of the kind."""
    each = kinds[0] if kinds else None
    fixed = name == "tuple" and len(kinds) == len(nodes) > 0

    def parts(value: Any) -> Iterable[tuple[Any, Kind | None]]:
        return zip(value, kinds if fixed else itertools.repeat(each), strict=False)

    def fits(value: Any) -> bool:
        if isinstance(value, str | bytes) or not has_values(value, name in _LISTS):
            return False
        if name == "list" and not isinstance(value, list):  # to which something is added
            return False
        if hasattr(value, "tolist"):  # an array
            value = value.tolist()
        if not isinstance(value, list | tuple | set | frozenset | Mapping):
            return True
        if fixed and len(value) != len(kinds):
            return False
        return all(kind is None or kind.fits(part) for part, kind in parts(value))

    def inside(name: str, value: Any) -> None:
        if isinstance(value, list | tuple) and not (fixed and len(value) != len(kinds)):
            for index, (part, kind) in enumerate(parts(value)):
                if kind is not None and not kind.fits(part):
                    kind.refuse(f"{name}[{index}]", part)

    def words() -> str:
        if fixed and len(kinds) > 1:
            return f"a tuple of {len(kinds)}"
        return "a sequence" if each is None else f"a sequence{_plural(each.words())}"

    return Kind(fits, words, False, inside)


def has_values(value: Any, a_list: bool = False) -> bool:
    """Whether one can go through it; with `a_list` by index."""
    if getattr(value, "ndim", 1) == 0 or isinstance(value, type):
        return False
    if a_list:
        return isinstance(value, Sized) and not isinstance(value, Mapping | set | frozenset)
    return isinstance(value, Iterable)


def _mapping(kinds: list[Kind | None]) -> Kind:
    key, value = kinds or (None, None)

    def fits(given: Any) -> bool:
        if not isinstance(given, Mapping) or (key is None and value is None):
            return isinstance(given, Mapping)
        return all(
            (key is None or key.fits(k)) and (value is None or value.fits(v))
            for k, v in given.items()
        )

    def inside(name: str, given: Any) -> None:
        for k, v in given.items() if isinstance(given, Mapping) else ():
            if key is not None and not key.fits(k):
                key.refuse(f"a key of {name}", k)
            if value is not None and not value.fits(v):
                value.refuse(f"{name}[{k!r}]", v)

    def words() -> str:
        inner = ": ".join("anything" if k is None else k.words() for k in (key, value))
        return f"a dict {{{inner}}}"

    return Kind(fits, words, False, inside)


def _of_class(cls: type) -> Kind:
    if getattr(cls, "_is_protocol", False):
        names = [name for name in dir(cls) if not name.startswith("_")]
        return Kind(
            lambda value: all(_has(value, name) for name in names),
            lambda: f"an object with {', '.join(names)}",
        )
    return Kind(lambda value: isinstance(value, cls), lambda: _a(_shown(cls)))


def _has(value: Any, name: str) -> bool:
    """Without asking a property, which may raise."""
    return inspect.getattr_static(value, name, _has) is not _has


def _shown(cls: type) -> str:
    return str(getattr(cls, "_shown_as", cls.__name__))


def _named(name: str, module: str) -> Kind | None:
    """A class by its name, or what an alias stands for. A name that only annotations use is not
    imported: it is looked up in the sources, once a value is not of a class of that name."""
    loaded = sys.modules.get(module)
    if hasattr(loaded, name):
        return _of(getattr(loaded, name), module)

    @cache
    def found() -> Kind | None:
        return _defined(name, module)

    def fits(value: Any) -> bool:
        if any(cls.__name__ == name for cls in type(value).__mro__):
            return True
        kind = found()
        return kind is None or kind.fits(value)

    def words() -> str:
        kind = found()
        return _a(name) if kind is None else kind.words()

    return Kind(fits, words)


def _defined(name: str, module: str) -> Kind | None:
    """What a name means by the source of a module of this package."""
    file = _PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    if not module.startswith(f"{__package__}.") or not file.exists():
        return None
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    target = "." * node.level + (node.module or "")
                    source = resolve_name(target, module.rpartition(".")[0])
                    return _named(alias.name, source)
        elif isinstance(node, ast.ClassDef) and node.name == name:
            return Kind(lambda _value: False, lambda: _a(name))  # which `_named` would know
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return _of_node(node.value, module)
    return None


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}"


def _plural(words: str) -> str:
    first, _, rest = words.partition(" ")
    if first in ("a", "an") and " or " not in rest:
        return f" of {rest}s"
    return f", each {words}"


def is_whole(value: object) -> bool:
    """Whether it is an integer of Python or numpy."""
    kind = type(value)
    return hasattr(kind, "__index__") and kind is not bool and kind.__name__ != "ndarray"


def names_of(what: str, value: Any) -> list[str]:
    """`value` as names, of which a str is one. Raises TypeError."""
    try:
        names = [value] if isinstance(value, str) else list(value)
    except TypeError:
        names = [value]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what}: expected names, got {describe(value)}")
    return names


def _is_path(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:  # surrogates but those of a name that is not UTF-8
        return False


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") or (
        isinstance(value, int) and value in (0, 1)
    )  # fmt: skip


_KINDS: dict[str, Kind | None] = {
    "Any": None, "object": None, "ArrayLike": None, "NDArray": None,
    "None": Kind(lambda value: value is None, lambda: "None"),
    "int": Kind(is_whole, lambda: "a whole number"),
    "float": Kind(
        lambda value: isinstance(value, Real) and not isinstance(value, bool), lambda: "a number"
    ),
    "bool": Kind(_is_truth, lambda: "True or False"),
    "str": Kind(lambda value: isinstance(value, str), lambda: "a str"),
    "bytes": Kind(
        lambda value: isinstance(value, bytes | bytearray | memoryview), lambda: "bytes"
    ),
    "Path": Kind(
        lambda value: isinstance(value, os.PathLike) and _is_path(value), lambda: "a Path", True
    ),
    "PathLike": Kind(_is_path, lambda: "a path", True),
    "Callable": Kind(callable, lambda: "a function"),
    "TextIO": Kind(lambda value: hasattr(value, "write"), lambda: "an open file"),
    "type": Kind(lambda value: isinstance(value, type), lambda: "a class"),
}  # fmt: skip
