"""Memory of simulated devices: it ends, as a card's does; it is aligned; some of it is pinned."""

import numpy as np
import pytest

import ggml_py as ggml

from ..support.sim_net import Net, cpu_result


def test_allocations_are_counted_and_given_back(sims):
    sim = sims(memory=10_000)
    with sim.buffer_type.alloc(6_000) as buffer:
        assert sim.memory == (4_000, 10_000)
        assert (sim.props.memory_free, sim.props.memory_total) == sim.memory
        with pytest.raises(ggml.AllocError) as raised:
            sim.buffer_type.alloc(4_001)
        assert str(raised.value) == (
            "gpu0: 4,001 bytes could not be allocated (4,000 of 10,000 bytes of gpu0 are free)"
        )
        assert raised.value.sizes == {"gpu0": 4_001}
        assert sim.memory[0] == 4_000
        sim.buffer_type.alloc(4_000).close()
        buffer.clear(7)
    assert sim.memory[0] == 10_000


def test_a_device_that_shares_memory_reports_the_others(sims):
    first = sims("gpu0", memory=10_000)
    second = sims("gpu1", memory=99, buft_of=first)
    with second.buffer_type.alloc(6_000):
        assert first.memory == second.memory == (4_000, 10_000)


def test_weights_that_do_not_fit(sims):
    sim = sims(memory=30_000)
    with ggml.Context() as c:
        c.new_tensor("f32", 64, 96)
        c.new_tensor("f32", 96, 32)
        with pytest.raises(ggml.AllocError, match=r"gpu0: 36,864 bytes .* \(30,000 of 30,000"):
            c.alloc(sim.buffer_type)
    assert sim.memory[0] == 30_000


def test_a_graph_that_does_not_fit_beside_the_weights(sims):
    with Net(sims()) as net:
        net.scheduler.reserve(net.graph)
        needed = net.scheduler.buffer_size(net.backends[0])
    with Net(sims(memory=60_000)) as net:
        free = net.backends[0].device.memory[0]
        assert 0 < free < needed
        for call in (net.scheduler.alloc_graph, net.scheduler.reserve):
            with pytest.raises(ggml.AllocError) as raised:
                call(net.graph)
            assert f"gpu0 could not allocate {needed:,} bytes of compute" in str(raised.value)
            assert f"({free:,} of 60,000 bytes of gpu0 are free)" in str(raised.value)
            assert raised.value.sizes["gpu0"] == needed
    with Net(sims(memory=60_000 + needed)) as net:
        np.testing.assert_array_equal(net.run(), cpu_result())


def test_a_buffer_has_a_largest_size(sims):
    sim = sims(max_size=30_000)
    assert sim.buffer_type.max_size == 30_000
    with pytest.raises(ggml.AllocError, match="one buffer has at most 30,000"):
        sim.buffer_type.alloc(30_001)
    with Net(sim) as net:  # upstream makes several buffers of what is larger
        assert net.a.buffer.size < 30_000 < net.a.nbytes + net.b.nbytes
        np.testing.assert_array_equal(net.run(), cpu_result())


def test_a_tensor_that_no_buffer_holds_is_named(sims):
    sim = sims(max_size=30_000)
    with ggml.Context() as c:
        c.new_tensor("f32", 64, 64, name="small")
        c.new_tensor("f32", 64, 128, name="large")
        with pytest.raises(ggml.AllocError, match="'large' needs 32,768 in one buffer, which has"):
            c.alloc(sim.buffer_type)
    with sim.init() as gpu, ggml.device("CPU").init() as cpu, ggml.Context() as c:
        x = c.new_tensor("f32", 64, 128, name="x")
        x.set_input()
        graph = c.new_graph()
        y = c.sqr(x)
        y.name = "y"
        graph.build_forward_expand(y)
        with ggml.Scheduler([gpu, cpu]) as scheduler:
            scheduler.set_tensor_backend(y, gpu)
            with pytest.raises(ggml.AllocError, match="'y' needs 32,768 in one buffer, which has"):
                scheduler.alloc_graph(graph)


