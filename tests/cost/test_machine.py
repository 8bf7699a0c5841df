"""Machines are kept in files, which are checked, and say when they are stale."""

import json
from dataclasses import replace

import pytest

from ggml_py.cost import Machine

from ..support.measured import machine, sample

ONE = machine(
    sample("ADD f32", (768,), 1.25e-6, 1.5e-6, bytes=9216, flops=768), sample("split", (), 1e-6)
)


def test_a_machine_is_read_back_equal(tmp_path):
    made = replace(ONE, doubts=("it was raining",))
    made.save(tmp_path / "m.json")
    assert Machine.load(tmp_path / "m.json") == made


def test_the_file_has_one_sample_a_line(tmp_path):
    ONE.save(tmp_path / "m.json")
    lines = (tmp_path / "m.json").read_text().splitlines()
    assert sum('"key"' in line for line in lines) == 2


def test_an_existing_file_is_replaced_only_if_asked(tmp_path):
    ONE.save(tmp_path / "m.json")
    with pytest.raises(FileExistsError):
        ONE.save(tmp_path / "m.json")
    ONE.save(tmp_path / "m.json", force=True)


def test_doubts_are_about_a_device_or_about_all():
    beside = replace(ONE.devices[0], name="gpu0")
    made = replace(
        ONE, devices=(*ONE.devices, beside),
        doubts=("it was raining", "CPU: no time was left", "gpu0: it is simulated: times vary"),
    )  # fmt: skip
    assert made.doubts_about(["CPU"]) == ("it was raining", "CPU: no time was left")
    assert made.doubts_about(["CPU", "gpu0"]) == made.doubts


def test_doubts_about_a_server_are_known_by_its_address():
    """Each process numbers servers anew."""
    servers = [replace(ONE.devices[0], name=f"RPC{i}", description=f"h:{i}") for i in (1, 2)]
    made = replace(ONE, devices=(*ONE.devices, *servers), doubts=("RPC1: one", "RPC2: two"))
    assert made.doubts_about(["CPU", "RPC0[h:2]"]) == ("RPC2: two",)


def test_another_card_of_the_same_name_is_said():
    card = replace(ONE.devices[0], name="CUDA0", description="H100", type="GPU")
    made = replace(ONE, devices=(*ONE.devices, card))
    assert made.stale(cards={"CUDA0": "T4"}) == ("CUDA0 was H100, and is T4 here",)
    assert made.stale(cards={"CUDA0": "H100", "CUDA1": "T4"}) == made.stale(cards={}) == ()


@pytest.mark.parametrize("name, type, description, shares", [
    ("CPU", "CPU", "a processor", True), ("gpu0", "GPU", "simulated H200", True),
    ("CUDA0", "GPU", "H200", False), ("RPC0", "GPU", "127.0.0.1:50052", False),
])  # fmt: skip
def test_a_file_of_an_older_version_lacks_who_shares_a_cache(
    tmp_path, name, type, description, shares
):
    made = replace(ONE.devices[0], name=name, type=type, description=description)
    data = replace(ONE, devices=(made,)).to_dict()
    del data["devices"][0]["shares_cache"]
    (tmp_path / "m.json").write_text(json.dumps(data))
    read = Machine.load(tmp_path / "m.json")
    assert read.devices[0].shares_cache == shares
    assert any("calibrate again" in doubt for doubt in read.doubts) == (name == "RPC0")
    data["machine"]["n_threads"] = 2
    (tmp_path / "m.json").write_text(json.dumps(data))
    doubted = any("calibrate again" in doubt for doubt in Machine.load(tmp_path / "m.json").doubts)
    assert doubted == (name in ("RPC0", "gpu0"))


