"""Predicted times of a sweep's plans."""

import json

import pytest

from ggml_py import llama
from ggml_py.cost.time_difference import predict_with
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.trace import sweep

from ..support.cli_runs import ok
from ..support.measured import knows_all, machine

CARD = "sim:gpu0,profile=rtx4090"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """m.gguf, and machine.json, which knows its work on the CPU."""
    path = tmp_path_factory.mktemp("sweep")
    write_llama(path / "m.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    with llama.open(path / "m.gguf", devices=(CARD, "CPU"), n_gpu_layers=0, n_ctx=256) as model:
        plans = [model.plan(n, past) for n in (1, 31, 64) for past in (0, 100)]
    knows_all(plans).save(path / "machine.json")
    return path


@pytest.fixture(scope="module")
def model(folder):
    with llama.open(folder / "m.gguf", n_ctx=256) as opened:
        yield opened


@pytest.fixture(scope="module")
def known(model):
    return knows_all([model.plan(n, past) for n in (1, 64) for past in (0, 100)])


def test_each_plan_has_its_time(model, known):
    found = sweep(model.plan, predict=predict_with(known), n_tokens=[1, 64], n_past=[0, 100])
    for point in found.points:
        shape = point.shape
        cost = model.plan(**shape).cost(known, shape["n_past"])
        assert point.time == pytest.approx((cost.seconds, *cost.interval))
    by_shape = {tuple(p.shape.values()): p.time[0] for p in found.points}
    assert by_shape[1, 0] < by_shape[1, 100] < by_shape[64, 100]
    assert str(found).count(", predicted ") == len(found.points)


def test_without_a_machine_there_is_none(model):
    found = sweep(model.plan, n_tokens=[1, 64])
    assert all(point.time is None for point in found.points) and "predicted" not in str(found)


def test_what_is_not_known_has_no_time(model):
    found = sweep(model.plan, predict=predict_with(machine()), n_tokens=[1, 64])
    assert all(point.time is None for point in found.points)


def test_a_threshold_has_both_times(folder):
    words = (
        "sweep", folder / "m.gguf", "-d", CARD, "-d", "CPU", "-ngl", 0, "--no-repack",
        "--n-tokens", "1,64", "--machine", folder / "machine.json", "--graphs", "libllama",
    )  # fmt: skip
    data = json.loads(ok(*words, "--json"))
    (threshold,) = data["thresholds"]
    assert threshold["after"] == 32
    assert (threshold["time_before"] is None) == (threshold["time_after"] is None)
    said = "it was measured with 1 thread, and 2 compute"
    (stale,) = (note for note in data["notes"] if note.startswith(f"stale: {said}"))
    text = ok(*words)
    assert "predicted" in text and stale in text