def test_a_card_of_vulkan_allocates_more_for_one_tensor(sims):
    """Its backend puts a GiB into one buffer, unless a tensor needs more."""
    sim = sims(profile="vulkan", memory=16 << 30)
    largest = sim.profile.properties["maxBufferSize"]
    assert sim.buffer_type.max_size == 1 << 30 < sim.largest_buffer == int(largest)
    sim.buffer_type.alloc(3 << 30).close()
    with pytest.raises(ggml.AllocError, match="could not be allocated"):
        sim.buffer_type.alloc(sim.largest_buffer + 1)
    sim.configure(max_size=2 << 30)
    assert sim.largest_buffer == 2 << 30
    sim.configure(profile=None, max_size=None)
    assert sim.largest_buffer is None


def test_memory_is_taken_when_it_is_written(sims):
    """More than the machine has is allocated, and cleared, and one tensor of it used."""
    sim = sims(memory=1 << 45)
    with ggml.Context() as c:
        used = c.new_tensor("f32", 8)
        c.new_tensor("f32", 1 << 20, 1 << 20)
        buffer = c.alloc(sim.buffer_type)
        buffer.clear()
        assert buffer.size > 1 << 42 and sim.memory[0] < 1 << 45
        assert not used.get().any()
        used.set(np.ones(8, np.float32))
        np.testing.assert_array_equal(used.get(), 1)
        buffer.clear()
        assert not used.get().any()


@pytest.mark.parametrize("alignment", [32, 256, 4096, 1 << 20])
def test_tensors_are_aligned(sims, alignment):
    sim = sims(alignment=alignment)
    assert sim.buffer_type.alignment == alignment
    with Net(sim) as net:
        net.scheduler.alloc_graph(net.graph)
        for tensor in (net.a, net.b, net.h):
            address = int(ggml.ffi.cast("uintptr_t", tensor.ptr.data))
            assert address % alignment == 0
        net.scheduler.reset()


def test_its_memory_is_set_read_cleared_and_copied_but_never_mapped(sims):
    one, two = sims("gpu0"), sims("gpu1")
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    with ggml.Context() as c, ggml.Context() as d:
        x, y = c.new_tensor("f32", 4, 3), d.new_tensor("f32", 4, 3)
        buffer = c.alloc(one.buffer_type)
        d.alloc(two.buffer_type)
        x.set(values)
        x.copy_to(y)
        np.testing.assert_array_equal(y.get(), values)
        ggml.lib.ggml_backend_tensor_memset(x.ptr, 0, 4, 8)
        assert x.get()[0].tolist() == [0, 0, 0, 3]
        buffer.clear()
        assert not x.get().any() and y.get().any()
        with pytest.raises(ggml.ArgumentError, match="which the CPU cannot read"):
            x.numpy()


def test_pinned_memory_is_the_hosts_and_an_integrated_gpu_reads_it(sims):
    sim = sims("gpu0", host_buffer=True)
    pinned = sim.host_buffer_type
    assert (pinned.name, pinned.is_host, pinned.device) == ("gpu0_Host", True, sim)
    assert sim.props.caps.host_buffer and not sims("gpu1").props.caps.host_buffer
    assert sims("gpu1").host_buffer_type is None
    assert ggml.device("CPU").supports_buft(pinned) and not sim.supports_buft(pinned)
    with pinned.alloc(64):
        assert sim._in_use() == "1 buffer" and sim.memory[0] == sim.memory[1]
    sim.configure(type="igpu")
    assert sim.supports_buft(pinned) and not sims("gpu1").supports_buft(pinned)
    with ggml.Context() as c, sim.init(n_threads=1) as backend:
        x = c.from_numpy(np.arange(8, dtype=np.float32))
        y = c.sqr(x)
        graph = c.new_graph(16)
        graph.build_forward_expand(y)
        c.alloc(pinned)
        backend.compute(graph)
        np.testing.assert_array_equal(y.numpy(), np.arange(8.0) ** 2)
