"""How a plan was made: model, flags, graph, devices, release, date.

The fields of `Provenance` are the only list of these facts. Files, pages, snapshots, `diff` and the
published schema loop over it (`FACTS`). A fact that nobody knows is None, never a default.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, get_args, get_type_hints

from ..files.secrets import hidden
from ..typed import typed
from .fields import Count
from .units import format_bytes


class DeviceMade(NamedTuple):
    """A device that a plan was made for. null: not known."""

    name: str
    type: str | None = None  # "GPU", "CPU"
    description: str | None = None  # the hardware's name; of a simulated card the card's
    simulated: bool | None = None
    # The profile that answers for it: "rtx4090". null for real devices, too.
    card: str | None = None
    cut_from: str | None = None  # the source or the record that the profile's answers are from
    # All that upstream's functions were given.
    properties: tuple[tuple[str, str], ...] | None = None
    changed: tuple[tuple[str, str], ...] | None = None  # those that are not the card's own
    memory_total: Count | None = None  # bytes
    memory_free: Count | None = None  # bytes, when the plan was made
    max_size: Count | None = None  # bytes of the largest buffer; 0: no limit


# Of a device: what `diff` compares, in this order. A card stands for the facts in `_OF_CARD`.
_COMPARED = {
    "card": "card", "description": "name of the hardware", "properties": "properties",
    "memory_total": "memory", "max_size": "largest buffer",
}  # fmt: skip
_OF_CARD = ("description", "properties")
_BYTES = ("memory_total", "max_size")


def _fact(said: str, *, on_page: bool = False, compared: bool = True, later: bool = False) -> Any:
    """A field: its name in texts, whether snapshots have it, whether `diff` compares it, and
    whether files of its schema may lack it."""
    about = {"said": said, "on_page": on_page, "compared": compared, "later": later}
    return field(default=None, metadata=about)


@dataclass(frozen=True)
class Provenance:
    """How a plan was made. null: not known."""

    model: str | None = _fact("model", on_page=True)  # the file's name
    architecture: str | None = _fact("architecture", on_page=True)
    # The type of most weights, by their bytes.
    quantisation: str | None = _fact("quantisation", on_page=True)
    model_bytes: int | None = _fact("bytes of weights")
    header: str | None = _fact("SHA-256 of the model's header")
    program: str | None = _fact("program", on_page=True)  # whose command line or defaults it has
    # As on a command line of llama.cpp, without the model; of a recorded program as they were.
    flags: tuple[str, ...] | None = _fact("flags", on_page=True)
    n_ctx: int | None = _fact("context", on_page=True)  # tokens that all sequences together have
    n_tokens: int | None = _fact("tokens", on_page=True)  # of all sequences in the batch
    n_past: int | None = _fact("tokens before", on_page=True)  # in the cache of each sequence
    n_seqs: int | None = _fact("sequences", on_page=True)
    devices: tuple[DeviceMade, ...] | None = _fact("devices", on_page=True)
    processor: str | None = _fact("processor")  # of the machine that planned
    package: str | None = _fact("package of ggml")  # where its source is from, with the version
    source: str | None = _fact("SHA-256 of ggml's source")
    date: str | None = _fact("date", compared=False)  # ISO 8601, UTC
    # Names in texts of the facts that follow from the graph's tensors; nobody gave them.
    inferred: tuple[str, ...] | None = _fact("inferred", on_page=True, compared=False, later=True)

    def __post_init__(self) -> None:
        """Plans are shown to others, so their flags have no secrets."""
        if type(self.flags) is tuple and all(type(word) is str for word in self.flags):
            object.__setattr__(self, "flags", hidden(self.flags))  # it is frozen

    def but(self, **facts: Any) -> Provenance:
        """The same with other facts."""
        return replace(self, **facts)

    @property
    def known(self) -> bool:
        """Whether any fact is known."""
        return self != UNKNOWN

    @property
    def nameless(self) -> Provenance:
        """The same without what tells whose model it is: names, flags and hash."""
        return self.but(model=None, header=None, program=None, flags=None)

    @typed
    def device(self, name: str) -> DeviceMade | None:
        """The device of that name; None if it is not known."""
        return next((d for d in self.devices or () if d.name == name), None)

    def rows(self) -> list[tuple[str, str]]:
        """Each known fact's name and text."""
        return [
            (fact.said, _text(fact.name, value) + self._mark(fact.said))
            for fact, value in self._known() if fact.name != _INFERRED
        ]  # fmt: skip

    def _mark(self, said: str) -> str:
        return " (inferred)" if said in (self.inferred or ()) else ""

    @property
    def model_text(self) -> str:
        """The model in a few words: "m.gguf (llama, Q4_0, 1.5 GiB)"; "" if it is not known."""
        size = None if self.model_bytes is None else _text("model_bytes", self.model_bytes)
        about = ", ".join(word for word in (self.architecture, self.quantisation, size) if word)
        if self.model is None:
            return about
        return f"{self.model} ({about})" if about else self.model

    @property
    def text(self) -> str:
        """A line: model, flags, graph, devices, release and date, as far as they are known."""
        flags = None if self.flags is None else _text("flags", self.flags)
        command = " ".join(word for word in (self.program, flags) if word)
        counts = [
            f"{said} {value}{self._mark(said)}" for said, value in (
                ("tokens", self.n_tokens), ("after", self.n_past), ("sequences", self.n_seqs),
                ("context", self.n_ctx),
            ) if value is not None
        ]  # fmt: skip
        devices = ", ".join(map(_device_text, self.devices or ()))
        made = " ".join(word for word in (self.package, self.date) if word)
        parts = (self.model_text, command, ", ".join(counts), devices, made)
        return "; ".join(part for part in parts if part)

    @property
    def missing(self) -> list[str]:
        """The names of the facts that are not known. A program need not have asked for the plan."""
        needless = ("program", _INFERRED)
        return [f.said for f in FACTS if f.name not in needless and getattr(self, f.name) is None]

    @typed
    def differences(
        self, other: Provenance, names: Mapping[str, str]
    ) -> dict[str, tuple[str, str]]:
        """What differs in `other`, of the facts that both know, by their names in texts. `names`
        are other names of devices there."""
        found: dict[str, tuple[str, str]] = {}
        for fact in FACTS:
            mine, theirs = getattr(self, fact.name), getattr(other, fact.name)
            if not fact.compared or mine is None or theirs is None or mine == theirs:
                continue
            if fact.name == "devices":
                for device in mine:
                    there = other.device(names.get(device.name, device.name))
                    if there is not None:
                        found |= _device_differences(device, there)
            elif fact.name == "flags":
                found[fact.said] = _other_flags(mine, theirs), _other_flags(theirs, mine)
            else:
                found[fact.said] = _text(fact.name, mine), _text(fact.name, theirs)
        return found

    # --- on a snapshot's page

    def page_lines(self) -> list[tuple[str, str]]:
        """The facts that do not depend on the machine, for a page under version control: no date,
        no release, no memory. Of devices only the cards."""
        rows = [(fact, value) for fact, value in self._known() if fact.on_page]
        found = [
            (fact.said, _text(fact.name, value)) for fact, value in rows if fact.name != _CARDS
        ]
        return found + [(f"card of {name}", card) for name, card in self._page_cards()]

    @staticmethod
    @typed
    def from_page(lines: Mapping[str, str]) -> Provenance:
        """The facts in lines of `page_lines`. Raises ValueError for other lines."""
        facts: dict[str, Any] = {}
        devices = []
        for said, text in lines.items():
            fact = next((f for f in FACTS if f.said == said and f.on_page), None)
            if said.startswith("card of "):
                devices.append(_of_page(said.removeprefix("card of "), text))
            elif fact is None or fact.name == _CARDS:
                raise ValueError(f"'{said}' is not known")
            else:
                facts[fact.name] = _READ.get(fact.kind, str)(text)
        return Provenance(**facts, devices=tuple(devices) or None)

    def _page_cards(self) -> Iterator[tuple[str, str]]:
        for device in self.devices or ():
            if device.card is not None:
                changed = (f"{key}={value}" for key, value in device.changed or ())
                yield device.name, shlex.join([device.card, *changed])

    def _known(self) -> list[tuple[Fact, Any]]:
        found = [(fact, getattr(self, fact.name)) for fact in FACTS]
        return [(fact, value) for fact, value in found if value is not None]


