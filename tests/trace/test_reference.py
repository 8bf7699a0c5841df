"""The reference scheduler: the same plan as ggml's own, its steps, and plans as files."""

import gzip
import json
from pathlib import Path

import jsonschema
import pytest

import ggml_py as ggml
from ggml_py.files import bounds
from ggml_py.scheduler import capture
from ggml_py.trace import reference

from ..support import doc_schemas, graphs

SCHEMA = Path(__file__).parents[2] / "docs" / "plan.schema.json"


@pytest.fixture(params=list(graphs.CASES))
def case(request):
    case = graphs.CASES[request.param]()
    yield case
    case.close()


def test_it_plans_as_ggml_does(case):
    plan = case.scheduler.plan(case.graph)
    again = reference.plan(capture.capture(case.scheduler, case.graph))
    assert again == plan
    assert (again.planner, plan.planner) == ("reference", "native")
    assert plan.reference == plan


def test_it_agrees_about_a_graph_that_is_allocated(case):
    before = case.scheduler.plan(case.graph)
    allocated = case.scheduler.alloc_graph(case.graph)
    assert allocated.reference == allocated == before


def test_pins_count_and_those_that_a_reset_dropped_are_known():
    case = graphs.mlp()
    cpu = case.backends[-1]
    case.scheduler.set_tensor_backend(case.graph.nodes[1], cpu)
    pinned = case.scheduler.plan(case.graph)
    assert pinned.reference == pinned
    assert (pinned.node(1).record.pin, pinned.capture.dropped_pins) == (1, ())
    case.scheduler.reserve(case.graph)
    after = case.scheduler.plan(case.graph)
    assert (after.node(1).record.pin, after.capture.dropped_pins) == (-1, ((1, 1),))
    case.scheduler.set_tensor_backend(case.graph.nodes[1], cpu)
    assert case.scheduler.plan(case.graph) == pinned
    case.close()


def test_a_pin_of_another_graphs_tensor_takes_a_slot():
    case, other = graphs.mlp(), graphs.views()
    plain = case.scheduler.plan(case.graph)
    case.scheduler.set_tensor_backend(other.graph.nodes[0], case.backends[0])
    plan = case.scheduler.plan(case.graph)
    assert plan.outcome.hash_set_used == plain.outcome.hash_set_used + 1
    assert plan.reference == plan
    for c in (case, other):
        c.close()


def test_steps_tell_how_a_node_came_to_its_backend():
    case = graphs.mlp()
    plan = case.scheduler.plan(case.graph)
    steps = [str(s) for s in plan.steps if s.tensor == plan.node("h")]
    assert steps == [
        "1: 'h' supports_buft BLAS ('up'): yes",
        "1: 'h' supports_op BLAS: yes",
        "1: 'h' assign BLAS ('up'): 1.wgt0",
        "5: 'h' supports_buft BLAS ('inp'): yes",
    ]
    case.close()


def test_every_placement_is_a_step(case):
    plan = case.scheduler.plan(case.graph)
    placed = {}
    for i, step in enumerate(plan.steps):
        assert step.index == i
        if step.query in ("assign", "pin"):
            placed[step.tensor.id] = step.backend
    want = {t.id: plan.tensor(t.id).backend for t in plan.capture.tensors}
    assert placed == want


# --- as files


