"""Pages of plans: what is on them, that they are read back, how little a small change changes."""

import difflib
import gc
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.trace import reference
from ggml_py.trace.answers.match import without_number

from ..support import graphs
from ..support.captures import captures
from ..support.cli_runs import fails, ok, run

N_LAYER = 8
GPU = ("sim:gpu0,profile=cuda", "CPU")
HOSTILE = [
    "Qcur-0", "Qcur-1", "Qcur-2", "Qcur-01", "l_out-1", "blk.1.ffn.weight", "cache_k_l1 (view)",
    "node_3", "node_3 (view)", " (view)", "", "-", "<", "< x", "{i}", "x-{i}", 'a "b"', '"', "a  b",
    " a", "a ", "split on CPU", "layer i = 0", "nodes", "naïve-1", "\u2028", "x\ny", "\x85\t",
    "</script>", "\\", "\\n-1", "a" * 63,
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Plans of one small llama, by their options."""
    path = tmp_path_factory.mktemp("snapshot") / "m.gguf"
    sizes = {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 192, "n_vocab": 300}
    write_llama(path, LlamaSpec(N_LAYER, **sizes))

    def plan(n_tokens=64, devices=GPU, **options):
        with load(path, devices, n_threads=1, repack=False, **options) as m:
            return m.plan(n_tokens=n_tokens)

    yield plan
    gc.collect()


def again(plan):
    """The plan on its page, which is the page that was read."""
    page = plan.snapshot()
    read = ggml.Plan.from_snapshot(page)
    assert read.snapshot() == page
    return read


def changed_lines(a, b):
    lines = difflib.unified_diff(a.snapshot().split("\n"), b.snapshot().split("\n"), n=0)
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize("name", graphs.CASES)
def test_a_page_is_read_back(name, plans):
    plan = plans[name]
    read = again(plan)
    assert read.capture.source == read.planner == "snapshot"
    assert read.diff(plan).same and plan.diff(read).same
    assert read.nodes_per_backend() == plan.nodes_per_backend()
    assert (read.n_splits, read.copy_bytes, read.n_inputs) == (
        plan.n_splits, plan.copy_bytes, plan.n_inputs
    )  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(captures(), st.data())
@pytest.mark.thorough("long")
def test_pages_of_random_plans_with_hostile_names(capture, data):
    tensors = [
        t._replace(name=data.draw(st.sampled_from(HOSTILE), label=str(t.id)))
        for t in capture.tensors
    ]
    plan = reference.plan(replace(capture, tensors=tuple(tensors)))
    read = again(plan)
    rows = [n for n in plan.nodes if not n.is_view_op]
    if len(rows) == len(read.nodes):  # no split of views alone
        names = [without_number(n.name) for n in rows]
        assert [without_number(n.name) for n in read.nodes] == names
        assert [n.backend for n in read.nodes] == [n.backend for n in rows]
        assert [n.placement.cause for n in read.nodes] == [n.placement.cause for n in rows]
    assert [s.backend for s in read.splits] == [s.backend for s in plan.splits]
    inputs = [[(i.src_backend, i.nbytes) for i in s.inputs] for s in plan.splits]
    assert [[(i.src_backend, i.nbytes) for i in s.inputs] for s in read.splits] == inputs


def test_layers_that_are_alike_are_told_once(model):
    plan = model(n_gpu_layers=99)
    page = plan.snapshot()
    assert page.startswith("ggml_py plan snapshot 2\n\nmade with\n  model ")
    assert "\n\nnodes   gpu0 " in page
    heads = [line for line in page.split("\n") if line.startswith("layer")]
    assert heads == [f"layers i = 0-{N_LAYER - 2}", f"layer i = {N_LAYER - 1}"]
    line = next(line for line in page.split("\n") if "Kcur-{i}" in line)
    assert line.split() == ["Kcur-{i}", "MUL_MAT", "gpu0", "1.wgt0"]
    assert again(plan).diff(plan).same


def test_one_node_that_moves_is_a_few_lines(model):
    plan = model(n_gpu_layers=99)
    node = plan.find("ffn_swiglu-3")[0]
    moved = plan.what_if(supports={("gpu0", node.id): False})
    assert moved.node("ffn_swiglu-3").backend == "CPU"
    assert again(moved).diff(moved).same
    page = moved.snapshot()
    assert f"layers i = 0-2, 4-{N_LAYER - 2}\n" in page
    assert "layer i = 3, as i = 0 but\n" in page
    lines = changed_lines(plan, moved)
    # the totals, the heads, the node with its split and copies, and the one that reads it
    assert len(lines) < 20, lines
    diff = ggml.Plan.from_snapshot(plan.snapshot()).diff(moved)
    assert [c.name for c in diff.moved] == ["ffn_swiglu-3"]
    assert diff.context == {}


def test_a_layer_more_on_the_gpu_is_heads(model):
    lines = changed_lines(model(n_gpu_layers=3, n_tokens=1), model(n_gpu_layers=4, n_tokens=1))
    assert f"-layers i = 0-{N_LAYER - 4}" in lines and f"+layers i = 0-{N_LAYER - 5}" in lines
    assert len(lines) <= 40


def test_a_change_in_every_layer_is_lines_of_one_layer(model):
    kept, now = model(n_gpu_layers=99), model(n_gpu_layers=99, type_k="iq4_nl", type_v="iq4_nl")
    diff = ggml.Plan.from_snapshot(kept.snapshot()).diff(now)
    assert {c.op for c in diff.moved} == {"FLASH_ATTN_EXT"} and len(diff.moved) == N_LAYER
    direct = kept.diff(now)
    assert diff.copies_added == direct.copies_added
    assert [replace(s, name="") for s in diff.splits_added] == [
        replace(s, name="") for s in direct.splits_added
    ]
    assert len(changed_lines(kept, now)) < 40


def test_pages_do_not_tell_the_machine(model, sims):
    """Alignment and memory of the device, threads, names of devices' buffers."""
    kept = model(n_gpu_layers=99)
    gpu = f"{GPU[0]},alignment=256,memory=1G"
    other = model(n_gpu_layers=99, devices=(gpu, "CPU"))
    assert kept.snapshot() == other.snapshot()
    settings = kept.settings._replace(upstream="9.9.9", build="other", hash_set_size=7)
    bufts = tuple(b._replace(name=f"other {b.name}") for b in kept.capture.bufts)
    capture = replace(kept.capture, settings=settings, bufts=bufts)
    assert replace(kept, capture=capture).snapshot() == kept.snapshot()
    assert "0.26" not in kept.snapshot() and "CPU_Mapped" not in kept.snapshot()


def test_two_stacks_of_layers_are_kept_apart(plans):
    """An encoder and a decoder whose layers have the same numbers."""
    plan = plans["views"]
    names = iter(["a-0", "b-0", "a-1", "b-1", "a-0", "b-0", "a-1", "b-1", "end"])
    tensors = [
        t._replace(name=next(names, "end")) if t.kind == "node" and not t.is_view_op else t
        for t in plan.capture.tensors
    ]
    named = replace(plan, capture=replace(plan.capture, tensors=tuple(tensors)))
    kept = [n.name for n in named.nodes if not n.is_view_op]
    assert [n.name for n in again(named).nodes] == kept


@pytest.mark.parametrize("name", ["mlp", "views", "sweeps"])
def test_the_page_of_a_debug_log(name, plans):
    log = ggml.Plan.from_debug_log(plans[name].text())
    read = again(log)
    assert read.diff(log).same and log.diff(read).same
    moved = log.capture.backends[::-1]
    other = replace(log, capture=replace(log.capture, backends=moved))
    assert bool(read.diff(other)) == (len(moved) > 1)


def test_what_a_page_does_not_tell(plans):
    read = again(plans["mlp"])
    assert any("shapes" in sentence for sentence in read.unknown)
    assert read.shares() is None and read.headline().startswith("3 splits")
    assert read.explain("h").limits
    for ask in (read.passes, lambda: read.why_not("h", "CPU"), lambda: read.steps):
        with pytest.raises(ValueError, match="snapshot"):
            ask()


def test_a_page_survives_as_json(plans, tmp_path):
    read = again(plans["mlp"])
    read.to_json(tmp_path / "p.json")
    assert ggml.Plan.from_json(tmp_path / "p.json") == read


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda page: "", "expected 'ggml_py plan snapshot 2' in the first line"),
        (lambda page: page.replace("snapshot 1", "snapshot 3"), "version 3 of the format"),
        (lambda page: page.split("\n\n")[0], "no nodes"),
        (lambda page: page.replace("  split on BLAS\n", "", 1), "they are not in a split"),
        (lambda page: page.replace("1.wgt0", ""), "line 9 is damaged"),
        (lambda page: page.replace("\nnodes\n", "\n<<<<<<< HEAD\nnodes\n"), "unknown section"),
        (lambda page: page.replace("\nnodes\n", "\n"), "outside of any section"),
        (lambda page: page.replace("\nnodes\n", "\nlayer i = 3, as i = 2 but\n"), "layer 2 is"),
        (lambda page: page.replace("\nnodes\n", "\nlayers i = 3-x\n"), "unknown section"),
        (lambda page: page.replace("\nnodes\n", "\nlayers i = 0-9999999999\n"), "layer 9999999999"),
        (lambda page: page.replace("    h ", '    "h '), "is damaged"),
    ],
)
def test_damaged_pages_are_refused(plans, damage, message):
    with pytest.raises(ValueError, match=message):
        ggml.Plan.from_snapshot(damage(plans["mlp"].snapshot()))


def test_the_verbs_read_pages(plans, tmp_path):
    page, other = tmp_path / "kept.plan", tmp_path / "now.json"
    page.write_bytes(plans["mlp"].snapshot().replace("\n", "\r\n").encode())
    plans["mlp"].what_if(drop=["BLAS"]).to_json(other)
    done = run("diff", page, other)
    assert done.returncode == 1 and "2 of 3 nodes moved" in done.stdout
    assert "MUL_MAT" in ok("plan", page, "-v") and "1.wgt0" in ok("explain", page, "h")
    page.write_text("ggml_py plan snapshot 1\n")
    assert "kept.plan: this snapshot has no nodes" in fails("diff", page, other)
