"""Diffs of plans: what is matched, what is told, what counts."""

import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import ggml_py as ggml
from ggml_py.export.to_terminal import show_diff
from ggml_py.trace import reference
from ggml_py.trace.answers.match import Key, match

from ...support import graphs
from ...support.layered_plans import Layers, named
from ...support.random_plans import plans as random_plans
from ...support.worlds import World
from ...support.worlds import plan as plan_of


def titles(diff):
    return [title for title, _rows in diff.sections()]


def change(capture, id, **fields):
    """The capture with one tensor changed."""
    tensors = list(capture.tensors)
    tensors[id] = tensors[id]._replace(**fields)
    return replace(capture, tensors=tuple(tensors))


@pytest.mark.parametrize("name", graphs.CASES)
def test_a_plan_is_the_same_as_itself_and_as_the_references(name, plans):
    for other in (plans[name], plans[name].reference):
        diff = plans[name].diff(other)
        assert diff.same and not diff
        assert str(diff) == diff.headline() and diff.headline().startswith("same; splits ")


def test_a_node_that_moves_its_causes_and_its_splits(plans):
    before = plans["mlp"]
    after = reference.plan(change(before.capture, 0, supports=0b10))  # BLAS cannot do 'h'
    diff = before.diff(after)
    assert diff and [c.name for c in diff.moved] == ["h"]
    (moved,) = diff.moved
    assert (moved.before.backend, moved.before.cause) == ("BLAS", "1.wgt0")
    assert (moved.after.backend, moved.after.cause) == ("CPU", "1.wgt0")
    assert (diff.before.n_splits, diff.after.n_splits) == (3, 2)
    assert [(s.index, s.backend, s.name) for s in diff.splits_removed] == [
        (0, "BLAS", "h"), (1, "CPU", "node_1"),
    ]  # fmt: skip
    assert [(s.index, s.backend, s.name, s.n_nodes) for s in diff.splits_added] == [
        (0, "CPU", "h", 2)
    ]
    assert "  h (MUL_MAT): BLAS 1.wgt0 → CPU 1.wgt0" in str(diff).splitlines()
    # the one after it has another cause: a neighbour that spreads to it
    assert "  node_1 (RELU): CPU 3.best → CPU 2.sup" in str(diff).splitlines()
    assert diff.headline() == "1 of 3 nodes moved from BLAS to CPU; splits 3 → 2, copies 0 (0 B)"
    back = after.diff(before)
    assert back.splits_added == diff.splits_removed and back.moved[0].before == moved.after


def test_what_a_plan_was_made_with_is_told_and_does_not_count(plans):
    before = plans["mlp"]
    older = before.settings._replace(upstream="0.24.0", build="0.24.0-12345678", op_offload=False)
    after = reference.plan(replace(before.capture, settings=older)).made(before.provenance)
    diff = before.diff(after)
    assert diff.same
    assert diff.context == {
        "release": (before.settings.release, "0.24.0"), "op_offload": (True, False),
    }  # fmt: skip
    assert titles(diff) == ["made with"]


def test_a_weight_in_another_buffer_counts(plans):
    before = plans["mlp"]
    bufts = (*before.capture.bufts, before.capture.bufts[0]._replace(name="CPU_REPACK"))
    repacked = before.capture.buffers[0]._replace(buft=len(bufts) - 1)
    capture = replace(before.capture, bufts=bufts, buffers=(repacked,))
    diff = before.diff(reference.plan(capture))
    assert diff and not diff.moved
    assert {c.name for c in diff.changed if c.moved_memory} == {"up", "down"}
    assert "up (leaf): BLAS 1.dst (in CPU → CPU_REPACK)" in str(diff)


