"""The reference scheduler with one rule changed, for each change that its source allows: which of
them plans as an unknown release does?

A change negates a condition, drops a part of it or a statement, takes the next comparison, or goes
through a list from its end. It is made in the syntax tree of `trace/planning.py`.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from ..trace import planning
from ..trace.planning import Planning
from ..trace.record import Capture, Outcome
from ..trace.rules import RELEASES, Rules, rules_of

# Functions of the reference that decide, with their pass.
_PASSES = {
    "run": "passes", "reads_source": "pass 3 or 5", "pass_1_weights_and_inputs": "pass 1",
    "place_by_memory": "pass 1", "first_that_reads": "pass 1", "follow_weight": "pass 1",
    "is_host": "pass 1", "pass_2_expand": "pass 2", "sweep": "pass 2",
    "pass_3_upgrade": "pass 3", "place_by_sources": "pass 3", "has_place": "pass 3",
    "upgrade": "pass 3", "pass_4_rest": "pass 4", "pass_5_split": "pass 5",
    "reason_to_split": "pass 5", "copy_sources": "pass 5", "keep_copies": "pass 6",
}  # fmt: skip
_OTHER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class ChangedRule(NamedTuple):
    """The scheduler with one rule changed."""

    text: str  # a sentence
    planning: type[Planning]
    field: str = ""  # of `Rules`, with another release's value
    value: Any = None

    def decides(self, capture: Capture) -> Outcome | None:
        """The decisions for a capture; None if this scheduler cannot plan it."""
        planning = self.planning(capture, None)
        planning.rules = rules_of(capture.settings)
        if self.field:
            planning.rules = planning.rules._replace(**{self.field: self.value})
        try:
            return planning.run()
        except Exception:  # a changed rule may lead anywhere
            return None


def known_rules(now: Rules, texts: Any) -> list[ChangedRule]:
    """The rules of `now`, each with the value that another release has, or with an op fewer that
    does not follow its weights. `texts` makes a sentence of the field, and of both values."""
    found: dict[tuple[str, Any], ChangedRule] = {}
    for release in RELEASES:
        settings = _settings(release.ggml, release.label)
        for field, value in zip(Rules._fields, rules_of(settings), strict=True):
            found.setdefault((field, value), ChangedRule("", Planning, field, value))
    for op in sorted(now.ignore_weights):
        value = now.ignore_weights - {op}
        found.setdefault(
            ("ignore_weights", value), ChangedRule("", Planning, "ignore_weights", value)
        )
    return [
        one._replace(text=texts[field](getattr(now, field), value))
        for (field, value), one in found.items()
        if value != getattr(now, field)
    ]


def _settings(ggml: str, label: str) -> Any:
    from ..trace.record import Settings

    return Settings(ggml, f"{label}-0", True, 1, 0, 0, 0)


@cache
def changed_rules() -> tuple[ChangedRule, ...]:
    """All changes of the reference's own source."""
    lines, first = inspect.getsourcelines(Planning)
    (whole,) = ast.parse("".join(lines)).body
    assert isinstance(whole, ast.ClassDef)
    ast.increment_lineno(whole, first - 1)
    found = []
    for method in whole.body:
        if isinstance(method, ast.FunctionDef) and method.name in _PASSES:
            found += [_made(method.name, *one) for one in _changes(method)]
    return tuple(found)


class _Change(NamedTuple):
    tree: ast.FunctionDef
    line: int
    was: str
    now: str


def _made(name: str, tree: ast.FunctionDef, line: int, was: str, now: str) -> ChangedRule:
    tree.returns = None
    for argument in tree.args.args:
        argument.annotation = None
    module = ast.fix_missing_locations(ast.Module([tree], []))
    names: dict[str, Any] = {}
    exec(compile(module, planning.__file__, "exec"), vars(planning), names)
    text = (
        f"{_PASSES[name]}: as if the reference's {name} had `{now}` in place of `{was}` "
        f"(trace/planning.py:{line})"
    )
    return ChangedRule(text, type("Planning", (Planning,), {name: names[name]}))


def _changes(method: ast.FunctionDef) -> Iterator[_Change]:
    """A changed copy of the method for each place in it."""
    for i, node in enumerate(ast.walk(method)):
        for other in _others(node):
            tree = copy.deepcopy(method)
            place = list(ast.walk(tree))[i]
            new = other(place)
            tree = _Replaced(place, new).visit(tree)
            shown = " ".join(ast.unparse(new).split())
            was = " ".join(ast.unparse(node).split())
            if isinstance(new, ast.For):
                shown, was = (text.partition(":")[0] for text in (shown, was))
            yield _Change(
                tree, getattr(node, "lineno", 0), was, "nothing" if shown == "pass" else shown
            )


class _Replaced(ast.NodeTransformer):
    def __init__(self, place: ast.AST, new: ast.AST) -> None:
        self._place, self._new = place, new

    def visit(self, node: ast.AST) -> Any:
        """The new node in the old one's place."""
        return self._new if node is self._place else super().visit(node)


def _others(node: ast.AST) -> Iterator[Any]:
    """What makes another node of a node like this one."""
    if isinstance(node, (ast.If, ast.IfExp)) and not _notes(node):
        yield _with_test(lambda test: ast.UnaryOp(ast.Not(), test))
    elif isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            yield _without(i)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OTHER:
        yield _compared
    elif isinstance(node, ast.For):
        yield _backwards
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "all":
        yield _any
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield lambda _node: ast.Constant(0)
    elif (
        isinstance(node, (ast.Return, ast.Continue, ast.Break))
        or (isinstance(node, (ast.Assign, ast.AugAssign)) and not _notes(node))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _notes(node))
    ):
        yield lambda _node: ast.Pass()


def _notes(node: ast.AST) -> bool:
    """Whether it is only about `steps`, which say what was decided."""
    text = ast.unparse(node.test if isinstance(node, (ast.If, ast.IfExp)) else node)
    return "steps" in text or "self.note(" in text or ".stage" in text or "end_stage" in text


def _with_test(make: Any) -> Any:
    def change(node: Any) -> Any:
        new = copy.copy(node)
        new.test = make(node.test)
        return new

    return change


def _without(i: int) -> Any:
    def change(node: ast.BoolOp) -> ast.AST:
        rest = [value for k, value in enumerate(node.values) if k != i]
        return rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)

    return change


def _compared(node: ast.Compare) -> ast.Compare:
    return ast.Compare(node.left, [_OTHER[type(node.ops[0])]()], node.comparators)


def _backwards(node: ast.For) -> ast.For:
    new = copy.copy(node)
    whole = ast.Call(ast.Name("list", ast.Load()), [node.iter], [])
    new.iter = ast.Call(ast.Name("reversed", ast.Load()), [whole], [])
    return new


def _any(node: ast.Call) -> ast.Call:
    return ast.Call(ast.Name("any", ast.Load()), node.args, [])


def explaining(
    made: Sequence[tuple[Capture, object]], changes: Sequence[ChangedRule], decided: Any
) -> list[ChangedRule]:
    """Changes with which every capture in `made` gets its decisions, as `decided` compares them."""
    left = list(changes)
    for capture, target in made:
        left = [
            one for one in left
            if (outcome := one.decides(capture)) is not None and decided(outcome) == target
        ]  # fmt: skip
        if not left:
            break
    return left
