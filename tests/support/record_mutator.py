"""Damaged records: chunks that are whole by their checksums and say something else, and bytes."""

from __future__ import annotations

import json
import random
import struct
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from ggml_py.record import stream

from .own_records import recorded
from .plan_mutator import damaged_bytes, damaged_json

_NUMBERS = (0, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1)


@cache
def whole() -> tuple[stream.Chunk, ...]:
    """The chunks of a small record with computes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.ggrec"
        recorded(path, run=True)
        return tuple(stream.chunks(path.read_bytes(), []))


def written(chunks: list[tuple[str, int, int, bytes]]) -> bytes:
    """A record with these chunks (type, process, time, payload), each with a true checksum."""
    out = [stream.MAGIC]
    for type_, process, time, payload in chunks:
        fields = (b"GPCK", type_.encode()[:4].ljust(4), len(payload), process)
        crc = zlib.crc32(payload, zlib.crc32(struct.pack("<4s4sQIIq", *fields, 0, time)))
        out += [struct.pack("<4s4sQIIq", *fields, crc, time), payload]
    return b"".join(out)


def sections(parts: dict[str, bytes]) -> bytes:
    """A payload with these sections."""
    return b"".join(struct.pack("<8sQ", t.encode(), len(p)) + p for t, p in parts.items())


def mutant(seed: int) -> bytes:
    """The content of a damaged record."""
    rng = random.Random(seed)
    chunks = [(c.type, c.process, c.time, bytes(c.payload)) for c in whole()]
    for _ in range(rng.choice((1, 1, 2, 5))):
        i = rng.randrange(len(chunks)) if rng.random() < 0.8 else 0
        type_, process, time, payload = chunks[i]
        kind = rng.random()
        if kind < 0.1:
            del chunks[i]
        elif kind < 0.2:
            chunks.insert(rng.randrange(len(chunks) + 1), chunks[i])
        elif kind < 0.3:
            other = rng.choice(("head", "schd", "note", "plan", "seen", "allc", "runs", "what"))
            chunks[i] = (other, process, rng.choice((time, -1, 1 << 62)), payload)
        else:
            chunks[i] = (type_, process, time, _changed(rng, type_, payload))
        if not chunks:
            break
    content = written(chunks)
    return damaged_bytes(rng, content) if rng.random() < 0.15 else content


def _changed(rng: random.Random, type_: str, payload: bytes) -> bytes:
    if type_ in ("head", "schd", "note"):
        try:
            return json.dumps(damaged_json(rng, json.loads(payload))).encode()
        except ValueError:
            return payload
    try:
        parts = {t: bytes(p) for t, p in stream.Chunk(type_, 0, 0, 0, payload).sections().items()}
    except ValueError:
        return payload
    if not parts:
        return b"x"
    tag = rng.choice(list(parts))
    kind, part = rng.random(), bytearray(parts[tag])
    if kind < 0.1:
        del parts[tag]
    elif kind < 0.2:
        parts[tag] = bytes(part[: rng.randrange(len(part) + 1)])
    elif kind < 0.3:
        parts[tag] = parts[rng.choice(list(parts))]
    elif part:
        size = rng.choice((1, 4, 4, 8))
        at = rng.randrange(len(part)) // size * size
        value: Any = rng.choice(_NUMBERS) % (1 << 8 * size)
        part[at : at + size] = value.to_bytes(size, "little")
        parts[tag] = bytes(part)
    if rng.random() < 0.05:
        return sections(parts)[:-1] + struct.pack("<8sQ", b"long", 1 << 40)
    return sections(parts)
