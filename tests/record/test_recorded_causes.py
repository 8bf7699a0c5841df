"""Recorded plans of pipelines are upstream's own print, causes included."""

import os
import subprocess

import pytest

import ggml_py as ggml
from ggml_py.record.programs import launch
from ggml_py.record.programs.identify import recorder_for

from ..support.cause_oracle import CauseOracle, compared, prints

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
GIB = 1 << 30
TWO = (f"G0,memory={3 * GIB}", f"G1,memory={8 * GIB}")
# One prompt of four ubatches and one of eight, so that each copy of the ring is the current one.
PIPELINE = ("-p", "64,128", "-n", 4, "-ub", 16, "-ngl", 99)
CASES = {
    "two GPUs": ("llama", TWO, PIPELINE),
    "three GPUs": ("qwen3", (*TWO, "G2"), PIPELINE),
    "inputs that GPUs read where they are": (
        "gemma3", tuple(f"{gpu},unified,host_buffer" for gpu in TWO), PIPELINE,
    ),
    "host buffers": ("gpt-oss", tuple(f"{gpu},host_buffer" for gpu in TWO), PIPELINE),
    "an op that one lacks": ("llama-moe", (TWO[0], f"{TWO[1]},lacks=GLU,min_batch=8"), PIPELINE),
    "memory that the other reads": ("mamba", (f"{TWO[0]},peers", TWO[1]), PIPELINE),
    "no flash attention": ("qwen3moe", TWO, (*PIPELINE, "-fa", "off", "-d", 32)),
    "several contexts": ("llama", TWO, (*PIPELINE, "-fa", "off,on", "-nopo", "0,1")),
    "no pipeline": ("llama", (f"{TWO[0]},sync", TWO[1]), PIPELINE),
    "one layer": ("llama", TWO, (*PIPELINE[:-1], 1)),
}  # fmt: skip

WHY_NO_PIPELINE = {
    "no pipeline": {  # one device computes synchronously
        "the plan shows no reason: an option (-sm), or a device without asynchronous computing or "
        "events"
    },
    "one layer": {"weights of 3 layers are in host memory (-ngl or -ot)"},
}


@pytest.fixture(scope="module")
def causes(tmp_path_factory):
    return CauseOracle.make(tmp_path_factory.mktemp("causes"))


@pytest.fixture(scope="module")
def recorder(oracle):
    return recorder_for(next(oracle.bin.resolve().parent.glob("lib/libggml-base.so")))


def recorded(recorder, command, devices, path, **env):
    """The plans of the same program with the recorder in front, and its log."""
    variables = launch.environment(recorder, str(path), launch.RecordOptions(quiet=True), {})
    done = subprocess.run(
        [*map(str, command)], env={**os.environ, **devices, **variables, **env}, check=False,
        capture_output=True, text=True, errors="replace", timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return ggml.Record.read(path).plans, done.stderr


@pytest.mark.parametrize("name", CASES)
def test_every_recorded_plan_is_upstreams_own_print(
    oracle, recorder, causes, arch_file, tmp_path, name
):
    arch, gpus, options = CASES[name]
    command = (oracle.bin / "llama-bench", "-m", arch_file(arch), "-r", 1, "-t", 1, *options)
    devices = causes.devices(gpus)
    printed = prints(causes.log((*command, "-v"), devices))
    found, _log = recorded(recorder, command, devices, tmp_path / "x")
    plans = [one.plan for one in found]
    assert compared(plans, printed) == []
    assert {"reserved", "prompt"} <= {one.kind for one in found}
    slots = {plan.settings.cur_copy for plan in plans}
    if name in ("no pipeline", "one layer"):
        assert {plan.settings.n_copies for plan in plans} == {1} and slots == {0}
        return
    assert {plan.settings.n_copies for plan in plans} == {4} and slots == {0, 1, 2, 3}
    for plan in plans:  # each input has a copy for each slot of the ring, on each backend
        for split in plan.splits:
            for given in split.inputs:
                of = [c for c in plan.copies if c.placement.copy_of == given.tensor.id]
                here = [c.placement.copy_index for c in of if c.backend == split.backend]
                assert here == [0, 1, 2, 3]
                assert given.copy.placement.copy_index == plan.settings.cur_copy


@pytest.mark.parametrize("name", ["two GPUs", "no pipeline"])
def test_a_program_that_prints_its_plans_is_recorded_with_all_causes(
    oracle, recorder, causes, arch_file, tmp_path, name
):
    """Upstream's print gives the copies that it meets slots in the scheduler's hash set."""
    arch, gpus, options = CASES[name]
    command = (oracle.bin / "llama-bench", "-m", arch_file(arch), "-r", 1, "-t", 1, *options, "-v")
    devices = causes.devices(gpus)
    printed = prints(causes.log(command, devices))
    found, log = recorded(recorder, command, devices, tmp_path / "x", GGML_SCHED_DEBUG="2")
    assert compared([one.plan for one in found], printed) == []
    assert prints(log) == printed  # the recorder fills the program's own cause column


def test_a_pipeline_that_does_not_fit_is_planned_again_without(
    oracle, recorder, causes, model_file, tmp_path
):
    """The scheduler of the failed reservation is freed without a reset."""
    from ggml_py.models.synthetic import LlamaSpec

    model = model_file(LlamaSpec(n_layer=4, n_vocab=2048))
    gpus = (f"G0,memory={3 << 20}", "G1")
    command = (oracle.bin / "llama-bench", "-m", model, "-r", 1, "-t", 1, "-p", 64, "-n", 4,
               "-ub", 64, "-ngl", 99, "-ts", "1/1")  # fmt: skip
    devices = causes.devices(gpus)
    log = causes.log((*command, "-v"), devices)
    assert "retrying without pipeline parallelism" in log
    found, _log = recorded(recorder, command, devices, tmp_path / "x")
    plans = [one.plan for one in found]
    assert compared(plans, prints(log)) == []
    assert {plan.settings.n_copies for plan in plans} == {1, 4}


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_plans_of_random_set_ups_are_upstreams_own_print(oracle, monkeypatch, first):
    """A sample of benchmarks/causes.py: recorded and planned, on one to three devices."""
    from ..support import cause_cases, followed_cases

    monkeypatch.setattr(followed_cases, "oracle", lambda: oracle)
    outcomes = [cause_cases.check(seed) for seed in range(first, first + 6)]
    assert outcomes.count("refused") < 4
