"""Who does how much: FLOPs as upstream counts them, bytes, and the headline."""

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace

import pytest

import ggml_py as ggml
from ggml_py.trace import flops as table

from ...support import graphs

FLOPS = (Path(__file__).parents[3] / "docs" / "FLOPS.md").read_text()


def plan_of(build, *devices, weights="CPU"):
    """A plan of what `build(context)` returns; its tensors named "w…" are weights."""
    backends = [ggml.device(d).init(n_threads=1) for d in (*devices, "CPU")]
    with ggml.Context() as c:
        graph = c.new_graph()
        graph.build_forward_expand(build(c))
        with ggml.Scheduler(backends) as scheduler:
            plan = scheduler.plan(graph)
    for backend in backends:
        backend.close()
    return plan


def node_of(build):
    return plan_of(build).nodes[-1]


# What upstream's test-backend-ops says of the same shapes: op, its parameters there, ours.
AS_UPSTREAM = {
    "MUL_MAT": (
        "type_a=f16,type_b=f32,m=16416,n=1,k=128,bs=.8,1.,nr=.4,1.",
        lambda c: c.mul_mat(
            c.new_tensor("f16", 128, 16416, 8), c.new_tensor("f32", 128, 1, 32)
        ),
    ),
    "MUL_MAT_ID": (
        "type_a=f32,type_b=f32,n_mats=128,n_used=8,b=0,m=768,n=1,k=2048",
        lambda c: c.mul_mat_id(
            c.new_tensor("f32", 2048, 768, 128),
            c.new_tensor("f32", 2048, 8, 1),
            c.new_tensor("i32", 8, 1),
        ),
    ),
    "SOLVE_TRI": (
        "ne_lhs=.64,64,4,4.,ne_rhs=.32,64,4,4.",
        lambda c: c.solve_tri(
            c.new_tensor("f32", 64, 64, 4, 4), c.new_tensor("f32", 32, 64, 4, 4), True, True, False
        ),
    ),
    "LIGHTNING_INDEXER": (
        "hsk=128,nh=4,kv=256,nb=1,ns=1,nm=1,type_K=f16",
        lambda c: c.lightning_indexer(
            c.new_tensor("f32", 128, 4, 1),
            c.new_tensor("f16", 128, 1, 256),
            c.new_tensor("f32", 4, 1),
            c.new_tensor("f16", 256, 1),
        ),
    ),
    "FLASH_ATTN_EXT": (
        "hsk=64,hsv=64,nh=8,nr23=.1,1.,kv=4096,nb=1,mask=1.*type_K=f16",
        lambda c: c.flash_attn_ext(
            c.new_tensor("f32", 64, 1, 8),
            c.new_tensor("f16", 64, 4096, 8),
            c.new_tensor("f16", 64, 4096, 8),
            None, 1.0, 0.0, 0.0,
        ),
    ),
}  # fmt: skip


@pytest.mark.needs(release="default", why="whose programs are built")
@pytest.mark.parametrize("op", AS_UPSTREAM)
def test_flops_are_what_upstream_counts(op, oracle):
    parameters, build = AS_UPSTREAM[op]
    said = oracle.run("test-backend-ops", "perf", "-b", "CPU", "-o", op, "-p", parameters).stdout
    number, unit = re.search(r"([\d.]+) ([kMGT])FLOP/run", said).groups()
    upstreams = float(number) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]
    assert node_of(build).flops == pytest.approx(upstreams, rel=5e-3)  # two decimals are printed


@pytest.mark.parametrize(
    ("build", "flops"),
    [
        (lambda c: c.mul_mat(c.new_tensor("f32", 8, 3), c.new_tensor("f32", 8, 5)), 2 * 8 * 3 * 5),
        (lambda c: c.out_prod(c.new_tensor("f32", 8, 3), c.new_tensor("f32", 5, 3)), 2 * 3 * 40),
        (lambda c: c.add(c.new_tensor("f32", 8, 3), c.new_tensor("f32", 8)), 24),
        (lambda c: c.silu(c.new_tensor("f32", 8, 3)), 24),
        (lambda c: c.rms_norm(c.new_tensor("f32", 8, 3), 1e-5), 3 * 24),
        (lambda c: c.soft_max(c.new_tensor("f32", 8, 3)), 5 * 24),
        (lambda c: c.sum_rows(c.new_tensor("f32", 8, 3)), 24),
        (lambda c: c.argsort(c.new_tensor("f32", 8, 3), 0), 24 * 3),
        (lambda c: c.cont(c.transpose(c.new_tensor("f32", 8, 3))), 0),
        (lambda c: c.swiglu(c.new_tensor("f32", 8, 3)), 2 * 12),
        (lambda c: c.get_rows(c.new_tensor("f32", 8, 99), c.new_tensor("i32", 3)), 0),
        (
            lambda c: c.conv_2d_direct(
                c.new_tensor("f32", 3, 3, 4, 6), c.new_tensor("f32", 10, 10, 4, 1), 1, 1, 0, 0, 1, 1
            ),
            (2 * 36 - 1) * 8 * 8 * 6,
        ),
        (
            lambda c: c.pool_2d(c.new_tensor("f32", 8, 8, 2), "max", 2, 4, 2, 4, 0, 0),
            2 * 4 * (4 * 2 * 2),
        ),
    ],
)
def test_flops(build, flops):
    assert node_of(build).flops == flops


