"""The memory of libllama's models, against what is allocated and what upstream's program prints."""

import pytest
from arch_files import ARCHS

import ggml_py as ggml
from ggml_py import llama
from ggml_py.errors import ModelError
from ggml_py.llama.room import fitting, lacking, lower, used
from ggml_py.models.synthetic import LlamaSpec, write_llama

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
        found = fitting(model, lambda c: llama.open(small, **base | c), free, most=9)
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
        found = fitting(model, lambda c: llama.open(small, **base | c), free)
        assert len(found) == 3
        saved = [one.saved["mem0"] for one in found]
        assert saved == sorted(saved) and saved[0] >= MIB // 2
        assert all(not lacking(one.memory, free) for one in found)
        for one in found:
            flag, number, *_ = one.text.split()
            option, step = {"-c": ("n_ctx", 256), "-ub": ("n_ubatch", 32)}.get(flag, ("", 0))
            if option:
                with llama.open(small, **base | {option: int(number) + step}) as model:
                    assert lacking(model.memory, free)
