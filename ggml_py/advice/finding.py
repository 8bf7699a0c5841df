"""A finding of `Plan.advice`, and the kinds of findings."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..trace.answers.remedy import Remedy
from ..trace.facts import Option
from ..trace.html import text_html
from ..trace.planned import Planned, PlanTensor, format_bytes
from ..trace.record import TensorRecord
from ..trace.units import AtLeast, format_ms, with_bounds

COST, RISK, NOTE = "cost", "risk", "note"
SKIPPED = "GP100"  # the finding that names the checks that a log cannot answer


@dataclass(frozen=True)
class Finding:
    """One thing in a plan that its owner may want to change.

    `severity`: a "cost" takes time in each evaluation, a "risk" may end in an error or in another
    plan than requested, a "note" is for information. `bytes` is how many bytes per evaluation the
    finding is about. `tensors` are its nodes or tensors, in the order of the graph or of the
    copies. `page` has more.
    """

    id: str
    severity: str
    title: str
    text: str
    prose: str  # what to do, without options of llama.cpp
    tensors: tuple[PlanTensor, ...]
    bytes: int
    # With a machine, predicted seconds of an evaluation that pass in its nodes and copies. They are
    # no savings, as the work takes its time elsewhere after a change. Of GP118 and GP122: the loss.
    seconds: float | None = None
    known_by: str = "predicted"  # or "by data sheets": what `seconds` rest on
    options: tuple[Option, ...] = ()
    tried: bool = False  # whether options were planned with the model
    remedy: Remedy | None = None  # the one of them that mends it and fits
    headline: str = ""  # the finding in a clause: "21 of 80 layers are read from host memory"

    @property
    def suggestion(self) -> str:
        """The change to make, with llama.cpp's options and whether they were checked."""
        if self.tried:
            found = self.remedy or "none of the options that were tried mends it and fits"
            return f"{self.prose} In llama.cpp: {found}.".lstrip()
        if not self.options:
            return self.prose
        flags = ", or ".join(option.flags for option in self.options)
        return f"{self.prose} In llama.cpp: {flags} (not checked: whether it fits).".lstrip()

    @property
    def page(self) -> str:
        """Path of its page in the repository."""
        return f"docs/advice/{self.id}.md"

    def _repr_html_(self) -> str:
        return text_html(str(self))

    def __repr__(self) -> str:
        return f"<Finding {self.id}, {self.severity}: {self.title}>"

    def __str__(self) -> str:
        """The title, the finding and the suggestion, in lines of at most 100 columns."""
        known = self.bytes or isinstance(self.bytes, AtLeast)
        cost = f", {format_bytes(self.bytes)} per evaluation" if known else ""
        if self.seconds is not None:
            cost += f", {format_ms(self.seconds)} {self.known_by}"
        return "\n".join(
            [
                f"{self.id} {self.title} ({self.severity}{cost})",
                *_lines(self.text, "    "),
                *_lines(self.suggestion, "  > "),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write; tensors by id and name. For a log "bytes" is a lower bound
        and "bytes_at_most" the upper one (None: unknown)."""
        data = {
            "id": self.id,
            "severity": self.severity,
            "title": self.title,
            "text": self.text,
            "suggestion": self.suggestion,
            "bytes": self.bytes,
            "page": self.page,
            "tensors": [{"id": t.id, "name": t.name} for t in self.tensors],
        }
        if self.seconds is not None:
            data["seconds"] = self.seconds
        bounded: dict[str, Any] = with_bounds(data)
        return bounded


class Findings(tuple[Finding, ...]):
    """The findings of a plan."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return "".join(map(Finding._repr_html_, self)) or text_html("nothing to advise")


def capitalised(text: str, plan: Planned) -> str:
    """The text with a capital, unless it begins with a device's name."""
    names = {name for b in plan.backends for name in (b.name, b.device)}
    names.update(device.name for device in plan.provenance.devices or ())
    return text if text.partition(" ")[0] in names else text[:1].upper() + text[1:]


def _lines(text: str, first: str) -> list[str]:
    return textwrap.wrap(
        text, 100, initial_indent=first, subsequent_indent="    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


class Observation(NamedTuple):
    """What a check yields: a finding without the fields that are the same for the whole check."""

    text: str
    prose: str
    tensors: Sequence[TensorRecord] = ()
    bytes: int = 0
    options: Sequence[Option] = ()
    seconds: float | None = None
    headline: str = ""  # "": the title of the check says it


class Check(NamedTuple):
    """One kind of finding."""

    id: str
    severity: str
    title: str
    run: Callable[[Any], Iterator[Observation]]  # of `Facts`, or of `Cost`
    # The kinds of plans that it works on, by `Capture.source`. A debug log does not say what the
    # backends support, where tensors were before planning, or how full the hash set is.
    sources: tuple[str, ...] = ("scheduler",)
    by_time: bool = False  # it looks at a predicted cost, and its seconds are a loss
