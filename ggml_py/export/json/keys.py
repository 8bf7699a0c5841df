"""The keys of a plan file, in their order: each once, with the part of a plan that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...trace.answers.excerpt import mark
from ...trace.answers.shares import DeviceShare, headline, shares
from ...trace.expert_cache import ExpertCache, expert_cache
from ...trace.fields import RecordField, fields_of
from ...trace.planned import Planned
from ...trace.record import Capture, Outcome
from ..snapshot_plan import unknown

# Schema 2 lacks the passes of leafs. 2 and 3 lack what backends made of the order of nodes. 2 to 4
# lack how the CPU computes. 2 to 5 lack how the plan was made.
OLDEST, SCHEMA = 2, 6
LATER = SCHEMA + 1  # since a version without a schema of its own: files may lack the key

PLANNERS = ("native", "reference", "debug log", "snapshot")


class FileKey(NamedTuple):
    """A key of a plan file."""

    name: str
    # The part of the plan that is written and read: "capture.pins". "": it follows from the rest.
    part: str = ""
    since: int = OLDEST  # the oldest schema whose files have it
    said: str = ""  # its description
    value: Callable[[Planned], Any] | None = None  # what is written, if it follows from the rest
    hint: Any = None  # its type

    @property
    def owner(self) -> str:
        """The part's owner: "capture", "outcome"; "" for the plan itself."""
        return self.part.rpartition(".")[0]

    @property
    def field(self) -> RecordField:
        """The field that it is."""
        name = self.part.rpartition(".")[2]
        return next(f for f in fields_of(_OWNERS[self.owner]) if f.name == name)

    @property
    def type(self) -> Any:
        """Its type, with `Annotated`."""
        return self.field.hint if self.part else self.hint

    def of(self, plan: Planned) -> Any:
        """The value in a plan."""
        if self.value is not None:
            return self.value(plan)
        owner = getattr(plan, self.owner) if self.owner else plan
        return getattr(owner, self.field.name)

    def is_in(self, data: dict[str, Any]) -> bool:
        """Whether a file's data has it, or must have it."""
        return self.name in data if self.since == LATER else self.since <= data["schema"]


_OWNERS: dict[str, Any] = {"": Planned, "capture": Capture, "outcome": Outcome}

KEYS = (
    FileKey("planner", "planner"),
    FileKey("source", "capture.source"),
    FileKey(
        "partial", "", LATER, "The part of the plan that a log shows; empty for a whole plan.",
        lambda plan: mark(plan.capture), str,
    ),
    FileKey(
        "may_be_cut", "capture.may_be_cut", LATER,
        "Whether the last line of the log may be cut off.",
    ),
    FileKey("printed", "capture.printed", LATER, "Of a log: the part of the plan that it shows."),
    FileKey("headline", value=headline, hint=str),
    FileKey(
        "unknown", "", LATER,
        "What a plan from a log or a snapshot does not contain, and what is assumed instead. A "
        "file without this key is older than the key.",
        unknown, tuple[str, ...],
    ),
    FileKey("promise", "promise", LATER),
    FileKey("provenance", "provenance", 6),
    FileKey(
        "memory", "breakdown", LATER,
        "Of the context that the plan was made for, if it is a model's.",
    ),
    FileKey("choices", "choices", LATER, "What llama.cpp decided before it planned."),
    FileKey(
        "expert_cache", "", LATER,
        "What llama.cpp's expert cache holds and may upload in an evaluation.",
        expert_cache, tuple[ExpertCache, ...],
    ),
    FileKey(
        "layout", "layout", LATER,
        "What the graph allocator decided; null if it is not known.",
    ),
    FileKey("n_splits", value=lambda plan: plan.n_splits, hint=int),
    FileKey("copy_bytes", value=lambda plan: plan.copy_bytes, hint=int),
    FileKey("shares", value=shares, hint=tuple[DeviceShare, ...] | None),
    FileKey("hash_set_used", "outcome.hash_set_used"),
    FileKey("settings", "capture.settings"),
    FileKey("backends", "capture.backends"),
    FileKey("bufts", "capture.bufts"),
    FileKey("buffers", "capture.buffers"),
    FileKey("leafs", "capture.leaf_ids"),
    FileKey("pins", "capture.pins", LATER),
    FileKey("dropped_pins", "capture.dropped_pins"),
    FileKey("split_capacities", "capture.split_capacities"),
    FileKey("left_backend", "capture.left_backend"),
    FileKey("optimizers", "capture.optimizers", 4),
    FileKey("optimized", "capture.optimized", 4),
    FileKey("cpu", "capture.cpu", 5),
    FileKey("compute_buffers", "capture.compute_buffers", LATER),
    FileKey("alloc_sizes", "capture.alloc_sizes", LATER),
    FileKey(
        "refusals", "capture.refusals", LATER,
        'Each "no" in supports that is not about the op: it is about the memory of sources (srcs: '
        "their bits), or not on record (-1); null if it is not known which.",
    ),
    FileKey("splits", "outcome.splits"),
)  # fmt: skip
PARTS = tuple(key for key in KEYS if key.part)  # that are read
