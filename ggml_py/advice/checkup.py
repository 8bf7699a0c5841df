"""The first answer: why a model is slow, with the cost of each reason and the change that helps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..cost.cost import PREDICTED, SHEETS, Cost, estimator_of
from ..cost.datasheets import SheetEstimator
from ..memory.plan_memory import memory_of
from ..memory.shortfalls import MAPPED, Shortfall
from ..trace.answers.remedy import Remedy
from ..trace.answers.shares import headline
from ..trace.planned import Planned, format_bytes
from ..trace.provenance import Provenance
from ..trace.units import format_factor, format_time
from .all_findings import advice
from .finding import NOTE, SKIPPED, Finding, capitalised

MEASURED, BYTES = "measured", "bytes only"
_MOST_REASONS = 3
_LAYER = re.compile(r"blk\.(\d+)\..*weight")
_LEAST = 0.01  # part of a graph's time, from which on a reason is worth a line
_WRONG = 0.05  # the same, from which on something is wrong although no remedy is known
_UNTRIED = "may help (not tried: whether it fits)"
_LATE = "options that there was no time to try: `ggml-py plan` tries all"
_ALONE = 0.5  # part of the time
_FILE = "mapped file"  # the system may drop its pages
_PARTS = ("weights", _FILE, "cache", "compute", "outputs", "others")
_TOKENS = 128  # that are generated for each prompt, as llama-bench does


class Phase(NamedTuple):
    """One graph that was looked at."""

    what: str  # "a token after 4096"
    n_tokens: int | None  # that it evaluates; None: not known
    plan: Planned
    findings: Sequence[Finding] = ()
    cost: Cost | None = None  # None: the time of some of its nodes is not known
    measured: float | None = None  # seconds, the median of its computes

    @property
    def seconds(self) -> float | None:
        """Measured, or else predicted; None if neither is known."""
        return self.measured or (self.cost.seconds if self.cost else None)

    @property
    def known_by(self) -> str:
        """The kind of its figures."""
        if self.measured:
            return MEASURED
        return BYTES if self.cost is None else self.cost.known_by

    @property
    def rate(self) -> str:
        """Tokens per second, or the time of one graph; "" if its time is not known."""
        if not self.seconds:
            return ""
        each = self.tokens_per_second
        return (
            f"{format_time(self.seconds)} a compute"
            if each is None
            else f"{format_factor(each)} tokens/s"
        )

    @property
    def depth(self) -> str:
        """The tokens before a single one, on which its time depends: " after 4096"."""
        n_past = self.plan.provenance.n_past
        return f" after {n_past}" if n_past and self.n_tokens == 1 else ""

    @property
    def tokens_per_second(self) -> float | None:
        """None if its time or its tokens are not known."""
        return self.n_tokens / self.seconds if self.seconds and self.n_tokens else None


class Setback(NamedTuple):
    """Something that takes time or may fail, and the change that mends it."""

    headline: str
    text: str
    phase: str  # the graph that it is about
    seconds: float | None  # of that graph
    share: float | None  # of its time
    nbytes: int  # of each evaluation
    known_by: str
    remedy: Remedy | None  # planned with the model, and fits
    advice: str  # what may mend it, where nothing was tried
    rule: str  # "GP119"

    @property
    def cost(self) -> str:
        """In a few words: "180 of 246 ms (data sheets)"."""
        if self.seconds is None or self.share is None:
            if not self.nbytes:
                return ""
            return f"{format_bytes(self.nbytes)} in each evaluation ({BYTES})"
        return f"{format_time(self.seconds)}, {self.share:.0%} of {self.phase} ({self.known_by})"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        data = self._asdict()
        return {**data, "cost": self.cost, "remedy": self.remedy and self.remedy.to_dict()}


class DeviceMemory(NamedTuple):
    """Bytes of a device."""

    device: str
    needed: int
    mapped: int  # of the model's file, besides: the system may drop these pages
    free: int | None  # before the model is loaded; None: not known
    total: int | None
    largest: int | None = None  # buffer that it allocates at once; None: not known or no limit
    parts: tuple[tuple[str, int], ...] = ()  # of both: "weights", "mapped file", "cache", ...

    @property
    def from_disk(self) -> int:
        """Bytes of the mapped file without room in memory."""
        return 0 if self.free is None else min(max(self.needed + self.mapped - self.free, 0),
                                               self.mapped)  # fmt: skip

    def __str__(self) -> str:
        text = format_bytes(self.needed)
        if self.mapped:
            text += f", and {format_bytes(self.mapped)} of the mapped file"
        if self.free is None:
            return f"{text}; how much is free is not known"
        left = self.free - self.needed
        if left >= 0 and self.from_disk:
            return f"{text}, {format_bytes(self.from_disk)} more than is free"
        kept = f"{format_bytes(left)} stay free" if left >= 0 else f"{format_bytes(-left)} lack"
        return f"{text}; of {format_bytes(self.free)} {kept}"


@dataclass(frozen=True)
class Checkup:
    """The first answer about a model, a plan or a record."""

    verdict: str  # a sentence
    is_wrong: bool  # whether something should be changed
    phases: tuple[Phase, ...]
    reasons: tuple[Setback, ...]  # the costliest first
    memory: tuple[DeviceMemory, ...]
    not_known: tuple[str, ...]  # sentences
    remedy: Remedy | None = None  # the change of the verdict
    command: str = ""  # the command line of llama.cpp's program with it
    more: tuple[str, ...] = ()  # the next command lines of ggml-py
    made: tuple[str, ...] = ()  # of two: what differs in how they were made

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "verdict": self.verdict,
            "wrong": self.is_wrong,
            "graphs": [
                {"graph": p.what, "n_tokens": p.n_tokens, "seconds": p.seconds,
                 "tokens_per_second": p.tokens_per_second,
                 "known_by": p.known_by, "n_splits": p.plan.n_splits,
                 "copy_bytes": p.plan.copy_bytes}
                for p in self.phases
            ],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "memory": [device._asdict() for device in self.memory],
            "not_known": list(self.not_known),
            "remedy": self.remedy and self.remedy.to_dict(),
            "command": self.command or None,
            "more": list(self.more),
            "made": list(self.made),
        }  # fmt: skip


def checkup(
    phases: Sequence[Phase],
    lacks: Sequence[Shortfall] = (),
    best: Remedy | None = None,
    is_late: bool = False,
    more: Sequence[str] = (),
    is_tried: bool = True,
    model: str = "",
    tests: Sequence[str] = (),
) -> Checkup:
    """The answer about graphs of one model, the one that matters most first. `lacks` is missing
    memory. `best` is the change to recommend, of those that there was time to try (`is_late`). No
    change was tried (`is_tried`) without the model. `model` is its path as it was given, and
    `tests` are the words of llama-bench's command line about what it measures."""
    first = phases[0]
    reasons = [] if lacks else _reasons(phases)
    costly = [r for r in reasons if r.share is None or r.share >= _WRONG]
    on_host = ""
    if lacks:
        verdict = _too_large(lacks, first, best)
    elif best is not None or costly:
        reason = next(iter(costly or reasons), None)
        # The gain of a remedy is that of the first graph.
        about = [] if best or reason is None else [p for p in phases if p.what == reason.phase]
        verdict = _slow(about[0] if about else first, reason, best, is_late, is_tried)
    elif on_host := _on_host(first.plan):
        verdict = f"{on_host}; how quick it is is not known"
    else:
        verdict = _fine(first, is_late)
    memory = tuple(device_memory(first.plan))
    if paged := 0 if lacks else _from_disk(first.plan):
        lacking = format_bytes(paged)
        text = f"{lacking} of the file have no room in memory, so the disk is read each time"
        if best or costly or not first.rate:
            verdict += f". {text}"
        else:
            verdict = f"{text}: at most {first.rate} ({first.known_by})"
    shown = best.plan if best and best.checked else first.plan
    command = "" if lacks and best is None else _command(shown.provenance, model, tests)
    return Checkup(
        capitalised(verdict, first.plan) + ".", bool(lacks or best or costly or paged or on_host),
        () if lacks else tuple(phases), tuple(reasons[:_MOST_REASONS]), memory,
        (*_not_known(phases), *(_LATE,) * is_late), best, command, tuple(more),
    )  # fmt: skip


