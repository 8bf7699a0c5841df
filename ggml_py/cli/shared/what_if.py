"""The changes that `ggml-py plan --what-if` takes, and their meaning for `Plan.what_if`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .source import name_or_number

if TYPE_CHECKING:
    from ...plan import Plan

FORMS = """\
\b
--what-if takes
  pin:NODE=BACKEND              compute NODE on BACKEND (=none: remove its pin)
  move:'TENSORS'=BACKEND        put weights or the KV cache there (BACKEND or a buffer type)
  supports:BACKEND/OP=yes|no    whether BACKEND supports OP (an op, or one node)
  profile:BACKEND=PROFILE       give BACKEND the ops of a profile: cuda, metal, a CSV file
  offload:BACKEND/OP=yes|no|N   whether it takes OP if the weight must be copied (N: from N rows)
  op_offload=on|off   parallel=on|off   drop=BACKEND   upstream=0.17.0
"""
_WORDS = {"yes": True, "on": True, "no": False, "off": False}
_KEYED = {
    "pin": "pins", "move": "move_weights", "supports": "supports", "offload": "offload",
}  # fmt: skip


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
            return Assumption(text, "profile", key, value)
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


def changed(plan: Plan, changes: Sequence[Assumption]) -> Plan:
    """`plan.what_if` with the changes. Usage error if two change the same thing."""
    arguments: dict[str, Any] = {}
    answers: dict[Any, bool] = {}  # from profiles; supports: for single nodes overrides them
    for text, argument, key, value in changes:
        if argument == "drop":
            arguments.setdefault("drop", []).append(value)
        elif argument == "profile":
            from ...sim.named import load_profile

            answers |= load_profile(value).answers(plan, str(key))
        elif key is None:
            if argument in arguments:
                raise click.UsageError(f"--what-if {text}: {argument} is given twice")
            arguments[argument] = value
        else:
            given = arguments.setdefault(argument, {})
            which = _which(plan, key)
            if which in given:
                raise click.UsageError(f"--what-if {text}: this is given twice")
            given[which] = value
    if answers:
        arguments["supports"] = answers | arguments.get("supports", {})
    return plan.what_if(**arguments)


def as_texts(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments of `Plan.what_if`, written as changes."""
    texts = []
    kinds = {argument: kind for kind, argument in _KEYED.items()}
    for argument, value in arguments.items():
        if argument == "drop":
            texts += [f"drop={name}" for name in value]
        elif argument in kinds:
            for key, answer in value.items():
                which = "/".join(map(str, key)) if isinstance(key, tuple) else key
                texts.append(f"{kinds[argument]}:{which}={_as_text(answer)}")
        else:
            texts.append(f"{argument}={_as_text(value)}")
    return texts


def _as_text(value: str | bool | int | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _which(plan: Plan, key: str | tuple[str, str]) -> Any:
    if isinstance(key, tuple):
        return key[0], name_or_number(plan, key[1])
    return name_or_number(plan, key)
