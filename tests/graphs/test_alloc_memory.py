"""What a `GraphAllocator` did: each tensor's place, and why layouts before did not fit."""

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import ffi


def graph_of(ctx, n, more=0):
    x = ctx.new_tensor("f32", 64, n, name="x")
    x.set_input()
    h = x
    for _ in range(3 + more):
        h = ctx.add(ctx.relu(h), x)
    h.set_output()
    graph = ctx.new_graph()
    graph.build_forward_expand(h)
    return graph


@pytest.fixture
def allocator():
    with ggml.device("CPU").init() as cpu, ggml.GraphAllocator(cpu.buffer_type) as allocator:
        yield allocator


def test_places(allocator):
    with ggml.Context() as ctx:
        graph = graph_of(ctx, 16)
        allocator.alloc_graph(graph)
        memory = ggml.allocator_memory(allocator, graph)
        (buffer,) = memory.buffers
        assert buffer.size == allocator.buffer_size() and buffer.name == "CPU"
        tensors = [*graph.nodes, *graph.leafs]
        base = {
            int(ffi.cast("uintptr_t", tensors[b.tensor].ptr.data)) - b.offset for b in buffer.blocks
        }
        assert len(base) == 1 and memory.tensors[len(graph.nodes)] == "x"
        assert memory.buffer("CPU") is buffer
        assert memory.to_dict()["buffers"][0]["peak"] == buffer.peak
        with pytest.raises(KeyError, match="no compute buffer 'GPU': CPU"):
            memory.buffer("GPU")
        allocator.reset()


def test_reasons(allocator):
    with ggml.Context() as ctx:
        small, large, longer = graph_of(ctx, 8), graph_of(ctx, 32), graph_of(ctx, 8, more=1)
        for graph in (small, small, large, small, longer):
            allocator.alloc_graph(graph)
            allocator.reset()
        found = allocator.reallocations
        assert [r.reason for r in found] == ["first", "node", "nodes"]
        assert allocator.n_reallocations == 3
        assert found[0].before == {"CPU": 0} and found[1].after["CPU"] > found[1].before["CPU"]
        assert "takes 8,192 bytes, but there was room for 2,048" in found[1].text
        assert found[2].text == "the graph has 8 nodes, the previous one had 6"
        assert found[1].grew and not found[2].grew


def test_repeated_and_many_buffer_types():
    with ggml.Context() as ctx, ggml.device("CPU").init() as cpu:
        graph, larger = graph_of(ctx, 8), graph_of(ctx, 64)
        ids = [0] * graph.n_nodes, [0] * graph.n_leafs
        with ggml.GraphAllocator(*[cpu.buffer_type] * 18) as allocator:
            allocator.reserve(graph, *ids)
            allocator.reserve(larger, *ids)
            first, second = allocator.reallocations
            assert first.text == "the first graph" and second.reason == "node"
            assert len(second.after) == 18 and second.after["CPU#17"] == 0
            assert second.before["CPU#0"] == first.after["CPU#0"] < second.after["CPU#0"]


def test_misuse(allocator):
    with ggml.Context() as ctx:
        graph, other = graph_of(ctx, 8), graph_of(ctx, 8, more=1)
        with pytest.raises(ggml.ArgumentError, match="has laid nothing out"):
            ggml.allocator_memory(allocator, graph)
        allocator.reserve(graph)
        with pytest.raises(ggml.ArgumentError, match="the layout is for 6 nodes and 1 leafs"):
            ggml.allocator_memory(allocator, other)
        with pytest.raises(ggml.ArgumentError, match="is for another graph: it has 2,048"):
            ggml.allocator_memory(allocator, graph_of(ctx, 16))
        with pytest.raises(TypeError, match="expected a GraphAllocator"):
            ggml.allocator_memory(graph, graph)
    allocator.close()
    with pytest.raises(ggml.ClosedError):
        ggml.allocator_memory(allocator, graph)