def test_flops_of_what_is_not_computed():
    plan = plan_of(lambda c: c.relu(c.view_1d(c.new_tensor("f32", 8), 4, 0)))
    assert [n.flops for n in plan.nodes] == [0, 4]
    assert [leaf.flops for leaf in plan.leafs] == [0]


@pytest.mark.parametrize(
    ("build", "nbytes"),
    [
        (lambda c: c.add(c.new_tensor("f32", 8), c.new_tensor("f32", 8)), 3 * 32),
        (lambda c: c.mul(*[c.new_tensor("f32", 8)] * 2), 2 * 32),  # read once
        # 3 of 99 rows, the indices, the result
        (
            lambda c: c.get_rows(c.new_tensor("f16", 8, 99), c.new_tensor("i32", 3)),
            3 * 16 + 12 + 3 * 32,
        ),
        (
            lambda c: c.set_rows(
                c.new_tensor("f16", 8, 99), c.new_tensor("f32", 8, 2), c.new_tensor("i64", 2)
            ),
            64 + 16 + 2 * 16,
        ),
        (lambda c: c.cpy(c.new_tensor("f32", 8), c.new_tensor("f16", 8)), 32 + 16),
        # more indices than there are rows or experts: all of them, once
        (
            lambda c: c.get_rows(c.new_tensor("f16", 8, 4), c.new_tensor("i32", 99)),
            4 * 16 + 99 * 4 + 99 * 32,
        ),
        (
            lambda c: c.set_rows(
                c.new_tensor("f16", 8, 4), c.new_tensor("f32", 8, 9), c.new_tensor("i64", 9)
            ),
            9 * 32 + 9 * 8 + 4 * 16,
        ),
        (
            lambda c: c.mul_mat_id(
                c.new_tensor("f32", 4, 8, 3), c.new_tensor("f32", 4, 2, 9),
                c.new_tensor("i32", 2, 9),
            ),
            3 * 128 + 18 * 16 + 18 * 4 + 18 * 32,
        ),
        # 2 of 16 experts
        (
            lambda c: c.mul_mat_id(
                c.new_tensor("f32", 4, 8, 16), c.new_tensor("f32", 4, 2, 1),
                c.new_tensor("i32", 2, 1),
            ),
            2 * 128 + 32 + 8 + 64,
        ),
    ],
)
def test_bytes(build, nbytes):
    (share,) = plan_of(build).shares()
    assert share.bytes == nbytes


def test_every_op_is_in_the_page():
    """docs/FLOPS.md has the same table as the code, and every op of this release is known to it
    or counts as one operation for each element."""
    rows = re.findall(r"^\| (.*) \| (.*) \|$", FLOPS.split("## FLOPs")[1], re.M)
    said = {op: how for ops, how in rows for op in re.findall(r"`(\w+)`", ops)}
    expected = dict.fromkeys(table.FREE - table.VIEW_OPS - {"NONE"}, "0")
    expected |= {op: f"{k}·n" for op, k in table.PER_ELEMENT.items()}
    expected |= {op: f"{k}·n0" if k > 1 else "n0" for op, k in table.PER_SOURCE_ELEMENT.items()}
    assert {op: said[op].split(":")[0] for op in expected} == expected
    assert set(table._FORMULAS) <= set(said)
    assert not set(table.PER_ELEMENT) & set(table._FORMULAS)


def test_ops_of_the_tables_are_ggmls():
    """A misspelt op would count as one operation for each element."""
    names = {op.name for op in ggml.enums.Op}
    known = {*table.FREE, *table.PER_ELEMENT, *table.PER_SOURCE_ELEMENT, *table._FORMULAS}
    newest = tuple(map(int, ggml.enums.UPSTREAM.split("."))) >= (0, 26)
    assert not newest or known <= names, known - names


# --- the headline


