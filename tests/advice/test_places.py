"""Findings about weights and caches in host memory, and about devices: nothing is copied there."""

from contextlib import ExitStack

import pytest

from ggml_py.cost import Machine
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.plan import Plan

from ..support.advice_world import World, attention, gpu, names

N_LAYER = 4


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("places") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=N_LAYER, n_embd=256, n_ff=768, n_vocab=512))
    return path


def found(model, id, *shape, machine=None, devices=("sim:gpu0", "CPU"), **options):
    with load(model, devices=devices, **options) as opened:
        advice = opened.plan(*shape).advice(min_bytes=1, machine=machine)
    return next((f for f in advice if f.id == id), None)


@pytest.mark.parametrize("n", range(N_LAYER + 2))
def test_gp119_counts_the_layers_and_bytes_that_the_cpu_reads(model, n):
    finding = found(model, "GP119", n_gpu_layers=n)
    if n > N_LAYER:
        assert finding is None
        return
    with load(model, devices=("sim:gpu0", "CPU"), n_gpu_layers=n) as opened:
        plan = opened.plan()
    products = [t for t in plan.nodes if t.op == "MUL_MAT" and t.backend == "CPU"]
    weights = {s.id: s.nbytes for t in products for s in t.srcs if ".weight" in s.name}
    assert finding.bytes == sum(weights.values()) and finding.severity == "cost"
    assert {t.id for t in finding.tensors} <= {t.id for t in products}
    assert f"of {N_LAYER + 1 - n if n else N_LAYER} layer" in finding.text
    assert "-ngl all (not checked: whether it fits)" in finding.suggestion


def test_gp119_counts_the_chosen_experts_only(stack):
    w = World(stack, gpu(), "CPU")
    experts = w.tensor("blk.0.ffn_up_exps.weight", 64, 32, 8, on="CPU")
    chosen = w.input("ids", 2, 1, type="i32")
    plan = w.plan(w.op("mul_mat_id", experts, w.input("x", 64, 1, 1), chosen, name="y"))
    (finding,) = [f for f in plan.advice(min_bytes=1) if f.id == "GP119"]
    assert finding.bytes == 2 * 64 * 32 * 4 and names(finding) == ["y"]
    assert "-ot" in finding.suggestion and "-ngl" not in finding.suggestion


def test_gp119_needs_a_device(model):
    assert found(model, "GP119", devices=("CPU",)) is None


def test_gp120_a_cache_on_the_host_beside_its_layers(model):
    """Attention is where the cache is, if the device does not take it: it copies nothing."""
    device = "sim:gpu0,profile=cuda"
    options = {"n_gpu_layers": 99, "type_k": "iq4_nl", "type_v": "iq4_nl", "flash_attn": "on"}
    finding = found(model, "GP120", 1, 200, devices=(device, "CPU"), offload_kqv=False, **options)
    assert finding.severity == "cost" and "cache_k_l0" in finding.text
    assert {t.backend for t in finding.tensors} == {"CPU"}
    assert "-kvo (not checked" in finding.suggestion
    here = found(model, "GP120", 1, 200, devices=(device, "CPU"), n_gpu_layers=0)
    assert here is None  # the layers are on the CPU, too


def test_gp120_not_where_it_is_copied(stack):
    """That is GP104."""
    w = World(stack, gpu(), "CPU")
    advice = w.plan(attention(w, kv="CPU")).advice(min_bytes=1)
    assert "GP104" in {f.id for f in advice} and "GP120" not in {f.id for f in advice}


def test_gp121_a_device_without_anything(model):
    two = ("sim:gpu0", "sim:gpu1", "CPU")
    finding = found(model, "GP121", devices=two, n_gpu_layers=99, tensor_split=(1, 0))
    assert finding.severity == "note" and finding.text.startswith("gpu1 holds no weights")
    assert "-sm layer" in finding.suggestion
    assert found(model, "GP121", devices=two, n_gpu_layers=99) is None


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
def test_gp121_a_device_that_the_scheduler_does_not_know(graphs, model, tmp_path):
    """The scheduler has no backend for it, but the plan keeps the devices that were given."""
    path = tmp_path / "plan.json.gz"
    options = {"n_gpu_layers": 99, "split_mode": "none", "graphs": graphs}
    for devices, main, left_out in (
        (("sim:gpu0", "sim:gpu1", "CPU"), 0, ["gpu1"]),
        (("sim:gpu0", "sim:gpu1", "CPU"), 1, ["gpu0"]),
        (("sim:gpu0", "CPU"), 0, []),
    ):
        with load(model, devices=devices, main_gpu=main, **options) as opened:
            opened.plan().to_json(path)
        plan = Plan.from_json(path)
        assert [b.device for b in plan.backends if b.device in left_out] == []
        findings = [f for f in plan.advice(min_bytes=1) if f.id == "GP121"]
        assert [f.text.partition(" ")[0].lower() for f in findings] == left_out
        for finding in findings:
            assert finding.text.endswith("-sm none uses one device and leaves it out.")
            assert "-sm layer" in finding.suggestion


@pytest.mark.parametrize(("split", "is_found"), [((3, 1), True), ((1, 3), False)])
def test_gp122_the_slower_device_holds_more(model, split, is_found):
    machine = Machine.of_sheets({"gpu0": "p40", "gpu1": "rtx4090"})
    devices = ("sim:gpu0,profile=p40", "sim:gpu1,profile=rtx4090", "CPU")
    finding = found(
        model, "GP122", devices=devices, n_gpu_layers=99, tensor_split=split, machine=machine
    )
    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.text.startswith("gpu0 holds") and "2.9 times as fast" in finding.text
        assert finding.seconds > 0 and finding.known_by == "by data sheets"
