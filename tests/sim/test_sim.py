"""Simulated devices: made, asked, planned on, computed on, taken away."""

import numpy as np
import pytest

import ggml_py as ggml

from ..support.sim_net import Net, cpu_result


def test_it_is_a_device_like_any_other(sims):
    sim = sims("gpu0", memory=1 << 20)
    assert sim in ggml.devices() and ggml.device("GPU0") == sim and sim == ggml.device("gpu0")
    assert (sim.type.name, sim.memory, sim.registry) == ("GPU", (1 << 20, 1 << 20), "SIM")
    assert [r.name for r in ggml.registries()][-1] == "SIM"
    assert not sim.buffer_type.is_host and sim.buffer_type.device == sim
    assert not ggml.device("CPU").supports_buft(sim.buffer_type)
    assert not sim.supports_buft(ggml.device("CPU").buffer_type)
    sim.close()
    assert sim not in ggml.devices() and "closed" in repr(sim)
    with pytest.raises(ggml.ClosedError, match="make it again"):
        sim.init()
    with pytest.raises(ggml.UnknownDeviceError):
        ggml.device("gpu0")


def test_the_scheduler_plans_copies_to_it_and_computes_the_cpus_result(sims):
    with Net(sims(supports={"MUL_MAT": ["f32"]})) as net:
        plan = net.scheduler.plan(net.graph)
        assert [s.backend for s in plan.splits] == ["gpu0", "CPU", "gpu0"]
        assert [len(s.inputs) for s in plan.splits] == [1, 1, 1]
        assert plan.node("h").cause.code == "1.wgt0"
        np.testing.assert_array_equal(net.run(), cpu_result())


def test_copies_go_from_one_simulated_device_to_another(sims):
    products, rest = sims("gpu0", supports={"MUL_MAT": True}), sims("gpu1", supports={"RELU": True})
    with Net(products, rest) as net:
        assert net.where() == ["gpu0", "gpu1", "gpu0"]
        np.testing.assert_array_equal(net.run(), cpu_result())


@pytest.mark.parametrize(
    ("supports", "where"),
    [
        (None, ["gpu0", "gpu0", "gpu0"]),
        (True, ["gpu0", "gpu0", "gpu0"]),
        (False, ["CPU", "CPU", "CPU"]),
        ({"relu": True, "MUL_MAT": ["q4_0", np.float32]}, ["gpu0", "gpu0", "gpu0"]),
        ({"UNARY": True, "MUL_MAT": ["q4_0", "f16"]}, ["CPU", "gpu0", "CPU"]),
        ({"SILU": True, "MUL_MAT": True}, ["gpu0", "CPU", "gpu0"]),
        (lambda t: t.op.name == "MUL_MAT" and t.src[0].ne[1] == 32, ["CPU", "CPU", "gpu0"]),
    ],
)
def test_what_it_supports(sims, supports, where):
    sim = sims(supports=supports)
    with Net(sim) as net:
        answers = [sim.supports_op(node) for node in net.graph.nodes]
        assert answers == [device == "gpu0" for device in where]
        if where[1] == "gpu0":  # an op without weights goes there only from a neighbour
            net.scheduler.set_tensor_backend(net.graph.nodes[1], net.backends[0])
        assert net.where() == where
        np.testing.assert_array_equal(net.run(), cpu_result())


def test_ops_of_the_callers_own_and_those_the_cpu_cannot_run_are_never_supported(sims):
    sim = sims(supports=lambda t: True)
    with ggml.Context() as c:
        x = c.new_tensor("f32", 4)
        assert sim.supports_op(c.sqr(x))
        assert not sim.supports_op(c.map_custom1(x, lambda dst, a, ith, nth: None))
        w = c.new_tensor("iq2_xxs", 256)
        assert not sim.supports_op(c.cpy(c.new_tensor("f32", 256), w))


