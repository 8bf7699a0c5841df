"""Damaged records: whatever is whole is read, and the rest is named."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.record import stream
from ggml_py.record.session import Record

from ..support.own_records import recorded


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "x"
    recorded(path, run=True)
    return path.read_bytes()


def test_a_record_cut_at_every_tenth_byte(content):
    whole = Record("whole", content)
    texts = [p.plan.text() for p in whole]
    ends = [c.at + 32 + len(c.payload) for c in stream.chunks(content, [])]
    n_read = set()
    for at in range(16, len(content), 10):
        try:
            cut = Record("cut", content[:at])
        except ValueError as error:
            assert at < ends[0] and "the record is empty" in str(error)
            continue
        assert [p.plan.text() for p in cut] == texts[: len(cut)]
        assert bool(cut.damage) == (at not in ends)
        assert all(d.is_end and str(d).startswith("the last ") for d in cut.damage)
        n_read.add(len(cut))
    assert n_read == {0, 1, 2}


def test_damage_within(content):
    """A byte is changed. The chunk that has it is left out, and plans that need its rows."""
    texts = [p.plan.text() for p in Record("whole", content)]
    order = random.Random(1)
    for _ in range(200):
        at = order.randrange(16, len(content))
        bad = content[:at] + bytes([content[at] ^ 1 << order.randrange(8)]) + content[at + 1 :]
        try:
            found = Record("bad", bad)
        except ValueError:
            continue  # its head
        assert len(found.damage) == 1
        assert {p.plan.text() for p in found} <= set(texts)
        assert len(found) + found.unreadable + 1 >= len(texts)


def test_a_cut_chunk_with_whole_ones_after_it(content):
    """Two processes write to one file, and one is killed in the middle of a chunk."""
    second = next(c for c in stream.chunks(content, []) if c.type == "plan")
    cut = content[: second.at + 100]
    found = Record("two", cut + content)
    assert [d.is_end for d in found.damage] == [False]
    assert len(found) == 2 and len(found.processes) == 2


@pytest.mark.parametrize("bad", [b"", b"GGUF", b"GGMLPYRECORD2\r\n\n"])
def test_other_files(bad, tmp_path):
    (tmp_path / "x").write_bytes(bad)
    with pytest.raises(ValueError, match="is not a record"):
        Record.read(tmp_path / "x")


def test_two_processes_write_to_one_file_at_once(tmp_path):
    """As `--env` and threads of a service may do it."""
    path = tmp_path / "x"
    script = (
        "import sys; sys.path += sys.argv[2:]\n"
        "import ggml_py as ggml\n"
        "from tests.support import graphs\n"
        "options = ggml.ffi.new('struct gp_record_options *', {'max_size': 1 << 30, 'every': 1})\n"
        "assert ggml.lib.gp_record_start(sys.argv[1].encode(), b'{}', options) == 0\n"
        "for n in range(1, 30):\n"
        "    make = lambda c, w: [c.mul_mat(w('w', 8, 8), c.new_tensor('f32', 8, n))]\n"
        "    case = graphs._case(make)\n"
        "    case.scheduler.alloc_graph(case.graph); case.close()\n"
        "ggml.lib.gp_record_stop(ggml.ffi.new('uint64_t *'), ggml.ffi.new('uint64_t *'))\n"
    )
    tree = Path(__file__).parents[2]
    both = [subprocess.Popen([sys.executable, "-c", script, path, tree]) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    record = ggml.Record.read(path)
    assert not record.damage and [len(p.plans) for p in record.processes] == [29, 29]
    assert [p.plan.text() for p in record.processes[0].plans.values()] == [
        p.plan.text() for p in record.processes[1].plans.values()
    ]


def test_the_layouts_are_those_of_the_compiler(content):
    """A record says how its arrays are laid out; cffi asked the compiler."""
    from ggml_py.scheduler.capture import dtype_of

    head = next(stream.chunks(content, [])).data()
    found = stream.layouts(head["layouts"])
    assert len(found) > 10 and json.dumps(head["layouts"])
    for name, dtype in found.items():
        assert dtype == dtype_of(name), name


def test_rows_that_end_with_padding_keep_it():
    """Found wrong: numpy's concatenate dropped it, so a struct with a new last member was cut."""
    from ggml_py.record.session import Process

    layout = {"size": 16, "fields": [["a", "i8", 0], ["b", "i4", 8]]}
    process = Process(1, {"layouts": {"gp_tensor_record": layout}})
    process.rows = [np.array([(i, -i)], process.layouts["gp_tensor_record"]) for i in range(2)]
    assert process.table.dtype.itemsize == 16 and process.table.tolist() == [(0, 0), (1, -1)]
