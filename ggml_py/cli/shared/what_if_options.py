"""The changes that `ggml-py plan --what-if` takes, and their meaning for `Plan.what_if`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...trace.promise import KINDS
from .named_tensor import name_or_number

if TYPE_CHECKING:
    from ...plan import Plan

FORMS = """\
\b
--what-if takes
  pin:NODE=BACKEND             compute NODE on BACKEND (none: remove its pin)
  move:'TENSORS'=BACKEND       put weights or caches there (or a buffer type)
  supports:BACKEND/OP=yes|no   whether BACKEND supports OP (or one node)
  profile:BACKEND=PROFILE      BACKEND has the ops of cuda, metal, a CSV file
  offload:BACKEND/OP=yes|no|N  whether it takes OP if a weight must be copied
                               (N: from N rows on)
  op_offload=on|off   parallel=on|off   drop=BACKEND   upstream=0.17.0
"""
_WORDS = {"yes": True, "on": True, "no": False, "off": False}
_KEYED = {kind: argument for argument, kind in KINDS.items()}


class Assumption(NamedTuple):
    """One change: an argument of `Plan.what_if`, the tensors or backend it is for, its value."""

    text: str
    argument: str
    key: str | tuple[str, str] | None
    value: Any


class ChangeType(click.ParamType):  # type: ignore[type-arg]
    """One change, as text."""

    name = "change"

    def convert(self, value: Any, param: Any, ctx: Any) -> Assumption:
        """The change; usage error for anything else."""
        return value if isinstance(value, Assumption) else self._parsed(value)

    def _parsed(self, text: str) -> Assumption:
        what, _, value = text.rpartition("=")
        kind, colon, key = what.partition(":")
        if not what or not value or (colon and not key):
            self.fail(f"{text!r}: expected WHAT=VALUE. {_FORMS}")
        if colon and kind in ("pin", "move"):
            gone = kind == "pin" and value == "none"
            return Assumption(text, _KEYED[kind], key, None if gone else value)
        if colon and kind == "profile":
            return Assumption(text, _KEYED[kind], key, value)
        if colon and kind in ("supports", "offload"):
            backend, _, op = key.partition("/")
            if not backend or not op:
                self.fail(f"{text!r}: expected {kind}:BACKEND/OP, like {kind}:gpu0/TOP_K")
            number = kind == "offload" and value.isdecimal() and int(value) > 0
            answer = int(value) if number else self._word(text, value)
            return Assumption(text, _KEYED[kind], (backend, op), answer)
        if what in ("op_offload", "parallel"):
            return Assumption(text, what, None, self._word(text, value))
        if what in ("drop", "upstream"):
            return Assumption(text, what, value if what == "drop" else None, value)
        return self.fail(f"{text!r}: '{kind if colon else what}' is not a change. {_FORMS}")

    def _word(self, text: str, value: str) -> bool:
        if value not in _WORDS:
            self.fail(f"{text!r}: expected {' or '.join(_WORDS)} after '='")
        return _WORDS[value]


_FORMS = (
    "Changes are pin:NODE=BACKEND, move:TENSORS=BACKEND, supports:BACKEND/OP=yes|no, "
    "profile:BACKEND=PROFILE, offload:BACKEND/OP=yes|no|N, op_offload=on|off, parallel=on|off, "
    "drop=BACKEND, upstream=VERSION"
)


def changed(
    plan: Plan,
    changes: Sequence[Assumption],
    of_model: Callable[[dict[str, Any]], Plan] | None = None,
) -> Plan:
    """The plan with the changes: from `of_model` if it is a model's, which takes arguments of
    `Model.what_if`, otherwise `plan.what_if`. Usage error if two change the same thing."""
    arguments: dict[str, Any] = {}
    for text, argument, key, value in changes:
        if argument == "drop":
            arguments.setdefault("drop", []).append(value)
        elif key is None:
            if argument in arguments:
                raise click.UsageError(f"--what-if {text}: {argument} is given twice")
            arguments[argument] = value
        else:
            given = arguments.setdefault(argument, {})
            which = _which(plan, key)
            if which in given and argument != "profiles":
                raise click.UsageError(f"--what-if {text}: this is given twice")
            given[which] = value
    if of_model is not None:
        return of_model(arguments)
    answers: dict[Any, bool] = {}  # from profiles; supports: for single nodes overrides them
    for backend, profile in arguments.pop("profiles", {}).items():
        from ...sim.named import load_profile

        answers |= load_profile(profile).answers(plan, str(backend))
    if not answers:
        return plan.what_if(**arguments)
    found = plan.what_if(**{**arguments, "supports": answers | arguments.get("supports", {})})
    # A profile is one change, not as many as the graph has nodes.
    texts = tuple(change.text for change in changes)
    return found.promised(plan.promise._replace(changes=(*plan.promise.changes, *texts)))


def _which(plan: Plan, key: str | tuple[str, str]) -> Any:
    if isinstance(key, tuple):
        return key[0], name_or_number(plan, key[1])
    return name_or_number(plan, key)
