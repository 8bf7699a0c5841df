"""What users of llama.cpp and ggml had to find out by hand, answered: issues by their number.

Each situation is built on simulated devices and planned by ggml, on the release that had it where
it was mended since. More stories: test_stories_whatif.py, test_advice*.py, test_shares.py.
"""

import json
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.trace.rules import parse_version

from ..support import advice_world, graphs
from ..support.older_builds import build, run
from ..support.rpc_client import needs_rpc
from ..support.rpc_net import server
from ..support.worlds import World, attention_with_sinks, living, plan

TREE = str(Path(__file__).parents[2])
PRODUCTS = World(recipe=(("MUL_MAT", 0, 0), ("RELU", 1, 0), ("MUL_MAT", 2, 1)), homes=(-1, -1, -1))

# --- 25800: something forces flash attention to the device


def test_25800_by_the_rules_of_0_17():
    old = attention_with_sinks().what_if(upstream="0.17.0")
    found = old.explain("fa")
    assert found.headline == "1.off via src[4] blk.0.attn_sinks.weight"
    assert str(found).splitlines()[0].endswith(f") is on gpu0: {found.headline}")
    assert found.root == "weight's buffer"
    assert "it reads a copy of 'blk.0.attn_sinks.weight' (16 B from CPU)" in str(found)
    assert any("'cache_k_l0' (128.0 KiB from CPU)" in note for note in found.notes)
    kept = old.why_not("fa", "CPU")
    assert kept.reasons[0].id == "offload.taken"
    assert kept.reasons[0].witness.name == "blk.0.attn_sinks.weight"
    assert kept.reasons[0].changes[0].call == "plan.what_if(op_offload=False)"


@pytest.mark.thorough("builds")
def test_25800_on_release_0_17():
    program = (
        f"import json, sys; sys.path.append({TREE!r}); from tests.support import worlds\n"
        "plan = worlds.attention_with_sinks()\n"
        "found = plan.explain('fa')\n"
        "print(json.dumps([plan.settings.upstream, plan.node('fa').backend, found.headline,"
        " plan.node('fa').cause.code, list(found.disagreements)]))"
    )
    build("b10068")
    version, backend, headline, code, differ = run("b10068", program)
    assert (version, backend, code, differ) == ("0.17.0", "gpu0", "1.off", [])
    assert headline == "1.off via src[4] blk.0.attn_sinks.weight"


def test_25800_since_0_18_attention_does_not_follow_its_sinks():
    now = attention_with_sinks()
    if parse_version(now.settings.upstream) < (0, 18):
        pytest.skip("a release before it")
    assert now.node("fa").backend == "CPU"
    assert not now.explain("fa").headline.startswith("1.")
    answer = now.why_not("fa", "gpu0")
    assert answer.reasons[0].id == "sources"  # no weight, no neighbour
    assert answer.reasons[0].text.endswith("CPU can read 4 of its sources, gpu0 0")


# --- 12237: with BLAS, prompts are five times slower


def test_12237_blas_outranks_the_cpu():
    with_blas, without = plan(replace(PRODUCTS, blas=True)), plan(PRODUCTS)
    assert [n.backend for n in without.nodes] == ["gpu0"] * 3
    assert [n.backend for n in with_blas.nodes] == ["BLAS", "CPU", "BLAS"]
    answer = with_blas.why_not("n0", "gpu0")
    reason = answer.reasons[0]
    assert (reason.id, reason.witness.name) == ("offload.reader", "w0")
    assert "the op, but BLAS comes first" in reason.text
    out = reason.changes[0]
    assert (out.text, out.is_there) == ("leave BLAS out of the scheduler", True)
    tried = with_blas.what_if(**out.what_if)
    assert tried.assignments == without.assignments


# --- 12481: repacked weights are not offloaded