_CARDS, _INFERRED = "devices", "inferred"
_FLAG = re.compile(r"--?[A-Za-z].*", re.S)
_HASHES, _SHOWN = ("header", "source"), 12  # letters of a hash that texts show
UNKNOWN = Provenance()


class Fact(NamedTuple):
    """A field of `Provenance`."""

    name: str
    said: str  # its name in texts
    kind: Any  # its type, without None
    on_page: bool
    compared: bool
    later: bool


def _facts() -> tuple[Fact, ...]:
    hints = get_type_hints(Provenance)
    return tuple(Fact(f.name, kind=get_args(hints[f.name])[0], **f.metadata)
                 for f in fields(Provenance))  # fmt: skip


FACTS = _facts()
_READ: Mapping[Any, Any] = {int: int, tuple[str, ...]: lambda text: tuple(shlex.split(text))}


def _text(name: str, value: Any) -> str:
    """A fact in words. `Provenance.from_page` reads those of a page back."""
    if name == _CARDS:
        return ", ".join(map(_device_text, value))
    if isinstance(value, tuple):
        return shlex.join(value)
    if name in _HASHES:
        return str(value)[:_SHOWN]
    return format_bytes(value) if name == "model_bytes" else str(value)


def _other_flags(words: tuple[str, ...], others: tuple[str, ...]) -> str:
    """The flags that the other command line lacks; all of them if only the order differs."""
    known = _grouped(others)
    groups = _grouped(words)
    if sorted(groups) == sorted(known):
        return shlex.join(words)
    return shlex.join(w for group in groups if group not in known for w in group) or "none"


