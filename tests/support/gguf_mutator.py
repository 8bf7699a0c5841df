"""Makes invalid GGUF files. `mutant(seed)` always gives the same file for the same seed.

A file is a list of labelled fields (`length`, `arr_n`, `ne`, `offset`, …) that are independent of
each other, so any field can have a value that no writer would write. `whole` makes a valid file,
`parse` splits a file into fields, `KINDS` are the ways to damage it, by name.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import ggml_py as ggml

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
WIDTH = {U8: 1, I8: 1, U16: 2, I16: 2, U32: 4, I32: 4, F32: 4, BOOL: 1, U64: 8, I64: 8, F64: 8}
TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 24: (1, 1), 28: (1, 8)}  # block, bytes
HUGE = [
    2**16, 2**20, 2**24, 2**27, 2**30, 2**30 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33,
    2**40, 2**59, 2**60, 2**61 - 1, 2**62, 2**63 - 33, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 33,
    2**64 - 8, 2**64 - 1,
]  # fmt: skip
EDGES = [0, 1, 2, 3, 4, 5, 7, 8, 31, 32, 33, 63, 64, 65, 127, 255, 256, *HUGE]
Fields = list[list]  # of [label, bytes]
KEPT = 6 << 20  # resident bytes allowed beyond four times the file's size, for Python's caches


def number(value: int, width: int) -> bytes:
    """The low bytes of `value`, little-endian."""
    return (value % (1 << 8 * width)).to_bytes(width, "little")


@dataclass
class File:
    """The parts of a file. `hole` is the number of zero bytes that follow and are not stored."""

    head: Fields
    kvs: list[Fields] = field(default_factory=list)
    infos: list[Fields] = field(default_factory=list)
    data: bytes = b""
    align: int = 32
    hole: int = 0

    def set_counts(self) -> None:
        """Corrects the header's two counts."""
        self.head[2][1], self.head[3][1] = number(len(self.infos), 8), number(len(self.kvs), 8)

    def render(self) -> bytes:
        """The bytes of the file, without the hole."""
        groups = [self.head, *self.kvs, *self.infos]
        out = b"".join(value for group in groups for _label, value in group)
        return out + bytes(-len(out) % self.align) + self.data if self.infos else out

    def pick(self, rng: random.Random, label: str) -> list | None:
        """A random field with that label."""
        groups = [self.head, *self.kvs, *self.infos]
        found = [item for group in groups for item in group if item[0] == label]
        return rng.choice(found) if found else None


def string(value: bytes, label: str = "str") -> Fields:
    """A string: its length and its bytes."""
    return [[f"{label}_len", number(len(value), 8)], [label, value]]


def kv(key: bytes, type_: int, value: object, item: int | None = None) -> Fields:
    """A key-value pair. Numbers are given as bytes, arrays as lists of bytes."""
    fields = [*string(key, "key"), ["type", number(type_, 4)]]
    if type_ == STR:
        return [*fields, *string(value)]
    if type_ != ARR:
        return [*fields, ["value", value]]
    fields += [["arr_type", number(item, 4)], ["arr_n", number(len(value), 8)]]
    if item == STR:
        return fields + [part for one in value for part in string(one)]
    return [*fields, ["value", b"".join(value)]]


def info(name: bytes, ne: tuple[int, ...], type_: int, offset: int) -> Fields:
    """One tensor's entry."""
    dims = [["ne", number(n, 8)] for n in ne]
    head = [*string(name, "name"), ["n_dims", number(len(ne), 4)]]
    return [*head, *dims, ["ggml_type", number(type_, 4)], ["offset", number(offset, 8)]]


def header() -> Fields:
    """Magic, version and counts, which are 0."""
    return [["magic", b"GGUF"], ["version", number(3, 4)], ["n_tensors", bytes(8)],
            ["n_kv", bytes(8)]]  # fmt: skip


