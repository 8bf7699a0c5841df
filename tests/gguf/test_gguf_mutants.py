"""Damaged GGUF files: thousands of mutants, every kind by its message, and that the fuzzer sees."""

import random
import struct
import sys

import gguf as official
import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.handle import LIVE
from ggml_py.gguf.header import HeaderCheck

from ..support import gguf_mutator
from ..support.gguf_mutator import (
    ARR,
    BOOL,
    F32,
    KINDS,
    STR,
    U8,
    U32,
    File,
    damaged,
    header,
    info,
    kv,
    mutant,
    number,
    outcome_of,
    parse,
    string,
    whole,
    write,
)
from ..support.gguf_mutator import read_all as read

watched = pytest.mark.skipif(sys.platform != "linux", reason="the watcher reads /proc")


def sound():
    """Two pairs, two tensors of 64 bytes each."""
    file = File(header())
    file.kvs = [kv(b"a", U32, number(7, 4)), kv(b"b", ARR, [b"x", b"yy"], STR)]
    file.infos = [info(b"t", (16,), 0, 0), info(b"u", (4, 4), 0, 64)]
    file.data = bytes(128)
    file.set_counts()
    return file


def change(group, i, label, value):
    """A damage: field `label` of pair or tensor `i` says `value`; None for the header."""

    def damage(file):
        fields = file.head if group == "head" else getattr(file, group)[i]
        target = next(part for part in fields if part[0] == label)
        target[1] = number(value, len(target[1]))

    return damage


def replace(group, *entries):
    """A damage: these pairs or tensors instead; the counts are true."""

    def damage(file):
        setattr(file, group, list(entries))
        file.set_counts()

    return damage


def head(label, value):
    return change("head", 0, label, value)


def align(value, type_=U32):
    return replace("kvs", kv(b"general.alignment", type_, number(value, 4)))


def tensors(*entries):
    return replace("infos", *entries)


def nested(file):
    file.kvs[0] = [*string(b"n", "key"), ["t", number(ARR, 4) * 2], ["n", number(1, 8)]]


def long_string(file):
    file.kvs[0] = [*string(b"s", "key"), ["t", number(STR, 4)], ["n", number(2**40, 8)]]


def big_endian(file):
    KINDS["big_endian"](None, file)