def test_views_are_in_a_table_unless_it_says_otherwise(sims):
    sim = sims(supports={})
    with ggml.Context() as c:
        x = c.new_tensor("f32", 4, 4)
        view, sqr = c.transpose(x), c.sqr(x)
        assert [sim.supports_op(t) for t in (x, view, sqr)] == [True, True, False]
        sim.configure(supports={"TRANSPOSE": False, "SQR": True})
        assert [sim.supports_op(t) for t in (x, view, sqr)] == [True, False, True]
        sim.configure(supports=False)
        assert [sim.supports_op(t) for t in (x, view, sqr)] == [True, False, False]


def test_a_profile_is_any_object_that_says_what_it_supports(sims):
    class OnlyProducts:
        name = "products"

        def supports(self, tensor):
            return tensor.op.name == "MUL_MAT"

    sim = sims()
    assert sim.profile is None and sim.description == "simulated, computes on the CPU"
    with Net(sim) as net:
        assert net.where() == ["gpu0"] * 3
        sim.configure(profile=OnlyProducts())
        assert sim.description == "simulated products, computes on the CPU"
        assert net.where() == ["gpu0", "CPU", "gpu0"]
        sim.configure(supports={"RELU": True})  # takes its place
        assert sim.profile is None and sim.settings["profile"] is None


def test_what_the_predicate_raises_is_raised_by_whoever_asked(sims):
    def supports(tensor):
        if tensor.name == "h" and failing:
            raise KeyError("from the predicate")
        return True

    sim, failing = sims(supports=supports), True
    with Net(sim) as net:
        asking = [
            lambda: net.scheduler.plan(net.graph), lambda: net.scheduler.alloc_graph(net.graph),
            lambda: net.scheduler.reserve(net.graph), lambda: net.scheduler.compute(net.graph),
            lambda: sim.supports_op(net.h), lambda: net.backends[0].supports_op(net.h),
        ]  # fmt: skip
        for ask in asking[:3] + asking[4:]:
            with pytest.raises(KeyError, match="from the predicate"):
                ask()
        failing = False
        np.testing.assert_array_equal(net.run(), cpu_result())  # nothing was left half done


def test_tensors_are_lent_to_the_predicate_for_one_call(sims):
    kept = []
    sim = sims(supports=lambda t: kept.append((t, t.src[0])) or True)
    with ggml.Context() as c:
        assert sim.supports_op(c.sqr(c.new_tensor("f32", 4)))
    for tensor in kept[0]:
        with pytest.raises(ggml.ClosedError, match="for one call"):
            _ = tensor.ne


@pytest.mark.parametrize(("n_tokens", "least", "where"), [(31, 32, "CPU"), (32, 32, "gpu0"),
    (1, 1, "gpu0"), (48, 0, "CPU"), (48, 49, "CPU")])  # fmt: skip
def test_it_takes_ops_with_weights_in_host_memory_from_a_batch_on(sims, n_tokens, least, where):
    with Net(sims(offload_min_batch=least), weights=-1, n_tokens=n_tokens) as net:
        assert net.backends[0].offload_op(net.h) == (where == "gpu0")
        assert net.where()[0] == net.where()[2] == where
        np.testing.assert_array_equal(net.run(), cpu_result(n_tokens=n_tokens))


@pytest.mark.parametrize(("profile", "n", "mul_mat", "rms_norm"), [
    ("cuda", 32, True, True), ("cuda", 31, False, False), ("vulkan", 32, True, True),
    ("metal", 32, True, False), ("metal", 31, False, False), ("cann", 32, True, True),
    ("opencl", 64, False, False), ("webgpu", 64, False, False), ("blas", 64, False, False),
    ("et", 1, True, True),
])  # fmt: skip
def test_a_profile_wants_what_its_device_wants(profile, n, mul_mat, rms_norm):
    if profile not in ggml.profiles():
        pytest.skip(f"this release has no record of {profile}")
    with ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 64, n)
        h, norm = ctx.mul_mat(ctx.new_tensor("f32", 64, 8), x), ctx.rms_norm(x, 1e-5)
        rows = ctx.get_rows(x, ctx.new_tensor("i32", 64))
        with ggml.sim_device("usual", profile=profile) as device:
            assert [device.offload_op(t) for t in (h, norm, rows)] == [mul_mat, rms_norm, False]
        with ggml.sim_device("eager", profile=profile, offload_min_batch=1) as device:
            wants = [True, profile != "metal", False]
            assert [device.offload_op(t) for t in (h, norm, rows)] == wants


