"""Round trips with the official package in both directions, what is refused, and half a file."""

import errno
import itertools
import os
import subprocess
import sys
import textwrap

import gguf as official
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggml_py as ggml
from ggml_py.enums import GgufType

V = official.GGUFValueType
DTYPES = {
    V.UINT8: np.uint8, V.INT8: np.int8, V.UINT16: np.uint16, V.INT16: np.int16,
    V.UINT32: np.uint32, V.INT32: np.int32, V.FLOAT32: np.float32, V.BOOL: np.bool_,
    V.UINT64: np.uint64, V.INT64: np.int64, V.FLOAT64: np.float64,
}  # fmt: skip
TYPES = ["f32", "f16", "f64", "bf16", "i8", "i16", "i32", "i64", "q4_0", "q8_0", "q6_K", "iq4_nl"]
counter = itertools.count()


def numbers(dtype):
    """Any number of a numpy type."""
    if dtype is np.bool_:
        return st.booleans()
    if np.issubdtype(dtype, np.floating):
        return st.floats(width=np.dtype(dtype).itemsize * 8)
    return st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
KEYS = st.text("abcxyzé_.", min_size=1, max_size=20).filter(lambda k: not k.startswith("GGUF."))
# (type, whether it is an array, the value)
SCALARS = [st.tuples(st.just(t), st.just(False), numbers(d)) for t, d in DTYPES.items()]
ARRAYS = [
    st.tuples(st.just(t), st.just(True), st.lists(numbers(d), max_size=6))
    for t, d in DTYPES.items()
]
TEXTS = [
    st.tuples(st.just(V.STRING), st.just(False), TEXT),
    st.tuples(st.just(V.STRING), st.just(True), st.lists(TEXT, max_size=5)),
]
METADATA = st.dictionaries(KEYS, st.one_of(*SCALARS, *ARRAYS, *TEXTS), max_size=8)
SHAPES = st.lists(st.integers(1, 3), max_size=3)
TENSORS = st.dictionaries(
    st.text("abc.é-", min_size=1, max_size=20), st.tuples(st.sampled_from(TYPES), SHAPES),
    max_size=4,
)  # fmt: skip
ALIGNMENTS = st.sampled_from([None, 8, 16, 32, 64, 4096])


def tensor_data(type_, shape):
    """ne and raw bytes of a tensor of any type, every bit random."""
    type_ = ggml.enums.Type[type_.upper()]
    block, width = ggml.lib.ggml_blck_size(type_), ggml.lib.ggml_type_size(type_)
    ne = (block * 2, *shape)
    n = 2 * int(np.prod(shape, dtype=int)) * width
    return type_, ne, np.random.default_rng(n).integers(0, 256, n, np.uint8)


def same(ours, theirs):
    """Equal in every bit, NaNs too."""
    ours = np.asarray(ours)
    if ours.dtype.kind in "UO":
        return ours.tolist() == (theirs if ours.ndim == 0 else list(theirs))
    return ours.tobytes() == np.asarray(theirs, ours.dtype).tobytes()


@settings(deadline=None, max_examples=150)
@given(METADATA, TENSORS, ALIGNMENTS)
def test_the_official_package_reads_what_we_write(tmp_path_factory, metadata, tensors, alignment):
    path = tmp_path_factory.getbasetemp() / f"ours-{next(counter)}.gguf"
    given_ = {}
    for key, (type_, is_array, value) in metadata.items():
        dtype = DTYPES.get(type_, str)
        made = np.array(value, dtype) if is_array else value if dtype is str else dtype(value)
        given_[key] = made
    if alignment:
        given_["general.alignment"] = alignment
    entries = [(name, *tensor_data(*spec)) for name, spec in tensors.items()]
    ggml.write_gguf(path, given_, [(name, raw, t, ne) for name, t, ne, raw in entries])
    reader = official.GGUFReader(path)
    fields = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert list(fields) == list(given_)
    for key, (type_, is_array, value) in metadata.items():
        types = [type_] if not is_array else [V.ARRAY, type_] if value else [V.ARRAY]
        assert fields[key].types == types
        if value or not is_array:  # it has no contents for an empty array
            assert same(given_[key], fields[key].contents())
    assert reader.alignment == (alignment or 32)
    assert [t.name for t in reader.tensors] == list(tensors)
    for theirs, (_name, type_, ne, raw) in zip(reader.tensors, entries, strict=True):
        n_dims = max(i + 1 for i, n in enumerate((*ne, 1, 1, 1)) if n > 1 or i == 0)
        assert (theirs.tensor_type, tuple(theirs.shape)) == (type_, ne[:n_dims])
        assert theirs.data_offset % (alignment or 32) == 0
        assert theirs.data.tobytes() == raw.tobytes()
    path.unlink()


