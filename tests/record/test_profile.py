"""Profiles of upstream's proposed profiler: read, refused, and joined to plans."""

from __future__ import annotations

import json
from dataclasses import replace

import graphs
import pytest

import ggml_py as ggml
from ggml_py.record.profile import join, read_profile
from ggml_py.record.profile_file import UpstreamProfile


def planned(case):
    plan = case.scheduler.plan(case.graph)
    case.close()
    return plan


@pytest.fixture(scope="module")
def mlp():
    return planned(graphs.mlp())


@pytest.fixture(scope="module")
def views():
    return planned(graphs.views())


def op_row(node, backends, ns, version):
    """What the writer writes for a node, from a plan's data alone."""
    row = {
        "type": 0, "name": node.op, "backend_id": backends.index(node.backend), "split_id": 0,
        "start_ns": 0, "duration_ns": ns, "bytes": node.nbytes, "extra": None,
    }  # fmt: skip
    shapes = [list(source.ne) for source in node.srcs]
    if version == 2:
        shapes += [[0] * 4] * 3
        row |= {f"ne_src{s}": shapes[s] for s in range(3)}
    if version == 3:
        row |= {"tensor_name": node.name or None, "ne": list(node.ne), "ne_src": shapes}
    return row


def compute(plan, version=3, ns=100, skip=()):
    """The rows of one compute, in the writer's order; node i takes `ns` + i."""
    backends = [b.name for b in plan.backends]
    rows = [
        op_row(n, backends, ns + n.id, version)
        for b in backends
        for n in plan.order
        if n.backend == b and n.is_computed and n.id not in skip
    ]
    for split in plan.splits:
        for given in split.inputs:
            row = {
                "type": 1, "name": "copy_D2D", "backend_id": backends.index(split.backend),
                "split_id": split.index, "start_ns": 5, "duration_ns": 7, "bytes": given.nbytes,
                "extra": given.tensor.name,
            }  # fmt: skip
            if version == 3:
                row |= {"tensor_name": given.tensor.name, "ne": [0] * 4}
                row |= {"ne_src": [list(given.tensor.ne)]}
            rows.append(row)
    return rows


def document(plan, *computes, version=3):
    rows = [row for one in computes for row in one]
    backends = [
        {"id": i, "name": b.name, "device": b.device, "device_type": 0}
        for i, b in enumerate(plan.backends)
    ]
    return {
        "version": version, "profiler": "ggml", "total_records": len(rows), "total_ns": 1,
        "backends": backends, "records": rows,
    }  # fmt: skip


@pytest.fixture
def profiled(tmp_path):
    def profiled(plan, *computes, version=3) -> UpstreamProfile:
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(document(plan, *computes, version=version)))
        return read_profile(path)

    return profiled


def times(joined):
    return {t.tensor.id: t.ns for t in joined.nodes}


@pytest.fixture(scope="module")
def copied():
    """A plan with copies: the activation is on the CPU, the products are not."""
    gpu, cpu = ggml.sim_device("profiled").init(), ggml.device("CPU").init()
    with gpu, cpu, ggml.Context() as c, ggml.Scheduler([gpu, cpu]) as scheduler:
        x = c.new_tensor("f32", 8, 8, name="x")
        h = c.mul_mat(x, x)
        act = c.relu(h)
        out = c.mul_mat(x, act)
        h.name, act.name, out.name = "h", "act", "out"
        graph = c.new_graph(64)
        graph.build_forward_expand(out)
        for tensor, backend in ((h, gpu), (act, cpu), (out, gpu)):
            scheduler.set_tensor_backend(tensor, backend)
        return scheduler.plan(graph)


@pytest.mark.parametrize("version", [2, 3])
def test_three_computes_give_each_node_three_times(copied, profiled, version):
    computes = [compute(copied, version, ns) for ns in (100, 200, 300)]
    profile = profiled(copied, *computes, version=version)
    found = join(profile, copied)
    assert found.computes == 3
    assert times(found) == {n: (100 + n, 200 + n, 300 + n) for n in range(3)}
    n_copies = len(copied.copied)
    assert n_copies >= 2
    assert [t.ns for t in found.copies] == [(7, 7, 7)] * n_copies
    assert {t.backend for t in found.copies} <= {b.name for b in copied.backends}
    named = 3 * (n_copies + (3 if version == 3 else 0))
    assert (found.by_name, found.matched) == (named, len(profile.records))
    assert found.unmatched == 0
    assert found.first_unmatched == ()