def test_a_plan_file_can_be_compressed(case, tmp_path):
    plan = case.scheduler.plan(case.graph)
    plan.to_json(tmp_path / "p.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "p.json.gz").read_bytes()))["n_splits"]
    again = ggml.Plan.from_json(tmp_path / "p.json.gz")
    assert again == plan
    assert again.reference == plan


def test_the_published_schema_is_that_of_the_files(case, tmp_path):
    published = json.loads(SCHEMA.read_text())
    assert SCHEMA.read_text() == doc_schemas.text(SCHEMA.name), "run: make schema"
    plan = case.scheduler.plan(case.graph)
    data = json.loads(json.dumps(plan.to_json(tmp_path / "p.json")))
    jsonschema.validate(data, published)
    del data["tensors"][0]["supports"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, published)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["tensors"][0].update(src=[0, 999]), r"src of 'h' is 999, expected -1 to"),
        (lambda d: d["tensors"][0].update(backend=7), "backend of 'h' is 7, expected 0 to 1"),
        (lambda d: d["backends"][0].update(buft=5), "buft of 'BLAS' is 5"),
        (lambda d: d["tensors"].reverse(), "not numbered"),
        (lambda d: d["tensors"][0].pop("ne"), "damaged plan: it has no .ne."),
        (lambda d: d.update(leafs=[99]), "each leaf.s id once"),
        (lambda d: d["tensors"][0].update(nbytes=True), r"tensors\[0\].nbytes is True, expected"),
        (lambda d: d["tensors"][0].update(nbytes=-1), r"nbytes is -1, expected 0 or more"),
        (lambda d: d["tensors"][0].update(nbytes=1e9), r"nbytes is 1000000000.0, expected an int"),
        (lambda d: d["tensors"][0].update(nbytes=float("nan")), "nbytes is nan"),
        (lambda d: d["tensors"][0].update(ne=[1, 2, 3, 1 << 70]), "list, each item an integer"),
        (lambda d: d["tensors"][0].update(ne=[1, 2]), "ne of 'h' is .1, 2., expected 4 numbers"),
        (lambda d: d["tensors"][0].update(name="\ud800"), r"tensors\[0\].name is .*expected text"),
        (lambda d: d["tensors"][0].update(kind="twig"), "kind of 'h' is 'twig', expected one of"),
        (lambda d: d["tensors"][0].update(supports=4), "supports of 'h' is 4, expected 0 to 3"),
        (lambda d: d["tensors"][0].update(cause="1.wgtx"), "cause of 'h' is '1.wgtx'"),
        (lambda d: d["tensors"][0].update(passes=[0]), "passes of 'h' is .0,., expected 7"),
        (lambda d: d["tensors"][0].update(backend=-1), "backend of 'h' is -1, expected 0 to 1"),
        (lambda d: d["tensors"][0].update(src=[2]), "depends on itself, through src"),
        (lambda d: d["tensors"][0].update(view_src=0), "'h' depends on itself"),
        (lambda d: d["splits"][0].update(end=0), "is nodes 1 to 2, expected it to begin at 0"),
        (lambda d: d.update(splits=[]), "its splits end at node 0 of"),
        (lambda d: d["settings"].update(n_copies=10**6), "n_copies is 1000000, expected 1 to 16"),
        (lambda d: d["settings"].update(cur_copy=1), "cur_copy is 1, expected 0 to 0"),
        (lambda d: d["settings"].update(upstream="new"), "ggml version 'new'"),
        (lambda d: d.update(split_capacities=[-1]), r"split_capacities\[0\] is -1"),
        (lambda d: d.update(dropped_pins=[[0, 7]]), r"dropped_pins\[0\]\[1\] is 7, exp"),
        (lambda d: d.update(dropped_pins=[[0]]), "dropped_pins is"),
        (lambda d: d.update(planner="me"), "planner is 'me', expected one of native"),
        (lambda d: d["bufts"][0].update(readers=-1), "readers of '.*' is -1, expected 0 to 3"),
        (lambda d: d.update(backends=[]), "number of backends is 0"),
        (lambda d: d["splits"][0].update(inputs=[[0, 99]]), r"splits\[0\].inputs\[0\]\[1\] is 99"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(change, message, tmp_path):
    case = graphs.mlp()
    path = tmp_path / "p.json"
    data = case.scheduler.plan(case.graph).to_json()
    case.close()
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        ggml.Plan.from_json(path)


def test_a_truncated_file_says_so(tmp_path):
    case = graphs.mlp()
    plan = case.scheduler.plan(case.graph)
    case.close()
    for name in ("p.json", "p.json.gz"):
        path = tmp_path / name
        plan.to_json(path)
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(ValueError, match="is not a plan: not valid JSON"):
            ggml.Plan.from_json(path)


def test_a_file_that_asks_for_too_much_is_no_plan(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    path.write_bytes(b"[" * 200_000)
    with pytest.raises(ValueError, match=r"p.json is not a plan: its lists are nested too deeply"):
        ggml.Plan.from_json(path)
    monkeypatch.setattr(bounds, "TEXT", 1 << 20)
    path.write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(ValueError, match="more than 1 MiB when decompressed"):
        ggml.Plan.from_json(path)


def test_a_cast_names_itself_as_its_source_and_is_no_cycle(tmp_path):
    with ggml.device("CPU").init() as cpu, ggml.Context() as c, ggml.Scheduler([cpu]) as sched:
        x = c.new_tensor("f32", 8, name="x")
        x.set_input()
        graph = c.new_graph()
        graph.build_forward_expand(c.cast(x, "f16"))
        plan = sched.plan(graph)
    assert plan.node(0).record.src == (1, 0)
    plan.to_json(tmp_path / "p.json")
    assert ggml.Plan.from_json(tmp_path / "p.json") == plan