def test_backends_can_be_renamed(plans):
    before = plans["mlp"]
    other = [b._replace(name="CUDA0") if b.name == "BLAS" else b for b in before.backends]
    after = replace(before, capture=replace(before.capture, backends=tuple(other)))
    assert len(before.diff(after).moved) == 2
    diff = before.diff(after, backends={"BLAS": "CUDA0"})
    assert diff.same and diff.before.nodes_per_backend == {"CUDA0": 2, "CPU": 1}
    with pytest.raises(KeyError, match="no backend 'gpu7' in this plan; it has BLAS, CPU"):
        before.diff(after, backends={"gpu7": "CUDA0"})


def test_other_shapes_are_told_and_do_not_count():
    made = []
    for n_tokens in (48, 64):
        backends = [ggml.device(name).init(n_threads=1) for name in ("BLAS", "CPU")]
        weights, c = ggml.Context(), ggml.Context()
        w = weights.new_tensor("f32", 64, 64, name="w")
        weights.alloc(backends[-1], usage="weights")
        graph = c.new_graph()
        graph.build_forward_expand(c.relu(c.mul_mat(w, c.new_tensor("f32", 64, n_tokens))))
        with ggml.Scheduler(backends) as scheduler:
            made.append(scheduler.plan(graph))
    diff = made[0].diff(made[1])
    assert diff.same and diff.n_reshaped == 2
    assert "2 nodes with another shape or type" in str(diff)


def test_rows_of_the_same_kind_are_one_row_and_long_reports_end(plans):
    diff = plans["mlp"].diff(plans["views"])
    assert "2×  (reshaped) (permuted) (cont) (CONT): on CPU" in str(diff)
    (change,) = diff.removed[:1]
    many = tuple(replace(change, name=f"ffn_out-{i}") for i in range(32))
    one = replace(diff, removed=many)
    assert "32× ffn_out-* (MUL_MAT): on BLAS" in str(one)
    letters = tuple(replace(change, name="x" * i) for i in range(1, 33))
    assert "… 12 more" in str(replace(diff, removed=letters))


def decisions(plan):
    """What counts for a diff, of two plans of the same graph."""
    placed = [p[:2] for p in plan.outcome.placements]
    splits = [(s.backend, next((n.id for n in split.nodes if not n.is_view_op), s.start))
              for s, split in zip(plan.split_records, plan.splits, strict=True)]  # fmt: skip
    inputs = sorted((i, s.backend) for s in plan.split_records for i, _copy in s.inputs)
    return placed[: len(plan.capture.tensors)], splits, inputs


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.data())
def test_random_plans_differ_where_their_decisions_do(seed, data):
    for before in random_plans(seed, 16):
        tensors = list(before.capture.tensors)
        every = (1 << len(before.backends)) - 1
        for _ in range(data.draw(st.integers(0, 3))):
            i = data.draw(st.integers(0, before.capture.n_nodes - 1))
            supports = data.draw(st.integers(0, every)) | 1 << len(before.backends) - 1
            tensors[i] = tensors[i]._replace(supports=supports)
        try:
            after = reference.plan(replace(before.capture, tensors=tuple(tensors)))
        except reference.CannotPlanError:
            continue
        assert before.diff(after).same == (decisions(before) == decisions(after))
        moved = [
            n.index
            for n, m in zip(before.nodes, after.nodes, strict=True)
            if n.is_computed and n.backend != m.backend
        ]
        assert [c.before.index for c in before.diff(after).moved] == moved


def test_it_is_plain_data(plans):
    diff = plans["mlp"].diff(plans["views"])
    data = json.loads(json.dumps(diff.to_dict()))
    assert data["same"] is False and data["before"]["n_splits"] == 3
    assert data["removed"][0] == {
        "name": "h", "op": "MUL_MAT", "kind": "node", "index": 0, "backend": "BLAS",
    }  # fmt: skip