def verdict_of(
    plan: Planned,
    findings: Sequence[Finding],
    cost: Cost | None = None,
    measured: float | None = None,
    best: Remedy | None = None,
    is_tried: bool = False,
    lacks: Sequence[Shortfall] = (),
) -> str:
    """The answer about one plan, in a sentence; "" if that is all in its headline. `measured` are
    seconds. See `checkup`."""
    phase = phase_of(plan, findings, cost, measured)
    said = checkup([phase], lacks, best, is_tried=is_tried).verdict
    return "" if said.lower().startswith(headline(plan).lower()) else said


def verdict_by_bytes(plan: Planned) -> str:
    """The same without times; "" for a plan that the reference scheduler cannot plan."""
    try:
        return verdict_of(plan, advice(plan))
    except ValueError:
        return ""


def phase_of(
    plan: Planned,
    findings: Sequence[Finding],
    cost: Cost | None = None,
    measured: float | None = None,
    what: str = "",
    n_tokens: int | None = None,
) -> Phase:
    """A graph, named by its tokens unless `what` names it."""
    n = n_tokens or plan.provenance.n_tokens
    what = what or ("the graph" if n is None else "a token" if n == 1 else f"{n} tokens")
    return Phase(what, n, plan, findings, cost, measured)


def _command(made: Provenance, path: str, tests: Sequence[str]) -> str:
    """The command line that makes such plans, with nothing left to its --fit; "" if unknown."""
    if made.model is None or made.flags is None:
        return ""
    flags, program = made.flags, made.program or "llama-server"
    model = [] if {"-m", "--model"}.intersection(flags) else ["-m", path or made.model]
    has_fit = "bench" in program or {"-fit", "--fit"}.intersection(flags)
    return shlex.join([program, *model, *flags, *tests, *([] if has_fit else ["--fit", "off"])])