def test_12481_repacked_weights_are_no_host_memory():
    bufts = {t.name: t for t in ggml.device("CPU").extra_buffer_types}
    if "CPU_REPACK" not in bufts:
        pytest.skip("this CPU has no layout of its own for weights")
    placed = {}
    for buft in (bufts["CPU_REPACK"], None):
        with ExitStack() as stack:
            gpu = ggml.sim_device("gpu0")
            stack.callback(gpu.close)
            backends = [stack.enter_context(d.init()) for d in (gpu, ggml.device("CPU"))]
            weights, c = (stack.enter_context(ggml.Context()) for _ in range(2))
            w = weights.new_tensor("q4_0", 64, 64, name="w")
            weights.alloc(buft or backends[-1], usage="weights")
            x = c.new_tensor("f32", 64, 48, name="x")
            x.set_input()
            out = c.mul_mat(w, x)
            out.name = "out"
            graph = c.new_graph()
            graph.build_forward_expand(out)
            scheduler = stack.enter_context(ggml.Scheduler(backends))
            placed[buft and buft.name] = scheduler.plan(graph)
    repacked, plain = placed["CPU_REPACK"], placed[None]
    if not repacked.node("out").record.supports >> 1:
        pytest.skip("not for this type")
    assert (plain.node("out").backend, repacked.node("out").backend) == ("gpu0", "CPU")
    reason = repacked.why_not("out", "gpu0").reasons[0]
    assert reason.id == "offload.host"
    assert "op offload needs weights in host memory, and CPU_REPACK memory is not" in reason.text
    first = reason.changes[0]
    assert (first.text, first.is_there) == ("keep 'w' in CPU memory (not repacked)", True)
    assert repacked.what_if(**first.what_if).outcome.splits == plain.outcome.splits


# --- 13648: the cache is on the CPU (--no-kv-offload), attention is on the GPU


def test_13648_a_sweep_brings_attention_to_the_gpu():
    world = World(recipe=(("LOAD", 0, 0), ("MUL_MAT", 1, 0)), homes=(0, -1))
    there = plan(world)
    found = there.explain("n0")
    assert found.headline == "2.sup gpu up via n1"
    assert found.subject.backend == "gpu0"
    assert any(
        "it reads a copy of" in n and "from CPU), because gpu0 cannot" in n for n in found.notes
    )
    reason = there.why_not("n0", "CPU").reasons[0]
    assert (reason.id, reason.sweep, reason.witness.name) == ("sweep.neighbour", "gpu up", "n1")
    pin = there.why_not("n0", "CPU").pin
    assert (pin.is_there, pin.call) == (True, "plan.what_if(pins={'n0': 'CPU'})")
    assert plan(replace(world, pins={"n0": "CPU"})).node("n0").backend == "CPU"


# --- 22926: three splits instead of two: the edges, and why each is there


def test_22926_every_copy_is_explained():
    refuses = replace(PRODUCTS, homes=(0, 0, 0), refused=(frozenset({"UNARY"}),))
    there = plan(refuses)
    assert there.n_splits == 3
    down = there.splits[1].inputs[0]
    assert (down.tensor.name, down.src_backend, down.dst_backend) == ("n0", "gpu0", "CPU")
    found = there.explain(down.copy)
    said = "6.0 KiB of 'n0', copied from gpu0 for split #1: CPU runs 'n1'"
    assert said in found.links[0].text and down.nbytes == 6144
    assert found.root == "unsupported op"
    assert [link.relation for link in found.links] == ["", "its reader", "its source", "because"]


# --- 12624: a quantised cache, and flash attention goes to the CPU without a word


def both_caches_f16(t):
    return t.op.name != "FLASH_ATTN_EXT" or {s.type.name for s in t.src[1:3]} == {"F16"}


@pytest.mark.parametrize("type_", ["q8_0", "q5_1"])
def test_12624_a_quantised_cache_that_the_devices_flash_attention_does_not_read(type_):
    with ExitStack() as stack:
        device = stack.enter_context(ggml.sim_device("gpu0", supports=both_caches_f16))
        w = advice_world.World(stack, device, "CPU")
        there = w.plan(advice_world.attention(w, type_))
        answer = there.why_not("kqv", "gpu0", device)
    assert there.headline().startswith("3 splits, ") and "CPU 1 (" in there.headline()
    copied = {i.tensor.name: i.nbytes for i in there.splits[1].inputs}
    cache = 64 * 256 // 32 * {"q8_0": 34, "q5_1": 24}[type_]
    assert (copied["k"], copied["v"]) == (cache, cache)
    finding = advice_world.only(there, "GP101")
    assert advice_world.names(finding) == ["kqv"]
    assert finding.bytes == 2 * cache + there.node("q").nbytes + there.node("kqv").nbytes
    assert f"gpu0 does not support it (sources: f32, {type_}, {type_})" in finding.text
    assert answer.reasons[0].id == "op"
    assert answer.nearest.text == f"FLASH_ATTN_EXT: K and V f16 instead of {type_}"