@settings(deadline=None, max_examples=150)
@given(METADATA, TENSORS, ALIGNMENTS)
def test_we_read_what_the_official_package_writes(tmp_path_factory, metadata, tensors, alignment):
    path = tmp_path_factory.getbasetemp() / f"theirs-{next(counter)}.gguf"
    # It writes no empty arrays, and its constructor a first key.
    metadata = {k: v for k, v in metadata.items() if not v[1] or v[2]}
    writer = official.GGUFWriter(path, "test")
    for key, (type_, is_array, value) in metadata.items():
        if is_array:
            writer.add_key_value(key, value, V.ARRAY, sub_type=type_)
        else:
            writer.add_key_value(key, value, type_)
    if alignment:
        writer.add_custom_alignment(alignment)
    entries = [(name, *tensor_data(*spec)) for name, spec in tensors.items()]
    for name, type_, ne, raw in entries:
        data = raw.reshape(*reversed(ne[1:]), -1)
        writer.add_tensor(name, data, raw_dtype=official.GGMLQuantizationType(type_))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ggml.Gguf.open(path) as file:
        ours = dict(file.metadata)
        assert ours.pop("general.architecture") == "test"
        assert ours.pop("general.alignment", None) == alignment
        assert file.alignment == (alignment or 32)
        assert list(ours) == list(metadata)
        for key, (type_, is_array, value) in metadata.items():
            if is_array and type_ != V.STRING:
                value = np.array(value, DTYPES[type_])
                assert ours[key].dtype == value.dtype
            elif type_ == V.FLOAT32:
                value = float(np.float32(value))
            assert same(ours[key], value), key
        assert list(file.tensors) == list(tensors)
        for name, type_, ne, raw in entries:
            info = file.tensors[name]
            assert (info.type, info.ne) == (type_, (*ne, 1, 1, 1)[:4])
            assert file.data(name).tobytes() == raw.tobytes()
    path.unlink()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.gguf"


