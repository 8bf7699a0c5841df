"""The memory of libllama's models, against what is allocated and what upstream's program prints."""

import random

import pytest

import ggml_py as ggml
from ggml_py import llama
from ggml_py.errors import ModelError
from ggml_py.llama.room import fitting, lacking, lower, used
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.arch_files import ARCHS

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
FEW = sorted(ARCHS)[:: max(1, len(ARCHS) // 6)]
MIB = 1 << 20


def sims():
    return [
        ggml.sim_device("mem0", profile="metal", memory=1 << 30),
        ggml.sim_device("mem1", profile="vulkan", memory=1 << 30),
        "CPU",
    ]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=4, n_vocab=512))
    return path


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("n_gpu_layers", [0, 1, 99])
def test_compute_buffers_are_as_large_as_planned(arch_file, caplog, name, n_gpu_layers):
    """Also where libllama's own estimate is wrong, because it drops its pins."""
    caplog.set_level("DEBUG", "ggml")
    options = {"devices": sims(), "n_gpu_layers": n_gpu_layers, "n_ctx": 512}
    with llama.open(arch_file(name, 42), **options) as model:
        planned = {row.buft: row.compute for row in model.memory if row.compute}
        largest = {b.name: b.size for b in model.reserved_plan().memory.buffers}
        assert all(planned.get(name, 0) >= size for name, size in largest.items())
        model.eval([1])
        said = [line for line in caplog.messages if "output buffer size" in line]
        (outputs,) = [row.outputs for row in model.memory if row.outputs] or [0]
        assert any(f"{outputs / MIB:8.2f} MiB" in line for line in said), (outputs, said)
        scheduler = model.scheduler
        real = {}
        for backend in scheduler.backends:
            real.setdefault(scheduler.buffer_type(backend).name, scheduler.buffer_size(backend))
        assert planned == {name: size for name, size in real.items() if size}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("flags", [(), ("-ub", "64", "-fa", "off"), ("-c", "8192", "-ctk", "q8_0")])
def test_fit_print_is_what_upstreams_program_prints(oracle, arch_file, name, flags):
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    path = arch_file(name, 42)
    words = ("llama-fit-params", "-m", path, "-fitp", "on", "-c", 4096, *flags)
    said = oracle.run(*words).stdout
    options = {
        "n_ctx": int(given.get("-c", 4096)), "n_ubatch": int(given.get("-ub", 512)),
        "flash_attn": given.get("-fa", "auto"), "type_k": given.get("-ctk", "f16"),
    }  # fmt: skip
    with llama.open(path, devices=["CPU"], n_batch=2048, load_mode="none", **options) as model:
        assert model.fit_print() == said
    with llama.open(path) as model, pytest.raises(ModelError, match='load_mode="none"'):
        model.fit_print()


@pytest.mark.parametrize("name", ["mamba", "llama"])
def test_a_plan_takes_no_memory_of_the_device(arch_file, name):
    """Upstream allocates recurrent states also for a context that only plans."""
    gpu = sims()[0]
    free, _total = gpu.memory
    options = {"devices": [gpu, "CPU"], "n_gpu_layers": 99, "n_seq_max": 64, "n_ctx": 4096}
    with llama.open(arch_file(name, 42), **options) as model:
        assert used(model.memory)["mem0"] > 0 and gpu.memory[0] == free
        cache = sum(row.cache for row in model.memory)
        model.eval([1])
        assert free - gpu.memory[0] == used(model.memory)["mem0"] and cache


def test_a_buffer_in_host_memory_is_the_cpus(small):
    with llama.open(small, devices=[sims()[0], "CPU"], n_gpu_layers=99) as model:
        assert {row.device for row in model.memory} == {"mem0", "CPU"}
        assert used(model.memory)["mem0"] == sum(
            row.nbytes for row in model.memory if row.buft == "mem0"
        )


