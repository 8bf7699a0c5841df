"""Deep graphs: no walk over a graph is recursive, so a long chain ends no stack."""

import random
import subprocess
import sys

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import lib

# A chain of argv[1] ops on a thread with 256 KB of stack.
DEEP = """
import sys, threading
import ggml_py as ggml

n = int(sys.argv[1])

def build():
    ctx = ggml.Context()
    y = x = ctx.new_tensor("f32", 4)
    for _ in range(n):
        y = ctx.sqr(y)
    graph = ctx.new_graph(size=n + 1)
    graph.build_forward_expand(y)
    assert graph.n_nodes == n and graph.leafs == (x,)
    try:
        ctx.new_graph(size=n // 2).build_forward_expand(y)
    except ggml.AbortError as error:
        assert "the graph is full" in str(error)
        print("built")

threading.stack_size(256 << 10)
thread = threading.Thread(target=build)
thread.start()
thread.join()
"""


def built(n):
    ended = subprocess.run(
        [sys.executable, "-c", DEEP, str(n)], capture_output=True, text=True, timeout=120
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_a_long_chain_on_a_small_stack():
    assert built(300_000) == (0, "built\n", "")


@pytest.mark.thorough("sample")
def test_a_chain_of_a_million_ops():
    assert built(1_000_000) == (0, "built\n", "")


def expand(nodes, leafs, visited, tensor):
    """Upstream's ggml_visit_parents_graph, by recursion as there."""
    if tensor in visited:
        return
    visited.add(tensor)
    for src in tensor.src:
        expand(nodes, leafs, visited, src)
    (leafs if tensor.op.name == "NONE" else nodes).append(tensor)


@pytest.mark.parametrize("seed", range(40))
def test_the_order_is_that_of_the_recursion(seed):
    """Several ends of one graph, sources used twice, some ends only ordered and not computed."""
    rng = random.Random(seed)
    with ggml.Context() as ctx:
        tensors = [ctx.new_tensor("f32", 4) for _ in range(rng.randint(1, 4))]
        for _ in range(rng.randint(1, 40)):
            a, b = rng.choice(tensors[-6:]), rng.choice(tensors)
            op = rng.choice((ctx.add, ctx.mul, None))
            tensors.append(op(a, b) if op else ctx.sqr(a))
        graph = ctx.new_graph(size=64)
        nodes, leafs, visited, computed = [], [], set(), set()
        for _ in range(rng.randint(1, 5)):
            end = rng.choice(tensors)
            expand(nodes, leafs, visited, end)
            if rng.random() < 0.3 and hasattr(lib, "ggml_build_forward_order"):
                lib.ggml_build_forward_order(graph.ptr, end.ptr)
            else:
                graph.build_forward_expand(end)
                expand([], [], computed, end)
            assert list(graph.nodes) == nodes and list(graph.leafs) == leafs
            if hasattr(ggml.enums.TensorFlag, "COMPUTE"):
                flagged = [t for t in tensors if t.flags & ggml.enums.TensorFlag.COMPUTE]
                assert flagged == [t for t in tensors if t in computed and t.src]