def test_by_name_or_by_order_only(profiled):
    plan = planned(graphs.cpu_only())
    named = sum(bool(n.name) for n in plan.nodes)
    found = join(profiled(plan, compute(plan)), plan)
    assert (found.by_name, found.by_order) == (named, 3 - named)
    rows = compute(plan)
    for row in rows:
        row["tensor_name"] = None
    found = join(profiled(plan, rows), plan)
    assert (found.by_name, found.by_order, found.unmatched) == (0, 3, 0)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("case", graphs.CASES)
def test_all_versions_of_all_graphs(case, version, profiled):
    plan = planned(graphs.CASES[case]())
    computes = [compute(plan, version, ns) for ns in (1000, 2000)]
    found = join(profiled(plan, *computes, version=version), plan)
    assert found.computes == 2
    assert found.unmatched == 0
    assert times(found) == {n.id: (1000 + n.id, 2000 + n.id) for n in plan.nodes if n.is_computed}
    if version < 3:  # only copies are named there
        assert found.by_name <= 2 * len(plan.copied)


def sized(n_tokens):
    """Two products, where the last has one row for any number of tokens, as llama.cpp's graphs."""
    with ggml.Context() as c, ggml.device("CPU").init() as cpu:
        x, w = c.new_tensor("f32", 8, n_tokens), c.new_tensor("f32", 8, 8)
        h = c.mul_mat(w, x)
        h.name = "h"
        last = c.mul_mat(w, c.relu(c.view_2d(h, 8, 1, h.nb[1], 0)))
        last.name = "last"
        graph = c.new_graph(64)
        graph.build_forward_expand(last)
        with ggml.Scheduler([cpu]) as scheduler:
            return scheduler.plan(graph)


@pytest.mark.parametrize("version", [2, 3])
def test_computes_of_another_graph_are_unmatched_to_the_last_record(version, profiled):
    """Although the last nodes of both look the same, and nothing marks where a compute begins."""
    one, many = sized(1), sized(5)
    order = [one, many, one, many, many, one]
    computes = [compute(p, version, 100 * (i + 1)) for i, p in enumerate(order)]
    profile = profiled(one, *computes, version=version)
    for plan in (one, many):
        found = join(profile, plan)
        which = [100 * (i + 1) for i, p in enumerate(order) if p is plan]
        assert found.computes == 3
        assert found.unmatched == 9
        assert times(found) == {
            n.id: tuple(ns + n.id for ns in which) for n in plan.nodes if n.is_computed
        }
    reasons = {"in a compute of another graph"}
    if version == 3:  # without names the product of one row could be the last one of the other
        reasons.add("the plan has no such MUL_MAT on CPU with these shapes")
    assert set(found.reasons) == reasons
    assert [u.at for u in found.first_unmatched] == [0, 1, 2, 6, 7]


def test_fused_nodes_have_no_time(mlp, profiled):
    """The first, a middle or the last node of a backend."""
    for gone in range(3):
        found = join(profiled(mlp, compute(mlp, skip=[gone]), compute(mlp, skip=[gone])), mlp)
        assert found.computes == 2
        assert {n: len(ns) for n, ns in times(found).items()} == {
            n: 0 if n == gone else 2 for n in range(3)
        }
        assert found.nodes[gone].mean is None


def test_records_of_views_are_counted_and_change_nothing(views, profiled):
    backends = [b.name for b in views.backends]
    rows = compute(views)
    extra = [op_row(n, backends, 1, 3) for n in views.nodes if n.is_view_op]
    assert extra
    found = join(profiled(views, rows[:2] + extra + rows[2:]), views)
    assert found.computes == 1
    assert found.unmatched == len(extra)
    assert found.reasons == {"a view, which computes nothing": len(extra)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "ROPE"}, "no ROPE is computed on CPU in the plan"),
        ({"backend_id": 7}, "there is no backend 7"),
        ({"tensor_name": "x"}, "the plan has no such UNARY on CPU with that name"),
        ({"ne": [1, 2, 3, 4]}, "the plan has no such UNARY on CPU with these shapes"),
        ({"ne_src": [[1, 2, 3, 4]]}, "the plan has no such UNARY on CPU with these shapes"),
    ],
)
def test_a_record_that_is_no_node_spoils_its_compute_only(mlp, profiled, change, why):
    wrong = compute(mlp, ns=1)
    (relu,) = [row for row in wrong if row["name"] == "UNARY"]
    relu |= change
    found = join(profiled(mlp, compute(mlp), wrong, compute(mlp)), mlp)
    assert found.computes == 2
    assert found.unmatched == len(wrong)
    assert found.reasons[why] == 1
    assert times(found) == {n: (100 + n, 100 + n) for n in range(3)}


