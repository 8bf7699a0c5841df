"""How a recorded plan was made: what `ggml-py record` knew of the program when it started it, and
what the record itself says."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ..builds.processor import host
from ..errors import GgmlError
from ..export.json.values import from_json, to_json
from ..trace.provenance import FACTS, UNKNOWN, DeviceMade, Provenance

if TYPE_CHECKING:
    from ..trace.record import BackendRecord
    from .session import Process

_FLAGS = ("-m", "--model")
_VARIABLES = ("LLAMA_ARG_MODEL",)
_SUFFIXES = (".gguf", ".ggml")


def made_at_start(
    command: Sequence[str], variables: Mapping[str, str], devices: Sequence[DeviceMade] = ()
) -> dict[str, Any]:
    """Facts about a program before it is recorded, as JSON: this machine, its simulated `devices`,
    and the model in its command line."""
    made = Provenance(processor=host(), devices=tuple(devices))
    path = model_in(command) or next((variables[v] for v in _VARIABLES if v in variables), None)
    if path is not None:
        made = _with_model(made, path)
    facts: dict[str, Any] = to_json(made)
    return facts


def model_in(command: Sequence[str]) -> str | None:
    """The path of a model that a command line names; None if it names none."""
    for word, value in pairwise(command):
        if word in _FLAGS:
            return value
    for word in command[1:]:
        flag, _equals, value = word.rpartition("=")
        if value.lower().endswith(_SUFFIXES) and (not flag or flag in _FLAGS):
            return value
    return None


def _with_model(made: Provenance, path: str) -> Provenance:
    from ..gguf.reader import Gguf
    from ..scheduler.process_facts import described

    with contextlib.suppress(GgmlError, OSError), Gguf.open(path, header_only=True) as gguf:
        return described(gguf, made)
    return made.but(model=PurePath(path).name)


def made_by(process: Process) -> Provenance:
    """Facts about a recorded process. An older record has only the command line, which may name
    the model."""
    about = (process.head.get("about") or {}).get("made")
    try:
        made: Provenance = from_json(Provenance, about)
    except (KeyError, TypeError, AttributeError):
        made = UNKNOWN
    argv = process.argv
    if made.model is None and (path := model_in(argv)) is not None:
        made = made.but(model=PurePath(path).name)
    return made.but(program=process.program, flags=argv[1:] if argv else None)


def made_in(
    process: Process, scheduler: int, backends: Sequence[BackendRecord], n_tokens: int | None,
    n_ctx: int | None, time: int,
) -> Provenance:  # fmt: skip
    """Facts about a plan of a process. `time` is in ns since the epoch. Tokens and context follow
    from the graph: no program says them."""
    made = made_by(process)
    said = process.schedulers.get(scheduler, {}).get("backends", [])
    rows = {str(row.get("device")): row for row in said if isinstance(row, dict)}
    devices = tuple(
        made.device(b.device) or _device(b, rows.get(b.device, {}), made.devices is not None)
        for b in backends
    )
    date = datetime.fromtimestamp(time // 10**9, timezone.utc).isoformat() if time else None
    sizes = {"n_tokens": n_tokens, "n_ctx": n_ctx}
    inferred = tuple(f.said for f in FACTS if sizes.get(f.name) is not None) or None
    return made.but(devices=devices, date=date, inferred=inferred, **sizes)


def _device(backend: BackendRecord, row: Mapping[str, Any], known: bool) -> DeviceMade:
    """A device that the record describes. `known`: the process's simulated devices are known, and
    this is another."""
    total, said = row.get("memory"), row.get("description")
    return DeviceMade(
        backend.device,
        backend.device_type or None,
        said if isinstance(said, str) and said else None,
        False if known else None,
        memory_total=total if type(total) is int and total > 0 else None,
    )