@pytest.mark.parametrize("n_threads, shares, at, incomplete, doubted", [
    (2, True, (), "", True), (1, True, (), "", False), (2, False, (), "", False),
    (2, True, (1e-3,), "", False), (2, True, (), "no time was left for turns", False),
])  # fmt: skip
def test_a_file_of_an_older_version_lacks_what_a_server_waits_for(
    tmp_path, n_threads, shares, at, incomplete, doubted
):
    splits = sample("split", (), 1e-6), sample("split", at, 2e-6)
    served = replace(
        ONE.devices[0], name="RPC0", description="127.0.0.1:50052", samples=splits,
        shares_cache=shares, incomplete=incomplete,
    )  # fmt: skip
    data = replace(ONE, devices=(served,)).to_dict()
    data["machine"]["n_threads"] = n_threads
    (tmp_path / "m.json").write_text(json.dumps(data))
    said = "RPC0: an older version measured it, without how long its splits wait for a core"
    assert any(said in doubt for doubt in Machine.load(tmp_path / "m.json").doubts) == doubted


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a machine's file: expected one that `ggml-py calibrate"),
        ("[1]", "is not a machine's file"),
        ('{"kind": "ggml_py plan"}', "is not a machine's file"),
        ('{"kind": "ggml_py machine", "version": 99}', "has version 99, and this reads version 1"),
        ('{"kind": "ggml_py machine", "version": 1}', "devices is None, expected a list. Run"),
    ],
)
def test_other_files_are_refused(tmp_path, content, said):
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(ValueError, match="calibrate") as error:
        Machine.load(tmp_path / "m.json")
    assert said in str(error.value)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda d: d["devices"][0]["samples"][0].update(seconds=[]),
        lambda d: d["devices"][0]["samples"][0].update(seconds=[-1.0]),
        lambda d: d["devices"][0]["samples"][0].update(seconds=[1.0, 0.0], bytes=1),
        lambda d: d["devices"][0]["samples"][0].update(seconds=[float("nan")]),
        lambda d: d["devices"][0]["samples"][0].update(at=["x"]),
        lambda d: d["devices"][0].pop("samples"),
        lambda d: d["machine"].pop("build"),
        lambda d: d["machine"].update(load=[1.0]),
        lambda d: d["devices"][0]["samples"][0].update(bytes=float("inf")),
        lambda d: d["devices"][0]["samples"][0].update(flops=-1),
        lambda d: d.update(devices=3),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, break_it):
    data = ONE.to_dict()
    break_it(data)
    (tmp_path / "m.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="is damaged"):
        Machine.load(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda d: d["devices"][0]["samples"][1].update(seconds=["x"]),
         "devices[0].samples[1].seconds[0] is 'x', expected a number from 0 to 1e+18"),
        (lambda d: d["devices"][0]["samples"][0].update(bytes=1.5),
         "devices[0].samples[0].bytes is 1.5, expected a whole number"),
        (lambda d: d["devices"][0]["samples"][0].pop("at"), "devices[0].samples[0] has no at"),
        (lambda d: d["machine"].update(load=[1.0]), "machine.load is [1.0], expected 2 items"),
        (lambda d: d["machine"].update(n_threads=0), "machine.n_threads is 0, expected 1 or more"),
        (lambda d: d["devices"][0].update(asynchronous=1),
         "devices[0].asynchronous is 1, expected true or false"),
        (lambda d: d.update(doubts=[3]), "doubts[0] is 3, expected text"),
        (lambda d: d.update(devices={}), "devices is {}, expected a list"),
    ],
)  # fmt: skip
def test_a_damaged_file_names_the_place(tmp_path, break_it, said):
    data = ONE.to_dict()
    break_it(data)
    (tmp_path / "m.json").write_text(json.dumps(data))
    with pytest.raises(ValueError) as error:
        Machine.load(tmp_path / "m.json")
    assert f"m.json is damaged: {said}" in str(error.value)


ODD = (None, -1, float("inf"), float("nan"), "x", [], {}, [[]], True, 10**400)


def _places(data, at=()):
    """Where anything in JSON data is."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items if isinstance(data, (dict, list)) else ():
        yield (*at, key)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*at, key))


def test_whatever_is_damaged_is_a_clear_error_or_reads_well(tmp_path):
    text, path = json.dumps(ONE.to_dict()), tmp_path / "m.json"
    for *at, last in _places(ONE.to_dict()):
        for odd in ODD:
            data = json.loads(text)
            inner = data
            for key in at:
                inner = inner[key]
            inner[last] = odd
            path.write_text(json.dumps(data))
            try:
                read = Machine.load(path)
            except ValueError as error:
                assert "ggml-py calibrate" in str(error)
            else:
                assert all(s.usual >= 0 and s.bytes >= 0 for d in read.devices for s in d.samples)
    path.write_text("[" * 10**6)
    with pytest.raises(ValueError, match="is not a machine's file"):
        Machine.load(path)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"ggml": "0.27.0"}, "it was measured with ggml 0.26.0, and this is 0.27.0"),
        ({"ggml": "0.26.0", "build": "0.26.0-abc"}, "it was measured with build 0.26.0-12345678"),
        ({"processor": "another"}, "it was measured on a processor, and this is another"),
        ({"n_threads": 4}, "it was measured with 1 thread, and 4 compute"),
    ],
)
def test_what_makes_it_stale_is_said(now, said):
    (sentence,) = ONE.stale(**now)
    assert sentence.startswith(said)


def test_the_same_machine_is_not_stale():
    was = ONE.described
    same = {"ggml": was.ggml, "build": was.build, "processor": was.processor, "n_threads": 1}
    assert ONE.stale(**same) == ONE.stale() == ()