def written(path, value):
    ggml.write_gguf(path, {"k": value}, [])
    with ggml.Gguf.open(path) as file:
        key = ggml.lib.gguf_find_key(file.ptr, b"k")
        type_ = GgufType(ggml.lib.gguf_get_kv_type(file.ptr, key))
        if type_ == GgufType.ARRAY:
            type_ = GgufType(ggml.lib.gguf_get_arr_type(file.ptr, key))
        return type_.name.lower(), file.metadata["k"]


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (True, "bool"), (0, "uint32"), (2**32 - 1, "uint32"), (-1, "int32"), (2**32, "int64"),
        (-(2**31) - 1, "int64"), (2**63, "uint64"), (2**64 - 1, "uint64"), (0.1, "float32"),
        (1e300, "float64"), (float("inf"), "float32"), (np.float64(0.1), "float64"),
        (np.array(3, np.int16), "int16"), (np.str_("x"), "string"), ("", "string"),
        ([1, 2], "int32"), ([2**31], "int64"), ([2**63], "uint64"), ([0.5, 1], "float32"),
        ([1e300, 1.0], "float64"), ([True, False], "bool"), (["a", ""], "string"),
        ([np.uint8(1), np.uint8(2)], "uint8"), (np.array([], str), "string"),
        (np.array(["a", "bc"]), "string"), (np.array(["a", "b"], object), "string"),
        (np.array([1, 2], ">i4"), "int32"), (np.arange(6, dtype=np.int64)[::2], "int64"),
        (np.empty(0, np.uint16), "uint16"), ((1.0, 2.0), "float32"),
    ],
)  # fmt: skip
def test_types_that_values_get(value, type_, path):
    kind, back = written(path, value)
    assert kind == type_
    if isinstance(value, float) and type_ == "float32":
        value = np.float32(value)
    assert np.array_equal(np.asarray(back), np.asarray(value))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"k": "a\0b"}, r"'k': 'a\\x00b' contains a NUL, where ggml's readers stop"),
        ({"k": ["a", "b\0"]}, "'k': .* contains a NUL"),
        ({"k": "\udc80"}, "'k': .* is not valid Unicode text"),
        ({"k": []}, r"'k': an empty list .* np\.empty\(0, np\.int32\)"),
        ({"k": [[1, 2], [3]]}, "'k': a list of list; expected .*no reader accepts arrays of"),
        ({"k": np.ones((2, 2))}, "'k': an array of 2 dimensions.*Flatten"),
        ({"k": ["a", 1]}, "'k': a list of int, str; expected items of one type"),
        ({"k": [True, 1]}, "'k': a list of bool, int; expected items of one type"),
        ({"k": [None]}, "'k': a list of NoneType"),
        ({"k": None}, "'k': a NoneType, expected bool, int, float, str"),
        ({"k": b"x"}, "'k': a bytes, expected"),
        ({"k": {"a": 1}}, "'k': a dict, expected"),
        ({"k": 2**64}, "'k': 18446744073709551616 is beyond 64 bits"),
        ({"k": [-1, 2**63]}, "'k': -1 is beyond 64 bits|'k': 9223372036854775808 is beyond"),
        ({"k": np.float16(1)}, "'k': GGUF has no float16"),
        ({"k": np.array([1j])}, "'k': GGUF has no complex128"),
        ({"k": np.zeros((1 << 22) + 1, np.uint8)}, "'k' has a length of 4,194,305, expected at m"),
        ({1: 2}, "key 1: expected 1 to 65,535 bytes of text"),
        ({"k" * 65536: 2}, "key 'kkk.*: expected 1 to 65,535 bytes"),
        ({"k\udc80": 2}, "expected 1 to 65,535 bytes of text"),
        ({"general.alignment": 0}, "general.alignment=0: expected a power of two from 8 to 16,777"),
        ({"general.alignment": 4}, "expected a power of two from 8"),
        ({"general.alignment": 48}, "general.alignment=48: expected a power of two"),
        ({"general.alignment": 1 << 25}, "expected a power of two"),
        ({"general.alignment": "32"}, "general.alignment='32': expected a power of two"),
        ({"general.alignment": True}, "expected a power of two"),
        ({"general.alignment": 32.0}, r"general.alignment=32\.0: expected a power of two"),
    ],
)
def test_metadata_that_gguf_cannot_hold_is_refused(metadata, message, path, tmp_path):
    with pytest.raises(ggml.GgufError, match=message):
        ggml.write_gguf(path, metadata, [])
    assert list(tmp_path.iterdir()) == []


