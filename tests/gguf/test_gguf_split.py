"""Split models, made by the official package, are read as one; what is amiss says what."""

import gguf as official
import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.split_files import split

NAMES = ["w", "a", "z", "b", "m"]
RNG = np.random.default_rng(0)
DATA = {name: RNG.standard_normal((3, 32)).astype(np.float32) for name in NAMES}


@pytest.fixture
def parts(tmp_path):
    """Three parts of two, two and one tensors."""
    writer = official.GGUFWriter(tmp_path / "x.gguf", "test", split_max_tensors=2)
    writer.add_uint32("a.int", 7)
    for name in NAMES:
        writer.add_tensor(name, DATA[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("*.gguf"))
    assert [p.name for p in paths] == [f"x-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


def number(gguf, name):
    return np.frombuffer(gguf.data(name), np.float32).reshape(3, 32)


def rewrite(path, *, tensors=None, **metadata):
    """The part again, with other metadata (`no`, `count`, `total`) or tensors."""
    with ggml.Gguf.open(path, part=True) as old:
        header = dict(old.metadata)
        have = {n: (n, old.data(n).copy(), t.type, t.ne) for n, t in old.tensors.items()}
    keys = {"no": "split.no", "count": "split.count", "total": "split.tensors.count"}
    for word, value in metadata.items():
        header.pop(keys[word], None)
        if value is not None:
            header[keys[word]] = value
    names = list(have) if tensors is None else tensors
    ggml.write_gguf(path, header, [(n, *have[o][1:]) for n, o in zip(names, have, strict=False)])


def test_the_first_part_opens_all(parts):
    with ggml.Gguf.open(parts[0]) as gguf:
        assert gguf.metadata["a.int"] == 7
        assert gguf.paths == tuple(parts)
        assert list(gguf.tensors) == NAMES
        assert [t.part for t in gguf.tensors.values()] == [0, 0, 1, 1, 2]
        for name in NAMES:
            np.testing.assert_array_equal(number(gguf, name), DATA[name])
            info = gguf.tensors[name]
            raw = gguf.mmap(info.part)[info.offset : info.offset + info.nbytes]
            np.testing.assert_array_equal(raw, gguf.data(name))


def test_one_part_by_itself(parts):
    with ggml.Gguf.open(parts[1], part=True) as gguf:
        assert list(gguf.tensors) == NAMES[2:4] and gguf.paths == (parts[1],)
        np.testing.assert_array_equal(number(gguf, "z"), DATA["z"])


def test_what_was_joined_equals_the_official_readers(parts):
    with ggml.Gguf.open(parts[0]) as gguf:
        ours = {n: (t.part, t.offset, t.nbytes) for n, t in gguf.tensors.items()}
    theirs = {
        t.name: (i, t.data_offset, t.n_bytes)
        for i, path in enumerate(parts)
        for t in official.GGUFReader(path).tensors
    }
    assert ours == theirs


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p[1].unlink(), r"part 1 of 3 .* lacks x-00002-of-00003\.gguf: get"),
        (lambda p: p[2].write_bytes(b""), r"x-00003-of-00003\.gguf is empty, not a GGUF file"),
        (lambda p: p[1].write_bytes(p[2].read_bytes()), r"00002-of-00003.* split\.no=2, .*no=1"),
        (lambda p: rewrite(p[0], no=np.uint16(1)), r"00001-of-00003\.gguf says split\.no=1, split"),
        (lambda p: rewrite(p[1], no=None), r"says split\.no=None, .*renamed or belongs"),
        (lambda p: rewrite(p[1], count=np.uint16(4)), r"says split\.no=1, split\.count=4, but its"),
        (lambda p: rewrite(p[1], count=None), r"says split\.no=1, split\.count=None, but its"),
        (lambda p: rewrite(p[1], count="3"), r"split\.count='3', but its name says"),
        (lambda p: rewrite(p[2], tensors=["w"]), r"'w' is in .*00001-of.* and in .*00003-of-00003"),
        (lambda p: rewrite(p[2], tensors=[]), r"have 4 tensors, but split.tensors.count says 5"),
        (lambda p: rewrite(p[0], total=None), r"have 5 tensors, but split.tensors.count says None"),
    ],
)
def test_parts_that_are_no_model_are_refused(damage, message, parts):
    damage(parts)
    with pytest.raises(ggml.GgufError, match=message):
        ggml.Gguf.open(parts[0])


def test_another_part_than_the_first_says_which_to_open(parts):
    with pytest.raises(ggml.GgufError, match=r"part 3 of 3 .*open the first.*x-00001-of-00003"):
        ggml.Gguf.open(parts[2])


def test_a_first_part_may_have_metadata_only(tmp_path):
    total = {"split.count": np.uint16(2), "split.tensors.count": np.int32(1)}
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    ggml.write_gguf(first, {"split.no": np.uint16(0), **total}, [])
    ggml.write_gguf(second, {"split.no": np.uint16(1), **total}, [("t", [1.0], "f32", (1,))])
    with ggml.Gguf.open(first) as gguf:
        assert [t.part for t in gguf.tensors.values()] == [1]
        assert gguf.data("t").view(np.float32) == [1.0]


@pytest.mark.parametrize("device", ["CPU", "BLAS"])
def test_a_split_model_computes_what_the_whole_one_does(device, tmp_path):
    whole = tmp_path / "whole.gguf"
    write_llama(whole, LlamaSpec(n_layer=2, n_vocab=320))
    parts = split(whole, tmp_path, 3)
    logits = []
    for path in (whole, parts[0]):
        with load(path, devices=(device, "CPU")) as model:
            logits.append(model.eval([1, 2, 3]))
    np.testing.assert_array_equal(*logits)
