"""GGUF files: damaged ones, and what no file can hold."""

import struct

import numpy as np

import ggml_py as ggml
from ggml_py.gguf.writer import write_gguf

from ..gguf_mutator import ARR, F32, STR, U32, File, header, info, kv, number
from ..misuses import misuse

BAD = ggml.GgufError
ONES = struct.pack("<8f", *[1.0] * 8)


def _file(**parts):
    """A sound file of one tensor, but for these parts."""
    made = File(header(), [kv(b"general.architecture", STR, b"x")], [info(b"t", (8,), 0, 0)], ONES)
    made.set_counts()
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def _counted(n_tensors=1, n_kv=1):
    made = _file()
    made.head[2][1], made.head[3][1] = number(n_tensors, 8), number(n_kv, 8)
    return made


def _with(kvs=(), infos=None, data=ONES):
    made = _file(kvs=list(kvs), infos=[info(b"t", (8,), 0, 0)] if infos is None else infos)
    made.data = data
    made.set_counts()
    return made


def _open(env, file):
    """Writes the file and opens it."""
    path = env.tmp_path / "bad.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.render())
    return env.later(ggml.Gguf.open(path))


def _read(id, make, given, expected):
    def act(env):
        return _open(env, make())

    return misuse(f"open/{id}", act, BAD, given, expected, "bad.gguf", at=_open)


def _cut(n):
    return _file().render()[:n]


def _version(n):
    return b"GGUF" + number(n, 4) + _file().render()[8:]


def _write(id, metadata, tensors, given, expected, error=BAD):
    return misuse(f"write/{id}", lambda e: write_gguf(e.tmp_path / "x.gguf", metadata, tensors),
                  error, given, expected)  # fmt: skip


def _tensor(name="t", data=None, type="f32", ne=(8,)):
    return [(name, np.ones(8) if data is None else data, type, ne)]