def _grouped(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Each flag with its values."""
    groups: list[tuple[str, ...]] = []
    for word in words:
        if _FLAG.fullmatch(word) or not groups:
            groups.append((word,))
        else:
            groups[-1] += (word,)
    return groups


def _device_text(device: DeviceMade) -> str:
    about = [device.card or device.description or ""]
    about += [f"{key}={value}" for key, value in device.changed or ()]
    if device.memory_total:
        free = "" if device.memory_free is None else f"{format_bytes(device.memory_free)} free of "
        about.append(f"{free}{format_bytes(device.memory_total)}")
    if device.max_size:
        about.append(f"buffers up to {format_bytes(device.max_size)}")
    told = ", ".join(word for word in about if word)
    return f"{device.name} ({told})" if told else device.name


def _device_differences(a: DeviceMade, b: DeviceMade) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for name, said in _COMPARED.items():
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine is None or theirs is None or mine == theirs:
            continue
        if name in _OF_CARD and f"card of {b.name}" in found:
            continue
        if name == "properties":
            ours, others = dict(mine), dict(theirs)
            keys = [key for key in {**ours, **others} if ours.get(key) != others.get(key)]
            mine, theirs = (
                " ".join(f"{key}={side.get(key, 'unset')}" for key in keys)
                for side in (ours, others)
            )
        elif name in _BYTES:
            mine, theirs = (format_bytes(n) if n else "no limit" for n in (mine, theirs))
        found[f"{said} of {b.name}"] = mine, theirs
    return found


def _of_page(name: str, text: str) -> DeviceMade:
    card, *changed = shlex.split(text)
    pairs = []
    for one in changed:
        key, _sign, value = one.partition("=")
        pairs.append((key, value))
    return DeviceMade(name, card=card, changed=tuple(pairs))