# --- 10351, 24492, 24366: pre-allocated tensor in a buffer that cannot run the operation


def test_10351_24492_24366_memory_that_no_backend_can_compute_in():
    with ExitStack() as stack:
        gpu = ggml.sim_device("gpu0", supports={"MUL_MAT": True})
        stack.callback(gpu.close)
        backends = [stack.enter_context(d.init()) for d in (gpu, ggml.device("CPU"))]
        cache, c = (stack.enter_context(ggml.Context()) for _ in range(2))
        k = cache.new_tensor("q5_1", 64, 16, name="cache_k_l0")
        cache.alloc(backends[0])
        new = c.new_tensor("f32", 64, 16, name="Kcur-0")
        new.set_input()
        stored = c.cpy(new, k)
        stored.name = "k_store-0"
        graph = c.new_graph()
        graph.build_forward_expand(stored)
        scheduler = stack.enter_context(ggml.Scheduler(backends))
        with pytest.raises(ggml.ArgumentError) as error:
            scheduler.plan(graph)
    said = str(error.value)
    assert (
        "'k_store-0' = CPY(f32 [64, 16, 1, 1] 'Kcur-0', q5_1 [64, 16, 1, 1] 'cache_k_l0')" in said
    )
    assert "is already in gpu0 memory, but no backend of this scheduler" in said


def test_24366_of_two_nodes_with_one_name_the_one_that_has_no_place_is_shown():
    with ExitStack() as stack:
        gpu = ggml.sim_device("gpu0", supports={"MUL_MAT": True})
        stack.callback(gpu.close)
        backends = [stack.enter_context(d.init()) for d in (gpu, ggml.device("CPU"))]
        c = stack.enter_context(ggml.Context())
        new = c.new_tensor("f32", 64, 16, name="Kcur")
        new.set_input()
        graph = c.new_graph()
        for i, backend in enumerate(reversed(backends)):
            cache = stack.enter_context(ggml.Context())
            k = cache.new_tensor("q5_1", 64, 16, name=f"cache_k_l{i}")
            cache.alloc(backend)
            stored = c.cpy(new, k)
            stored.name = "k_store"
            graph.build_forward_expand(stored)
        scheduler = stack.enter_context(ggml.Scheduler(backends))
        with pytest.raises(ggml.ArgumentError, match=r"q5_1 \[64, 16, 1, 1\] 'cache_k_l1'\)"):
            scheduler.plan(graph)


# --- 28614, 16555: the hash set is too small; 11433: more than 16 backends


def test_28614_16555_a_hash_set_that_is_too_small():
    case = graphs.mlp(graph_size=6)
    x, size = case.graph["out"], case.scheduler.hash_set_size
    for _ in range(size):
        x = case.context.sqr(x)
    larger = case.context.new_graph(64)
    larger.build_forward_expand(x)
    n = larger.n_nodes + len(larger.leafs)
    with pytest.raises(ggml.ArgumentError, match=rf"has room for {size}.*graph_size={n}"):
        case.scheduler.plan(larger)
    case.close()


def test_11433_more_than_16_backends():
    with ExitStack() as stack:
        backends = [stack.enter_context(ggml.device("CPU").init()) for _ in range(17)]
        with pytest.raises(ggml.ArgumentError, match=r"17 backends.*16"):
            ggml.Scheduler(backends)


# --- 17163: pins are lost


def test_17163_a_reset_drops_the_pins_and_the_plan_says_so():
    world = replace(PRODUCTS, homes=(0, 0, 0), pins={"n1": "CPU"})
    with living(world) as (scheduler, graph):
        pinned = scheduler.plan(graph)
        assert (pinned.explain("n1").headline, pinned.explain("n1").root) == ("usr", "pin")
        scheduler.reserve(graph)
        after = scheduler.plan(graph)
    assert after.node("n1").backend == "gpu0"
    assert after.capture.dropped_pins == ((1, 1),)


PINNED = """
import json, sys
sys.path.append({tree!r})
from tests.support.worlds import World, living
recipe = (("MUL_MAT", 0, 0), ("RELU", 1, 0), ("MUL_MAT", 2, 1))
with living(World(recipe=recipe, homes=(-1, -1, -1), pins={pins})) as (scheduler, graph):
    scheduler.reserve(graph)
    print(json.dumps([scheduler.buffer_size(b) for b in scheduler.backends]))
"""


