"""GGUF: what we write, the official package reads, and the other way; damaged files are refused."""

import subprocess
import sys

import gguf as official
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggml_py as ggml
from ggml_py.enums import Type

METADATA = {
    "general.architecture": "test",
    "a.int": 7,
    "a.negative": -7,
    "a.big": 2**40,
    "a.float": 0.5,
    "a.bool": True,
    "a.text": "grüße",
    "a.texts": ["x", "", "é"],
    "a.ints": [1, -2, 3],
    "a.floats": [0.5, 1.5],
    "a.bools": np.array([True, False]),
    "a.u8": np.uint8(3),
    "a.f64s": np.array([1.0, 2.0]),
}
DATA = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.gguf"
    tensors = [
        ("w", DATA, "f32", (64, 3)),
        ("odd", np.arange(5, dtype=np.float16), "f16", (5,)),
        ("q", lambda: DATA, "q8_0", (64, 3)),
    ]
    ggml.write_gguf(path, METADATA, tensors)
    return path


def same(a, b):
    return np.array_equal(np.asarray(a), np.asarray(b))


def test_what_was_written_is_read(path):
    with ggml.Gguf.open(path) as file:
        assert list(file.metadata) == list(METADATA)
        assert all(same(file.metadata[k], v) for k, v in METADATA.items())
        assert {n: (t.type, t.ne) for n, t in file.tensors.items()} == {
            "w": (Type.F32, (64, 3, 1, 1)),
            "odd": (Type.F16, (5, 1, 1, 1)),
            "q": (Type.Q8_0, (64, 3, 1, 1)),
        }
        w = file.tensors["w"]
        assert w.offset % file.alignment == 0
        raw = file.mmap()[w.offset : w.offset + w.nbytes]
        np.testing.assert_array_equal(np.frombuffer(raw, np.float32).reshape(3, 64), DATA)


def test_the_official_reader_reads_it(path):
    reader = official.GGUFReader(path)
    assert reader.fields["a.text"].contents() == "grüße"
    assert reader.fields["a.ints"].contents() == [1, -2, 3]
    assert reader.fields["a.big"].contents() == 2**40
    by_name = {t.name: t for t in reader.tensors}
    np.testing.assert_array_equal(by_name["w"].data, DATA)
    dequantised = official.quants.dequantize(by_name["q"].data, by_name["q"].tensor_type)
    np.testing.assert_allclose(dequantised, DATA, atol=0.03)


def test_we_read_what_the_official_writer_writes(tmp_path):
    path = tmp_path / "official.gguf"
    writer = official.GGUFWriter(path, "test")
    writer.add_uint32("a.int", 7)
    writer.add_array("a.texts", ["x", "y"])
    writer.add_tensor("w", DATA)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ggml.Gguf.open(path) as file:
        assert file.metadata["a.int"] == 7
        assert file.metadata["a.texts"] == ["x", "y"]
        w = file.tensors["w"]
        raw = file.mmap()[w.offset : w.offset + w.nbytes]
        np.testing.assert_array_equal(np.frombuffer(raw, np.float32).reshape(3, 64), DATA)


VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(width=32, allow_nan=False),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1),
)  # fmt: skip
KEYS = st.text("abcxyz_.", min_size=1, max_size=20).filter(lambda k: k != "general.alignment")


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_any_metadata_comes_back(tmp_path_factory, metadata):
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    ggml.write_gguf(path, metadata, [])
    with ggml.Gguf.open(path) as file:
        assert list(file.metadata) == list(metadata)
        assert all(same(file.metadata[k], v) for k, v in metadata.items())


def test_every_truncation_is_refused(path, tmp_path):
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [0, 1, 3, 4, 8, 23, *range(24, len(whole) - 40, 97)]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ggml.GgufError, match=r"cut\.gguf"):
            ggml.Gguf.open(cut)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: b"GGUX" + b[4:], "magic"),
        (lambda b: b[:4] + b"\x09\0\0\0" + b[8:], "version"),
        (lambda b: b"hello, this is no model file at all", "magic"),
    ],
)
def test_what_is_no_gguf_says_why(make, message, path):
    path.write_bytes(make(path.read_bytes()))
    with pytest.raises(ggml.GgufError, match=message):
        ggml.Gguf.open(path)


def test_missing_files_and_folders_are_refused(tmp_path):
    for path, message in ((tmp_path / "none.gguf", "no such file"), (tmp_path, "is a folder: ")):
        with pytest.raises(ggml.GgufError, match=message):
            ggml.Gguf.open(path)


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"k": 1 + 2j}, [], "'k'"),
        ({}, [("t", np.ones(3), "f32", (4,))], r"'t' has ne \[4\].*shape \(3,\)"),
        ({}, [("t", np.ones(33), "q4_0", (33,))], "blocks of 32"),
        ({"": 1}, [], "key ''"),
        ({"a\0b": 1}, [], "without NUL"),
        ({}, [("t" * 64, np.ones(1), "f32", (1,))], "1 to 63 bytes"),
        ({}, [("a\0b", np.ones(1), "f32", (1,))], "without NUL"),
        ({}, [("t", np.ones(1), "f32", (1,))] * 2, "'t' is given twice"),
    ],
)
def test_nothing_is_left_of_a_file_that_could_not_be_written(metadata, tensors, message, tmp_path):
    path = tmp_path / "x.gguf"
    with pytest.raises(ggml.GgmlError, match=message):
        ggml.write_gguf(path, metadata, tensors)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="address space is counted in /proc")
def test_a_file_for_which_there_are_no_addresses(tmp_path):
    """Named with its bytes, and what is loaded stays usable."""
    path = tmp_path / "large.gguf"
    data = np.zeros(64, np.float32)
    ggml.write_gguf(path, {"general.architecture": "llama"}, [("x", data, Type.F32, (64,))])
    with path.open("r+b") as file:
        file.truncate(300 << 20)  # nothing is written
    code = """if True:
        import resource, sys
        import ggml_py as ggml
        with ggml.Gguf.open(sys.argv[1]) as gguf:
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20), resource.RLIM_INFINITY))
            try:
                gguf.mmap()
            except ggml.AllocError as error:
                print(error, error.sizes)
            print(gguf.data("x")[:4])
    """
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert f"the 314,572,800 bytes of {path} cannot be mapped" in done.stdout
    assert "{'file': 314572800}" in done.stdout and "[0 0 0 0]" in done.stdout
