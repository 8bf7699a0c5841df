"""Describes changes in ggml's terms, as `Variant`s."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import IntEnum
from typing import Any

from ..boundary.ffi import lib, text
from ..tensors.convert import type_of
from ..trace.answers.variant import Variant
from . import change as c
from .change import Change
from .rebuild import Replay


class Wording:
    """Describes changes to one node."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.state = replay.state

    def told(self, change: Change, answers: dict[int, bool] | None = None) -> Variant:
        """The variant for one change; `answers` are the device's answers to sizes."""
        if change.kind == "dimension":
            return self._told_size(change, answers or {})
        place, name = self._name(change)
        if change.kind == "contiguous":
            return variant("contiguous", place, name, f"{name} contiguous", "strided", "contiguous")
        if change.kind == "type":
            now = (dict(self.state.args)[change.target] if place is None
                   else self.state.sources[change.target].type)  # fmt: skip
            before, after = type_name(now), type_name(change.value)
        else:
            before, after = self._values(change)
        said = f"{name} {_shown(after)} instead of {_shown(before)}"
        return variant(change.kind, place, name, said, before, after)

    def _name(self, change: Change) -> tuple[int | None, str]:
        """The place in src and the name of the changed part."""
        if change.kind == "op_param":
            word = isinstance(change.target, int)
            return None, c.word_name(self.replay, change.target)[0] if word else change.target
        if isinstance(change.target, str):
            return None, "result"
        place = self.replay.node.places.index(change.target)
        return place, self.replay.name(place)

    def _values(self, change: Change) -> tuple[Any, Any]:
        if isinstance(change.target, str):
            now = dict(self.state.args)[change.target]
            if change.target == "mode":
                names = {0: "normal", **c.rope_modes()}
                return names.get(now, now), names.get(change.value, change.value)
            return (_plain(now), _plain(change.value))
        enum = c.word_name(self.replay, change.target)[1]
        now = self.state.words[change.target]
        if enum is not None and now in list(enum):
            return _plain(enum(now)), _plain(enum(change.value))
        return now, change.value

    def _told_size(self, change: Change, answers: dict[int, bool]) -> Variant:
        group, size = change.target, change.value
        now, step = c.size_of(self.state, group[0]), c.step_of(self.state, group)
        labels = [self._label(slot) for slot in group]
        first = group[0]
        rule = _rule(answers, step)
        names = f"{', '.join(labels[:-1])} and {labels[-1]}" if labels[1:] else labels[0]
        if rule:
            said = f"{names} {rule} (here {now})"
        else:
            said = f"{names} {size} instead of {now}"
            back = size + (step if size < now else -step)
            if answers.get(back) is False and back != now:
                said += f" (at {back} it is not)"
        good = sorted(s for s, yes in answers.items() if yes and s != size)
        return Variant(
            kind="dimension" if self._is_shape(first) else "op_param",
            source=None if isinstance(first, str) or first[0] < 0 else self._place(first[0]),
            name=first if isinstance(first, str) else self._owner(first[0]),
            dim=None if isinstance(first, str) else first[1],
            before=now,
            after=size,
            limit=size,
            rule=f"{labels[0]} {rule}" if rule else "",
            tied=tuple(labels[1:]),
            also=() if rule or len(good) > 12 else tuple(map(str, good)),
            parts=(),
            text=said,
        )

    def _is_shape(self, slot: c.Slot) -> bool:
        return not isinstance(slot, str) or slot in self.replay.recipe.sized

    def _place(self, index: int) -> int:
        return self.replay.node.places.index(index)

    def _owner(self, index: int) -> str:
        return "result" if index < 0 else self.replay.name(self._place(index))

    def _label(self, slot: c.Slot) -> str:
        if isinstance(slot, str):
            return f"result {slot}" if slot.startswith("ne") else slot
        alone = len(self.state.sources) == 1 and slot[0] >= 0
        return f"ne{slot[1]}" if alone else f"{self._owner(slot[0])} ne{slot[1]}"

    def together(
        self, changes: list[Change], answers: dict[Change, dict[int, bool]] | None = None
    ) -> Variant:
        """The variant for several changes, all of them needed."""
        parts = tuple(self.told(one, (answers or {}).get(one)) for one in changes)
        names = " and ".join(part.name for part in parts)
        if len({(p.kind, p.after) for p in parts}) == 1 and parts[0].kind == "type":
            before = " and ".join(dict.fromkeys(str(part.before) for part in parts))
            said = f"{names} {parts[0].after} instead of {before}"
        else:
            said = "; ".join(part.text for part in parts)
        return replace(variant("together", None, names, said), parts=parts)


def _rule(answers: dict[int, bool], step: int) -> str:
    """The rule that a device seems to have for a size, if all its answers agree with one."""
    good = [size for size, yes in answers.items() if yes]
    if not good:
        return ""
    factor = math.gcd(*good)
    bad = [size for size, yes in answers.items() if not yes and size % factor == 0]
    multiple = f"a multiple of {factor}" if factor > step and len(good) > 1 else ""
    if multiple and not bad:
        return multiple
    if not multiple:
        bad = [size for size, yes in answers.items() if not yes]
    joined = f"{multiple}, " if multiple else ""
    if bad and max(good) < min(bad):
        return f"{joined}≤ {max(good)}"
    if bad and max(bad) < min(good):
        return f"{joined}≥ {min(good)}"
    return ""


def type_name(type_: str) -> str:
    """ggml's name of a type: q4_K."""
    return text(lib.ggml_type_name(type_of(type_)))


def _plain(value: Any) -> Any:
    """The value for JSON: an enum member by its (last) name, inf as text."""
    if isinstance(value, IntEnum):
        return {int(m): name for name, m in type(value).__members__.items()}[value].lower()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def variant(
    kind: str, source: int | None, name: str, text: str, before: Any = None, after: Any = None
) -> Variant:
    """A variant other than a size."""
    return Variant(
        kind=kind, source=source, name=name, dim=None, before=before, after=after, limit=None,
        rule="", tied=(), also=(), parts=(), text=text,
    )  # fmt: skip
