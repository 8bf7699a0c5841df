"""llama.cpp options that would help a plan, and the evidence for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..facts import Facts, override
from ..names import counted
from ..planned import format_bytes
from ..planning import CannotPlanError
from .shares import shares
from .what_if import what_if

if TYPE_CHECKING:
    from ..planned import Planned
    from .why_splits import WhySplits

# Fewer copied bytes alone justify a remedy if less than this fraction of them remains.
_WORTH = 0.9
_OFF = ("weight", "offload")  # reasons that moving the weight removes


@dataclass(frozen=True)
class Remedy:
    """Options, the plan that results from them, and the evidence for them."""

    flags: str  # as on llama.cpp's command line
    plan: Planned  # with them
    claim: str  # the gain, and the knowledge behind it
    room: str  # whether it fits: "fits, 1.2 GiB on gpu0 stay free", or "not checked: ..."
    known_by: str  # "machine", "data sheets" or "bytes"
    gain: float = 1.0  # how often it is as quick; by bytes, as few
    seconds: tuple[float, float] | None = None  # before and after; None: not known
    changes: dict[str, Any] = field(default_factory=dict)  # options of `models.load`
    instead: str = ""  # the given flags that it changes: "-ngl 60"

    @property
    def checked(self) -> bool:
        """Whether it was planned as llama.cpp would load it, and fits every device."""
        return "not checked" not in self.room

    def __str__(self) -> str:
        return f"{self.flags}: {self.claim}; {self.room}"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        after = self.plan
        return {
            "flags": self.flags, "claim": self.claim, "room": self.room, "checked": self.checked,
            "known_by": self.known_by, "gain": self.gain,
            "seconds": None if self.seconds is None else list(self.seconds),
            "n_splits": after.n_splits, "copy_bytes": after.copy_bytes,
        }  # fmt: skip


def is_better(before: Planned, after: Planned) -> bool:
    """Whether `after` has fewer splits or copies clearly fewer bytes, without more of the other and
    without more work for the backends that have no memory of their own."""
    fewer_splits = after.n_splits < before.n_splits
    fewer_bytes = after.copy_bytes < before.copy_bytes * _WORTH
    return (
        (fewer_splits or fewer_bytes)
        and after.n_splits <= before.n_splits
        and after.copy_bytes <= before.copy_bytes
        and _host_flops(after) <= _host_flops(before)
    )


def _host_flops(plan: Planned) -> int:
    devices = {plan.backends[b].name for b in Facts(plan, 0).devices}
    return sum(share.flops for share in shares(plan) or () if share.backend not in devices)


def best(
    plan: Planned,
    candidates: Iterable[tuple[str, dict[Any, Any]]],
    make: Callable[[dict[Any, Any]], Planned | None],
    room: int | None = None,
) -> Remedy | None:
    """Tries each candidate (flags, changes) together with the earlier ones that helped. The remedy
    has all that helped; None if none did. Of several that change the same settings it has one: a
    later one only if it gives fewer splits. `make` returns the plan with changes, or None.
    Candidates that certainly have no `room` (bytes; None: not known) are left out."""
    found = plan
    helped: dict[str, dict[Any, Any]] = {}
    for flag, changes in candidates:
        others = {f: c for f, c in helped.items() if c.keys() != changes.keys()}
        merged = {k: v for one in (*others.values(), changes) for k, v in one.items()}
        if room is not None and _nbytes(plan, merged) > room:
            continue
        after = make(merged)
        if after is None or not is_better(found, after):
            continue
        if len(others) == len(helped) or after.n_splits < found.n_splits:
            found, helped = after, {**others, flag: changes}
    if not helped:
        return None
    moved = [w for changes in helped.values() for w in changes]
    return Remedy(" ".join(helped), found, _claim(plan, found), _not_checked(plan, moved), "bytes")


def _claim(before: Planned, after: Planned) -> str:
    splits = f"{before.n_splits} → {counted(after.n_splits, 'split')}"
    copied = f"{format_bytes(before.copy_bytes)} → {format_bytes(after.copy_bytes)} copied"
    return f"{splits}, {copied}"


def _not_checked(plan: Planned, moved: Iterable[int]) -> str:
    return f"not checked: whether {format_bytes(_nbytes(plan, moved))} more fit there"


def _nbytes(plan: Planned, moved: Iterable[int]) -> int:
    return sum(plan.capture.tensors[i].nbytes for i in moved)


def remedy_of(plan: Planned, why: WhySplits) -> Remedy | None:
    """The remedy for a plan whose model is not available: weights and the KV cache are moved to the
    memory of the main backend with `what_if`. Whether they fit there is not known."""
    facts = Facts(plan, 0)
    main = plan.capture.backend_index(why.main)
    if plan.capture.source != "scheduler" or main not in facts.devices:
        return None

    def make(moves: dict[str | int, str]) -> Planned | None:
        try:
            return what_if(plan, move_weights=moves)
        except CannotPlanError:
            return None

    return best(plan, _moves(facts, why, main), make, facts.room(main))


def _moves(facts: Facts, why: WhySplits, main: int) -> Iterator[tuple[str, dict[str | int, str]]]:
    tensors = facts.capture.tensors
    weights = list(_weights_elsewhere(facts, why, main))
    if weights:
        flag = override(facts, [tensors[i] for i in weights], main)
        yield flag.flags, dict.fromkeys(weights, why.main)
    own = [t for t in tensors if t.view_src < 0 and t.buffer >= 0]
    caches = [t.id for t in own if facts.is_state(t) and not _readable(facts, t.buffer, main)]
    if caches:
        yield "-kvo", dict.fromkeys(caches, why.main)


def _weights_elsewhere(facts: Facts, why: WhySplits, main: int) -> Iterator[int]:
    """The weights that keep nodes off the main backend or are copied to it, for reasons that
    account for more than one split."""
    seen: set[int] = set()
    for reason in why.reasons:
        if reason.reason.partition(".")[0] not in _OFF or len(reason.splits) < 2:
            continue
        for node in reason.nodes:
            weight = facts.followed_weight(facts.capture.tensors[node])
            if weight and weight.id not in seen and not _readable(facts, weight.buffer, main):
                seen.add(weight.id)
                yield weight.id


def _readable(facts: Facts, buffer: int, b: int) -> bool:
    buft = facts.capture.buffers[buffer].buft
    return bool(facts.capture.bufts[buft].readers >> b & 1)
