"""`Plan.memory`: sizes, lifetimes and the peak of graphs whose numbers are known."""

import json
import pickle

import jsonschema
import pytest

import ggml_py as ggml
from ggml_py.export.json import plan_file as to_json
from ggml_py.export.memory_text import curve
from ggml_py.memory.node_moves import node_moves
from ggml_py.trace.promise import MemoryRow, Promise

KIB = 1024


@pytest.fixture(scope="module")
def chain():
    """y = relu(w x), z = y + y: x and w are 4 and 16 KiB, products 4 KiB."""
    with ggml.Context() as ctx, ggml.device("CPU").init() as cpu, ggml.Scheduler([cpu]) as sched:
        x = ctx.new_tensor("f32", 64, 16, name="x")
        x.set_input()
        w = ctx.new_tensor("f32", 64, 64, name="w")
        w.set_input()
        y = ctx.relu(ctx.mul_mat(w, x))
        z = ctx.add(y, y)
        for name, t in (("y", y), ("z", z)):
            t.name = name
        z.set_output()
        graph = ctx.new_graph()
        graph.build_forward_expand(z)
        plan = sched.plan(graph)
        plan.capture  # noqa: B018  read while the scheduler is there
        return plan


@pytest.fixture(scope="module")
def on_two():
    """Two products on a device with 4 KiB alignment, one node between them on the CPU."""
    gpu = ggml.sim_device("memory0", alignment=4096, supports=lambda t: t.op.name != "SQR")
    with (
        ggml.Context() as ctx, ggml.Context() as weights,
        gpu.init() as a, ggml.device("CPU").init() as b, ggml.Scheduler([a, b]) as sched,
    ):  # fmt: skip
        w = weights.new_tensor("f32", 64, 64, name="w")
        weights.alloc(a, usage="weights")
        x = ctx.new_tensor("f32", 64, 100, name="x")
        x.set_input()
        h = ctx.mul_mat(w, ctx.sqr(ctx.mul_mat(w, x)))
        h.name = "h"
        h.set_output()
        graph = ctx.new_graph()
        graph.build_forward_expand(h)
        plan = sched.plan(graph)
        plan.capture  # noqa: B018
        return plan


def test_a_chain(chain):
    memory = chain.memory
    (buffer,) = memory.buffers
    assert (buffer.name, buffer.backends, buffer.device) == ("CPU", ("CPU",), "CPU")
    assert [memory.what(i) for i in range(3)] == ["MUL_MAT 'node_0'", "RELU 'y'", "ADD 'z'"]
    blocks = {chain.tensors[block.tensor].name: block for block in buffer.blocks}
    assert blocks["w"].size == 16 * KIB and blocks["x"].size == 4 * KIB
    # relu writes over its operand, which nothing else reads.
    assert blocks["y"].offset == blocks["node_0"].offset
    assert chain.tensors[blocks["y"].place_of].name == "node_0"
    # z reads y twice, so it cannot: it gets the free place of x or w. It is kept, as an output.
    assert blocks["z"].place_of == -1 and blocks["z"].kept
    assert (blocks["w"].first, blocks["w"].last) == (0, 0)
    assert (blocks["y"].first, blocks["y"].last) == (1, 2)
    assert buffer.live == (24 * KIB, 4 * KIB, 8 * KIB)
    assert (buffer.size, buffer.peak, buffer.peak_step) == (24 * KIB, 24 * KIB, 0)
    assert chain.tensors[buffer.alive(0)[0].tensor].name == "w"
    assert [b.padded for b in buffer.alive(1)] == [4 * KIB]
    assert memory.held == () and memory.note == memory.unknown == ""


def test_copies_alignment_and_what_is_held(on_two):
    memory = on_two.memory
    gpu, cpu = memory.buffers
    assert (gpu.name, cpu.name) == ("memory0", "CPU")
    assert gpu.alignment == 4096
    n = 64 * 100 * 4
    assert {block.size for block in gpu.blocks} == {n} and n % 4096
    assert {block.padded for block in gpu.blocks} == {28 * KIB}
    assert gpu.padding == (28 * KIB - n) * len(gpu.alive(gpu.peak_step))
    steps = [memory.what(i) for i in range(len(memory.steps))]
    assert steps.count("copy of 'x'") == 2 and "SQR 'node_1'" in steps
    (held,) = memory.held
    assert (held.buft, held.what, held.nbytes) == ("memory0", "weights", 16 * KIB)
    assert memory.buffer("CPU") is cpu and memory.buffer("memory0") is gpu
    with pytest.raises(KeyError, match="no compute buffer 'x': memory0, CPU"):
        memory.buffer("x")