MISUSES = [
    misuse("open/missing", lambda e: ggml.Gguf.open(e.tmp_path / "none.gguf"), BAD, "none.gguf",
           "no such file"),
    misuse("open/folder", lambda e: ggml.Gguf.open(e.tmp_path), BAD, "test_misuse", "file"),
    misuse("open/none", lambda e: ggml.Gguf.open(None), TypeError, "NoneType", "expected a path"),
    misuse("open/int", lambda e: ggml.Gguf.open(5), TypeError, "int", "expected a path"),
    _read("empty", lambda: b"", "is empty, not a GGUF file", "get it again"),
    _read("text", lambda: b"hello, this is no model file at all", "magic", "Get the file again"),
    _read("zip", lambda: b"PK\3\4" + bytes(100), "a ZIP archive, not a GGUF file", "unpack it"),
    _read("four-bytes", lambda: _cut(4), "4", "Get the file again"),
    _read("cut-in-the-header", lambda: _cut(20), "20", "Get the file again"),
    _read("cut-in-a-key", lambda: _cut(36), "36", "Get the file again"),
    _read("cut-in-the-infos", lambda: _cut(80), "80", "Get the file again"),
    _read("cut-in-the-data", lambda: _file().render()[:-4], "'t'", "truncated"),
    _read("version-zero", lambda: _version(0), "version", "Get the file again"),
    _read("version-one", lambda: _version(1), "version", "Get the file again"),
    _read("version-nine", lambda: _version(9), "version", "Get the file again"),
    _read("version-big-endian", lambda: _version(3 << 24), "endian", "Get the file again"),
    _read("tensors-absurd", lambda: _counted(n_tensors=1 << 60), "1,152,921,504,606,846,976",
          "Get the file again"),
    _read("tensors-negative", lambda: _counted(n_tensors=-1), "tensors", "Get the file again"),
    _read("keys-absurd", lambda: _counted(n_kv=1 << 60), "1,152,921,504,606,846,976",
          "Get the file again"),
    _read("keys-too-many", lambda: _counted(n_kv=9), "key", "Get the file again"),
    _read("key-twice", lambda: _with([kv(b"a", U32, bytes(4))] * 2), "'a'", "Get the file again"),
    _read("value-type", lambda: _with([kv(b"a", 99, bytes(4))]), "99", "Get the file again"),
    _read("array-of-arrays", lambda: _with([kv(b"a", ARR, [], ARR)]), "'a'", "Get the file again"),
    _read("array-absurd", lambda: _with([[*kv(b"a", ARR, [], F32)[:-2], [
        "arr_n", number(1 << 61, 8)]]]), "'a'", "Get the file again"),
    _read("string-absurd", lambda: _with([[*kv(b"a", STR, b"")[:-2], [
        "str_len", number(1 << 63, 8)]]]), "'a'", "Get the file again"),
    _read("alignment-zero", lambda: _with([kv(b"general.alignment", U32, number(0, 4))]),
          "alignment", "Get the file again"),
    _read("alignment-odd", lambda: _with([kv(b"general.alignment", U32, number(33, 4))]),
          "33", "Get the file again"),
    _read("tensor-twice", lambda: _with(infos=[info(b"t", (8,), 0, 0)] * 2, data=ONES * 2), "'t'",
          "Get the file again"),
    _read("tensor-name-long", lambda: _with(infos=[info(b"t" * 65, (8,), 0, 0)]), "65",
          "Get the file again"),
    _read("tensor-dims", lambda: _with(infos=[info(b"t", (1,) * 5, 0, 0)]), "5",
          "Get the file again"),
    _read("tensor-type", lambda: _with(infos=[info(b"t", (8,), 4000, 0)]), "4000",
          "Get the file again"),
    _read("tensor-type-removed", lambda: _with(infos=[info(b"t", (32,), 4, 0)]), "'t'",
          "Get the file again"),
    _read("tensor-half-a-block", lambda: _with(infos=[info(b"t", (33,), 8, 0)]), "'t'",
          "Get the file again"),
    _read("tensor-ne-negative", lambda: _with(infos=[info(b"t", (-8,), 0, 0)]), "'t'",
          "Get the file again"),
    _read("tensor-ne-overflow", lambda: _with(infos=[info(b"t", (1 << 32, 1 << 32), 0, 0)]), "'t'",
          "Get the file again"),
    _read("tensor-absurd", lambda: _with(infos=[info(b"t", (1 << 50,), 0, 0)]), "'t'",
          "truncated"),
    _read("offset-past-the-end", lambda: _with(infos=[info(b"t", (8,), 0, 1 << 20)]), "'t'",
          "Get the file again"),
    _read("offsets-overlap", lambda: _with(infos=[info(b"t", (8,), 0, 0), info(b"u", (8,), 0, 0)],
          data=ONES * 2), "'u'", "Get the file again"),
    _read("offset-unaligned", lambda: _with(infos=[info(b"t", (8,), 0, 7)], data=ONES * 2), "'t'",
          "Get the file again"),
    _write("no-name", {}, _tensor(""), "''", "without NUL"),
    _write("name-nul", {}, _tensor("a\0"), r"'a\x00'", "without NUL"),
    _write("name-long", {}, _tensor("t" * 64), "tttt", "1 to 63 bytes"),
    _write("name-int", {}, _tensor(5), "5", "expected a str"),
    _write("name-twice", {}, _tensor() * 2, "'t' is given twice", "unique"),
    _write("type", {}, _tensor(type="f33"), "'f33'", "expected one of"),
    _write("too-few", {}, _tensor(data=np.ones(7)), "shape (7,) = 7",
           "'t' has ne [8] = 8 elements"),
    _write("half-a-block", {}, _tensor(data=np.ones(33), type="q8_0", ne=(33,)), "ne0 33",
           "blocks of 32"),
    _write("data-none", {}, _tensor(data=[None] * 8), "object", "expected numbers"),
    _write("ne-negative", {}, _tensor(ne=(-8,)), "ne0=-8", "at least 0"),
    _write("ne-float", {}, _tensor(ne=(8.0,)), "float 8.0", "expected a whole number"),
    _write("ne-five", {}, _tensor(ne=(8, 1, 1, 1, 1)), "[8, 1, 1, 1, 1]", "one to four"),
    _write("entry-short", {}, [("t", np.ones(8))], "'t'", "expected (name, data, type, ne)"),
    _write("key-empty", {"": 1}, [], "''", "without NUL"),
    _write("key-nul", {"a\0b": 1}, [], r"'a\x00b'", "without NUL"),
    _write("key-int", {5: 1}, [], "5", "expected"),
    _write("value-complex", {"k": 1j}, [], "'k'", "expected bool, int, float, str"),
    _write("value-none", {"k": None}, [], "'k'", "expected bool, int, float, str"),
    _write("value-object", {"k": object()}, [], "'k'", "expected bool, int, float, str"),
    _write("value-huge", {"k": 1 << 70}, [], "'k'", "beyond 64 bits"),
    _write("value-surrogate", {"k": "\ud800"}, [], "'k'", "not valid Unicode text"),
    _write("value-nul", {"k": "a\0b"}, [], "'k'", "NUL"),
    _write("list-mixed", {"k": ["a", 1]}, [], "'k'", "str"),
    _write("alignment", {"general.alignment": 33}, [], "general.alignment=33", "power of two"),
    misuse("write/folder", lambda e: write_gguf(e.tmp_path, {}, []), BAD, "is a folder",
           "expected a file name"),
]  # fmt: skip