def _reasons(phases: Sequence[Phase]) -> list[Setback]:
    """The findings of all graphs, each once, the costliest first."""
    found: dict[str, Setback] = {}
    for phase in phases:
        for finding in phase.findings:
            one = _reason(phase, finding)
            worth = one.share is None or one.share >= _LEAST
            if (finding.severity == NOTE and one.remedy is None) or not worth:
                continue
            kept = found.get(finding.id)
            if kept is None or (one.share or 0.0) > (kept.share or 0.0):
                found[finding.id] = one
    counts = {p.what: _TOKENS if p.n_tokens == 1 and phases[0].n_tokens == 1 else 1 for p in phases}
    known = [one for one in found.values() if one.cost]
    return sorted(
        known or found.values(),  # reasons without a cost only where there is no other
        key=lambda r: (
            r.phase != phases[0].what and counts[phases[0].what] == 1,
            -(r.seconds or 0.0) * counts[r.phase], -r.nbytes,
        ),
    )  # fmt: skip


def _reason(phase: Phase, finding: Finding) -> Setback:
    cost = phase.cost
    seconds = finding.seconds if cost is not None else None
    share = seconds / cost.seconds if cost is not None and seconds and cost.seconds else None
    by = SHEETS if finding.known_by != PREDICTED else phase.known_by
    headline = finding.headline or finding.title
    return Setback(
        headline, finding.text, phase.what, seconds, share, finding.bytes,
        PREDICTED if by == MEASURED else by, finding.remedy, _untried(finding), finding.id,
    )  # fmt: skip


def _untried(finding: Finding) -> str:
    if finding.tried:
        return ""
    flags = [option.flags for option in finding.options]
    return f"{flags[0]} {_UNTRIED}" if flags else finding.prose


def _too_large(lacks: Sequence[Shortfall], first: Phase, best: Remedy | None) -> str:
    whole = [one for one in lacks if one.kind == "memory"]
    verdict = "it does not fit: " + ", ".join(
        f"{one.device} lacks {format_bytes(one.missing)} of the {format_bytes(one.needed)} it needs"
        for one in whole
    ) if whole else lacks[0].verdict  # fmt: skip
    kind = f" ({first.known_by})" if best and best.seconds and first.cost else ""
    looks = "`ggml-py memory` looks for options that fit"
    return f"{verdict}; {f'{_with(first, best)}{kind}' if best else looks}"