def whole(rng: random.Random) -> File:
    """A valid file with every type of value."""
    file = File(header())
    file.align = rng.choice([32, 32, 8, 64, 128])
    file.kvs = [
        kv(b"general.architecture", STR, b"llama"),
        kv(b"general.alignment", U32, number(file.align, 4)),
        kv(b"tokenizer.ggml.tokens", ARR, [b"t%d" % i for i in range(rng.randint(0, 40))], STR),
        kv(b"tokenizer.ggml.scores", ARR, [struct.pack("<f", i) for i in range(20)], F32),
    ]
    for type_, width in rng.sample(sorted(WIDTH.items()), 5):
        bits = bytes([rng.getrandbits(1)]) if type_ == BOOL else rng.randbytes(width)
        file.kvs.append(kv(b"one.%d" % type_, type_, bits))
        file.kvs.append(kv(b"many.%d" % type_, ARR, [bits] * rng.randint(0, 9), type_))
    offset = 0
    for i in range(rng.randint(0, 5)):
        type_ = rng.choice(sorted(TYPES))
        block, width = TYPES[type_]
        ne = (block * rng.randint(1, 4), *(rng.randint(1, 5) for _ in range(rng.randint(0, 3))))
        n = 1
        for extent in ne:
            n *= extent
        file.infos.append(info(b"blk.%d.weight" % i, ne, type_, offset))
        offset += n // block * width
        offset += -offset % file.align
    file.data = rng.randbytes(offset)
    file.set_counts()
    return file


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, label: str, n: int) -> list:
        value = self.data[self.at : self.at + n]
        if len(value) < n:
            raise ValueError(f"{label} at byte {self.at}: the file ends")
        self.at += n
        return [label, value]

    def string(self, label: str) -> Fields:
        length = self.take(f"{label}_len", 8)
        return [length, self.take(label, int.from_bytes(length[1], "little"))]


def parse(data: bytes) -> File:
    """Splits a valid file into fields. Raises ValueError if it is not valid."""
    c = _Cursor(data)
    file = File([c.take(*f) for f in (("magic", 4), ("version", 4), ("n_tensors", 8), ("n_kv", 8))])
    n_tensors, n_kv = (int.from_bytes(f[1], "little") for f in file.head[2:])
    for _ in range(n_kv):
        pair = [*c.string("key"), c.take("type", 4)]
        type_, n, array = int.from_bytes(pair[-1][1], "little"), 1, False
        if type_ == ARR:
            array = True
            pair += [c.take("arr_type", 4), c.take("arr_n", 8)]
            type_, n = (int.from_bytes(f[1], "little") for f in pair[-2:])
        if type_ == STR:
            pair += [part for _ in range(n) for part in c.string("str")]
        else:
            pair.append(c.take("value", n * WIDTH[type_]))
        if pair[1][1] == b"general.alignment" and not array:
            file.align = int.from_bytes(pair[-1][1], "little")
        file.kvs.append(pair)
    for _ in range(n_tensors):
        entry = [*c.string("name"), c.take("n_dims", 4)]
        entry += [c.take("ne", 8) for _ in range(int.from_bytes(entry[-1][1], "little"))]
        file.infos.append([*entry, c.take("ggml_type", 4), c.take("offset", 8)])
    if n_tensors:
        c.at += -c.at % file.align
        file.data = data[c.at :]
    return file


# --- the kinds of damage: each changes a `File`, or takes its bytes and returns others

Damage = Callable[[random.Random, File], "bytes | None"]
KINDS: dict[str, Damage] = {}


def kind(function: Damage) -> Damage:
    """Adds a kind of damage to `KINDS`."""
    KINDS[function.__name__] = function
    return function


def _lie(label: str, width: int, values: list[int]) -> None:
    def damage(rng: random.Random, file: File) -> None:
        target = file.pick(rng, label)
        if target is not None:
            target[1] = number(rng.choice(values), width)

    damage.__name__ = label
    kind(damage)


_lie("n_tensors", 8, EDGES)
_lie("n_kv", 8, EDGES)
_lie("key_len", 8, EDGES)
_lie("str_len", 8, EDGES)
_lie("name_len", 8, EDGES)
_lie("type", 4, [*range(16), 100, 255, 2**31 - 1, 2**31, 2**32 - 1])
_lie("arr_type", 4, [*range(16), 100, 255, 2**31 - 1, 2**31, 2**32 - 1])
_lie("arr_n", 8, EDGES)
_lie("n_dims", 4, [*range(8), 255, 2**31, 2**32 - 1])
_lie("ne", 8, [*EDGES, -1, -32, -(2**62)])
_lie("ggml_type", 4, [*range(48), 100, 1000, 2**31 - 1, 2**31, 2**32 - 1])
_lie("offset", 8, [*EDGES, 16, 96, 4096, -32])
_lie("version", 4, [0, 1, 2, 4, 5, 1000, 3 << 24, 2 << 24, 1 << 24, 0x30003, 2**32 - 1])
_lie("magic", 4, [0, 0x47475546, 0x46554748, 2**32 - 1])


