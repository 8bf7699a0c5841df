"""Functions that are handed the argument MODEL of `ggml-py plan`, found by following it.

The argument is followed from `command` in cli/plan.py through the calls that pass it on: unchanged,
converted (`Path(model)`), in a list, or as an attribute that `self` keeps. A call is
followed by the name of its function, class or method, also through imports. A method of an object
whose class is not known is followed if only one class of the package has a method of that name.
If the argument is an object that holds the path (`Source`), its class is followed from the
constructor on. Other values that are made from the file, such as a reader, are not followed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..support.imports import PACKAGE, modules, sources

START = "cli.plan", "command", "model"
_SAME = {"Path", "str", "fspath", "abspath", "resolve", "absolute", "expanduser", "expand",
         "list", "tuple", "sorted", "enumerate", "zip", "reversed", "iter", "next"}  # fmt: skip
At = tuple[str, str]  # module, and function with its class
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A function that is handed the model's path."""

    module: str
    name: str  # with its class
    file: str
    line: int
    returns: int  # return statements


class _Known:
    """The functions of the package, and what names mean in its modules."""

    def __init__(self, package: Path) -> None:
        self.sources = sources(package)
        paths = modules(package)
        self.files = {name: path.relative_to(package).as_posix() for name, path in paths.items()}
        self.functions: dict[At, Function] = {}
        self.classes: dict[At, list[ast.expr]] = {}
        self.methods: dict[str, list[At]] = defaultdict(list)
        for module, source in self.sources.items():
            self._add(module, source.tree.body, "")
        self.named = {name: source.names(paths) for name, source in self.sources.items()}

    def _add(self, module: str, body: list[ast.stmt], owner: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self.classes[module, f"{owner}{node.name}"] = node.bases
                self._add(module, node.body, f"{owner}{node.name}.")
            elif isinstance(node, Function):
                self.functions[module, f"{owner}{node.name}"] = node
                if owner:
                    self.methods[node.name].append((module, f"{owner}{node.name}"))
            elif isinstance(node, ast.If | ast.Try):
                self._add(module, node.body, owner)

    def made_of(self, start: tuple[str, str, str]) -> list[tuple[At, str]]:
        """The constructor that makes the argument from the path, if it is a class of ours."""
        module, name, argument = start
        given = self.functions[module, name].args
        notes = [a.annotation for a in (*given.args, *given.kwonlyargs) if a.arg == argument]
        at = self.meant(module, ast.unparse(notes[0])) if notes and notes[0] else None
        made = self.method(*at, "__init__") if at else None
        return [(made, self.functions[made].args.args[1].arg)] if made else []

    def beside(self, at: At) -> list[At]:
        """The methods of a method's class."""
        owner = at[1].rpartition(".")[0]
        return [
            other for other in self.functions
            if other[0] == at[0] and other[1].rpartition(".")[0] == owner
        ]  # fmt: skip

    def attributes(self, at: At) -> set[str]:
        """The attributes that a function uses, as they are written."""
        nodes = ast.walk(self.functions[at])
        return {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}

    def meant(self, module: str, name: str, seen: int = 0) -> At | None:
        """The module and name of the function, class or module ("") that a name stands for."""
        if (module, name) in self.functions or (module, name) in self.classes:
            return module, name
        if home := self.sources[module].public.get(name):
            return self.meant(home, name, seen + 1)
        found = self.named[module].get(name)
        if found is None or found.module not in self.sources or seen > 5:
            return None
        if not found.name:
            return found.module, ""
        return self.meant(found.module, found.name, seen + 1)

    def method(self, module: str, owner: str, name: str, seen: int = 0) -> At | None:
        """The method of a class, or of the classes that it is made of."""
        if (module, f"{owner}.{name}") in self.functions:
            return module, f"{owner}.{name}"
        for base in self.classes.get((module, owner), ()) if seen < 5 else ():
            at = self.meant(module, ast.unparse(base).partition("[")[0])
            if at and (found := self.method(*at, name, seen + 1)):
                return found
        return None

    def called(self, module: str, function: str, call: ast.Call) -> At | None:
        """The function that a call calls."""
        what, owner = call.func, function.rpartition(".")[0]
        if isinstance(what, ast.Name):
            if what.id == "cls" and owner:
                return self.method(module, owner, "__init__")
            at = self.meant(module, f"{function}.{what.id}") or self.meant(module, what.id)
        elif isinstance(what, ast.Attribute):
            of = what.value
            if isinstance(of, ast.Name) and of.id in ("self", "cls") and owner:
                return self.method(module, owner, what.attr)
            if ast.unparse(of) == "super()":
                for base in self.classes.get((module, owner), ()):
                    at = self.meant(module, ast.unparse(base).partition("[")[0])
                    if at and (found := self.method(*at, what.attr)):
                        return found
                return None
            home = self.meant(module, of.id) if isinstance(of, ast.Name) else None
            if home and not home[1]:
                at = self.meant(home[0], what.attr)
            elif home and home in self.classes:
                return self.method(*home, what.attr)
            else:
                those = self.methods[what.attr]
                return those[0] if len(those) == 1 else None
        else:
            return None
        if at in self.classes:
            return self.method(*at, "__init__") or self.method(*at, "__new__")
        return at if at in self.functions else None


class _Body(ast.NodeVisitor):
    """One function: which of its calls pass the model on, and in which arguments."""

    def __init__(
        self, known: _Known, module: str, name: str, has: set[str], back: Mapping[At, set[int]]
    ) -> None:
        self.known, self.module, self.name, self.has = known, module, name, set(has)
        self.back = back  # of other functions
        self.handed: set[tuple[str, str, str]] = set()
        self.kept: set[str] = set()  # attributes of self
        self.returned: set[int] = set()  # positions in the tuple that it returns; -1: all of it

    def is_model(self, node: ast.AST | None) -> bool:
        """Whether an expression is the model's path, or has it as a member."""
        if isinstance(node, ast.Name):
            return node.id in self.has
        if isinstance(node, ast.Attribute):
            return ast.unparse(node) in self.has
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(map(self.is_model, node.elts))
        if isinstance(node, ast.Starred | ast.Subscript | ast.NamedExpr):
            return self.is_model(node.value)
        if isinstance(node, ast.IfExp):
            return self.is_model(node.body) or self.is_model(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(map(self.is_model, node.values))
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            return self.is_model(node.elt)
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else (
                node.func.id if isinstance(node.func, ast.Name) else "")  # fmt: skip
            of = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            if called in _SAME:
                return any(map(self.is_model, [*node.args, *of]))
            return -1 in self.positions(node)
        return False

    def positions(self, node: ast.AST | None) -> set[int]:
        """Where the model is in the tuple that a call returns; -1: it is the result."""
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "enter_context":
            return self.positions(node.args[0])
        if not isinstance(node, ast.Call) or not any(map(self.is_model, node.args)):
            return set()
        return self.back.get(self.known.called(self.module, self.name, node) or ("", ""), set())

    def assign(self, target: ast.AST, value: ast.AST | None) -> None:
        """Notes what an assignment gives its target."""
        if isinstance(target, ast.Tuple):
            of = value.elts if isinstance(value, ast.Tuple) else []
            at = {i for i, one in enumerate(of) if self.is_model(one)} | self.positions(value)
            for i in at & {*range(len(target.elts))}:
                self.give(target.elts[i])
        elif self.is_model(value):
            self.give(target)

    def give(self, target: ast.AST) -> None:
        """Notes that a target of an assignment now has the model."""
        if isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self.give(one)
        elif isinstance(target, ast.Name | ast.Attribute):
            text = ast.unparse(target)
            self.has.add(text)
            if text.startswith("self."):
                self.kept.add(text)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.assign(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign | ast.NamedExpr) -> None:
        self.assign(node.target, node.value)
        self.generic_visit(node)

    visit_NamedExpr = visit_AnnAssign

    def visit_withitem(self, node: ast.withitem) -> None:
        if node.optional_vars is not None:
            self.assign(node.optional_vars, node.context_expr)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return | ast.Yield) -> None:
        if isinstance(node.value, ast.Tuple):
            self.returned |= {i for i, one in enumerate(node.value.elts) if self.is_model(one)}
        elif self.is_model(node.value):
            self.returned.add(-1)
        self.generic_visit(node)

    visit_Yield = visit_Return

    def visit_For(self, node: ast.For) -> None:
        if self.is_model(node.iter):
            self.give(node.target)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if self.is_model(node.iter):
            self.give(node.target)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        at = self.known.called(self.module, self.name, node)
        args = list(node.args)
        if ast.unparse(node.func) in ("map", "partial", "functools.partial") and args:
            at = self.known.called(self.module, self.name, ast.Call(args.pop(0), [], []))
        if at is not None:
            self._hand(at, node, args)
        self.generic_visit(node)

    def _hand(self, at: At, node: ast.Call, args: list[ast.expr]) -> None:
        wanted = self.known.functions[at].args
        named = [a.arg for a in (*wanted.posonlyargs, *wanted.args)]
        if "." in at[1] and named[:1] in (["self"], ["cls"]):
            named = named[1:]
        for i, given in enumerate(args):
            if self.is_model(given):
                rest = wanted.vararg.arg if wanted.vararg else None
                if name := named[i] if i < len(named) else rest:
                    self.handed.add((*at, name))
        known = {*named, *(a.arg for a in wanted.kwonlyargs)}
        for keyword in node.keywords:
            if keyword.arg in known and self.is_model(keyword.value):
                self.handed.add((*at, str(keyword.arg)))


def places(package: Path = PACKAGE) -> list[Place]:
    """The functions that are handed the model, in order of their files."""
    known = _Known(package)
    has: dict[At, set[str]] = defaultdict(set)
    back: dict[At, set[int]] = {}
    size = (-1, -1)
    while size != (size := (sum(map(len, has.values())), sum(map(len, back.values())))):
        has[START[:2]].add(START[2])
        for at, argument in known.made_of(START):
            has[at].add(argument)
        for at in list(has):
            body = _Body(known, *at, has[at], back)
            for _ in range(2):  # a name may get the model behind its use, in a loop
                body.visit(known.functions[at])
            back[at] = body.returned
            for module, name, argument in body.handed:
                has[module, name].add(argument)
            own = (
                {f"self.{at[1].rpartition('.')[2]}"} if -1 in body.returned else set()
            )  # a property
            for other in (body.kept | own) and known.beside(at):  # the attributes that methods read
                if kept := (body.kept | own) & known.attributes(other):
                    has[other] |= kept
    return sorted(_place(known, *at) for at in has if at in known.functions)


def _place(known: _Known, module: str, name: str) -> Place:
    node = known.functions[module, name]
    returns = sum(isinstance(n, ast.Return) for n in ast.walk(node))
    return Place(module, name, known.files[module], node.lineno, returns)
