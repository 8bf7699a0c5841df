"""A machine as `ggml-py calibrate` measured it: its description, and samples for each device."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from ..files.bounds import MACHINE
from ..files.reading import parse_json, read_file
from ..files.writing import write_whole
from ..trace.fields import fields_of
from ..trace.record import collection_paused
from ..typed import typed
from .sample import SPLIT, Sample

KIND, VERSION = "ggml_py machine", 1
SIMULATED = "simulated"  # how the description of a simulated device begins
_MOST_NUMBER = 10**18  # in it


@dataclass(frozen=True)
class Described:
    """The machine and the library, when it was measured."""

    processor: str
    cores: int  # that the process could use
    cache: int  # bytes of the largest cache; 0 if the system does not say
    memory: int  # bytes
    system: str
    ggml: str  # version
    build: str  # key of the native build
    n_threads: int
    date: str  # ISO 8601, UTC
    seconds: float  # that measuring took
    load: tuple[float, float]  # other processes' part of the cores, before and meanwhile


@dataclass(frozen=True)
class MeasuredDevice:
    """One device and its samples."""

    name: str
    description: str
    type: str
    asynchronous: bool  # whether it computes after the call returned
    samples: tuple[Sample, ...]
    # Why samples are missing, if measuring ended early.
    incomplete: str = ""
    # Whether what it reads goes through the caches of this machine's processor: the CPU, what
    # computes in its memory (a simulated device does), and a server on this machine's CPU.
    shares_cache: bool = False

    @property
    def is_simulated(self) -> bool:
        """Whether the CPU computed for it (`sim_device`): its times say nothing about a card."""
        return self.description.startswith(SIMULATED)


@dataclass(frozen=True)
class Machine:
    """What a machine's devices take for the work that models give them.

    `Machine.load` reads the file that `ggml-py calibrate` wrote. `Plan.cost` takes it.
    """

    described: Described
    devices: tuple[MeasuredDevice, ...]
    # Sentences about what may be wrong with the measurement.
    doubts: tuple[str, ...] = ()
    # Cards in the place of devices that were not measured, by the devices' names: `with_cards`.
    cards: Mapping[str, str] = field(default_factory=dict)
    _derived: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        names = ", ".join(f"{d.name} ({len(d.samples)} samples)" for d in self.devices)
        return f"<Machine {self.described.processor}, {self.described.n_threads} threads: {names}>"

    @property
    def n_threads(self) -> int:
        """The threads that the CPU computed with."""
        return self.described.n_threads

    @typed
    def with_cards(self, cards: Mapping[str, str]) -> Machine:
        """The machine with named cards ("rtx4090"), by the names of devices that were simulated or
        not measured. Their times come from data sheets (`DATASHEETS`), with wide intervals. Raises
        ValueError for a card without a data sheet."""
        from .datasheets import DATASHEETS

        if unknown := sorted({card for card in cards.values() if card not in DATASHEETS}):
            known = ", ".join(DATASHEETS)
            raise ValueError(f"no data sheet of {', '.join(unknown)}: expected one of {known}")
        return replace(self, cards={**self.cards, **cards}, _derived={})

    @staticmethod
    @typed
    def of_sheets(cards: Mapping[str, str], n_threads: int = 1) -> Machine:
        """A machine that nobody measured: data sheets of the cards, by the devices' names, and a
        usual host's for the CPU. Its intervals are wide. Raises ValueError for a card without a
        data sheet."""
        from .datasheets import HOST

        described = Described("", 0, 0, 0, "", "", "", n_threads, "", 0.0, (0.0, 0.0))
        made = Machine(described, ()).with_cards(cards)
        return replace(made, cards={**dict.fromkeys(("CPU", "BLAS"), HOST), **made.cards})

    @property
    def is_measured(self) -> bool:
        """Whether any device was measured; otherwise all times are from data sheets."""
        return bool(self.devices)

    @typed
    def device(self, name: str) -> MeasuredDevice | None:
        """The device of that name; None if it was not measured."""
        return next((d for d in self.devices if d.name == name), None)

    @typed
    def doubts_about(self, devices: Iterable[str]) -> tuple[str, ...]:
        """The doubts about these devices and about the whole machine. A doubt about a device begins
        with the device's name. A server is known by its address in the backend's name
        ("RPC0[HOST:PORT]"): each process numbers servers anew."""
        names = {*devices}
        others = {
            device.name for device in self.devices
            if device.name not in names and not any(is_server(name, device) for name in names)
        }  # fmt: skip
        return tuple(doubt for doubt in self.doubts if doubt.partition(": ")[0] not in others)

    def stale(
        self,
        *,
        ggml: str | None = None,
        build: str | None = None,
        processor: str | None = None,
        n_threads: int | None = None,
        cards: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        """Sentences about differences between the measurement and its use: another release or
        build of ggml, processor, number of threads or card (`cards`: the descriptions of GPUs by
        their names). Arguments that are None are not compared."""
        was, found = self.described, list[str]()
        if not self.is_measured:
            return ()
        if ggml is not None and ggml != was.ggml:
            found.append(f"it was measured with ggml {was.ggml}, and this is {ggml}")
        elif build is not None and build != was.build:
            found.append(f"it was measured with build {was.build} of ggml, and this is {build}")
        if processor is not None and processor != was.processor:
            found.append(f"it was measured on {was.processor}, and this is {processor}")
        if n_threads is not None and n_threads != was.n_threads:
            found.append(f"it was measured with {_threads(was.n_threads)}, and {n_threads} compute")
        for device in self.devices:
            card = (cards or {}).get(device.name, device.description)
            if card != device.description and not device.is_simulated:
                found.append(f"{device.name} was {device.description}, and is {card} here")
        return tuple(found)

    # --- files

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        devices = [
            {**{f.name: getattr(d, f.name) for f in fields(d) if f.name != "samples"},
             "samples": [sample.to_dict() for sample in d.samples]}
            for d in self.devices
        ]  # fmt: skip
        described = asdict(self.described) | {"load": list(self.described.load)}
        return {
            "kind": KIND, "version": VERSION, "machine": described,
            "doubts": list(self.doubts), "devices": devices,
        }  # fmt: skip

    @typed
    def save(self, path: str | Path, force: bool = False) -> None:
        """Writes the file, completely or not at all. Raises FileExistsError unless `force`."""
        head = json.dumps({k: v for k, v in self.to_dict().items() if k != "devices"}, indent=1)
        devices = ",\n".join(map(_device_text, self.to_dict()["devices"]))
        text = f'{head.removesuffix(chr(10) + "}")},\n "devices": [\n{devices}\n ]\n}}\n'
        write_whole(path, text.encode(), force=force)

    @staticmethod
    @typed
    def load(path: str | Path) -> Machine:
        """Reads a file that `save` wrote. Raises OSError, and ValueError for anything else: another
        kind of file, a newer version, a damaged one."""
        content = read_file(path, MACHINE)
        try:
            with collection_paused():
                data = parse_json(content)
        except ValueError as error:
            raise ValueError(
                f"{path} is not a machine's file: expected one that `ggml-py calibrate -o FILE` "
                f"wrote ({error})"
            ) from None
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise ValueError(
                f"{path} is not a machine's file: expected one that `ggml-py calibrate -o FILE` "
                "wrote"
            )
        if data.get("version") != VERSION:
            raise ValueError(
                f"{path} has version {data.get('version')!r}, and this reads version {VERSION}: "
                "run `ggml-py calibrate` again"
            )
        try:
            return _read(data)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}. Run `ggml-py calibrate` again") from None


@typed
def is_server(backend: str, device: MeasuredDevice) -> bool:
    """Whether a backend of that name, "RPC0[HOST:PORT]", is the server that was measured."""
    return backend.startswith("RPC") and backend.endswith(f"[{device.description}]")


def _device_text(device: Mapping[str, Any]) -> str:
    """One sample a line: a file of some hundred lines, which can be compared."""
    rest = {name: value for name, value in device.items() if name != "samples"}
    samples = ",\n   ".join(json.dumps(sample) for sample in device["samples"])
    return f'  {json.dumps(rest)[:-1]}, "samples": [\n   {samples}\n  ]}}'


def _read(data: Mapping[str, Any]) -> Machine:
    rows = _items("devices", data.get("devices"))
    for i, row in enumerate(rows):
        if isinstance(row, dict) and "shares_cache" not in row:  # of an older version
            in_memory = row.get("type") in ("CPU", "ACCEL") or str(
                row.get("description")
            ).startswith(SIMULATED)
            rows[i] = row | {"shares_cache": in_memory}
    described = _value("machine", Described, data.get("machine"))
    if described.n_threads < 1:
        _fail("machine.n_threads", described.n_threads, "1 or more")
    devices = _value("devices", tuple[MeasuredDevice, ...], rows)
    for i, device in enumerate(devices):
        for j, sample in enumerate(device.samples):
            at = f"devices[{i}].samples[{j}].seconds"
            if not sample.seconds:
                _fail(at, [], "one number or more")
            if sample.bytes and not min(sample.seconds):
                _fail(at, list(sample.seconds), "numbers above 0, as it reads or writes bytes")
    older = (
        f"{row['name']}: an older version measured it, {why}: calibrate again"
        for row in data["devices"]
        if (why := _older(row, described.n_threads))
    )
    doubts = _value("doubts", tuple[str, ...], data.get("doubts"))
    return Machine(described, devices, (*doubts, *older))


def _fail(place: str, value: object, expected: str) -> NoReturn:
    text = repr(value)
    raise ValueError(f"{place} is {text[:80]}{'…' * (len(text) > 80)}, expected {expected}")


def _items(place: str, value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else _fail(place, value, "a list")


def _value(place: str, hint: Any, value: Any) -> Any:
    """The value in JSON data as one of this type; other keys of an object are ignored. Raises
    ValueError that names its place and what was expected there."""
    if hint in (int, float):
        # JSON has no integers of its own, and Python's true is one.
        fits = type(value) in (int, float) and 0 <= value < _MOST_NUMBER
        if not fits or (hint is int and value != int(value)):
            number = "a whole number" if hint is int else "a number"
            _fail(place, value, f"{number} from 0 to {_MOST_NUMBER:.0e}")
        return hint(value)
    if hint in (str, bool):
        if type(value) is not hint:
            _fail(place, value, "text" if hint is str else "true or false")
        return value
    if get_origin(hint) is tuple:
        items, hints = _items(place, value), get_args(hint)
        if hints[-1] is Ellipsis:
            hints = (hints[0],) * len(items)
        if len(items) != len(hints):
            _fail(place, value, f"{len(hints)} items")
        pairs = zip(hints, items, strict=True)
        return tuple(_value(f"{place}[{i}]", *pair) for i, pair in enumerate(pairs))
    if not isinstance(value, dict):
        _fail(place, value, "an object")
    names = [field.name for field in fields_of(hint)]
    if missing := [name for name in names if name not in value]:
        raise ValueError(f"{place} has no {', '.join(missing)}")
    return hint(**{f.name: _value(f"{place}.{f.name}", f.hint, value[f.name])
                   for f in fields_of(hint)})  # fmt: skip


def _older(device: Mapping[str, Any], n_threads: int) -> str:
    """What an older version measured in another way; "" of one that this version measured."""
    if "shares_cache" in device:
        # Splits have coordinates since; one that had no time for them says so itself.
        waits = any(s["key"] == SPLIT and s["at"] for s in device["samples"])
        served = str(device["name"]).startswith("RPC") and device["shares_cache"] and n_threads > 1
        lacks = served and not waits and "turns" not in str(device["incomplete"])
        return "without how long its splits wait for a core" if lacks else ""
    if str(device["name"]).startswith("RPC"):
        return "with messages up to twice as quick as a program's"
    beside = device["type"] == "ACCEL" or str(device["description"]).startswith(SIMULATED)
    return "with threads that took the CPU's cores" if beside and n_threads > 1 else ""


def _threads(n: int) -> str:
    return f"{n} thread" + "s" * (n != 1)