def test_plans_are_compared_where_the_native_module_is_blocked(plans, tmp_path):
    for name in ("mlp", "views"):
        plans[name].to_json(tmp_path / f"{name}.json")
    program = (
        "import sys; sys.modules['ggml_py._ggml'] = None\n"
        "import ggml_py\n"
        f"read = lambda n: ggml_py.Plan.from_json({str(tmp_path)!r} + '/' + n + '.json')\n"
        "a, b = read('mlp'), read('views')\n"
        "print(a.diff(b)); print(a.shares())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    diff = plans["mlp"].diff(plans["views"])
    assert done.stdout == f"{diff}\n{plans['mlp'].shares()}\n", done.stderr


def test_tables(plans):
    out = io.StringIO()
    show_diff(plans["mlp"].diff(plans["views"]), 2, Console(file=out, width=100))
    text = out.getvalue()
    assert "3 nodes only before, 11 only after" in text and "\n… " in text
    assert "#0 on BLAS from h (MUL_MAT) " in text


# --- matching


def keys(text):
    """ "a:MUL :ADD" -> names and ops"""
    return [Key(*word.split(":")) for word in text.split()]


@pytest.mark.parametrize(
    ("before", "after", "pairs"),
    [
        ("a:MUL b:ADD", "a:MUL b:ADD", {0: 0, 1: 1}),
        ("a:MUL b:ADD", "b:ADD a:MUL", {0: 1, 1: 0}),  # names find each other in any order
        ("a:MUL a:MUL", "a:MUL x:ADD a:MUL", {0: 0, 1: 2}),  # the k-th is the k-th
        ("a:MUL", "a:ADD", {}),  # another op is another node
        (":MUL :ADD :RELU", ":MUL :RELU", {0: 0, 2: 1}),  # no names: by position
        (":ADD a:MUL :ADD", "a:MUL :ADD", {1: 0, 2: 1}),  # between names
        ("a:MUL :ADD :ADD b:MUL :ADD", "a:MUL :ADD b:MUL :ADD", {0: 0, 1: 1, 3: 2, 4: 3}),
        ("a:CPY a:CPY b:MUL", "a:CPY b:MUL", {0: 0, 2: 1}),  # one of several is gone
        ("", "a:MUL", {}),
    ],
)
def test_matching(before, after, pairs):
    assert match(keys(before), keys(after)) == pairs


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.builds(Key, st.sampled_from(["", "", "a", "b", "c"]), st.sampled_from("XY"))),
    st.lists(st.builds(Key, st.sampled_from(["", "", "a", "b", "c"]), st.sampled_from("XY"))),
)
def test_matching_is_one_to_one_among_equals(a, b):
    pairs = match(a, b)
    assert all(a[i] == b[j] for i, j in pairs.items())
    assert len(set(pairs.values())) == len(pairs)
    assert match(a, list(a)) == {i: i for i in range(len(a))}


def test_long_stretches_without_names_end():
    a = [Key("", "ADD" if i % 3 else "MUL") for i in range(40_000)]
    assert len(match(a, [Key("", "SQR"), *a])) == len(a)


# --- what maintainers count by hand


def test_story_27880_a_lookup_beside_the_other_lookup_takes_two_splits_away(sims):
    """llama.cpp #27880: the per-layer embeddings are looked up on the CPU in the middle of the
    graph; done right after the token embeddings there are 2 splits rather than 4."""
    made = []
    for regrouped in (False, True):
        with Layers(sims(), op_offload=False) as net:
            c, tokens = net.c, net.input("tokens", 4)
            x = named(c.get_rows(net.tables[0], tokens), "inp_embd")
            extra = named(c.get_rows(net.tables[1], tokens), "inp_ple")
            h = named(c.mul_mat(net.w[0], x), "l_out-0")
            out = named(c.mul_mat(net.w[1], c.add(h, extra)), "l_out-1")
            made.append(net.plan(*([x, extra, out] if regrouped else [x, h, extra, out])))
    diff = made[0].diff(made[1])
    assert diff.headline() == "0 of 5 nodes moved; splits 4 → 2, copies 2 (2.0 KiB)"
    assert [(s.index, s.backend, s.op) for s in diff.splits_removed] == [
        (2, "CPU", "GET_ROWS"), (3, "gpu0", "ADD"),
    ]  # fmt: skip
    assert diff.splits_added == diff.added == diff.copies_added == diff.copies_removed == ()