def _slow(
    first: Phase, reason: Setback | None, best: Remedy | None, is_late: bool, is_tried: bool
) -> str:
    verdict = reason.headline if reason else _unequal(first.cost)
    if first.rate:
        verdict += f": {_about(first.plan)} {first.rate}{first.depth} ({first.known_by})"
    if best is not None:
        return f"{verdict}; {_with(first, best)}"
    untried = reason.advice if reason and reason.advice.endswith(_UNTRIED) else ""
    none = "nothing that was tried" if is_late else "no change was found that"
    if is_tried:
        return f"{verdict}; {untried or f'{none} is quicker and fits'}"
    may = untried.replace(_UNTRIED, "may help, and ")
    return f"{verdict}; {may}`ggml-py check MODEL` tries changes"


def _with(first: Phase, best: Remedy) -> str:
    """ "-ngl all fits and gives about 13" """
    if not best.checked:
        return f"{best.flags} {_UNTRIED}"
    paged = _from_disk(best.plan)
    from_disk = f"loads ({format_bytes(paged)} from disk each time)"
    fits = f"{best.flags} {from_disk if paged else 'fits'}"
    told = best.seconds and first.cost is not None and best.seconds[0] == first.cost.seconds
    if told and best.seconds and first.n_tokens:
        rate = format_factor(first.n_tokens / best.seconds[1])
        return f"{fits} and gives {_about(best.plan)} {rate} tokens/s"
    return fits


def _fine(first: Phase, is_late: bool) -> str:
    if not first.rate:
        if first.plan.capture.source == "scheduler":
            return "nothing to change was found in the plan; how quick it is is not known"
        return f"{headline(first.plan)}: what takes time is not known from a log"
    none = "nothing that was tried is quicker" if is_late else "nothing to change was found"
    verdict = f"{none}: {_about(first.plan)} {first.rate}{first.depth} ({first.known_by})"
    if first.cost is None:
        return verdict
    spent = _spent(first.cost)
    busiest, whole = max(spent, key=lambda name: spent[name]), sum(spent.values())
    share = spent[busiest] / whole
    if share < _ALONE and first.cost.seconds > _ALONE * whole:
        return f"{verdict}; {len(spent)} backends compute one after the other"
    return f"{verdict}, {share:.0%} of the time on {busiest}"


def _unequal(cost: Cost | None) -> str:
    """Why another way is quicker although no rule found a reason: a device that others wait for."""
    spent = {} if cost is None else _spent(cost)
    busiest, whole = max(spent, key=lambda name: spent[name], default=""), sum(spent.values())
    if cost is None or len(spent) < 2 or not whole:
        return "another way is quicker"
    return f"{busiest} takes {spent[busiest] / whole:.0%} of the time"


def _spent(cost: Cost) -> dict[str, float]:
    """Seconds by backend."""
    spent: dict[str, float] = {}
    for split in cost.splits:
        spent[split.backend] = spent.get(split.backend, 0.0) + split.seconds
    return spent


def _on_host(plan: Planned) -> str:
    """How many layers of a log have weights on the CPU beside other devices; "" for other plans.
    A log has no sizes that findings could compare."""
    if plan.capture.source == "scheduler" or len(plan.backends) < 2:
        return ""
    layers: dict[str, set[str | None]] = {}
    for leaf in plan.leafs:
        if (found := _LAYER.match(leaf.name)) and leaf.backend is not None:
            layers.setdefault(found[1], set()).add(leaf.backend)
    n = len([on for on in layers.values() if plan.backends[-1].name in on])
    are = "is" if n == 1 else "are"
    return f"at least {n} of {len(layers)} layers {are} read from host memory" if n else ""


def _about(plan: Planned) -> str:
    """In front of a predicted speed, which assumes that nothing is read from disk."""
    return "at most" if _from_disk(plan) else "about"


def _from_disk(plan: Planned) -> int:
    return sum(device.from_disk for device in device_memory(plan))