def test_a_what_if_has_the_memory_that_it_would_have(on_two):
    """Against ggml itself, which is asked again with the change made real."""
    dropped = on_two.what_if(drop=["memory0"], move_weights={"w": "CPU"}).memory
    assert dropped.layout.laid_out == "reference" and "not by ggml" in dropped.note
    (cpu,) = dropped.buffers
    assert cpu.name == "CPU" and cpu.alignment == on_two.memory.buffer("CPU").alignment
    # SQR writes over the first product, so x and two products of 25,600 bytes are there.
    assert cpu.size == 2 * 64 * 100 * 4 and not any(b.place_of == -2 for b in cpu.blocks)
    pinned = on_two.what_if(pins={"h": "CPU"}).memory
    assert pinned.buffer("CPU").size != on_two.memory.buffer("CPU").size


def test_node_moves_are_tried(on_two):
    for move in node_moves(on_two):
        again = on_two.what_if(pins={on_two.node(move.node).id: move.backend}).memory
        assert {b.name: b.size for b in again.buffers} == move.after
        assert move.saved["memory0"] > 0 and json.dumps(move.to_dict())


def test_files_and_pickles_keep_it(chain, on_two, tmp_path):
    for plan in (chain, on_two):
        path = tmp_path / "plan.json"
        data = json.loads(json.dumps(plan.to_json(path)))
        jsonschema.validate(data, to_json.schema())
        for again in (ggml.Plan.from_json(path), pickle.loads(pickle.dumps(plan))):
            assert again == plan and again.layout == plan.layout
            assert again.memory.to_dict() == plan.memory.to_dict()
        for key in ("layout", "compute_buffers", "alloc_sizes"):
            del data[key]  # as in an older file
        older = ggml.Plan.of(to_json.plan_of(data, "older"))
        assert older == plan and "alignment" in older.memory.unknown
        assert older.memory.buffers == () and "unknown" in older.memory.to_dict()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["layout"].update(laid_out="somehow"), "layout.laid_out"),
        (lambda d: d["layout"]["order"].__setitem__(0, 99), r"layout.order\[0\]"),
        (lambda d: d["layout"]["events"][0].update(kind="steal"), r"layout.events\[0\].kind"),
        (lambda d: d["layout"]["events"][0].update(step=50), r"layout.events\[0\].step"),
        (lambda d: d["layout"]["events"][0].update(tensor=-1), r"layout.events\[0\].tensor"),
        (lambda d: d["layout"]["events"][0].update(backend=3), r"layout.events\[0\].backend"),
        (lambda d: d["layout"]["events"][0].update(size=-1), r"layout.events\[0\].size"),
        (lambda d: d["compute_buffers"][0].update(alignment=3), "alignment is 3"),
        (lambda d: d["compute_buffers"][0].update(backend=9), r"compute_buffers\[0\].backend"),
        (lambda d: d.update(alloc_sizes=[{"tensor": 99, "backend": 0, "size": 1}]), "alloc_sizes"),
        (lambda d: d["layout"].pop("order"), "damaged"),
        (lambda d: d["layout"]["events"][0].update(offset=1 << 60), r"layout.events\[0\].offset"),
        (lambda d: d["layout"]["events"].reverse(), r"layout.events\[\d\]"),
        (lambda d: d["layout"]["events"].pop(0), r"layout.events\[\d\]"),
        (lambda d: d["layout"]["events"].append(d["layout"]["events"][0]), r"layout.events\[\d\]"),
    ],
)
def test_damaged_layouts_are_refused(chain, change, said):
    data = json.loads(json.dumps(chain.to_json()))
    change(data)
    with pytest.raises(ValueError, match=said):
        to_json.plan_of(data, "given")


def test_a_models_breakdown(chain):
    row = MemoryRow("gpu0", "gpu0", 1 << 20, 2 << 20, 4096)
    memory = chain.promised(Promise("llama.cpp"), [row]).memory
    assert memory.breakdown == (row,) and memory.to_dict()["breakdown"][0]["weights"] == 1 << 20


def test_curves():
    assert curve((0, 1, 4, 8), 8) == " ▁▄█" and curve((), 8) == ""
    assert curve(tuple(range(1000)), 999, 10)[-1] == "█"


def test_whose_place_goes_to_whom(chain):
    (buffer,) = chain.memory.buffers
    names = {t.id: t.name for t in (*chain.nodes, *chain.leafs)}
    found = {names[id]: [names[i] for i in ids] for id, ids in buffer.next_in_place.items()}
    assert found["node_0"] == ["y"] and found["y"] == [] == found["z"]
    # z gets bytes of w or of x.
    assert sorted(name for after in found.values() for name in after) == ["y", "z"]
    data = buffer.to_dict()["blocks"]
    for block in data:
        assert block["next_in_place"] == list(buffer.next_in_place[block["tensor"]])


def test_a_plan_without_a_buffer_says_so(chain):
    data = json.loads(json.dumps(chain.to_json())) | {"compute_buffers": [], "layout": None}
    assert "alignment" in ggml.Plan.of(to_json.plan_of(data, "given")).memory.unknown