@kind
def alignment(rng: random.Random, file: File) -> None:
    """An alignment that is not valid, has another type, or is missing."""
    values = [0, 1, 2, 3, 24, 31, 33, 2**16, 2**30, 2**31, 2**31 + 1, 2**32 - 1]
    for i, pair in enumerate(file.kvs):
        if pair[1][1] == b"general.alignment":
            type_ = rng.choice([U32] * 6 + [U64, I32, U8, F32])
            bits = number(rng.choice(values), WIDTH[type_])
            file.kvs[i] = kv(pair[1][1], type_, bits)


@kind
def overflowing_ne(rng: random.Random, file: File) -> None:
    """Extents whose product, in elements or bytes, overflows 64 bits or nearly does."""
    if file.infos:
        i = rng.randrange(len(file.infos))
        ne = tuple(rng.choice([0, 1, 2, 32, *HUGE]) for _ in range(rng.randint(1, 4)))
        file.infos[i] = info(b"blk.%d.weight" % i, ne, rng.choice(sorted(TYPES)), 0)


@kind
def nested_array(rng: random.Random, file: File) -> None:
    """Nested arrays, to some depth."""
    depth = rng.choice([1, 2, 3, 100])
    inner = number(ARR, 4) + number(1, 8)
    tail = number(U8, 4) + number(1, 8) + b"x"
    pair = [*string(b"nested", "key"), ["type", number(ARR, 4)], ["value", inner * depth + tail]]
    file.kvs.insert(rng.randint(0, len(file.kvs)), pair)
    file.set_counts()


@kind
def same_key(rng: random.Random, file: File) -> None:
    """A duplicate pair, sometimes with different bytes after a NUL in its key."""
    twin = [list(part) for part in rng.choice(file.kvs)]
    if rng.random() < 0.5:
        twin[:2] = string(twin[1][1] + b"\0" + rng.randbytes(2), "key")
    file.kvs.insert(rng.randint(0, len(file.kvs)), twin)
    file.set_counts()


@kind
def same_tensor(rng: random.Random, file: File) -> None:
    """A duplicate tensor (empty, so that offsets stay valid), sometimes different after a NUL."""
    if file.infos:
        name = file.infos[0][1][1] + rng.choice([b"", b"\0", b"\0a"])
        file.infos.insert(0, info(name, (0,), 0, 0))
        file.set_counts()


