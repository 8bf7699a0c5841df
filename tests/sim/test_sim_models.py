"""Models on simulated devices: layers where llama.cpp puts them, logits of the CPU bit for bit."""

import subprocess
import sys

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.checks import assert_pins
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec
from ggml_py.sim.text import sim_device_of

PROMPT = [3, 1, 4, 1, 5, 9, 2]
N_LAYER = 4


@pytest.fixture(scope="module")
def path(model_file):
    sizes = {"n_layer": N_LAYER, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 192}
    return model_file(LlamaSpec(**sizes, n_vocab=300, type="q8_0"))


def answers(path, **options):
    with load(path, n_threads=1, **options) as model:
        return model.eval(PROMPT, all_logits=True), model.generate([2], 6), model.plan()


def layers(plan):
    return [plan.node(f"attn_out-{il}").backend for il in range(N_LAYER)]


@pytest.mark.parametrize("n_gpu_layers", [1, 3, 5])
@pytest.mark.parametrize("fa", ["on", "off"])
def test_logits_are_the_cpus_whatever_is_where(sims, path, n_gpu_layers, fa):
    sims("gpu0", host_buffer=True)
    expected, tokens, _plan = answers(path, flash_attn=fa)
    logits, out, plan = answers(
        path, devices=("sim:gpu0", "CPU"), n_gpu_layers=n_gpu_layers, flash_attn=fa
    )
    np.testing.assert_array_equal(logits, expected)
    assert out == tokens
    on_gpu = [il >= N_LAYER + 1 - n_gpu_layers for il in range(N_LAYER)]
    assert [backend == "gpu0" for backend in layers(plan)] == on_gpu
    assert_pins(plan, {"result_output": "gpu0", "embd": "CPU"})


@pytest.mark.parametrize(
    ("memory", "n_gpu_layers", "where"),
    [  # worked out by hand from llama_model::load_tensors
        (("4G", "4G"), 99, ["gpu0", "gpu0", "gpu0", "gpu1", "gpu1"]),
        (("1G", "4G"), 99, ["gpu0", "gpu1", "gpu1", "gpu1", "gpu1"]),
        (("6G", "2G"), 99, ["gpu0", "gpu0", "gpu0", "gpu0", "gpu1"]),
        (("4G", "4G"), 3, ["CPU", "CPU", "gpu0", "gpu0", "gpu1"]),
        (("4G", "4G"), 1, ["CPU", "CPU", "CPU", "CPU", "gpu0"]),
    ],
)
def test_several_gpus_share_the_layers_by_their_free_memory(
    sims, path, memory, n_gpu_layers, where
):
    expected, tokens, _plan = answers(path)
    for i, size in enumerate(memory):
        sims(f"gpu{i}", memory=int(size[0]) << 30)
    devices = ("sim:gpu0", "sim:gpu1")
    logits, out, plan = answers(path, devices=devices, n_gpu_layers=n_gpu_layers)
    np.testing.assert_array_equal(logits, expected)
    assert out == tokens
    assert [*layers(plan), plan.node("result_output").backend] == where
    assert len(plan.splits) == len(dict.fromkeys(("CPU", *where)))


def test_weights_that_a_gpu_has_no_op_for_stay_on_the_cpu(sims, path):
    """As llama.cpp's loader decides, weight by weight."""
    sim = sims("gpu0", supports=lambda t: t.op.name != "MUL_MAT" or t.src[0].type.name != "Q8_0")
    expected, tokens, _plan = answers(path)
    with load(path, devices=(sim,), n_gpu_layers=99, n_threads=1) as model:
        np.testing.assert_array_equal(model.eval(PROMPT, all_logits=True), expected)
        assert model.generate([2], 6) == tokens
        types = {(t.type.name, t.buffer.name) for t in model.weights._made.values()}
        assert types == {("Q8_0", "CPU_Mapped"), ("F32", "gpu0")}


def test_a_card_that_is_too_small_says_so_and_leaves_nothing_behind(sims, path):
    sim = sims("gpu0", memory=100_000)
    with pytest.raises(ggml.AllocError, match=r"gpu0: [\d,]+ bytes .* \(100,000 of 100,000 bytes"):
        load(path, devices=(sim,), n_gpu_layers=99)
    assert sim._in_use() == ""


def ggml_py(*arguments):
    """The command line, in a process of its own."""
    command = [sys.executable, "-m", "ggml_py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.thorough("long")
def test_the_command_line_takes_them(path, tmp_path):
    file = tmp_path / "plan.json"

    def planned(*arguments):
        done = ggml_py("plan", path, "--json", *arguments)
        file.write_text(done.stdout)
        return layers(ggml.Plan.from_json(file))

    one = "sim:card,memory=8G,min_batch=32"
    assert planned("-d", one, "-d", "CPU", "-ngl", 3) == ["CPU", "CPU", "card", "card"]
    for flag, n in (("-ngl", "all"), ("--gpu-layers", -1), ("--n-gpu-layers", -2)):
        assert planned("-d", one, flag, n) == ["card"] * 4
    several = ("-d", "sim:a,memory=1G", "-d", "sim:b,memory=1G", "-ngl", 99)
    assert planned(*several) == ["a", "a", "a", "b"]
    ids = [ggml_py("generate", path, "--tokens", "1,2", *d).stdout for d in ((), several)]
    assert ids[0] == ids[1] and len(ids[0].split(",")) == 16
    done = ggml_py("plan", path, "-d", "sim:card,colour=red")
    assert done.returncode == 1 and "unknown setting 'colour'" in done.stderr


def test_what_a_text_can_say(sims):
    first = sims("gpu0")
    text = "gpu1,type=igpu,supports=MUL_MAT+SILU,memory=1.5G,max_size=64M,alignment=256,async=0"
    device = sim_device_of(text + ",host_buffer,buft_of=gpu0,min_batch=8,wrong=MUL")
    assert sims("gpu1", **device.settings) is device
    assert device.settings == {
        "supports": {"MUL_MAT": True, "SILU": True}, "profile": None, "memory": 3 << 29,
        "offload_min_batch": 8, "type": "igpu", "max_size": 64 << 20, "alignment": 256,
        "host": False, "host_buffer": True, "async_": False, "buft_of": first,
        "graph_optimize": None, "wrong": "MUL",
    }  # fmt: skip
    assert sim_device_of("gpu1") is device  # no settings: as it is
    assert device.settings["alignment"] == 256


def test_a_device_profile_decides_and_says_on_what_row(sims, path):
    # CUDA has no attention for heads of 32, so that upstream's "auto" means off.
    expected, tokens, _plan = answers(path, flash_attn="off")
    gpu = sims("gpu0", profile="cuda")
    logits, out, plan = answers(path, devices=("sim:gpu0",), n_gpu_layers=99)
    np.testing.assert_array_equal(logits, expected)
    assert out == tokens and layers(plan) == ["gpu0"] * N_LAYER
    with ggml.Context() as c:
        product = c.mul_mat(c.new_tensor("q4_0", 256, 16), c.new_tensor("f32", 256, 16))
        said = gpu.profile.decide(product)
        assert said.basis == "source" and said.row.startswith("ggml-cuda.cu:")
        assert ggml.device("gpu0").supports_op(product)