def test_a_profile_of_other_backends(mlp, profiled):
    other = planned(graphs.cpu_only())
    found = join(profiled(other, compute(other)), mlp)
    assert times(found) == {0: (), 1: (101,), 2: ()}  # that one is on the CPU here too
    assert found.reasons == {"no MUL_MAT is computed on CPU in the plan": 2}
    profile = replace(profiled(other, compute(other)), backends=("CUDA0",))
    found = join(profile, mlp)
    assert (found.computes, found.matched) == (0, 0)
    assert found.reasons == {"the plan has no backend CUDA0": 3}


def test_as_text_and_json(mlp, profiled):
    rows = compute(mlp, ns=1500)
    rows.append(rows[0] | {"name": "ROPE", "tensor_name": None})
    found = join(profiled(mlp, rows), mlp)
    lines = str(found).splitlines()
    assert lines[0].startswith("1 computes, 3 of 3 nodes with times; records: ")
    assert lines[1].split() == ["node", "op", "backend", "n", "total", "us", "mean", "us"]
    assert lines[2].split() == ["h", "MUL_MAT", "BLAS", "1", "1.5", "1.5"]
    assert lines[-2] == "unmatched: 1 no ROPE is computed on BLAS in the plan"
    assert lines[-1].startswith("  record ")
    data = json.loads(json.dumps(found.to_dict()))
    assert data["nodes"][0]["ns"] == [1500]
    assert data["matched"] + data["unmatched"] == len(rows)


def test_an_empty_profile(mlp, profiled):
    found = join(profiled(mlp), mlp)
    assert (found.computes, found.matched, found.unmatched) == (0, 0, 0)
    assert "-" in str(found)


def test_a_plan_without_shapes_is_refused(mlp, profiled):
    log = ggml.Plan.from_debug_log(mlp.text())
    with pytest.raises(ValueError, match="read from a debug log"):
        join(profiled(mlp), log)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"profiler": "other"}, "not a profile"),
        ({"version": 4}, "version 4 of the profile is unknown"),
        ({"version": 1}, "version 1 of the profile is unknown"),
        ({"version": None}, "version None"),
        ({"records": {}}, '"records" is not a list'),
        ({"records": [1]}, r"records\[0\] is not an object"),
        ({"backends": [{"id": 1, "name": "a"}]}, r"backends\[0\] is not an object"),
        ({"backends": 1}, '"backends" is not a list'),
    ],
)
def test_what_is_no_profile_is_refused(mlp, tmp_path, change, says):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document(mlp) | change))
    with pytest.raises(ValueError, match=says):
        read_profile(path)


@pytest.mark.parametrize(
    "key", ["type", "backend_id", "split_id", "start_ns", "duration_ns", "bytes"]
)
@pytest.mark.parametrize("value", [None, "1", 1.5, True])
def test_a_record_without_a_number_is_refused(mlp, profiled, key, value):
    rows = compute(mlp)
    rows[1][key] = value
    with pytest.raises(ValueError, match=rf'records\[1\]: "{key}" is {value!r}'):
        profiled(mlp, rows)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": 2}, '"type" is 2'), ({"name": None}, 'no "name"'), ({"name": 3}, '"name" is 3'),
        ({"duration_ns": -1}, '"duration_ns" is -1'), ({"ne": [1]}, "not a shape"),
        ({"ne": [1, 2, 3, "4"]}, "not a shape"), ({"ne_src": 1}, "expected a list of shapes"),
        ({"ne_src": [1]}, "not a shape"), ({"tensor_name": 1}, '"tensor_name" is 1'),
    ],
)  # fmt: skip
def test_a_wrong_record_is_refused(mlp, profiled, change, says):
    rows = compute(mlp)
    rows[0] |= change
    with pytest.raises(ValueError, match=says):
        profiled(mlp, rows)


def test_names_as_the_writer_leaves_them(mlp, tmp_path):
    """A name that is cut within a letter, or has a tab, is read; a quote is explained."""
    path = tmp_path / "profile.json"
    text = json.dumps(document(mlp, compute(mlp)))
    path.write_bytes(text.replace('"h"', '"h\t\ud800"').encode("utf-8", "surrogatepass"))
    assert read_profile(path).records[0].tensor.startswith("h\t")
    path.write_text(text.replace('"h"', '"h"x"'))
    with pytest.raises(ValueError, match=r"not JSON.*quote or a backslash"):
        read_profile(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="not JSON"):
        read_profile(path)
