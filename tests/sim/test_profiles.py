"""Device profiles: the rows that decisions rest on, the rules between rows, and how fast it is.

The oracle is twofold: every test case that upstream recorded, built live, must find its own row;
and what the CPU's profile says must be what the CPU says.
"""

from __future__ import annotations

import subprocess
import sys
import time
from random import Random

import pytest
from profile_more_cases import ALL_CASES as CASES

import ggml_py as ggml
from ggml_py.sim import rows as profile_rows
from ggml_py.sim.profile import _Cases
from ggml_py.sim.profiles.call import call_of_record
from ggml_py.sim.profiles.ops import OPS
from ggml_py.tensors.call import call_of

SAMPLED = 40
pinned = pytest.mark.needs(release="default", why="older records are staler than their release")
has_top_k = pytest.mark.needs("Op.TOP_K")


def sample(record, op, n=SAMPLED):
    rows = record.answers(op)
    return rows[:: max(1, len(rows) // n)]


def top_k(*ne, k=4):
    context = ggml.Context()
    return context.top_k(context.new_tensor("f32", *ne), k)


def made(op, text):
    context = ggml.Context()
    return CASES[op](context, profile_rows.parsed(text))


# ---- the record


def test_names():
    names = ggml.profiles()
    assert {"cpu", "cuda", "metal", "vulkan", "sycl", "cann", "opencl", "rtx4090"} <= set(names)
    assert ggml.load_profile("record:CUDA").name == "cuda"
    assert ggml.load_profile("CUDA").name == "rtx4090"  # a backend's name means one card


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("profile", ["cpu", "cuda", "metal", "vulkan"])
def test_every_recorded_case_finds_its_own_row(profile):
    record = profile_rows.record_of(profile)
    device = ggml.load_profile(f"record:{profile}")
    n_exact = n_refused = n = 0
    for op in sorted(record.ops() & CASES.keys()):
        for text, supported in sample(record, op):
            try:
                tensor = made(op, text)
            except ggml.GgmlError:
                n_refused += 1  # by checks of ours (vendor/op_edits.py), in older releases theirs
                continue
            found = device.decide(tensor)
            n += 1
            n_exact += found.basis == "exact"
            assert found.supported == supported, (text, found.text)
            # Where a dimension is 1, a view or permutation of it cannot be seen.
            assert found.basis == "exact" or found.row == f"{op}({text})", (text, found.text)
    assert n > 1000
    assert n_exact / n > 0.98
    assert n_refused / n < 0.15


@pytest.mark.thorough("long")
def test_no_parameter_of_the_record_is_missed():
    kinds = (ggml.enums.Op, ggml.enums.UnaryOp, ggml.enums.GluOp)
    real = {member.name for kind in kinds for member in kind}  # others are tests of several ops
    for profile in profile_rows.names():
        device = ggml.load_profile(f"record:{profile}")
        assert real & set(device.ops) <= OPS.keys()
        for op in OPS.keys() & set(device.ops):
            cases = device._cases_of(op)
            for case in (case for group in cases.groups.values() for case in group):
                wanted = {*cases.spec.same, *cases.spec.size, *cases.spec.soft}
                assert wanted <= case.row.keys(), (profile, op, case.text)


# ---- the oracle


@pinned
@pytest.mark.thorough("long")
def test_the_cpu_says_what_its_profile_says():
    cpu, device = ggml.device("CPU"), ggml.load_profile("record:cpu")
    record = profile_rows.record_of("cpu")
    n = 0
    for op in sorted(record.ops() & CASES.keys()):
        for text, supported in sample(record, op, 60):
            try:
                tensor = made(op, text)
            except ggml.GgmlError:
                continue
            n += 1
            assert cpu.supports_op(tensor) == supported == device.supports(tensor), f"{op}({text})"
    assert n > 1500


@pytest.fixture(scope="module")
def this_cpu(oracle, tmp_path_factory):
    """What upstream's own program, built from the same source, says of this machine's CPU."""
    path = tmp_path_factory.mktemp("ops") / "this-cpu.csv"
    done = oracle.run("test-backend-ops", "support", "-b", "CPU", "--output", "csv")
    path.write_text(done.stdout)
    return path


@pinned
def test_upstreams_program_says_of_this_cpu_what_its_record_says(this_cpu):
    """And the cases that the record lacks, which are held out so to say, the profile guesses; but
    for types that no test had then: what is untested is no."""
    here, record = profile_rows.record_of(str(this_cpu)), profile_rows.record_of("cpu")
    device = ggml.load_profile("record:cpu")
    n_same, right = 0, []
    for op in sorted(here.ops()):
        recorded = dict(record.answers(op))
        theirs = tidied(here, op)
        for text, supported, row in theirs:
            if text in recorded:
                assert supported == recorded[text], f"{op}({text})"
                n_same += 1
            elif op in OPS and record.answers(op):
                found = device._decide_in(device._cases_of(op), row)
                if found.row is not None:
                    right.append(found.supported == supported)
    assert n_same > 20_000
    assert len(right) > 1000
    assert sum(right) / len(right) > 0.99


def tidied(record, op):
    """The rows of an op, tidied as the profile does it."""
    cases = _Cases(op, record.answers(op))
    return [(c.text, c.supported, c.row) for group in cases.groups.values() for c in group]


LENGTHS = {
    "m", "n", "k", "kv", "nb", "nh", "r", "n_token", "n_embd", "n_tokens", "n_seqs", "n_head",
    "head_count", "n_seq_tokens", "T_in", "hsk", "hsv",
}  # fmt: skip


def varied(random, row):
    """A case like this one, of other sizes."""
    row = dict(row)
    for name, value in row.items():
        if isinstance(value, tuple) and name.startswith("ne"):
            i = random.randrange(len(value))
            row[name] = (*value[:i], value[i] * random.choice((1, 2, 3, 7, 16)), *value[i + 1 :])
        elif name in LENGTHS:
            row[name] = value * random.choice((1, 2, 3, 5, 16))
    return row


@pinned
@pytest.mark.thorough("long")
def test_what_follows_from_rows_that_agree_is_what_the_cpu_says():
    """Cases of other sizes than the recorded ones, against the live CPU. (Of types that it was not
    tested with, the CPU's supports_op says yes to most, and its kernels abort.)"""
    random, cpu, device = Random(1), ggml.device("CPU"), ggml.load_profile("record:cpu")
    record = profile_rows.record_of("cpu")
    rows = {op: record.answers(op) for op in sorted(record.ops() & CASES.keys())}
    n = dict.fromkeys(("exact", "agreed", "nearest", "unrecorded", "unknown"), 0)
    for _ in range(3000):
        op = random.choice(list(rows))
        case = varied(random, profile_rows.parsed(random.choice(rows[op])[0]))
        try:
            tensor = CASES[op](ggml.Context(), case)
        except ggml.GgmlError:
            continue  # sizes that do not go together
        found = device.decide(tensor)
        n[found.basis] += 1
        if found.basis in ("exact", "agreed"):
            assert cpu.supports_op(tensor) == found.supported, (case, found.text)
    assert n["agreed"] > 1000


def left_out(profile, n=60):
    """Decisions on rows with themselves, and what equals them, taken out of the record."""
    device = ggml.load_profile(f"record:{profile}")
    for op in device.ops:
        if op not in OPS:
            continue
        cases = device._cases_of(op)
        rows = [(same, case) for same, group in cases.groups.items() for case in group]
        for same, case in rows[:: max(1, len(rows) // n)]:
            group = cases.groups.pop(same)
            rest = [one for one in group if cases.distance(one.row, case.row)]
            if rest:
                cases.groups[same] = rest
            if cases.groups:
                yield case, device._decide_in(cases, case.row)
            cases.groups[same] = group


@pytest.mark.thorough("long")
@pinned
@pytest.mark.parametrize("profile", ["cpu", "cuda", "metal", "vulkan"])
def test_a_row_that_is_left_out_is_guessed_from_the_others(profile):
    right, unknown, n = {"agreed": [], "nearest": [], "unrecorded": []}, 0, 0
    for case, found in left_out(profile):
        n += 1
        if found.basis == "unknown":  # its types or head sizes are on no other row
            assert not found
            unknown += 1
        else:
            right[found.basis].append(found.supported == case.supported)
    assert unknown < n * 0.1, (unknown, n)
    shares = {basis: sum(each) / len(each) for basis, each in right.items()}
    assert shares["agreed"] > 0.995, shares
    everything = [one for each in right.values() for one in each]
    assert sum(everything) / len(everything) > 0.99, shares


# ---- use


@pinned
def test_quantised_heads_are_compared_as_they_are_padded():
    """The test pads heads of 40 to a block of 64 for q4_0: 64 is what the device was asked."""
    call = call_of(made("FLASH_ATTN_EXT", (
        "hsk=40,hsv=40,nh=4,nr23=[1,1],kv=512,nb=1,mask=1,sinks=0,max_bias=0.000000,"
        "logit_softcap=0.000000,prec=f32,type_KV=q4_0,permute=[0,1,2,3]"
    )))  # fmt: skip
    assert call.source(1).ne[0] == 64
    assert ggml.load_profile("record:cuda").decide(call).basis == "exact"


@pytest.mark.parametrize(
    ("content", "what"),
    [("", "no column op_name"), ("op_name,op_params\nADD,x\n", "no column supported"),
     ("op_name,op_params,supported\n", "no rows"), (b"\xff\xfe\x00", "cannot be read")],
)  # fmt: skip
def test_files_that_are_no_record(tmp_path, content, what):
    path = tmp_path / "x.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ggml.ArgumentError, match=what):
        ggml.load_profile(path)


def test_quantised_kv_on_cuda_names_the_reason():
    """llama.cpp #12352, #28455: a KV type that flash attention lacks falls back silently."""
    context, cuda = ggml.Context(), ggml.load_profile("record:cuda")

    def attention(kind):
        q = context.new_tensor("f32", 128, 1, 32)
        k, v = (context.new_tensor(kind, 128, 512, 8) for _ in range(2))
        return context.flash_attn_ext(q, k, v, context.new_tensor("f16", 512, 64), 1, 0, 0)

    assert cuda.decide(attention("q8_0"))
    found = cuda.decide(attention("q5_1"))
    assert not found
    assert "type_K=q5_1" in found.text


@pinned
def test_older_records_have_no_rows_for_hints():
    context, device = ggml.Context(), ggml.load_profile("record:cuda")
    x = context.new_tensor("f32", 64, 64)
    plain, hinted = context.mul_mat(x, x), context.mul_mat(x, x)
    hinted.set_hint("src0_is_hadamard")
    assert "MUL_MAT_HADAMARD" not in device.ops
    assert device.decide(hinted) == device.decide(plain)
    assert ggml.load_profile("record:cpu").decide(hinted).row.startswith("MUL_MAT_HADAMARD(")


def test_a_plain_llama_graph_runs_on_the_large_backends():
    context = ggml.Context()
    x = context.new_tensor("f32", 4096, 7)
    norm = context.mul(context.rms_norm(x, 1e-5), context.new_tensor("f32", 4096))
    q = context.mul_mat(context.new_tensor("q4_K", 4096, 4096), norm)
    heads = context.reshape_3d(q, 128, 32, 7)
    args = (128, 0, 4096, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
    rope = context.rope_ext(heads, context.new_tensor("i32", 7), None, *args)
    cache = context.view_2d(context.new_tensor("f16", 1024, 512), 1024, 512, 2048, 0)
    rows = context.new_tensor("i64", 7)
    store = context.set_rows(cache, context.new_tensor("f32", 1024, 7), rows)
    embd = context.get_rows(context.new_tensor("q4_0", 4096, 32000), context.new_tensor("i32", 7))
    up = context.new_tensor("f32", 14336, 7)
    nodes = [norm, q, rope, store, embd, context.swiglu_split(up, context.silu(up)), heads]
    nodes += [context.add(x, x), context.soft_max(up), context.cont(context.transpose(x))]
    for name in ("cuda", "vulkan", "metal", "sycl"):
        device = ggml.load_profile(f"record:{name}")
        for node in nodes:
            assert device.supports(node), device.decide(node).text


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
    gpu, cpu = ggml.sim_device("gpu0", **settings).init(), ggml.device("CPU").init()
    return graph, ggml.Scheduler([gpu, cpu]).plan(graph)


def test_a_recorded_node_is_the_call_that_the_live_one_is():
    context = ggml.Context()
    graph, plan = planned(context)
    for node, record in zip(graph.nodes, plan.capture.tensors, strict=False):
        assert call_of(node) == call_of_record(record, plan.capture.tensors), record.name
    cuda = ggml.load_profile("record:cuda")
    for live, recorded in zip(graph.nodes, plan.nodes, strict=True):
        assert cuda.decide(live) == cuda.decide(recorded)


@pytest.mark.parametrize("profile", ["cuda", "metal", "opencl", "cann", "blas"])
def test_what_if_the_device_were_another(profile):
    """A plan over a device that takes all, asked about another, is the plan over that one."""
    context = ggml.Context()
    _graph, anything = planned(context)
    _graph, theirs = planned(context, profile=f"record:{profile}")
    record = ggml.load_profile(f"record:{profile}")
    changed = anything.what_if(supports=record.answers(anything, "gpu0"))
    assert [n.backend for n in changed.nodes] == [n.backend for n in theirs.nodes]
    assert changed.n_splits == theirs.n_splits


@has_top_k
def test_speed():
    start = time.perf_counter()
    device = ggml.load_profile("record:cuda")
    assert time.perf_counter() - start < 0.15
    tensor = top_k(1024)
    device.decide(tensor)
    best = min(timed(device, tensor) for _ in range(20))
    assert best < 20e-6


def timed(device, tensor, n=200):
    start = time.perf_counter()
    for _ in range(n):
        device.supports(tensor)
    return (time.perf_counter() - start) / n


@has_top_k
def test_all_of_it_works_without_the_native_library(tmp_path):
    """A profile, a decision, and what a saved plan would be on another device."""
    call = call_of(top_k(1024))
    context = ggml.Context()
    _graph, plan = planned(context)
    plan.to_json(tmp_path / "plan.json")
    program = f"""
import sys
sys.modules["ggml_py._ggml"] = None
import ggml_py
from ggml_py.sim.profiles.call import Call, Operand
call = {call!r}
opencl = ggml_py.load_profile("record:opencl")
plan = ggml_py.Plan.from_json({str(tmp_path / "plan.json")!r})
changed = plan.what_if(supports=opencl.answers(plan, "gpu0"))
print(opencl.decide(call).text)
print([node.backend for node in changed.nodes])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    opencl = ggml.load_profile("record:opencl")
    changed = plan.what_if(supports=opencl.answers(plan, "gpu0"))
    assert done.stdout.splitlines() == [
        opencl.decide(call).text, str([node.backend for node in changed.nodes]),
    ]  # fmt: skip
