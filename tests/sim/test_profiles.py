"""Profiles from a file of op tests: the ops in it are answered, and others are not on record.

The oracle is upstream's own program: it writes the files, about ops of plans and about this CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.record.op_tests import write_op_tests
from ggml_py.sim.profile import NOT_ON_RECORD, row_of
from ggml_py.sim.profiles.call import call_of_record
from ggml_py.tensors.live_call import call_of

from ..support.cli_runs import fails, ok
from ..support.profile_cases import parsed
from ..support.profile_more_cases import ALL_CASES


def written(path: Path, *rows: tuple[str, str, int]) -> Path:
    lines = ['"backend_name","op_name","op_params","test_mode","supported","error_message"']
    for op, params, supported in rows:
        lines.append(f'"X0","{op}","{params}","support","{supported}","-"')
    path.write_text("\n".join(lines) + "\n")
    return path


def of_plan(path: Path, plan: ggml.Plan, *no: str) -> Path:
    """A file that has all ops of a plan on record, those in `no` as not supported."""
    calls = [call_of_record(t.record, plan.capture.tensors) for t in plan.nodes if t.is_computed]
    return written(path, *((c.op, row_of(c), int(c.op not in no)) for c in calls))


@pytest.fixture
def ctx():
    with ggml.Context() as context:
        yield context


@pytest.fixture
def own(tmp_path):
    row = "type=f32,ne=[{0},1,1,1],op_params=[0:6],sources=f32[{0},1,1,1]"
    return written(
        tmp_path / "card.csv",
        ("RELU", f"name=a, b,{row.format(8)}", 1),
        ("RELU", row.format(16), 0),
        ("RELU", row.format(32), 1),
        ("RELU", row.format(32), 0),
        ("RELU", "type=f32,ne_a=[64,1,1,1],v=0", 1),  # one of upstream's own cases
    )


# ---- what a file answers


def test_names():
    names = ggml.profiles()
    assert {"cuda", "metal", "vulkan", "sycl", "cann", "opencl", "rtx4090"} <= set(names)
    assert ggml.load_profile("CUDA").name == "rtx4090"  # a backend's name means one card
    for name in ("cpu", "zdnn", "record:cuda", "docs:cuda"):
        with pytest.raises(ggml.UnknownDeviceError, match=f"no device profile '{name}'"):
            ggml.load_profile(name)


def test_exactly_the_ops_on_record_are_answered(own, ctx):
    card = ggml.load_profile(own)
    eight, sixteen, both = (ctx.relu(ctx.new_tensor("f32", n)) for n in (8, 16, 32))
    found = card.decide(eight)
    assert found.supported and found.basis == "exact"
    assert found.row == "RELU(type=f32,ne=[8,1,1,1],op_params=[0:6],sources=f32[8,1,1,1])"
    assert found.text == f"yes: tested: {found.row}"
    assert not card.supports(sixteen) and card.decide(sixteen).basis == "exact"
    assert not card.supports(both)


@pytest.mark.parametrize("made", [("f32", 24), ("f32", 8, 2), ("f16", 8), ("f32", 64)])
def test_other_ops_are_not_on_record(own, made, ctx, caplog):
    card, tensor = ggml.load_profile(own), ctx.relu(ctx.new_tensor(*made))
    found = card.decide(tensor)
    assert not found and found.row is None and found.basis == NOT_ON_RECORD
    assert found.text.startswith("not on record, which counts as not supported: ")
    assert f"{own} has no RELU(type=" in found.text
    card.decide(tensor)
    assert [record.message for record in caplog.records] == [
        f"{found.text}; there may be more (`Profile.unrecorded`)"
    ]
    assert len(card.unrecorded) == 1 and card.unrecorded[0] in found.text


def test_a_view_computes_nothing(own, ctx):
    x, card = ctx.new_tensor("f32", 8, 8), ggml.load_profile(own)
    for view in (x, ctx.reshape_1d(x, 64), ctx.transpose(x), ctx.view_1d(x, 8, 0)):
        found = card.decide(view)
        assert found.supported and found.basis == "view"


@pytest.mark.parametrize(
    ("content", "what"),
    [("", "no column op_name"), ("op_name,op_params\nADD,x\n", "no column supported"),
     ("op_name,op_params,supported\n", "no op of a test file"),
     ('op_name,op_params,supported\nADD,"type=f32,ne=[1,1,1,1]",1\n', "no op of a test file"),
     (b"\xff\xfe\x00", "cannot be read")],
)  # fmt: skip
def test_files_that_are_no_record(tmp_path, content, what):
    path = tmp_path / "x.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ggml.ArgumentError, match=what):
        ggml.load_profile(path)


# ---- the oracle


CPU_OPS = (
    ("MUL_MAT", "type_a=q4_K,type_b=f32,m=16,n=9,k=256,bs=[2,3],nr=[1,2],per=[0,1,2,3],k_v=0,o=1"),
    ("MUL_MAT", "type_a=f16,type_b=f32,m=16,n=9,k=64,bs=[2,3],nr=[1,1],per=[0,2,1,3],k_v=0,o=1"),
    ("FLASH_ATTN_EXT", "hsk=64,hsv=64,nh=4,nr23=[1,1],kv=512,nb=1,mask=1,sinks=0,"
     "max_bias=0.000000,logit_softcap=0.000000,prec=f32,type_K=q8_0,permute=[0,1,2,3],type_V=q8_0"),
    ("CPY", "type_src=f32,type_dst=q1_0,ne_src=[256,4,4,4],permute_src=[0,2,1,3],"
     "permute_dst=[0,0,0,0],_src_transpose=0"),
    ("SUM_ROWS", "type=f32,ne=[33,10,7,3],permute=0,slice=1"),
    ("SWIGLU", "type=f32,ne_a=[128,2,2,2],v=1,swapped=0"),
    ("RMS_NORM", "type=f32,ne=[64,5,4,3],v=1,eps=0.000001,inplace=0"),
)  # fmt: skip


def test_upstreams_program_writes_what_a_profile_reads(oracle, tmp_path, ctx):
    """Strides, blocks, parameters and ops of one source and of several, and its answers."""
    tensors = [ALL_CASES[op](ctx, parsed(params)) for op, params in CPU_OPS]
    tensors.append(ctx.silu(ctx.new_tensor("f32", 8, 3)))
    with ggml.sim_device("gpu0").init() as gpu, ggml.device("CPU").init() as cpu:
        plans = []
        for tensor in tensors:
            graph = ctx.new_graph()
            graph.build_forward_expand(tensor)
            with ggml.Scheduler([gpu, cpu]) as sched:
                plans.append(sched.plan(graph))
        ops = tmp_path / "ops.txt"
        assert write_op_tests(plans, ops) >= len(tensors)
        done = oracle.run(
            "test-backend-ops", "support", "-b", "CPU", "--test-file", ops, "--output", "csv"
        )
        record = tmp_path / "cpu.csv"
        record.write_text(done.stdout)
        card = ggml.load_profile(record)
        for tensor in tensors:
            found = card.decide(tensor)
            assert found.basis == "exact", found.text
            assert found.supported == cpu.device.supports_op(tensor), found.text
    assert card.unrecorded == ()


# ---- use


def attention_graph(context):
    """Views, permutations, an op in place, a mask, sources that are absent."""
    q = context.permute(context.new_tensor("f32", 64, 8, 5, name="q"), 0, 2, 1, 3)
    cache = context.new_tensor("f16", 64, 128, 2, name="cache")
    store = context.set_rows(context.reshape_2d(cache, 64, 256), context.new_tensor("f32", 64, 5),
                             context.new_tensor("i64", 5))  # fmt: skip
    k = context.view_3d(cache, 64, 96, 2, *cache.nb[1:3], 0)
    v = context.view_3d(cache, 64, 96, 2, *cache.nb[1:3], 0)
    out = context.flash_attn_ext(q, k, v, context.new_tensor("f16", 96, 64), 0.125, 0.0, 0.0)
    flat = context.reshape_2d(out, 512, 5)
    hidden = context.mul_mat(context.new_tensor("q4_0", 512, 64, name="w"), flat)
    scaled = context.scale_inplace(hidden, 2.0)
    soft = context.soft_max_ext(scaled, None, 1.0, 0.0)
    graph = context.new_graph()
    for last in (store, context.add(soft, context.silu(soft))):
        graph.build_forward_expand(last)
    return graph


def planned(context, **settings):
    graph = attention_graph(context)
    with (
        ggml.sim_device("gpu0", **settings).init() as gpu,
        ggml.device("CPU").init() as cpu,
        ggml.Scheduler([gpu, cpu]) as sched,
    ):
        return graph, sched.plan(graph)


def test_a_recorded_node_is_the_call_that_the_live_one_is(tmp_path, ctx):
    graph, plan = planned(ctx)
    for node, record in zip(graph.nodes, plan.capture.tensors, strict=False):
        assert call_of(node) == call_of_record(record, plan.capture.tensors), record.name
    card = ggml.load_profile(of_plan(tmp_path / "x.csv", plan, "FLASH_ATTN_EXT"))
    for live, recorded in zip(graph.nodes, plan.nodes, strict=True):
        assert card.decide(live) == card.decide(recorded)


def test_what_if_the_device_were_another(tmp_path, ctx):
    """A plan over a device that takes all, asked about another, is the plan over that one."""
    _graph, anything = planned(ctx)
    path = of_plan(tmp_path / "x.csv", anything, "FLASH_ATTN_EXT", "SILU")
    _graph, theirs = planned(ctx, profile=path)
    answers = ggml.load_profile(path).answers(anything, "gpu0")
    changed = anything.what_if(supports=answers)
    assert [n.backend for n in changed.nodes] == [n.backend for n in theirs.nodes]
    assert {n.op for n in changed.nodes if n.backend == "CPU"} >= {"FLASH_ATTN_EXT"}
    assert changed.n_splits == theirs.n_splits and theirs.capture.refusals == ()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    write_llama(folder / "m.gguf", LlamaSpec(n_layer=2, n_vocab=320))
    gpu = ("-d", "sim:gpu0", "-d", "CPU", "-ngl", 99, "-fa", "on", "-c", 512)
    for n in (1, 512):
        ok("plan", folder / "m.gguf", *gpu, "--n-tokens", n, "-o", folder / f"{n}.json")
    return folder


def test_a_plan_says_what_is_not_on_record(model, tmp_path):
    """Op by op, in its totals, in its reasons, and in its file."""
    plans = [ggml.Plan.from_json(model / f"{n}.json") for n in (1, 512)]
    rows = [of_plan(tmp_path / f"{i}.csv", plan).read_text() for i, plan in enumerate(plans)]
    head, _, rest = rows[0].partition("\n")
    norms = [line for line in (rest + rows[1].partition("\n")[2]).splitlines()
             if not line.startswith('"X0","RMS_NORM"')]  # fmt: skip
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([head, *norms]) + "\n")
    given = ("-d", f"sim:gpu0,profile={path}", "-d", "CPU", "-ngl", 99, "-fa", "on", "-c", 512,
             "--n-tokens", 512)  # fmt: skip
    saved = tmp_path / "p.json"
    said = ok("plan", model / "m.gguf", *given, "-o", saved, "-v")
    plan = ggml.Plan.from_json(saved)
    unknown = [plan.tensor(refusal.tensor) for refusal in plan.capture.refusals]
    unknown = [node for node in unknown if node.is_computed]
    assert tuple(unknown) == plan.find("norm*") and {node.op for node in unknown} == {"RMS_NORM"}
    n, n_computed = len(unknown), sum(node.is_computed for node in plan.nodes)
    assert (
        f"not known: {n} ops of {n_computed} are not on record for gpu0, which counts as not "
        "supported" in said
    )
    assert any("not on record for gpu0" in one for one in plan.unknown)
    norm = plan.node("norm-1")
    assert norm.backend == "CPU"
    (reason, *_rest) = plan.why_not("norm-1", "gpu0").reasons
    assert reason.id == "op.record"
    assert reason.text.endswith("is not on record for gpu0, which counts as not supported")
    assert "not on record for gpu0" in str(plan.explain("norm-1"))
    assert not any("does not support" in finding.text for finding in plan.advice(0))
    asked = json.loads(ok("why-not", saved, "norm-1", "gpu0", "--json"))
    assert asked["reasons"][0]["id"] == "op.record"
    # An answer makes it known.
    known = plan.what_if(supports={("gpu0", "RMS_NORM"): True})
    assert known.node("norm-1").backend == "gpu0"
    assert not any("not on record" in one for one in known.unknown)
    # What cannot be planned at all says so.
    error = fails("plan", model / "m.gguf", *given[:-1], 32)
    assert "SET_ROWS" in error and "on gpu0 it is not on record, which counts as not" in error


def test_all_of_it_works_without_the_native_library(tmp_path, ctx):
    """A profile, a decision, and what a saved plan would be on another device."""
    graph, plan = planned(ctx)
    call = call_of(graph.nodes[-1])
    plan.to_json(tmp_path / "plan.json")
    path = of_plan(tmp_path / "x.csv", plan, "FLASH_ATTN_EXT")
    program = f"""
import sys
sys.modules["ggml_py._ggml"] = None
import ggml_py
from ggml_py.sim.profiles.call import Call, Operand
call = {call!r}
card = ggml_py.load_profile({str(path)!r})
plan = ggml_py.Plan.from_json({str(tmp_path / "plan.json")!r})
changed = plan.what_if(supports=card.answers(plan, "gpu0"))
print(card.decide(call).text)
print([node.backend for node in changed.nodes])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    card = ggml.load_profile(path)
    changed = plan.what_if(supports=card.answers(plan, "gpu0"))
    assert done.stdout.splitlines() == [
        card.decide(call).text, str([node.backend for node in changed.nodes]),
    ]  # fmt: skip