def test_cann_counts_ne1(sims):
    if "cann" not in ggml.profiles():
        pytest.skip("this release has no record of cann")
    with ggml.Context() as ctx, sims(profile="cann").init() as cann, sims("b").init() as cuda:
        t = ctx.silu(ctx.new_tensor("f32", 8, 4, 16))
        assert (cann.offload_op(t), cuda.offload_op(t)) == (False, True)


def test_the_same_name_is_the_same_device(sims):
    sim = sims("gpu0", memory=4096)
    assert sims("gpu0", memory=4096) is sim
    assert sims("gpu0", memory=8192) is sim and sim.memory == (8192, 8192)
    with sim.init():
        assert sims("gpu0", memory=8192, supports=False) is sim  # that can change at any time
        with pytest.raises(ggml.ArgumentError, match=r"in use \(still open: 1 backend"):
            sims("gpu0", memory=4096)
        assert sim.memory == (8192, 8192)
        with pytest.raises(ggml.ArgumentError, match="still open: 1 backend"):
            sim.close()
    sim.configure(memory=1 << 20, type="igpu", alignment=4096)
    assert (sim.memory[1], sim.type.name, sim.buffer_type.alignment) == (1 << 20, "IGPU", 4096)
    old = sim
    sim.close()
    assert sims("gpu0") is not old and sims("gpu0").memory[1] == 8 << 30


def test_an_accelerator_in_host_memory_as_blas(sims):
    sim = sims("accel0", type="accel", host=True, supports={"MUL_MAT": True})
    assert sim.memory == (0, 0) and sim.buffer_type.is_host
    assert sim.supports_buft(ggml.device("CPU").buffer_type)
    with Net(sim, weights=-1) as net:
        plan = net.scheduler.plan(net.graph)
        assert [s.backend for s in plan.splits] == ["accel0", "CPU", "accel0"]
        assert sum(len(s.inputs) for s in plan.splits) == 0
        np.testing.assert_array_equal(net.run(), cpu_result())


def test_devices_can_share_a_buffer_type(sims):
    first = sims("gpu0", supports={"MUL_MAT": True})
    second = sims("gpu1", supports={"RELU": True}, buft_of=first)
    assert second.buffer_type == first.buffer_type and second.supports_buft(first.buffer_type)
    with Net(first, second) as net:
        plan = net.scheduler.plan(net.graph)
        assert [s.backend for s in plan.splits] == ["gpu0", "gpu1", "gpu0"]
        assert [len(s.inputs) for s in plan.splits] == [1, 0, 0]
        np.testing.assert_array_equal(net.run(), cpu_result())
    with pytest.raises(ggml.ArgumentError, match="still open: 1 device that"):
        first.close()


def test_a_graph_on_memory_that_it_cannot_read_is_no_result_but_an_error(sims):
    cpu, sim = ggml.device("CPU").init(), sims().init()
    with cpu, sim, ggml.Context() as c:
        y = c.sqr(c.new_tensor("f32", 4))
        graph = c.new_graph(16)
        graph.build_forward_expand(y)
        c.alloc(cpu)
        reads = r"\(SQR\) on gpu0 (reads|writes to) '.*', which is in CPU memory"
        with pytest.raises(ggml.AbortError, match=reads):
            ggml.lib.ggml_backend_graph_compute(sim.ptr, graph.ptr)


def test_a_thousand_configurations_of_a_few_devices_do_not_pile_up(sims):
    made = [sims(f"gpu{i}") for i in range(3)]
    n_devices = len(ggml.devices())
    rng = np.random.default_rng(2)
    with Net(*made) as net:
        expected = cpu_result()
        for _ in range(1000):
            for device in made:
                table = rng.random(2) < 0.5
                device.configure(supports={"MUL_MAT": bool(table[0]), "RELU": bool(table[1])})
            net.scheduler.plan(net.graph)
        np.testing.assert_array_equal(net.run(), expected)
    assert len(ggml.devices()) == n_devices