def test_options_that_lower_it_do(small):
    base = {"devices": sims(), "n_gpu_layers": 99, "n_ctx": 2048}
    with llama.open(small, **base) as model:
        before = used(model.memory)
        found = {one.text: one for one in lower(model, lambda c: llama.open(small, **base | c))}
        assert {"-ub 256", "-c 1024", "-ctk q8_0 -ctv q8_0", "-nkvo"} <= set(found)
        with llama.open(small, **base, n_ubatch=256) as other:
            after = used(other.memory)
        told = found["-ub 256"].saved
        assert {d: before[d] - told.get(d, 0) for d in before} == after
        assert found["-ub 256"].to_dict()["change"] == "-ub 256"


def kept(model, free):
    """The reserve that leaves `free` bytes of each device."""
    return {
        room.device: room.free - free[room.device] for room in model.rooms if room.device in free
    }


def test_layers_that_leave_a_device_need_room_elsewhere(small):
    """Fewer layers on the device fit, as long as the CPU has room for those that leave it."""
    base = {"devices": [ggml.sim_device("mem0", memory=1 << 30), "CPU"], "n_gpu_layers": 99}
    base |= {"n_ctx": 4096, "load_mode": "none"}
    sizes = []
    for n in range(6):
        with llama.open(small, **base | {"n_gpu_layers": n}) as model:
            sizes.append(used(model.memory))
    # Room for what three layers need on the device, and on the CPU for no fewer than two.
    free = {"mem0": sizes[3]["mem0"], "CPU": sizes[2]["CPU"]}
    with llama.open(small, **base) as model:
        found = fitting(model, lambda c: llama.open(small, **base | c), kept(model, free), most=9)
    assert "-ngl 3" in [one.text for one in found]