def test_shares_add_up():
    for make in graphs.CASES.values():
        case = make()
        plan = case.scheduler.plan(case.graph)
        case.close()
        shares = plan.shares()
        assert [s.backend for s in shares] == [b.name for b in plan.backends]
        assert {s.backend: s.nodes for s in shares} == plan.nodes_per_backend()
        assert sum(s.flops for s in shares) == sum(n.flops for n in plan.nodes)
        for column in ("node_share", "flops_share", "bytes_share"):
            assert sum(getattr(s, column) for s in shares) == pytest.approx(1)
        assert sum(s.weight_bytes for s in shares) == sum(
            t.nbytes for t in plan.leafs if t.is_weight
        )
        assert shares[-1].weight_bytes > 0  # the CPU holds them, BLAS reads them there


@pytest.mark.needs(release="0.9.7", why="which marks the nodes that are computed")
def test_a_branch_that_was_not_selected_is_nobodys():
    plan = plan_of(lambda c: c.sqr(c.relu(c.new_tensor("f32", 8))))
    first, *others = plan.capture.tensors
    tensors = (first._replace(flags=()), *others)
    left = replace(plan, capture=replace(plan.capture, tensors=tensors))
    assert [(n.is_computed, n.flops) for n in left.nodes] == [(False, 0), (True, 8)]
    (share,) = left.shares()
    assert (share.nodes, share.flops, share.bytes) == (1, 8, 64)
    assert left.nodes_per_backend() == {"CPU": 1}


def test_weights_in_memory_that_nobody_reads_are_the_cpus():
    case = graphs.mlp()
    plan = case.scheduler.plan(case.graph)
    case.close()
    bufts = tuple(b._replace(readers=0) for b in plan.capture.bufts)
    unread = replace(plan, capture=replace(plan.capture, bufts=bufts))
    sizes = [s.weight_bytes for s in unread.shares()]
    assert sizes == [0, sum(t.nbytes for t in plan.leafs if t.is_weight)] and sizes[1] > 0


def test_story_ollama_14258_a_fallback_is_not_silent(sims):
    """ollama #14258: what does not fit the GPU is computed by the CPU, and nothing says so. The
    headline does: how many nodes, how much of the arithmetic and of the memory traffic."""
    n_embd, n_layer, on_gpu = 64, 4, 1
    gpu, cpu = sims("gpu0").init(), ggml.device("CPU").init(n_threads=1)
    held, c = {gpu: ggml.Context(), cpu: ggml.Context()}, ggml.Context()
    x = c.new_tensor("f32", n_embd, 1, name="x")
    x.set_input()
    for i in range(n_layer):
        place = held[gpu if i < on_gpu else cpu]
        w = place.new_tensor("f32", n_embd, n_embd, name=f"blk.{i}.ffn.weight")
        x = c.relu(c.mul_mat(w, x))
    for backend, context in held.items():
        context.alloc(backend, usage="weights")
    graph = c.new_graph()
    graph.build_forward_expand(x)
    with ggml.Scheduler([gpu, cpu]) as scheduler:
        plan = scheduler.plan(graph)
    assert plan.headline() == (
        "2 splits, 2 copies (512 B), nodes: gpu0 2 (25%), CPU 6 (75%); "
        "FLOPs: gpu0 25%, CPU 75%; bytes: gpu0 25%, CPU 75%"
    )
    on_cpu = plan.shares()[-1]
    assert on_cpu.weight_bytes == (n_layer - on_gpu) * n_embd * n_embd * 4
    assert on_cpu.flops_share == pytest.approx(0.75, abs=0.01)
    for handle in (c, *held.values(), gpu, cpu):
        handle.close()


def test_shares_are_in_the_json(tmp_path):
    case = graphs.mlp()
    plan = case.scheduler.plan(case.graph)
    case.close()
    data = plan.to_json(tmp_path / "p.json")
    assert data["shares"][0]["backend"] == "BLAS"
    assert data["shares"][0]["flops"] == 2 * 2 * 64 * 128 * 48 == prod((2, 2, 64, 128, 48))
    assert ggml.Plan.from_json(tmp_path / "p.json").shares() == plan.shares()


def test_flops_of_attentions_gradient():
    """2.5 times those of attention, as docs/FLOPS.md has it; no constructor makes the op now."""
    q, k, v = (SimpleNamespace(ne=ne) for ne in ((64, 8, 4, 1), (64, 32, 2, 1), (32, 32, 2, 1)))
    attention, back = (SimpleNamespace(op=f"FLASH_ATTN_{w}", ne=q.ne) for w in ("EXT", "BACK"))
    assert table.flops(attention, (q, k, v)) == 2 * 8 * 4 * 32 * (64 + 32)
    assert table.flops(back, (q, k, v)) == 5 * 8 * 4 * 32 * (64 + 32)
