"""Uses of private attributes of other folders' classes.

A private is an attribute whose name begins with one underscore. A use counts if it reads or writes
the attribute of something other than `self` or `cls`, and a class of another folder has an
attribute of that name. Types are not checked: a folder's own private of the same name counts too,
so give it another name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..support import imports


class Use(NamedTuple):
    """An attribute of another folder's class, where it is used."""

    folder: str
    place: str  # file and line
    what: str  # as written in the source
    of: tuple[str, ...]  # the folders whose classes have this attribute


def uses(package: Path = imports.PACKAGE) -> list[Use]:
    """All uses, by folder and place."""
    trees = {
        name: (path, ast.parse(path.read_text("utf-8")))
        for name, path in imports.modules(package).items()
    }
    owners: dict[str, set[str]] = defaultdict(set)
    for name, (_path, tree) in trees.items():
        for private in _defined(tree):
            owners[private].add(_folder(name))
    found = []
    for name, (path, tree) in trees.items():
        for node in _accesses(tree):
            others = owners[node.attr] - {_folder(name)}
            if others:
                place = f"{path.relative_to(package).as_posix()}:{node.lineno}"
                found.append(Use(_folder(name), place, ast.unparse(node), tuple(sorted(others))))
    return sorted(found)


def _folder(module: str) -> str:
    return module.partition(".")[0]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _accesses(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_self(node.value):
            yield node


def _defined(tree: ast.AST) -> Iterator[str]:
    """Methods, fields and slots of a module's classes, and attributes that they set on `self`."""
    for cls in ast.walk(tree):
        if isinstance(cls, ast.ClassDef):
            names = [name for node in cls.body for name in _of_body(node)]
            stores = (node for node in ast.walk(cls) if isinstance(node, ast.Attribute))
            names += [n.attr for n in stores if isinstance(n.ctx, ast.Store) and _is_self(n.value)]
            yield from filter(_is_private, names)


def _of_body(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.target)]
    if isinstance(node, ast.Assign):
        names = [ast.unparse(target) for target in node.targets]
        if names == ["__slots__"]:
            slots = (n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))
            names = [str(name) for name in slots]
        return names
    return []