CASES = {
    "magic": (head("magic", 0x46554748), "invalid magic characters: 'HGUF', expected 'GGUF'"),
    "version 0": (head("version", 0), "bad GGUF version: 0"),
    "version 1": (head("version", 1), "GGUFv1 is no longer supported"),
    "version 9": (head("version", 9), "version 9 but .* up to version 3"),
    "big endian": (big_endian, "mismatch between the host and model endianness"),
    "tensors: too many": (head("n_tensors", 2**40), r"counts tensors: 1,099,511,627,776, expected"),
    "tensors: more than bytes": (head("n_tensors", 60), r"60 tensors, too many for the file's"),
    "tensors: negative": (head("n_tensors", -1), r"number of tensors is -1 but must be in"),
    "tensors: one more": (head("n_tensors", 3), "the length of the name of tensor 2|tensor ''"),
    "pairs: too many": (head("n_kv", 2**63 - 1), "counts keys: 9,223,372,036,854,775,807, exp"),
    "pairs: more than bytes": (head("n_kv", 60), r"counts 60 keys, too many for the file's \d+ b"),
    "pairs: negative": (head("n_kv", 2**63), "number of key value pairs is -9223372036854775808"),
    "key length": (change("kvs", 0, "key_len", 2**63 - 1), "length of key 0 at byte 24 is 9,223"),
    "key length past the end": (change("kvs", 0, "key_len", 9000), "key 0 takes 9,000 bytes from"),
    "key empty": (replace("kvs", kv(b"", U8, b"x")), "key 0 is empty"),
    "key with NUL": (replace("kvs", kv(b"a\0b", U8, b"x")), r"key 0 'a\\x00b' contains a NUL"),
    "key no text": (replace("kvs", kv(b"\xff", U8, b"x")), r"key 0 b'\\xff' is not UTF-8"),
    "key twice": (replace("kvs", kv(b"a", U8, b"x"), kv(b"a", U8, b"y")), "duplicate key 'a'"),
    "type": (change("kvs", 0, "type", 13), "key 'a' has invalid GGUF type 13"),
    "type of items": (change("kvs", 1, "arr_type", 99), "key 'b' has invalid GGUF type 99"),
    "nested": (nested, "the value of 'n' is an array of arrays"),
    "array length": (change("kvs", 1, "arr_n", 2**61), r"'b' takes 18,446,744,073,709,551,616 by"),
    "string length": (change("kvs", 1, "str_len", 2**63 - 8), "string 0 of 2 in the value of 'b'"),
    "string length 2^64": (change("kvs", 1, "str_len", -1), "string 0 of 2 in the value of 'b' en"),
    "long string": (long_string, "'s' is a string of length 1,099,511,627,776, expected at most"),
    "name length": (change("infos", 0, "name_len", 2**62), "the length of the name of tensor 0 at"),
    "name too long": (tensors(info(b"n" * 64, (1,), 0, 0)), "is 64, expected at most 63"),
    "name with NUL": (tensors(info(b"t\0a", (1,), 0, 0)), "name of tensor 0 .* contains a NUL"),
    "name no text": (tensors(info(b"\xff", (1,), 0, 0)), "name of tensor 0 .* is not UTF-8"),
    "name twice": (tensors(*[info(b"t", (0,), 0, 0)] * 2), "duplicate tensor name 't'"),
    "n_dims": (change("infos", 0, "n_dims", 5), "invalid number of dimensions: 5 > 4"),
    "ne negative": (change("infos", 0, "ne", -16), "'t' dimension 0 has invalid .* -16 < 0"),
    "ne huge": (change("infos", 1, "ne", 2**62), "may cause overflow|larger than the address"),
    "ne overflows": (tensors(info(b"t", (2**32, 2**32), 0, 0)), "larger than the address space"),
    "ne asserted": (tensors(info(b"t", (4, 2**61 - 1), 24, 0)), "larger than the address space"),
    "ne asserted 2^62": (tensors(info(b"t", (1, 2**62 + 1), 24, 0)), "larger than the address"),
    "ne hidden by 0": (tensors(info(b"t", (0, 2**62, 2**62), 0, 0)), "larger than the addr"),
    "ne over the file": (change("infos", 1, "ne", 2**20), r"'u' ends at byte 16,777,\d+, the file"),
    "ggml type": (change("infos", 0, "ggml_type", 999), "'t' has invalid ggml type 999"),
    "ggml type negative": (change("infos", 0, "ggml_type", -1), "'t' has invalid ggml type -1"),
    "ggml type removed": (change("infos", 0, "ggml_type", 4), "of type 4, which ggml has removed"),
    "rows of part blocks": (change("infos", 0, "ggml_type", 2), "not a multiple of block size"),
    "offsets overlap": (change("infos", 1, "offset", 0), "'u' has offset 0, expected 64"),
    "offset unaligned": (change("infos", 1, "offset", 65), "'u' has offset 65, expected 64"),
    "offset huge": (change("infos", 1, "offset", -1), "offset 18446744073709551615, expected 64"),
    "alignment 0": (align(0), "alignment 0 is not a power of 2"),
    "alignment 24": (align(24), "alignment 24 is not a power of 2"),
    "alignment 2^31": (align(2**31), r"begins at byte 2,147,483,648 \(aligned to 2,147,483,648\)"),
    "alignment f32": (align(0, F32), "'general.alignment' must be of type u32 but is f32"),
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.gguf"


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_damage_says_what_it_is(name, path):
    damage, message = CASES[name]
    file = sound()
    damage(file)
    path.write_bytes(file.render())
    before = LIVE["Gguf"]
    with pytest.raises(ggml.GgufError, match=message) as caught:
        ggml.Gguf.open(path)
    assert str(path) in str(caught.value)
    assert "again" in str(caught.value), "what to do"
    assert LIVE["Gguf"] == before


def test_the_sound_file_is_read(path):
    path.write_bytes(sound().render())
    with ggml.Gguf.open(path) as gguf:
        assert gguf.metadata == {"a": 7, "b": ["x", "yy"]}
        assert [t.ne for t in gguf.tensors.values()] == [(16, 1, 1, 1), (4, 4, 1, 1)]


@pytest.mark.parametrize("alignment", [1, 2, 64])
def test_odd_but_true_alignments_are_read(alignment, path):
    file = sound()
    file.align = alignment
    align(alignment)(file)
    path.write_bytes(file.render())
    with ggml.Gguf.open(path) as gguf:
        assert gguf.alignment == alignment
        assert gguf.tensors["u"].offset == gguf.data_offset + 64


def test_every_truncation_names_a_place(path):
    whole = sound().render()
    place = r"the file has \d|this file has|too many for the file|is empty|only its header"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ggml.GgufError, match=place):
            ggml.Gguf.open(path)