def test_story_14825_one_view_of_an_input_rather_than_one_for_each_layer(sims):
    """llama.cpp #14825: each layer of a recurrent model viewed the input s_copy by itself, and each
    view was copied; with releases that limit a split's inputs there were splits for it, too."""
    made = []
    n = 40
    for shared in (False, True):
        with Layers(sims(), n_layers=n) as net:
            c, s_copy = net.c, net.input("s_copy", 8)
            one = named(c.view_1d(s_copy, 4, 0), "s_copy_main")
            h = net.w[0]
            for i in range(n):
                view = one if shared else named(c.view_1d(s_copy, 4, 0), f"s_copy_main-{i}")
                h = named(c.mul_mat(net.w[i], c.get_rows(h, view)), f"l_out-{i}")
            made.append(net.plan(h))
    diff = made[0].diff(made[1])
    assert (diff.before.n_copies, diff.after.n_copies) == (n, 1)
    assert not diff.moved and {e.nbytes for e in diff.copies_removed} == {16}
    old = made[0].settings._replace(upstream="0.17.0", build="0.17.0-0")
    older = [reference.plan(replace(p.capture, settings=old)) for p in made]
    diff = older[0].diff(older[1])
    assert (diff.before.n_splits, diff.after.n_splits) == (2, 1)
    assert [(s.backend, s.op) for s in diff.splits_removed] == [("gpu0", "GET_ROWS")]


def test_story_16328_the_splits_of_a_graph_with_two_settings():
    """llama.cpp #16328, as #27880 and #14825: maintainers count splits before and after a change by
    hand. Here one graph of two layers in host memory, without and with op offload."""
    layers = (("MUL_MAT", 0, 0), ("RELU", 1, 0), ("MUL_MAT", 2, 1))
    world = World(recipe=layers, homes=(-1, -1, -1), op_offload=False)
    before, after = plan_of(world), plan_of(replace(world, op_offload=True))
    diff = before.diff(after)
    assert diff.headline() == (
        "3 of 3 nodes moved from CPU to gpu0; splits 1 → 2, copies 0 (0 B) → 3 (14.0 KiB)"
    )
    assert (before.n_splits, after.n_splits) == (1, 2)
    assert len(diff.splits_added) - len(diff.splits_removed) == 1
    assert {e.tensor: e.nbytes for e in diff.copies_added} == {"inp": 6144, "w0": 4096, "w1": 4096}


def test_an_op_that_a_device_learns(sims):
    """What a maintainer does who adds an op to a backend: count the splits before and after."""
    made = []
    for known in ({"MUL_MAT": True}, {"MUL_MAT": True, "SILU": True}):
        with Layers(sims(supports=known), op_offload=False) as net:
            h = net.input("x", 64, "f32")
            for i, w in enumerate(net.w):
                h = named(net.c.mul_mat(w, net.c.silu(h)), f"l_out-{i}")
            made.append(net.plan(h))
    diff = made[0].diff(made[1])
    assert diff.headline() == (
        "2 of 4 nodes moved from CPU to gpu0; splits 4 → 1, copies 3 (768 B) → 1 (256 B)"
    )
    assert [(c.op, c.before.backend, c.after.backend) for c in diff.moved] == [
        ("SILU", "CPU", "gpu0")
    ] * 2
    assert [(e.tensor, e.src_backend, e.dst_backend) for e in diff.copies_added] == [
        ("x", "CPU", "gpu0")
    ]
    assert [(e.dst_backend, e.nbytes) for e in diff.copies_removed] == [
        ("gpu0", 256), ("CPU", 256), ("gpu0", 256),
    ]  # fmt: skip
