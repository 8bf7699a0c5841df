"""Upstream's profile as JSON. `profile.join` finds the nodes of a plan that its records are about.

The profile is that of a proposal which is not in upstream: llama.cpp's pull request #21160 (open in
August 2026), in which `--profile --profile-output FILE.json` or GGML_PROFILE=FILE.json has
`ggml_backend_sched_write_profiling_json` write one. The format is taken from that function, as
public forks of the branch have it: version 2 in zgiles/llama.cpp (202799b6), version 3 in
JingliangGao/llama.cpp-OpenCL (9c6a9758). The branch may change it, so other versions are refused:
also version 1, which nothing but its reader was found of (zgiles/llama.cpp, 3b80d46b). Its only
shape is "ne", the result's or the first source's, and so it does not tell a prompt's compute from
that of one token. No profile that a program wrote was at hand.

Required: "profiler": "ggml", "version", and "records", each with "type" (0 op, 1 copy), "name" (the
op, or copy_H2D, copy_D2H, copy_D2D), "backend_id", "split_id", "start_ns", "duration_ns" and
"bytes". "backends" has the "id" and "name" of each backend. Version 2 adds the sources' shapes,
"ne_src0" to "ne_src2" (zeros: not known). Version 3 has "tensor_name", "ne", "ne_src" for all
sources instead, and more that is not read here.

What the writer does that matters here: for each compute it writes the ops of backend 0 in their
order, then those of backend 1, and so on, then the copies; nothing says where a compute begins.
CUDA's records all start at 0. A copy's input is named in "extra". Names are not escaped.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..files.reading import read_file

OP, COPY = TYPES = ("op", "copy")
VERSIONS = (2, 3)


class ProfileRecord(NamedTuple):
    """One op or copy of one compute."""

    type: str  # "op" or "copy"
    name: str  # ggml's name of the op, or the copy's direction
    backend_id: int  # index into the scheduler's backends; a copy's: where it goes
    split_id: int
    start_ns: int  # of a clock that begins anywhere; 0 from CUDA
    duration_ns: int
    bytes: int  # of the op's result, or copied
    tensor: str  # the node's name, or the copied tensor's; "" if it is not given
    extra: str  # the name of a fusion; "" if there is none
    ne: tuple[int, ...]  # of the result; () if it is not known
    ne_src: tuple[tuple[int, ...], ...]  # of each source; () for one that is not known


@dataclass(frozen=True)
class UpstreamProfile:
    """A profile as it was written."""

    version: int
    backends: tuple[str, ...]  # by id; () if the file does not list them
    records: tuple[ProfileRecord, ...]


def read_profile(path: str | os.PathLike[str]) -> UpstreamProfile:
    """Reads a profile. Raises ValueError with what is wrong and where if the file is none, or of an
    unknown version, and OSError if it cannot be read."""
    text = read_file(path).decode("utf-8", "replace")  # names are cut after 63 bytes
    try:
        data = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not JSON: {error}. If a tensor's name has a quote or a backslash: the "
            "profiler writes names as they are"
        ) from None
    try:
        return _profile(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _profile(data: Any) -> UpstreamProfile:
    if not isinstance(data, dict) or data.get("profiler") != "ggml":
        raise ValueError('it is not a profile: expected an object with "profiler": "ggml"')
    version = data.get("version")
    if type(version) is not int or version not in VERSIONS:
        raise ValueError(f"version {version!r} of the profile is unknown: expected 2 or 3")
    records = data.get("records")
    if not isinstance(records, list):
        raise ValueError('"records" is not a list')
    return UpstreamProfile(
        version, _backends(data.get("backends", [])),
        tuple(_record(record, i, version) for i, record in enumerate(records)),
    )  # fmt: skip


def _backends(rows: Any) -> tuple[str, ...]:
    if not isinstance(rows, list):
        raise ValueError('"backends" is not a list')
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or row.get("id") != i or not isinstance(row.get("name"), str):
            raise ValueError(f'backends[{i}] is not an object with "id": {i} and a "name"')
    return tuple(row["name"] for row in rows)


def _record(row: Any, i: int, version: int) -> ProfileRecord:
    if not isinstance(row, dict):
        raise ValueError(f"records[{i}] is not an object")

    def number(key: str, least: int | None = 0) -> int:
        value = row.get(key)
        if type(value) is not int or (least is not None and value < least):
            raise ValueError(f'records[{i}]: "{key}" is {value!r}, expected a whole number')
        return value

    def text(key: str) -> str:
        value = row.get(key)
        if not isinstance(value, str | None):
            raise ValueError(f'records[{i}]: "{key}" is {value!r}, expected a text or null')
        return value or ""

    kind = number("type")
    if kind >= len(TYPES):
        raise ValueError(f'records[{i}]: "type" is {kind}, expected 0 (op) or 1 (copy)')
    if not (name := text("name")):
        raise ValueError(f'records[{i}] has no "name"')
    extra, tensor = text("extra"), text("tensor_name")
    if kind == 1:
        tensor, extra = tensor or extra, ""
    ne = _shape(row.get("ne", []), i)
    shapes = row.get("ne_src", [])
    if version == 2:
        shapes = [row.get(f"ne_src{s}", []) for s in range(3)]
    if not isinstance(shapes, list):
        raise ValueError(f'records[{i}]: "ne_src" is {shapes!r}, expected a list of shapes')
    return ProfileRecord(
        TYPES[kind], name, number("backend_id", None), number("split_id", None),
        number("start_ns"), number("duration_ns"), number("bytes"), tensor, extra, ne,
        tuple(_shape(shape, i) for shape in shapes),
    )  # fmt: skip


def _shape(value: Any, i: int) -> tuple[int, ...]:
    """A shape; () if all its numbers are 0, which stands for one that is not known."""
    ok = isinstance(value, list) and len(value) in (0, 4) and all(type(n) is int for n in value)
    if not ok:
        raise ValueError(f"records[{i}]: {value!r} is not a shape: expected four whole numbers")
    return tuple(value) if any(value) else ()