@pytest.mark.parametrize("item", [STR, U8, BOOL, F32])
def test_a_length_that_claims_the_data_costs_no_memory(item, path):
    """Upstream would take eight times the bytes claimed, or minutes."""
    file = File(header(), [kv(b"a", ARR, [], item)])
    file.kvs[0][4][1] = number(1 << 28, 8)
    file.set_counts()
    with path.open("wb") as out:
        out.write(file.render())
        out.truncate(4 << 30)  # a hole
    with pytest.raises(ggml.GgufError, match=r"an array of .*length 268,435,456, expected at most"):
        ggml.Gguf.open(path)


def test_headers_longer_than_the_window_are_walked(path, monkeypatch):
    monkeypatch.setattr(HeaderCheck, "WINDOW", 13)
    for seed in range(40):
        path.write_bytes(whole(random.Random(seed)).render())
        read(path)


def test_the_mutator_is_sound_and_repeats_itself(path):
    for seed in range(30):
        data = whole(random.Random(seed)).render()
        path.write_bytes(data)
        read(path)
        assert parse(data).render() == data
        assert mutant(seed) == mutant(seed) != mutant(seed + 1)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_mutation_damages(name, path):
    refused = 0
    for seed in range(12):
        write(damaged(name, seed), path)
        try:
            read(path)
        except ggml.GgufError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize(
    ("name", "others", "message"),
    [
        ("m-00001-of-00003", ["m-00003-of-00003"], "part 1 of 3 .* lacks m-00002-of-00003.gguf"),
        ("m-00002-of-00003", [], "lacks m-00001-of-00003.gguf, m-00003-of-00003.gguf: get"),
        ("m-00002-of-00002", ["m-00001-of-00002"], "part 2 of 2 .* open the first"),
        ("m", [], "its name is not NAME-00001-of-00003.gguf"),
    ],
)
def test_parts_of_a_split_model_say_which_are_missing(name, others, message, tmp_path):
    for one in (name, *others):
        count = np.uint16(2 if one.endswith("-of-00002") else 3)
        ggml.write_gguf(tmp_path / f"{one}.gguf", {"split.count": count}, [])
    with pytest.raises(ggml.GgufError, match=message):
        ggml.Gguf.open(tmp_path / f"{name}.gguf")
    with ggml.Gguf.open(tmp_path / f"{name}.gguf", part=True) as gguf:
        assert gguf.metadata["split.count"] in (2, 3)


@pytest.mark.parametrize("count", [1, "x", [1, 2], -5, 2**40, 0.5])
def test_odd_split_counts_are_no_harm(count, path):
    ggml.write_gguf(path, {"split.count": count}, [])
    try:
        read(path)
    except ggml.GgufError as error:
        assert "1,099,511,627,776 parts" in str(error)


def test_our_writer_makes_what_the_mutator_can_take_apart(path):
    ggml.write_gguf(path, {"a": 1, "b": ["x"]}, [("t", [1.0, 2.0], "f32", (2,))])
    data = path.read_bytes()
    file = parse(data)
    assert file.render() == data[: len(file.render())]
    assert struct.unpack("<2f", file.data[:8]) == (1.0, 2.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.thorough("long")
def test_mutants_that_open_read_as_the_official_package_reads_them(path):
    opened = 0
    for item in map(mutant, range(1500)):
        if item.hole:
            continue  # the official reader takes seconds for a million strings
        write(item, path)
        try:
            gguf = ggml.Gguf.open(path)
        except ggml.GgufError:
            continue
        with gguf:
            ours = {t.name: (t.offset, t.nbytes) for t in gguf.tensors.values()}
            keys = list(gguf.metadata)
        reader = official.GGUFReader(path)
        assert {t.name: (t.data_offset, t.n_bytes) for t in reader.tensors} == ours
        assert [key for key in reader.fields if not key.startswith("GGUF.")] == keys
        opened += 1
    assert opened > 50


@watched
def test_too_much_memory_is_a_finding(path, monkeypatch):
    assert outcome_of(mutant(7), path) in ("opened", "refused")
    monkeypatch.setattr(
        gguf_mutator, "read_all", lambda _path: bytearray(64 << 20)[::4096].__setitem__(0, 1)
    )
    with pytest.raises(MemoryError, match="bytes for a file of"):
        outcome_of(mutant(7), path)