def device_memory(plan: Planned) -> Iterator[DeviceMemory]:
    """The need and the free memory of each device: for the plan's model, or else for the graph
    alone. A log has none."""
    known: Mapping[str, Any] = {d.name: d for d in plan.provenance.devices or ()}
    needs = _of_model(plan) or _of_graph(plan)
    order = [b.device for b in plan.backends]
    for device in sorted(needs, key=lambda name: order.index(name) if name in order else -1):
        made: Any = known.get(device)
        total, parts = made and made.memory_total, needs[device]
        mapped = parts.get(_FILE, 0)
        yield DeviceMemory(
            device, sum(parts.values()) - mapped, mapped, made.memory_free if total else None,
            total or None, (made and made.max_size) or None,
            tuple((what, n) for what, n in parts.items() if n),
        )  # fmt: skip


def _of_model(plan: Planned) -> dict[str, dict[str, int]]:
    """Bytes of a model's context by device and kind."""
    found: dict[str, dict[str, int]] = {}
    for row in plan.breakdown:
        parts = found.setdefault(row.device, dict.fromkeys(_PARTS, 0))
        is_file = row.buft.endswith(MAPPED)
        weights = min(row.weights, _read_from(plan, row.buft)) if is_file else row.weights
        sizes = {_FILE if is_file else "weights": weights, "cache": row.cache,
                 "compute": row.compute or 0, "outputs": row.outputs}  # fmt: skip
        for what, nbytes in sizes.items():
            parts[what] += nbytes
    return found


def _read_from(plan: Planned, buft: str) -> int:
    """Bytes of the leafs in a buffer type: a mapped file also has weights that were repacked, which
    nobody reads from it again."""
    capture = plan.capture
    names = [capture.bufts[buffer.buft].name for buffer in capture.buffers]
    leafs = (t for t in capture.tensors if t.op == "NONE" and t.view_src < 0 and t.buffer >= 0)
    return sum(t.nbytes for t in leafs if names[t.buffer] == buft)


def _of_graph(plan: Planned) -> dict[str, dict[str, int]]:
    """Bytes that a saved plan's graph uses, by device and kind; {} of a log."""
    if plan.capture.source != "scheduler":
        return {}
    memory = memory_of(plan)
    devices = {plan.capture.bufts[b.buft].name: b.device for b in reversed(plan.backends)}
    kinds = {"KV cache": "cache", "recurrent states": "cache"}
    sizes = [(held.buft, kinds.get(held.what, held.what), held.nbytes) for held in memory.held]
    sizes += [(buffer.name, "compute", buffer.size) for buffer in memory.buffers]
    found: dict[str, dict[str, int]] = {}
    for buft, what, nbytes in sizes:
        if (device := devices.get(buft)) is not None:
            parts = found.setdefault(device, dict.fromkeys(_PARTS, 0))
            parts[what] += nbytes
    return found


def _not_known(phases: Sequence[Phase]) -> Iterator[str]:
    costs = [phase.cost for phase in phases if phase.cost is not None]
    names = {name: None for cost in costs for name in _by_sheets(cost)}
    if names:
        are = "is" if len(names) == 1 else "are"
        yield f"how quick {', '.join(names)} really {are} (`ggml-py calibrate` there measures that)"
    said = (one for cost in costs for one in cost.assumed)
    yield from dict.fromkeys(s for s in said if s.partition(" was not measured")[0] not in names)
    for phase in phases:
        skipped = sum(one.text.count("GP") for one in phase.findings if one.id == SKIPPED)
        if skipped:
            yield f"times; {skipped} checks of advice were left out: a log lacks what they need"
        elif phase.cost is None and not phase.measured:
            yield (
                f"the time of {phase.what}: some of its devices have no data sheet here; "
                "sim:NAME,profile=rtx4090 has one"
            )
    if not any(phase.plan.breakdown for phase in phases):
        yield "memory outside of this graph"


def _by_sheets(cost: Cost) -> Iterator[str]:
    """The backends that compute and were not measured."""
    for b in cost.plan.backends:
        known = estimator_of(cost.machine, b.name, b.device)
        if isinstance(known, SheetEstimator) and any(s.backend == b.name for s in cost.splits):
            yield b.name
