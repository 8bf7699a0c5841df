"""GGUF files that cannot be written, and parts of split models that cannot be opened."""

import numpy as np

import ggml_py as ggml

from ..misuses import misuse


def _write(id, given, expected, metadata=None, *tensors, error=ggml.GgufError, name="x.gguf"):
    return misuse(
        f"write/{id}",
        lambda e: ggml.write_gguf(e.tmp_path / name, {} if metadata is None else metadata, tensors),
        error, given, expected,
    )  # fmt: skip


def _one(id, given, expected, *entry):
    return _write(f"tensor-{id}", given, expected, None, entry)


def _open(id, given, expected, *parts, first=1, **metadata):
    """`parts` are the numbers of those that are there, of three."""

    def act(env):
        for i in parts:
            header = {"split.no": np.uint16(i - 1), "split.count": np.uint16(3), **metadata}
            ggml.write_gguf(env.tmp_path / f"m-0000{i}-of-00003.gguf", header, [])
        ggml.Gguf.open(env.tmp_path / f"m-0000{first}-of-00003.gguf")

    return misuse(f"split/{id}", act, ggml.GgufError, given, expected)


def _file(env):
    path = env.tmp_path / "x.gguf"
    ggml.write_gguf(path, {}, [("t", [1.0], "f32", (1,))])
    return ggml.Gguf.open(path)


MISUSES = [
    _open("missing", "part 1 of 3", "get all parts", 1, 3),
    _open("all-but-one-missing", "m-00002-of-00003.gguf, m-00003-of-00003.gguf", "get all", 1),
    _open("not-the-first", "part 2 of 3", "open the first", 1, 2, 3, first=2),
    _open("renamed", "split.no=5", "its name says split.no=0", 1, 2, 3, **{"split.no": 5}),
    _open("counts-nothing", "split.tensors.count says None", "Get all parts of one model", 1, 2, 3),
    _open("other-count", "one of 4 parts", "NAME-00001-of-00004.gguf", 1, 2, 3,
          **{"split.count": 4}),
    _write("metadata-list", "got list", "expected a dict", [("a", 1)], error=TypeError),
    _write("nul", "contains a NUL", "where ggml's readers stop", {"k": "a\0"}),
    _write("empty-list", "an empty list", "give an empty numpy array", {"k": []}),
    _write("nested", "a list of list", "expected items of one type", {"k": [[1]]}),
    _write("mixed", "a list of int, str", "expected items of one type", {"k": [1, "a"]}),
    _write("none", "a NoneType", "expected bool, int, float, str", {"k": None}),
    _write("too-big", "18446744073709551616", "beyond 64 bits", {"k": 2**64}),
    _write("key-no-text", "key 5", "bytes of text", {5: 1}),
    _write("alignment", "general.alignment=24", "expected a power of two",
           {"general.alignment": 24}),
    _write("folder", "is a folder", "expected a file name", name=""),
    _one("three-of-four", "('t', [1.0], 'f32')", "expected (name, data, type, ne)", "t", [1.0],
         "f32"),
    _one("short", "shape (1,) = 1", "'t' has ne [2] = 2 elements", "t", [1.0], "f32", (2,)),
    _one("no-numbers", "data of type <U1", "expected numbers", "t", "x", "f32", (1,)),
    _one("type", "type 'f33'", "expected one of", "t", [1.0], "f33", (1,)),
    _one("ne", "got float 1.5", "expected a whole number", "t", [1.0], "f32", (1.5,)),
    _one("name", "tensor name None", "expected a str", None, [1.0], "f32", (1,)),
    misuse("file/no-such-tensor", lambda e: e.later(_file(e)).data("u"), KeyError, "'u'",
           "no tensor named"),
    misuse("file/no-such-part", lambda e: e.later(_file(e)).mmap(1), ggml.ArgumentError, "part=1",
           "expected 0 to 0"),
]  # fmt: skip
