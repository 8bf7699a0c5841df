"""Devices that nobody measured, by their makers' data sheets: wide intervals, and said."""

import json

import pytest

import ggml_py as ggml
from ggml_py.cost import Machine
from ggml_py.cost.datasheets import DATASHEETS, card_of
from ggml_py.cost.machine import MeasuredDevice

from ..support.cli_runs import ok
from ..support.drawn_plans import llama
from ..support.measured import machine, sample


def test_every_sheet_is_of_a_card_that_there_is():
    assert set(DATASHEETS) <= set(ggml.profiles()) and len(DATASHEETS) > 30
    for name, sheet in DATASHEETS.items():
        assert all(figure > 0 for figure in sheet), name
        assert sheet.matrix >= sheet.vector and sheet.bandwidth >= sheet.link, name


def test_what_rests_on_a_sheet_is_said_and_uncertain():
    plan = llama(4)
    unknown = plan.cost(machine())
    assert len(unknown.unknown) == len(unknown.nodes) and unknown.assumed == ()
    cost = plan.cost(machine().with_cards({"gpu0": "rtx4090"}))
    (said,) = cost.assumed
    assert said == "gpu0 was not measured: its times are from the data sheet of the rtx4090"
    assert cost.to_dict()["assumed"] == list(cost.assumed)
    sheet = DATASHEETS["rtx4090"]
    for node in cost.nodes:
        if node.backend != "gpu0":
            assert node.seconds is None  # the CPU was not measured, and has no sheet
            continue
        low, high = node.interval
        assert high > 2.5 * low and node.samples == ()
        assert node.seconds >= node.work.bytes / (sheet.bandwidth * 1e9)


def test_a_measured_device_needs_no_sheet():
    plan = llama(1)
    works = {(n.work.key, n.work.at) for n in plan.cost(machine()).nodes}
    samples = [sample(key, at, 1e-3) for key, at in sorted(works)]
    known = machine(*samples, name="gpu0").with_cards({"gpu0": "t4"})
    assert plan.cost(known).assumed == (
        "gpu0: its times were measured on gpu0; the data sheet of the t4 is not used",
    )


def test_a_card_is_not_what_the_cpu_computed_for_it():
    """`calibrate -d sim:gpu0` measures the CPU."""
    plan = llama(1)
    works = {(n.work.key, n.work.at) for n in plan.cost(machine()).nodes}
    samples = tuple(sample(key, at, 1e-3) for key, at in sorted(works))
    said = "simulated rtx4090, computes on the CPU"
    plain = machine(more=(MeasuredDevice("gpu0", said, "GPU", True, samples),))
    assert plan.cost(plain).assumed == ()
    assert plan.cost(plain.with_cards({"gpu0": "rtx4090"})).assumed


def test_a_card_without_a_sheet_is_refused():
    with pytest.raises(ValueError, match="no data sheet of abacus: expected one of rtx5090, "):
        machine().with_cards({"gpu0": "abacus"})


def test_a_simulated_card_on_the_command_line(tmp_path):
    from ggml_py.models.synthetic import LlamaSpec, write_llama

    write_llama(tmp_path / "m.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    machine().save(tmp_path / "machine.json")
    words = ("plan", tmp_path / "m.gguf", "-d", "sim:gpu0,profile=rtx4090,memory=1G", "-ngl", 9)
    words += ("--machine", tmp_path / "machine.json")
    data = json.loads(ok(*words, "--json"))["predicted"]
    assert data["assumed"] and data["unknown_nodes"] >= 1  # the CPU's
    assert "from the data sheet of the rtx4090" in ok(*words)


def test_findings_are_ordered_by_the_time_that_they_are_about(tmp_path):
    plan = llama(8, refused=("SOFT_MAX",))
    by_bytes = plan.advice(0)
    known = machine().with_cards({"gpu0": "rtx4090"})
    found = plan.advice(0, known)
    assert {f.id for f in found} == {f.id for f in by_bytes} and len(found) > 1
    seconds = [-1.0 if f.seconds is None else f.seconds for f in found]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 0
    cost = plan.cost(known)
    copies = {(c.tensor, c.split): c.seconds for c in cost.copies}
    for finding in found:
        ids = {t.id for t in finding.tensors}
        nodes = sum(n.seconds or 0.0 for n in cost.nodes if n.id in ids)
        moved = sum(s or 0.0 for (tensor, _split), s in copies.items() if tensor in ids)
        if finding.seconds is not None:
            assert finding.seconds == pytest.approx(nodes + moved)
            assert f"{1e3 * finding.seconds:.3g} ms predicted" in str(finding)
            assert finding.to_dict()["seconds"] == finding.seconds
    assert all(f.seconds is None and "seconds" not in f.to_dict() for f in by_bytes)


@pytest.mark.parametrize(("description", "card"), [
    ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA H100 80GB HBM3", "h100"),
    ("NVIDIA A100-SXM4-80GB", "a100"), ("Tesla P40", "p40"), ("NVIDIA L40S", "l40s"),
    ("AMD Radeon RX 7900 XTX", "rx7900xtx"), ("Apple M3 Max", "m3max"),
    ("AMD Instinct MI300X", "mi300x"), ("Intel(R) Arc(TM) A770 Graphics", "arc-a770"),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA GeForce RTX 4070 Ti", None),
    ("NVIDIA GeForce RTX 4080 SUPER", None), ("llvmpipe (LLVM 15.0.6, 256 bits)", None),
    ("AMD EPYC 7763 64-Core Processor", None), ("", None),
])  # fmt: skip
def test_a_drivers_name_of_a_card(description, card):
    assert card_of(description) == card


def test_a_machine_of_sheets_has_a_usual_host():
    """Its intervals are wide, and it says what it rests on."""
    plan = llama(4)
    cost = plan.cost(Machine.of_sheets({"gpu0": "rtx4090"}))
    assert not cost.unknown and not cost.missing_copies and cost.stale == ()
    assert any("usual host" in said and "34 to 230 GB/s" in said for said in cost.assumed)
    for node in cost.nodes:
        if node.backend == "CPU" and node.work and node.work.bytes > 1 << 20:
            low, high = node.interval
            assert node.work.bytes / high <= 34e9 and node.work.bytes / low >= 200e9