def test_a_string_that_others_wrote_ends_at_its_nul(path):
    """The official package writes and reads it whole; ggml's own readers give C strings."""
    writer = official.GGUFWriter(path, "test")
    writer.add_string("k", "a\0b")
    writer.add_array("l", ["x\0y", "z"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ggml.Gguf.open(path) as file:
        assert file.metadata["k"] == "a" and file.metadata["l"] == ["x", "z"]


DATA = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)


@pytest.mark.parametrize(
    "data",
    [
        DATA, DATA.astype(np.float64), lambda: DATA, lambda: iter(DATA), lambda: iter([DATA]),
        (row for row in DATA.copy()), iter([DATA[:4], DATA[4:]]), lambda: DATA.tobytes(),
        lambda: (row.tobytes() for row in DATA), DATA.tolist(), DATA.view(np.uint8),
        lambda: iter([DATA[:1].view(np.uint8), DATA[1:]]), memoryview(DATA.tobytes()),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_data_as_an_array_bytes_pieces_or_a_function(data, path):
    ggml.write_gguf(path, {}, [("t", data, "f32", (64, 6)), ("u", [1.0], "f16", [1])])
    with ggml.Gguf.open(path) as file:
        np.testing.assert_array_equal(file.data("t").view(np.float32).reshape(6, 64), DATA)
        assert file.data("u").view(np.float16) == [1.0]
        with pytest.raises(KeyError, match="no tensor named 'v' in "):
            file.data("v")
        assert not file.data("t").flags.writeable
    with pytest.raises(ggml.ClosedError):
        file.data("t")


def test_pieces_are_quantised_as_the_whole_is(path):
    ggml.write_gguf(path, {}, [("t", iter(DATA), "q8_0", (64, 6)), ("u", DATA, "q8_0", (64, 6))])
    with ggml.Gguf.open(path) as file:
        assert file.data("t").tobytes() == file.data("u").tobytes()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (("t", iter(DATA[:5]), "f32", (64, 6)), "'t': ne .* needs 1536 bytes, its data gives 1280"),
        (("t", itertools.repeat(DATA), "f32", (64, 6)), "needs 1536 bytes, .* gives at least 3072"),
        (("t", iter([DATA[0, :32], DATA[:1]]), "f32", (64, 6)),
         r"'t' has .* shape \(1, 64\) at offset 32 does not start where a row starts"),
        (("t", iter([]), "f32", (64, 6)), "needs 1536 bytes, its data gives 0"),
        (("t", iter([DATA[0, :33]]), "q8_0", (64, 6)), "'t': 33 elements in rows of 64 are no"),
        (("t", b"xyz", "f32", (64, 6)), "needs 1536 bytes, its data gives 3"),
        (("t", "text", "f32", (1,)), "'t': data of type <U4, expected numbers"),
        (("t", None, "f32", (1,)), "'t': data of type object, expected numbers"),
        (("t", [1j], "f32", (1,)), "'t': data of type complex128, expected numbers"),
        (("t", [1.0], "f33", (1,)), "'t': type 'f33': expected one of"),
        (("t", [1.0], "f32", (1, 1, 1, 1, 1)), "'t': ne .* expected one to four"),
        (("t", [1.0], "f32", 1), "'t': .*int"),
        (("t", [1.0], "f32"), r"expected \(name, data, type, ne\)"),
        ((1, [1.0], "f32", (1,)), "tensor name 1: expected a str"),
        (("\udc80", [1.0], "f32", (1,)), "expected 1 to 63 bytes"),
    ],
)
def test_tensors_that_cannot_be_written_are_refused(entry, message, path, tmp_path):
    with pytest.raises(ggml.GgufError, match=message):
        ggml.write_gguf(path, {}, [entry])
    assert list(tmp_path.iterdir()) == []


def test_what_data_raises_comes_out_and_leaves_the_old_file(path, tmp_path):
    ggml.write_gguf(path, {"a": 1}, [])
    old = path.read_bytes()

    def broken():
        yield DATA[:3]
        assert len(list(tmp_path.iterdir())) == 2  # it is written beside
        assert path.read_bytes() == old
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        ggml.write_gguf(path, {"a": 2}, [("t", broken, "f32", (64, 6))])
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_open_outlives_its_replacement(path):
    ggml.write_gguf(path, {"a": 1}, [("t", DATA, "f32", (64, 6))])
    with ggml.Gguf.open(path) as file:
        data = file.data("t")
        ggml.write_gguf(path, {"a": 2}, [])
        np.testing.assert_array_equal(data.view(np.float32).reshape(6, 64), DATA)
        assert file.metadata["a"] == 1
    assert (path.stat().st_mode & 0o777) == 0o666 & ~umask()


def umask():
    old = os.umask(0)
    os.umask(old)
    return old


def test_a_folder_and_a_missing_one(tmp_path):
    with pytest.raises(ggml.GgufError, match="is a folder, expected a file name"):
        ggml.write_gguf(tmp_path, {}, [])
    with pytest.raises(FileNotFoundError):
        ggml.write_gguf(tmp_path / "none" / "x.gguf", {}, [])


FULL = """
    import resource, sys
    import numpy as np
    import ggml_py as ggml
    ggml.write_gguf(sys.argv[1], {}, [])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    tensor = ("t", lambda: (np.zeros(1 << 16, np.float32) for _ in range(16)), "f32", (1 << 20,))
    try:
        ggml.write_gguf(sys.argv[1], {"a": 1}, [tensor])
    except OSError as error:
        print(error.errno)
"""


def test_a_full_disk_leaves_the_old_file(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert int(done.stdout) == errno.EFBIG, done.stderr
    assert list(tmp_path.iterdir()) == [path]
    with ggml.Gguf.open(path) as file:
        assert file.metadata == {}


BIG = """
    import resource, sys
    import numpy as np
    import ggml_py as ggml
    n, row = 24, 1 << 20  # pieces of 4 MiB
    zeros = np.zeros(row, np.float32)
    ggml.write_gguf(sys.argv[1], {}, [("t", [0.0], "f32", (1,))])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ggml.write_gguf(sys.argv[1], {}, [("t", (zeros for _ in range(n)), "f32", (row, n))])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB there")
def test_streaming_holds_one_piece_in_memory(path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BIG), path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size > 96 << 20
    assert int(done.stdout) < 32 << 10