@pytest.mark.thorough("builds")
@pytest.mark.parametrize(("release", "heeds"), [("0.2.4", False), ("0.2.5", True)])
def test_17163_reserve_heeds_pins_since_package_0_2_5(release, heeds):
    build(release)
    pins = dict.fromkeys(("n0", "n1", "n2"), "CPU")
    gpu, cpu = run(release, PINNED.format(tree=TREE, pins=pins))
    free_gpu, _cpu = run(release, PINNED.format(tree=TREE, pins={}))
    assert free_gpu > 0 and cpu > 0
    assert gpu == (0 if heeds else free_gpu)


# --- ggml 892, 15434: the second plan of one graph is wrong


@pytest.mark.parametrize("parallel", [False, True])
def test_ggml_892_15434_the_second_plan_is_the_first(parallel):
    world = replace(PRODUCTS, homes=(0, 0, 0), refused=(frozenset({"UNARY"}),), parallel=parallel)
    with living(world) as (scheduler, graph):
        first = scheduler.plan(graph)
        assert first.n_inputs == 3
        for _ in range(3):
            assert scheduler.plan(graph) == first
            scheduler.alloc_graph(graph)
            for leaf in graph.leafs:
                leaf.set(np.ones(leaf.ne[::-1], np.float32))
            scheduler.compute(graph)
            scheduler.reset()
            assert scheduler.plan(graph).assignments == first.assignments
        scheduler.reserve(graph)
        assert scheduler.plan(graph) == first


# --- 17647, 21006: copies between RPC servers go over the client

SERVERS = """
    import json, sys
    import ggml_py as ggml
    backends = [ggml.rpc_devices(e)[0].init() for e in sys.argv[1:]]
    backends.append(ggml.device("CPU").init(n_threads=1))
    held = [ggml.Context() for _ in backends[:2]]
    weights = [c.new_tensor("f32", 64, 64, name=f"w{i}") for i, c in enumerate(held)]
    for c, backend in zip(held, backends):
        c.alloc(backend, usage="weights")
    c = ggml.Context()
    x = c.new_tensor("f32", 64, 8, name="x")
    x.set_input()
    h = c.mul_mat(weights[0], x)
    y = c.mul_mat(weights[1], h)
    h.name, y.name = "h", "y"
    graph = c.new_graph()
    graph.build_forward_expand(y)
    plan = ggml.Scheduler(backends, op_offload=False).plan(graph)
    edges = [(i.tensor.name, backends.index(next(b for b in backends if b.name == i.src_backend)),
              s.index, i.nbytes) for s in plan.splits for i in s.inputs]
    copy = plan.splits[1].inputs[0].copy
    found = plan.explain(copy)
    reason = plan.why_not("y", plan.backends[0].name).reasons[0]
    print(json.dumps([edges, [l.tensor.name for l in found.links], found.links[0].text,
                      reason.id, reason.text]))
"""


@needs_rpc
def test_17647_21006_copies_between_two_servers():
    with server() as one, server() as two:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SERVERS), one.endpoint, two.endpoint],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    edges, chain, text, id, reason = json.loads(done.stdout)
    assert edges == [["x", 2, 0, 2048], ["h", 0, 1, 2048]]
    assert chain[1:] == ["y", "w1", "h", "w0"]  # its reader and why, its source and why
    assert text.startswith(f"2.0 KiB of 'h', copied from RPC0[{one.endpoint}]")
    assert "runs 'y'" in text
    assert id == "weight.memory"
    assert "its weight 'w1' is in RPC" in reason


# --- 28753, 29083: buffers are allocated again and nobody says why


def test_28753_29083_a_reallocation_names_the_tensor():
    with ggml.Context() as c, ggml.device("CPU").init(n_threads=1) as cpu:
        sizes = []
        with ggml.Scheduler([cpu]) as scheduler:
            for n in (8, 8, 64):
                x = c.new_tensor("f32", 64, n)
                x.set_input()
                out = c.sqr(c.relu(x))
                out.name = f"out-{n}"
                graph = c.new_graph()
                graph.build_forward_expand(out)
                scheduler.alloc_graph(graph)
                scheduler.reset()
                sizes.append(len(scheduler.reallocations))
            said = scheduler.reallocations[-1]
    assert sizes == [1, 1, 2]
    assert said.tensor and said.reason in ("node", "src")
    assert f"'{said.tensor}'" in said.text
    assert "16,384 bytes, but there was room for 2,048" in said.text
