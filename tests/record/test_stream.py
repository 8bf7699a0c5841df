"""Damaged records: whatever is whole is read, and the rest is named."""

import json
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.cli.shared import records
from ggml_py.record import stream
from ggml_py.record.session import Record
from ggml_py.trace.structs import Rows

from ..support import graphs
from ..support.own_records import recorded
from ..support.record_mutator import sections, written


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "x"
    recorded(path, run=True)
    return path.read_bytes()


@pytest.mark.parametrize("step", [50, pytest.param(7, marks=pytest.mark.thorough("cases"))])
def test_a_record_that_is_cut(content, step):
    whole = Record("whole", content)
    texts = [p.plan.text() for p in whole]
    ends = [c.at + 32 + len(c.payload) for c in stream.chunks(content, [])]
    n_read = set()
    for at in range(16, len(content), step):
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
    from ggml_py.scheduler.capture import layout_of

    head = next(stream.chunks(content, [])).data()
    found = stream.layouts(head["layouts"])
    assert len(found) > 10 and json.dumps(head["layouts"])
    for name, layout in found.items():
        assert layout == layout_of(name), name


def test_rows_that_end_with_padding_keep_it():
    """Found wrong: numpy's concatenate dropped it, so a struct with a new last member was cut."""
    from ggml_py.record.session import Process

    layout = {"size": 16, "fields": [["a", "i8", 0], ["b", "i4", 8]]}
    process = Process(1, {"layouts": {"gp_tensor_record": layout}})
    for i in range(2):
        row = struct.pack("<qi4x", i, -i)
        process.add_rows(Rows(process.layouts["gp_tensor_record"], row), [i])
    assert [*process._table] == [{"a": 0, "b": 0}, {"a": 1, "b": -1}]


def test_a_million_signs_that_claim_the_rest_of_the_file_take_no_time(content):
    sign = struct.pack("<4s4sQIIq", b"GPCK", b"plan", 1 << 20, 1, 0, 0)
    bad = content + sign * (1 << 17)
    start = time.monotonic()
    found = Record("bad", bad)
    assert len(found) == 2 and len(found.damage) == 1
    assert time.monotonic() - start < 10  # 0.1 s, and 40 s if each of them is looked at


def chunks_of(content):
    return [(c.type, c.process, c.time, bytes(c.payload)) for c in stream.chunks(content, [])]


def with_changed(content, number, change):
    """The record, with the sections of its plan of that number changed."""
    found = chunks_of(content)
    at = [i for i, chunk in enumerate(found) if chunk[0] == "plan"][number]
    parts = stream.Chunk(*found[at][:3], 0, found[at][3]).sections()
    change(parts := {tag: bytes(part) for tag, part in parts.items()})
    found[at] = (*found[at][:3], sections(parts))
    return written(found)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: p.pop("splits"), "it has no 'splits'"),
        (lambda p: p.pop("plan"), "it has no 'plan'"),
        (lambda p: p.update(inputs=b"\x7f" * 16), "its splits copy tensor 2139062143, of "),
        (lambda p: p.update(splits=b"x"), "1 bytes are not whole rows of "),
    ],
)
def test_one_damaged_plan_does_not_hide_the_others(content, change, why):
    texts = [p.plan.text() for p in Record("whole", content)]
    found = Record("bad", with_changed(content, 0, change))
    assert [p.plan.text() for p in found] == texts[1:] and [p.index for p in found] == [0]
    (damaged,) = found.damaged
    assert why in damaged.why and found.unreadable == 1
    assert found.damaged_plans.startswith("1 of 2 plans is damaged: ")
    assert f"(byte {damaged.at:,})" in found.damaged_plans


def test_a_plan_that_is_only_found_damaged_when_it_is_read(content):
    """A list of plans needs little of each; the rest is checked where a plan is used."""
    bad = with_changed(content, 0, lambda p: p.update(leafs=b"\x63\0\0\0" * 2))
    found = Record("bad", bad)
    assert len(found) == 2 and not found.damaged
    with pytest.raises(ValueError, match=r"plan 0 of the record \(byte [\d,]+\) is damaged: leafs"):
        _ = found.plans[0].plan
    assert [one.index for one, _plan in found.whole()] == [1]
    assert found.whole() and len(found.damaged) == 1


def test_a_lost_plan_hides_only_those_that_share_tensors_with_it(tmp_path):
    """Rows are numbered as they are written, and the numbers of a lost chunk's rows are known."""
    with ggml.record(tmp_path / "x"):
        for n in (3, 5):
            case = graphs._case(lambda c, w, n=n: [c.relu(c.new_tensor("f32", n, name=f"x{n}"))])
            case.scheduler.alloc_graph(case.graph)
            case.close()
    content = (tmp_path / "x").read_bytes()
    texts = [p.plan.text() for p in Record("whole", content)]
    found = chunks_of(content)
    del found[next(i for i, chunk in enumerate(found) if chunk[0] == "plan")]
    left = Record("lost", written(found))
    assert len(texts) == 2 and [p.plan.text() for p in left] == texts[1:]
    assert [(p.number, p.index) for p in left] == [(1, 0)]


def test_a_plan_whose_tensors_are_lost_is_counted(content):
    found = chunks_of(content)
    del found[next(i for i, chunk in enumerate(found) if chunk[0] == "plan")]
    left = Record("lost", written(found))
    assert not left.plans
    assert "some of its tensors were in a part that is lost" in left.damaged_plans


@pytest.mark.parametrize("type_", ["schd", "note", "seen", "allc", "runs", "head"])
@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b"x" * 40, b'{"scheduler": []}'])
def test_a_damaged_note_hides_no_plan(content, type_, payload):
    found = chunks_of(content)
    head = found[0]
    bad = Record("bad", written([head, (type_, head[1], 0, payload), *found]))
    assert len(bad) == 2
    assert bad.damage or (type_ == "note" and payload[:1] == b"{")  # an object is no damage there
    assert all(plan.plan.text() for plan in bad)


@pytest.mark.parametrize(
    "change",
    [
        {"layouts": 3}, {"layouts": {}}, {"pid": "x"}, {"ops": None}, {"max_src": 0},
        {"enums": {"TensorFlag": []}}, {"argv": 7}, {"about": [1]}, {"time": {}},
    ],
)
def test_a_damaged_head_is_named(content, change):
    found = chunks_of(content)
    bad = (found[0][0], 77, 0, json.dumps({**json.loads(found[0][3]), **change}).encode())
    plan = next(chunk for chunk in found if chunk[0] == "plan")
    record = Record("bad", written([*found, bad, ("plan", 77, 0, plan[3])]))
    assert len(record) == 2
    assert "what it says of a process: " in str(record.damage[0])
    assert "a process whose head is damaged" in record.damaged_plans
    with pytest.raises(ValueError, match="the record is empty"):
        Record("bad", written([bad]))


@pytest.mark.parametrize("struct", ["gp_record_seen", "gp_cpu_record", "gp_split_record"])
def test_a_layout_without_a_field_is_damage(content, struct):
    whole = chunks_of(content)
    for fields in ([], *([f] for f in json.loads(whole[0][3])["layouts"][struct]["fields"])):
        head = json.loads(whole[0][3])
        head["layouts"][struct]["fields"] = fields
        found = Record("bad", written([(*whole[0][:3], json.dumps(head).encode()), *whole[1:]]))
        json.dumps(records.to_dict(found))
        found.whole()
        assert found.damage or found.damaged, fields