@kind
def odd_name(rng: random.Random, file: File) -> None:
    """A key or tensor name that is empty, not text, or very long."""
    long = [b"n" * n for n in (63, 64, 70000)]
    name = rng.choice([b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", *long])
    target = rng.choice(file.kvs + file.infos)
    target[:2] = string(name, target[1][0])


@kind
def truncation(rng: random.Random, file: File) -> bytes:
    """Truncates the file."""
    data = file.render()
    return data[: rng.randrange(len(data))]


@kind
def bit_flips(rng: random.Random, file: File) -> bytes:
    """Flips a few bits, mostly in the header."""
    data = bytearray(file.render())
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


@kind
def splice(rng: random.Random, file: File) -> bytes:
    """Overwrites, inserts or removes a chunk of the file."""
    data = file.render()
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    b = min(b, a + 200)
    at = rng.randrange(len(data))
    over, out = data[:at] + data[a:b] + data[at + b - a :], data[:a] + data[b:]
    return rng.choice([over, out, data[:at] + data[a:b] + data[at:]])


@kind
def shuffled(rng: random.Random, file: File) -> None:
    """Lists tensors in another order than their offsets."""
    rng.shuffle(file.infos)


@kind
def big_endian(_rng: random.Random, file: File) -> None:
    """Reverses the byte order of every number."""
    for group in [file.head, *file.kvs, *file.infos]:
        for part in group:
            if part[0] not in ("magic", "key", "str", "name", "value"):
                part[1] = part[1][::-1]


@kind
def claims_the_data(rng: random.Random, file: File) -> None:
    """Makes the last pair's array (or string) span a long tail of zeros."""
    file.hole = rng.choice([2**20, 2**24, 2**25])
    item = rng.choice([STR, STR, U8, BOOL, F64])
    room = file.hole - rng.choice([0, 64, 4096])
    pair = kv(b"claims", ARR, [], item)
    pair[-1 if item == STR else -2][1] = number(room // WIDTH.get(item, 8), 8)
    if rng.random() < 0.3:
        pair = [*string(b"claims", "key"), ["type", number(STR, 4)], ["str_len", number(room, 8)]]
    file.kvs.append(pair)
    file.set_counts()
    file.infos, file.data = [], b""


@kind
def claims_entries(rng: random.Random, file: File) -> None:
    """Claims as many pairs or tensors as a long tail of zeros could hold."""
    file.hole = rng.choice([2**20, 2**24])
    file.head[rng.choice([2, 3])][1] = number(file.hole // rng.choice([13, 24, 32]), 8)


# Rare, because each costs milliseconds.
_RARE = {"claims_the_data", "claims_entries"}
_COMMON = [name for name in KINDS if name not in _RARE]


@dataclass(frozen=True)
class Mutant:
    """A damaged file: its bytes, the number of zeros after them, and the damage."""

    seed: int
    data: bytes
    hole: int
    kinds: tuple[str, ...]


def damaged(name: str, seed: int) -> Mutant:
    """A file with damage of only that kind."""
    rng = random.Random(seed)
    file = whole(rng)
    data = KINDS[name](rng, file)
    return Mutant(seed, file.render() if data is None else data, file.hole, (name,))


def mutant(seed: int) -> Mutant:
    """The mutant with that number. It has one to three kinds of damage."""
    rng = random.Random(seed)
    file = whole(rng)
    names = rng.sample(_COMMON, rng.choice([1, 1, 1, 2, 3]))
    if rng.random() < 0.02:
        names.insert(0, rng.choice(sorted(_RARE)))
    data: bytes | None = None
    for name in names:
        if data is not None:
            break  # its fields are gone
        data = KINDS[name](rng, file)
    return Mutant(seed, file.render() if data is None else data, file.hole, tuple(names))


# --- reading them


def write(item: Mutant, path: Path) -> int:
    """Writes the file, with its hole left sparse. Returns its size."""
    with path.open("wb") as out:
        out.write(item.data)
        out.truncate(len(item.data) + item.hole)
    return len(item.data) + item.hole


def read_all(path: Path) -> None:
    """Reads everything in the file."""
    with ggml.Gguf.open(path) as gguf:
        size, data = path.stat().st_size, None
        with path.open("rb") as file:
            _magic, n_tensors, n_kv = struct.unpack("<8sQQ", file.read(24))
        assert len(gguf.tensors) == n_tensors, f"{len(gguf.tensors)} of {n_tensors} tensors"
        assert len(gguf.metadata) == n_kv, f"{len(gguf.metadata)} of {n_kv} keys"
        repr(gguf.metadata)
        _ = gguf.version, gguf.alignment, gguf.data_offset
        for name, tensor in gguf.tensors.items():
            assert name == tensor.name and tensor.offset + tensor.nbytes <= size
            data = gguf.mmap() if data is None else data
            data[tensor.offset : tensor.offset + tensor.nbytes].sum()


def _peak(reset: bool = False) -> int:
    """Peak resident bytes since the last reset. (ru_maxrss would start at the parent's value.)"""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def outcome_of(item: Mutant, path: Path) -> str:
    """Whether the file is opened or refused. Raises MemoryError if reading it takes too much."""
    size = write(item, path)
    before = _peak(reset=True)
    outcome = "opened"
    try:
        read_all(path)
    except ggml.GgufError:
        outcome = "refused"
    grown = _peak() - before
    if grown > KEPT + 4 * size:
        raise MemoryError(f"{grown:,} bytes for a file of {size:,}")
    return outcome
