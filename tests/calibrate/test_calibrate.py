"""Calibration measures real nodes on a real device, within its time, and says what it lacks."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.calibrate import attention_times as attention
from ggml_py.calibrate import calibrate, overheads
from ggml_py.calibrate.describe import Busy, _is_here, largest_cache, processor, shares_cache
from ggml_py.calibrate.drift import Drift, drift_of, look_at
from ggml_py.calibrate.elementwise import OPS, measure_op
from ggml_py.calibrate.matrices import MAPPED, OWN, matrices, places_of
from ggml_py.calibrate.node_times import LEAST, MOST_MATRICES, Bench, _Chunk, work_as_upstream
from ggml_py.calibrate.overheads import measure_split
from ggml_py.calibrate.products import _product, measure_again, measure_experts, measure_type
from ggml_py.cost import Machine
from ggml_py.cost.sample import DRIFTS, SHAPES
from ggml_py.errors import ServerLostError
from ggml_py.tensors.tensor import Tensor

from ..support import cli_runs, rpc_net

MiB = 1 << 20
here = importlib.import_module("ggml_py.calibrate.calibrate")  # the package has the function
measuring = importlib.import_module("ggml_py.calibrate.node_times")


@pytest.fixture
def bench():
    with Bench(ggml.device("CPU"), 1, pace=0.02) as made:
        yield made


def keys(bench):
    return {sample.key for sample in bench.samples}


def test_a_product_takes_longer_with_more_columns(bench):
    for _ in measure_type(bench, "f32", 4 * MiB, MiB // 2):
        pass
    key = "MUL_MAT f32 CPU_Mapped"
    assert keys(bench) == {key, key + " hot", key + " many rows"}
    by_at = {s.at: s.usual for s in bench.samples if s.key == key}
    assert by_at[512, 768 * 768] > by_at[8, 768 * 768] > 0
    assert by_at[1, 2048 * 6144] > by_at[1, 512 * 128] > 0


def test_weights_are_measured_where_models_have_them(bench):
    cpu = ggml.device("CPU")
    assert places_of(cpu, "f32") == (MAPPED,)
    places = places_of(cpu, "q4_0")
    assert (len(places) == 2) == bool(cpu.extra_buffer_types)
    for where in places:
        with matrices(bench, "q4_0", (512, 512), MiB, where) as weights:
            assert len(weights) >= 6
            names = {weight.buffer.type.name for weight in weights}
        assert names == {"CPU_Mapped" if where == MAPPED else cpu.extra_buffer_types[0].name}


def test_experts_are_counted_by_those_that_are_used(bench):
    for _ in measure_experts(bench, "f32", 4 * MiB):
        break
    found = [s for s in bench.samples if s.key.startswith("MUL_MAT_ID f32")]
    assert found[0].at == (1.0, 512 * 512)  # one token uses each of its two experts once
    assert found[-1].at == (128.0, 512 * 512)  # 512 tokens, two of eight experts each


def test_one_token_after_the_other_takes_all_experts(bench, monkeypatch):
    """Those that none takes would stay out of the caches, and leave room there for the others."""
    sample, taken = bench.sample, []

    def looked_at(graph, values, *rest):
        taken.append({(node.src[0].ptr, expert) for node in graph.nodes
                      for expert in values[node.src[2]].flat})  # fmt: skip
        return sample(graph, values, *rest)

    monkeypatch.setattr(bench, "sample", looked_at)
    for _ in measure_experts(bench, "f32", 4 * MiB):
        break
    one = taken[0]
    assert one == {(weight, expert) for weight, _ in one for expert in range(8)}


@pytest.mark.parametrize("name", sorted(OPS))
def test_each_op_can_be_measured(bench, name):
    for _ in measure_op(bench, name):
        pass
    assert bench.samples, f"{name} gave no sample"
    assert all(s.usual > 0 for s in bench.samples)


def test_what_the_device_does_not_compute_gives_no_sample():
    with ggml.sim_device("few", supports={"MUL_MAT": True}) as few, Bench(few, 1, 0.02) as bench:
        for _ in measure_op(bench, "add"):
            pass
        assert bench.samples == []


def test_a_device_that_is_not_the_cpu_has_splits_and_copies():
    with ggml.sim_device("beside") as beside, Bench(beside, 1, pace=0.02) as bench:
        for _ in measure_split(bench, (ggml.device("CPU"),)):
            pass
        assert keys(bench) == {
            "split", "synchronize", "copy from CPU", "copy from CPU mapped", "copy to CPU",
        }  # fmt: skip
        small, *_others, large = [s for s in bench.samples if s.key == "copy from CPU"]
        assert large.usual > small.usual


def test_the_machine_is_described_and_what_is_missing_is_said():
    shares = []
    found = calibrate(["CPU"], 1, seconds=3.0, progress=lambda _what, share: shares.append(share))
    assert shares == sorted(shares) and 0 <= shares[0] <= shares[-1] <= 1
    was = found.described
    assert (was.processor, was.cache, was.n_threads) == (processor(), largest_cache(), 1)
    assert was.build == BUILD["key"]
    assert 3.0 <= was.seconds < 30
    (device,) = found.devices
    assert device.samples
    assert "no time was left for" in device.incomplete
    assert f"CPU: {device.incomplete}" in found.doubts


def test_a_device_that_is_lost_keeps_what_was_measured_before(monkeypatch):
    def lost(*_arguments):
        raise ServerLostError("the server ended", "ggml_backend_graph_compute", "here:1")
        yield

    with ggml.sim_device("gone") as gone:
        monkeypatch.setattr(here, "measure_split", lost)
        with pytest.raises(ServerLostError) as error:
            calibrate(["CPU", gone], 1, seconds=1.0, types=())
    assert [device.name for device in error.value.measured.devices] == ["CPU"]


@pytest.mark.skipif(BUILD["pristine"], reason="a pristine build has upstream's own")
def test_where_the_work_begins_changes_no_result():
    """It is asked for by name, and a build that lost the function would measure another program."""
    assert ggml.device("CPU").proc_address("gp_cpu_set_work_offset")
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, n, 64), np.float32) for n in (64, 128, 128))

    def attention():
        with ggml.Context() as context:
            made = context.flash_attn_ext(
                context.from_numpy(q), context.from_numpy(k.astype(np.float16)),
                context.from_numpy(v.astype(np.float16)), None, 0.125, 0.0, 0.0,
            )  # fmt: skip
            graph = context.new_graph()
            graph.build_forward_expand(made)
            with ggml.device("CPU").init(n_threads=1) as cpu:
                context.alloc(cpu)
                cpu.compute(graph)
                return made.get()

    aligned = attention()
    for offset in (16, 48):
        work_as_upstream(offset)
        try:
            assert np.array_equal(attention(), aligned)
        finally:
            work_as_upstream(0)


def test_work_that_fails_is_left_out_and_said(monkeypatch):
    """What the device computes otherwise is measured."""
    def fails(*_arguments):
        raise ggml.GgmlError("the graph is full")
        yield

    monkeypatch.setattr(here, "measure_compute", fails)
    found = calibrate(["CPU"], 1, seconds=1.5, types=())
    assert "a split failed (the graph is full)" in found.devices[0].incomplete
    assert found.devices[0].samples


@pytest.mark.thorough("long")
def test_a_machine_with_a_cache_of_a_gigabyte(bench):
    """Its matrices are so many that graphs of 8192 nodes do not hold them."""
    with matrices(bench, "q4_0", (512, 128), 512 << 20, MAPPED) as weights:
        assert len(weights) > 8192
        assert _product(bench, weights, 1)
    with matrices(bench, "q4_0", (256, 32), 512 << 20, MAPPED) as weights:
        assert len(weights) <= MOST_MATRICES


def test_a_device_is_looked_at_now_and_then(bench):
    with drift_of(bench, 2 * MiB) as drift:
        drift.look()
        drift.look()  # too soon
        assert [len(seconds) for seconds in drift.seconds.values()] == [1, 1, 1]
        drift.look(now=True)
    assert [kept.key for kept in bench.samples] == [*DRIFTS]
    assert all(len(kept.seconds) == 2 and min(kept.seconds) > 0 for kept in bench.samples)
    waits, _in_the_cache, computes = bench.samples
    assert computes.usual > 10 * waits.usual


def test_a_look_in_the_cache_takes_few_matrices_in_turns(bench, monkeypatch):
    """Threads that wait for each other longer are not hidden by waits for memory."""
    read = []

    def times(_bench, graph, *_arguments):
        read.append([(node.src[0].ptr, node.src[0].nbytes) for node in graph.nodes])
        return [1.0]

    monkeypatch.setattr(Bench, "times", times)
    with drift_of(bench, 20 * MiB) as drift:
        drift.look()
    cold, hot, _wide = (dict(weights) for weights in read)
    assert len(read[0]) == len(read[1]) == len(cold)
    assert sum(hot.values()) < 3 * MiB < 19 * MiB < sum(cold.values())


def test_blas_is_looked_at_with_the_products_that_it_computes():
    if "BLAS" not in [device.name for device in ggml.devices()]:
        pytest.skip("BLAS is not here")
    with Bench(ggml.device("BLAS"), 1, 0.02) as bench, drift_of(bench, 2 * MiB) as drift:
        drift.look()
        assert list(drift.seconds) == ["drift of many columns"]


def test_a_device_without_such_products_is_not_looked_at():
    with ggml.sim_device("few", supports={"ADD": True}) as few, Bench(few, 1, 0.02) as bench:
        with drift_of(bench, MiB) as drift:
            assert drift is None
            look_at(drift)
        assert bench.samples == []


def test_a_device_with_little_memory_is_measured_all_the_same():
    with ggml.sim_device("small", memory=64 * MiB) as small, Bench(small, 1, 0.02) as bench:
        with drift_of(bench, 128 * MiB) as drift:
            look_at(drift)
        assert bench.samples == []


def test_a_device_of_small_buffers_has_fewer_weights():
    with (
        ggml.sim_device("parts", max_size=16 * MiB) as parts, Bench(parts, 1, 0.02) as bench,
        matrices(bench, "q8_0", (768, 768), 64 * MiB, OWN) as weights,
    ):  # fmt: skip
        assert sum(weight.nbytes for weight in weights) < 16 * MiB
        assert len({weight.buffer for weight in weights}) == 1 < len(weights)


def test_a_device_without_memory_leaves_nothing_open():
    with ggml.sim_device("none", memory=1 * MiB) as none, pytest.raises(ggml.AllocError):
        Bench(none, 1, 0.02)


def test_a_look_that_fails_is_passed_over(bench, monkeypatch):
    def fails(*_arguments):
        raise ggml.AllocError("no memory")

    with drift_of(bench, 2 * MiB) as drift:
        monkeypatch.setattr(Drift, "look", fails)
        look_at(drift)
    assert bench.samples == []


@pytest.mark.parametrize("kind", DRIFTS)
def test_a_machine_whose_speed_changes_is_said(monkeypatch, kind):
    def nothing():
        yield

    seconds = iter([1.0, 1.1, 1.2, 1.3, 9.0])
    monkeypatch.setattr(here, "_jobs", lambda *_a: [("nothing", nothing()) for _ in range(5)])
    monkeypatch.setattr(Drift, "look", lambda self: self.seconds[kind].append(next(seconds)))
    (doubt,) = [d for d in calibrate(["CPU"], 1, seconds=60.0).doubts if "speed" in d]
    assert doubt.startswith("CPU: its speed changed by 12% (one standard deviation)")


def test_short_graphs_say_nothing_about_others(monkeypatch):
    """Between them threads sleep, as if others had their cores."""
    with Bench(ggml.device("CPU"), 2, pace=0.02) as bench:
        empty = bench.overhead
        assert bench._was_alone(_Chunk([2 * empty] * 9, 1.2))
        assert not bench._was_alone(_Chunk([100 * empty] * 9, 1.2))
        assert bench._was_alone(_Chunk([100 * empty] * 9, 1.9))
    with Bench(ggml.device("CPU"), 1, pace=0.02) as bench:
        assert not bench._was_alone(_Chunk([2 * bench.overhead] * 9, 0.6))


def test_where_others_always_compute_nothing_waits_for_them(bench, monkeypatch):
    monkeypatch.setattr(Bench, "_was_alone", lambda *_arguments: False)
    chunks, chunk = [], Bench._chunk
    monkeypatch.setattr(Bench, "_chunk", lambda *a: chunks.append(a) or chunk(*a))
    counts = []
    with ggml.Context() as context:
        x = context.new_tensor("f32", 4096)
        graph = context.new_graph()
        graph.build_forward_expand(context.scale(x, 2.0))
        for _ in range(2):
            bench.alone, bench.disturbed = float(not counts), float(bool(counts))
            chunks.clear()
            bench.times(graph, {x: np.ones(4096, np.float32)}, 2.0)
            counts.append(len(chunks))
        bench.scheduler.reset()
    assert counts[0] > counts[1] >= 1


def test_a_machine_under_load_is_said(monkeypatch):
    monkeypatch.setattr(here.Busy, "others", lambda _self: 1.5)
    found = calibrate(["CPU"], 1, seconds=1.0, types=())
    assert found.doubts[0].startswith("the machine was under load: others used 1.5 of its cores")


def test_a_server_on_this_machine_is_not_load(monkeypatch):
    """It computes for the measurement, and is one of the others."""
    monkeypatch.setattr(here.Busy, "others", lambda _self: 1.5)
    monkeypatch.setattr(here, "is_remote", lambda _device: True)
    found = calibrate(["CPU"], 1, seconds=1.0, types=())
    assert not any(doubt.startswith("the machine was under load") for doubt in found.doubts)


def test_others_are_counted_and_this_process_is_not():
    busy = Busy()
    a = np.ones((600, 600))
    for _ in range(30):
        a = a @ np.eye(600)
    assert 0 <= busy.others() < 64


def test_what_computes_in_this_machines_memory_shares_its_cache():
    assert shares_cache(ggml.device("CPU"))
    with ggml.sim_device("gpu0") as card:
        assert shares_cache(card)


@pytest.mark.parametrize("address, memory, expected", [
    ("127.0.0.1:50052", None, True), ("127.0.0.1:50052", 1 << 30, False),
    ("192.0.2.1:50052", None, False),
])  # fmt: skip
def test_a_server_shares_the_cache_if_it_is_here_and_has_this_machines_memory(
    address, memory, expected
):
    here = ggml.device("CPU").props.memory_total
    served = SimpleNamespace(
        registry="RPC", description=address, props=SimpleNamespace(memory_total=memory or here)
    )
    assert shares_cache(served) == expected


def test_messages_to_a_server_are_timed_after_the_core_was_busy(monkeypatch):
    """Threads that only wait for each other are woken on one core, and messages are quicker."""
    calls = []
    monkeypatch.setattr(Bench, "be_busy", lambda _self: calls.append("busy"))
    monkeypatch.setattr(overheads, "_COPIED", (256,))
    monkeypatch.setattr(measuring, "is_remote", lambda device: device.name == "gpu0")
    with ggml.sim_device("gpu0") as card, Bench(card, 1, pace=0.02) as made:
        before, copied = len(calls), Tensor.copy_to
        monkeypatch.setattr(
            Tensor, "copy_to", lambda *given: (calls.append("copy"), copied(*given))
        )
        overheads._copies(made, ggml.device("CPU"))
        assert {"copy from CPU", "copy to CPU"} <= keys(made)
    assert before > 3  # the graphs that say what an empty one takes
    first = calls.index("copy", before)
    assert calls[first - 1] == "busy" and calls[first : first + 9] == ["copy"] * 8 + ["busy"]


@pytest.mark.parametrize("remote, here_too, threads, expected", [
    (True, True, 2, True), (True, True, 1, False), (True, False, 2, False), (False, True, 2, False),
])  # fmt: skip
def test_turns_are_measured_where_threads_may_take_a_servers_cores(
    monkeypatch, remote, here_too, threads, expected
):
    monkeypatch.setattr(measuring, "is_remote", lambda _device: remote)
    monkeypatch.setattr(here, "shares_cache", lambda _device: here_too)
    with ggml.sim_device("gpu0") as card, Bench(card, threads, pace=0.02) as made:
        what = {name for name, _job in here._jobs(made, ("f32",), ())}
    assert ("turns" in what) == expected


@pytest.mark.parametrize("remote", (True, False))
def test_the_first_types_are_measured_again_later(monkeypatch, remote):
    """A server, which takes longer, does so before the other types."""
    monkeypatch.setattr(measuring, "is_remote", lambda _device: remote)
    with ggml.sim_device("gpu0") as card, Bench(card, 1, pace=0.02) as made:
        what = [name for name, _job in here._jobs(made, here.TYPES, ())]
    again = [name.removesuffix(" again") for name in what if name.endswith(" again")]
    assert again == [f"products, {type_}" for type_ in here.TYPES[:6]]
    assert all(what.index(name) < what.index(f"{name} again") for name in again)
    last = what.index(f"products, {here.TYPES[-1]}")
    assert (what.index(f"{again[0]} again") < last) == remote


def test_columns_that_are_measured_again_are_in_the_same_samples(bench):
    cold = 4 * MiB
    for _ in measure_type(bench, "q8_0", cold, MiB):
        pass
    before = {(s.key, s.at): len(s.seconds) for s in bench.samples}
    for _ in measure_again(bench, "q8_0", cold, MiB):
        pass
    after = {(s.key, s.at): len(s.seconds) for s in bench.samples}
    more = {key for key, n in after.items() if n > before[key]}
    assert after.keys() == before.keys() and len(more) >= len(SHAPES)
    assert {at[0] for _key, at in more} == {1.0}


@pytest.mark.parametrize("free, places", ((1 << 40, 3), (0, 1)))
def test_attention_is_measured_in_several_places(bench, monkeypatch, free, places):
    """Each has some repetitions in one sample; little memory has one place. Of many tokens it is
    the most cells only: others took as long in each."""
    monkeypatch.setattr(attention, "HEADS", ((4, (1, 8)),))
    monkeypatch.setattr(attention, "CELLS", (128, 256, 512))
    monkeypatch.setattr(type(bench.device), "memory", property(lambda _self: (free, free)))
    calls = []
    real = bench.sample
    monkeypatch.setattr(bench, "sample", lambda *a: (calls.append(a[-2:]), real(*a))[1])
    for _ in attention.measure_attention(bench, "f16", 64, 4 * MiB, MiB):
        pass
    # One token with three numbers of cells in each place, in the first also in a cache; eight
    # tokens with 256 in the first, and with 512 in each.
    assert [suffix for suffix, _least in calls].count(" hot") == 3
    least = [least for suffix, least in calls if not suffix]
    assert least.count(LEAST) == 3 * places + 1 + (places == 1)
    assert least.count(LEAST // 3) == (3 if places == 3 else 0)


@pytest.mark.parametrize("host, expected", [
    ("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False),
])  # fmt: skip
def test_an_address_is_here_if_it_can_be_bound_to(host, expected):
    assert _is_here(host) == expected


@pytest.mark.thorough("long")
def test_the_times_of_a_server_are_those_of_its_computing(tmp_path):
    """An RPC server computes after it was told to: a call that returns has only told it."""
    file = tmp_path / "machine.json"
    with rpc_net.server(1) as process:
        devices = ("-d", f"rpc:{process.endpoint}", "-d", "CPU", "-t", 2, "--types", "f32")
        done = cli_runs.run("calibrate", *devices, "--seconds", 80, "-o", file)
    assert done.returncode == 0, done.stderr
    server, cpu = Machine.load(file).devices
    assert server.name.startswith("RPC") and server.asynchronous and server.shares_cache

    def usual(device, key):
        return {s.at: s.usual for s in device.samples if s.key == key}

    there, here = usual(server, "MUL_MAT f32"), usual(cpu, "MUL_MAT f32 CPU_Mapped")
    both = sorted({*there} & {*here})
    assert (512.0, 768.0 * 768.0) in both
    for at in both:
        if at[0] * at[1] > 1e7:  # beyond what the network takes
            assert 1 / 8 < there[at] / here[at] < 8, at
    assert len(usual(server, "split")) == 4  # the shortest, and turns of three lengths
    copies = usual(server, "copy from CPU")
    assert copies[(256.0,)] > 1e-6 and copies[(float(1 << 25),)] > 5 * copies[(256.0,)]