def test_the_smallest_changes_that_make_it_fit(small):
    """Each fits, and one step less does not."""
    base = {"devices": [ggml.sim_device("mem0", memory=1 << 30), "CPU"], "n_gpu_layers": 99}
    base |= {"n_ctx": 4096, "flash_attn": "on"}
    with llama.open(small, **base) as model:
        need = used(model.memory)["mem0"]
        free = {"mem0": need - MIB // 2}
        assert lacking(model.memory, free) == {"mem0": MIB // 2}
        assert lacking(model.memory, {}) == {}
        found = fitting(model, lambda c: llama.open(small, **base | c), kept(model, free))
        assert len(found) == 3
        saved = [one.saved["mem0"] for one in found]
        assert saved == sorted(saved) and saved[0] >= MIB // 2
        assert all(not lacking(one.memory, free) for one in found)
        assert all(one.left["mem0"] == (1 << 30) - used(one.memory)["mem0"] for one in found)
        for one in found:
            flag, number, *_ = one.text.split()
            option, step = {"-c": ("n_ctx", 256), "-ub": ("n_ubatch", 32)}.get(flag, ("", 0))
            if option:
                with llama.open(small, **base | {option: int(number) + step}) as model:
                    assert lacking(model.memory, free)


# --- what does not fit, before and at the failure


def test_a_tensor_larger_than_the_largest_buffer(small):
    """Sums fit, and a single tensor does not: it is named before a run, and by the run's error."""
    gpu = ggml.sim_device("mem0", memory=1 << 30, max_size=2 * MIB)
    base = {"devices": [gpu, "CPU"], "n_gpu_layers": 99, "n_ctx": 2048, "flash_attn": "off"}
    with llama.open(small, **base) as model:
        assert not lacking(model.memory, {"mem0": 1 << 30})
        (found,) = model.shortfalls()
        assert (found.device, found.kind, found.tensor) == ("mem0", "compute", "kq-0")
        assert (found.needed, found.available) == (512 * 2048 * 4 * 4, 2 * MIB)
        with pytest.raises(ModelError, match=f"buffer has at most {2 * MIB}") as error:
            model.eval([1])
        assert found.text in str(error.value)
    with llama.open(small, **base, n_ubatch=64) as model:  # 64 * 2048 * 4 * 4 bytes
        assert model.shortfalls() == ()
        assert model.eval([1]).shape == (512,)


def test_pipeline_parallelism_is_given_up(small):
    """libllama goes on without if there is no memory for its copies: so do plans and memory."""
    gpus = [ggml.sim_device(name, memory=1 << 30) for name in ("mem0", "mem1")]
    base = {"devices": [*gpus, "CPU"], "n_gpu_layers": 99, "n_ctx": 4096}
    with llama.open(small, **base) as model:
        assert model.pipeline_lacks == ()
        need, copies = used(model.memory), model.plan(8).capture.settings.n_copies
    for gpu in gpus:
        gpu.configure(memory=need[gpu.name] - MIB // 4)
    with llama.open(small, **base) as model:
        assert {one.device for one in model.pipeline_lacks} == {"mem0", "mem1"}
        assert model.shortfalls() == ()
        assert model.plan(8).capture.settings.n_copies == 1 < copies
        model.eval([1])
        assert model.scheduler.n_copies == 1


def random_case(seed):
    r = random.Random(seed)
    options = {
        "n_gpu_layers": r.choice((-1, -1, 1, 2)), "n_ctx": r.choice((256, 512, 1024, 2048)),
        "n_ubatch": r.choice((32, 128, 512)), "flash_attn": r.choice(("auto", "on", "off")),
        "offload_kqv": r.random() > 0.2, "n_seq_max": r.choice((1, 1, 2)),
    }  # fmt: skip
    return r, options, [f"mem{i}" for i in range(r.choice((1, 1, 2)))]


@pytest.mark.thorough("sample")
@pytest.mark.parametrize("seed", range(40))
def test_what_is_said_to_fit_runs_and_nothing_else(arch_file, seed):
    """Memories and largest buffers of random sizes around what a random model needs."""
    r, options, names = random_case(seed)
    path = arch_file(r.choice(sorted(ARCHS)))
    gpus = [ggml.sim_device(name, memory=1 << 32) for name in names]
    with llama.open(path, devices=names, **options) as model:
        need, uncut = used(model.memory), model.uncut_buffers
    for gpu in gpus:
        size = int(need.get(gpu.name, 0) * r.choice((0.5, 0.9, 0.99, 1.0, 1.01, 2)))
        most = max((u.nbytes for u in uncut if u.device == gpu.name), default=MIB)
        limit = int(most * r.choice((0.3, 0.95, 1.0, 1.001, 1e6)))
        gpu.configure(memory=max(size, 1 << 14), max_size=max(limit, 64))
    with llama.open(path, devices=names, **options) as model:
        lacks = model.shortfalls()
        if not lacks:
            model.eval([1])
            return
        with pytest.raises(ModelError) as error:
            model.eval([1])
        assert lacks[0].text in str(error.value)


def test_each_part_of_split_mode_tensor(small):
    """The bytes that each device then has, beside buffers for sums."""
    gpus = [ggml.sim_device(name, memory=1 << 30) for name in ("mem0", "mem1")]
    options = {"split_mode": "tensor", "n_gpu_layers": 99, "n_ctx": 512, "tensor_split": (3, 1)}
    with llama.open(small, devices=[*gpus, "CPU"], **options) as model:
        rows = {row.device: row for row in model.memory if row.device != "CPU"}
        assert list(rows) == ["mem0", "mem1"] and rows["mem0"].weights > rows["mem1"].weights > 0
        before = {gpu.name: gpu.memory[0] for gpu in gpus}
        model._loaded()
        for gpu in gpus:
            assert before[gpu.name] - gpu.memory[0] == rows[gpu.name].nbytes


def test_devices_in_their_order(small):
    names = ["mem1", "mem0"]
    for name in names:
        ggml.sim_device(name, memory=1 << 30)
    with llama.open(small, devices=["mem1", "mem0", "CPU"], n_gpu_layers=99) as model:
        assert list(dict.fromkeys(row.device for row in model.memory)) == ["mem1", "mem0", "CPU"]


def test_the_line_of_the_log(oracle, arch_file):
    """What llama-bench prints of the graphs that it reserves memory for."""
    for arch in sorted(ARCHS)[:10]:
        path = arch_file(arch)
        words = ("-m", path, "-p", "0", "-n", "1", "-r", "1", "-ngl", "0", "-v", "-t", "1")
        log = oracle.run("llama-bench", *words).stderr
        with llama.open(path, program="bench", n_ctx=1) as model:
            assert f"sched_reserve: {model.reserved.text}\n" in log, arch
