"""How a plan was made: what each source knows, that files and pages keep it, what `diff` says."""

import gzip
import hashlib
import json
import re
import time
from dataclasses import replace

import jsonschema
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.builds.processor import host
from ggml_py.cost import Machine
from ggml_py.export import snapshot
from ggml_py.export.json import plan_file as to_json
from ggml_py.gguf.reader import Gguf
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.releases.corpus import nameless
from ggml_py.trace import reference
from ggml_py.trace.provenance import FACTS, UNKNOWN, Provenance
from ggml_py.trace.record import (
    LEAF,
    NODE,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    OptimizedRecord,
    Settings,
    collection_paused,
)

from ..support.captures import tensor
from ..support.cli_runs import BLOCKED, ok, run
from ..support.measured import knows_all
from ..support.page_driver import data_in

CARD = "sim:gpu0,profile=rtx4090,memory=2G,max_size=1G,set.minor=6"
DATE = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "small.gguf"
    write_llama(path, LlamaSpec(2, n_embd=256, n_head=4, n_head_kv=2, n_ff=192, n_vocab=300))
    return path


@pytest.fixture(scope="module")
def plan(model):
    """The plan of a model on a card with a changed property."""
    with load(model, (CARD, "CPU"), n_gpu_layers=2, n_ctx=600, n_threads=1,
              tensor_overrides=[("ffn_up", "CPU")], type_k="q8_0") as loaded:  # fmt: skip
        return loaded.plan(64, 32)


@pytest.fixture(scope="module")
def saved(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "p.json.gz"
    plan.to_json(path)
    return path


@pytest.fixture(scope="module")
def old(plan, tmp_path_factory):
    """The same as an older version wrote it."""
    data = json.loads(json.dumps(plan.to_json()))
    del data["provenance"]
    path = tmp_path_factory.mktemp("old") / "old.json"
    path.write_text(json.dumps({**data, "schema": 5}))
    return path


def test_the_plan_of_a_model_knows_all_of_it(plan, model):
    made = plan.provenance
    assert made.missing == []
    assert (made.model, made.architecture, made.quantisation) == ("small.gguf", "llama", "Q4_0")
    with Gguf.open(model) as gguf:
        assert made.model_bytes == sum(t.nbytes for t in gguf.tensors.values())
        content = model.read_bytes()[: gguf.data_offset]
    assert made.header == hashlib.sha256(content).hexdigest()
    assert (made.n_ctx, made.n_tokens, made.n_past, made.n_seqs) == (768, 64, 32, 1)
    assert made.flags == (
        "-ot", "ffn_up=CPU", "-ngl", "2", "-c", "768", "-b", "512", "-ub", "512", "-np", "1",
        "-ctk", "q8_0", "-t", "1", "--fit", "off",
    )  # fmt: skip
    assert made.processor == host() and DATE.fullmatch(made.date)
    assert made.package == f"{BUILD['package']} {BUILD['version']}"
    assert made.source == BUILD["source_sha256"]
    gpu, cpu = made.devices
    assert (gpu.name, gpu.type, gpu.card, gpu.simulated) == ("gpu0", "GPU", "rtx4090", True)
    assert dict(gpu.properties)["minor"] == "6" and gpu.changed == (("minor", "6"),)
    assert gpu.description == "NVIDIA GeForce RTX 4090"
    assert gpu.cut_from == f"ggml-cuda of ggml {BUILD['label']}"
    assert (gpu.memory_total, gpu.memory_free, gpu.max_size) == (2 << 30, 2 << 30, 1 << 30)
    assert (cpu.name, cpu.card, cpu.simulated) == ("CPU", None, False) and cpu.memory_total > 0


def test_a_header_alone_has_the_hash_of_the_whole_file(plan, model, tmp_path):
    with Gguf.open(model) as gguf:
        (tmp_path / "cut.gguf").write_bytes(model.read_bytes()[: gguf.data_offset])
    with load(tmp_path / "cut.gguf", header_only=True) as loaded:
        assert loaded.plan().provenance.header == plan.provenance.header


def test_the_plan_of_a_graph_knows_devices_release_and_date(plans):
    made = plans["mlp"].provenance
    assert [d.name for d in made.devices] == [b.device for b in plans["mlp"].backends]
    assert made.package and made.source and DATE.fullmatch(made.date)
    unknown = {"model", "architecture", "flags", "context", "tokens", "sequences"}
    assert unknown <= set(made.missing) and plans["mlp"].unknown == ()


def test_it_is_kept_by_what_is_made_of_a_plan(plan):
    assert plan.reference.provenance == plan.provenance
    assert plan.what_if(op_offload=False).provenance == plan.provenance
    other = plan.what_if(upstream="0.17.0").provenance
    assert other == plan.provenance.but(package=None, source=None)


# --- files


def test_a_file_keeps_it(plan, saved):
    assert ggml.Plan.from_json(saved).provenance == plan.provenance
    data = json.loads(json.dumps(plan.to_json()))
    jsonschema.validate(data, to_json.schema())
    assert list(data["provenance"]) == [fact.name for fact in FACTS]
    assert data["schema"] == to_json.SCHEMA == 6


def test_an_older_file_says_what_it_does_not_know(old, plan):
    read = ggml.Plan.from_json(old)
    assert read == plan and read.provenance == UNKNOWN
    (said,) = read.unknown
    assert said.startswith("how the plan was made is not recorded: model, flags, context")
    assert f"not known: {said}" in ok("view", old, command=BLOCKED)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_ctx": "512"}, "provenance.n_ctx is '512', expected an integer"),
        ({"n_ctx": -1}, "provenance.n_ctx is -1, expected 0 or more"),
        ({"model": 7}, "provenance.model is 7, expected text or null"),
        ({"flags": [1]}, "provenance.flags is "),
        ({"devices": [{"name": "gpu0"}]}, "damaged plan"),
        ({"devices": 7}, "damaged plan"),
    ],
)
def test_a_damaged_one_is_refused(plan, tmp_path, change, said):
    data = json.loads(json.dumps(plan.to_json()))
    data["provenance"] |= change
    if said != "damaged plan":
        assert "devices" not in change
    elif change["devices"] != 7:
        data["provenance"]["devices"][0]["memory_total"] = "much"
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=re.escape(said)):
        ggml.Plan.from_json(tmp_path / "x.json")


def test_a_plan_without_names_has_no_name_of_its_model(plan):
    made = nameless(plan).provenance
    assert made.model is made.header is made.flags is None
    assert made.devices == plan.provenance.devices and made.architecture == "llama"


# --- pages for version control


def test_a_snapshot_has_what_does_not_depend_on_the_machine(plan):
    page = plan.snapshot()
    head = page.partition("\n\nnodes ")[0]
    for said in ("small.gguf", "Q4_0", "-ot ffn_up=CPU", "768", "card of gpu0", "rtx4090 minor=6"):
        assert said in head
    for said in (plan.provenance.date[:10], host(), plan.provenance.header[:12], "GiB"):
        assert said not in head
    read = ggml.Plan.from_snapshot(page)
    assert read.snapshot() == page
    gpu = read.provenance.device("gpu0")
    assert (gpu.card, gpu.changed) == ("rtx4090", (("minor", "6"),))
    assert (gpu.memory_total, read.provenance.date) == (None, None)
    later = plan.made(plan.provenance.but(date="2031-01-01T00:00:00+00:00", processor="another"))
    assert later.snapshot() == page


def test_hostile_facts_are_read_back():
    for name in ("a  b.gguf", ' "x"', "x\ny.gguf", "naïve\u2028", "made with", "nodes   1", '"'):
        made = Provenance(model=name, flags=(name, "-c", "1"))
        plan = reference.plan(capture_of(2)).made(made)
        page = plan.snapshot()
        again = ggml.Plan.from_snapshot(page)
        assert (again.provenance.model, again.provenance.flags) == (made.model, made.flags)
        assert again.snapshot() == page


def test_a_page_of_the_version_before_is_read_and_decides_the_same(plan):
    page = plan.made(UNKNOWN).snapshot()
    assert page.startswith("ggml_py plan snapshot 1\n\nnodes ")
    assert ggml.Plan.from_snapshot(page).provenance == UNKNOWN
    assert snapshot.decided(page) == snapshot.decided(plan.snapshot()) != page


# --- what shows it


@pytest.mark.thorough("long")
def test_a_saved_plan_says_how_it_was_made(plan, saved, tmp_path):
    last = ok("plan", saved).splitlines()[-1]
    assert last == f"made with {plan.provenance.text}"
    gpu = "gpu0 (rtx4090, minor=6, 2.0 GiB free of 2.0 GiB, buffers up to 1.0 GiB)"
    model = "small.gguf (llama, Q4_0, "
    for said in (model, "-ngl 2", "tokens 64, after 32", "context 768", gpu):
        assert said in last
    data = json.loads(ok("plan", saved, "--json"))
    assert data["provenance"]["model"] == "small.gguf"
    assert "made with" not in ok("plan", saved, "--text")
    ok("view", saved, "-o", tmp_path / "p.html", command=BLOCKED)
    page = (tmp_path / "p.html").read_text()
    assert "<title>Plan of small.gguf (llama, Q4_0, " in page
    assert '["card of gpu0"' not in page and "-ot ffn_up=CPU" in page


def test_diff_says_what_differs_in_how_plans_were_made(plan, model, old):
    with load(model, ("sim:gpu0,profile=rtx3090,memory=1G", "CPU"), n_gpu_layers=1) as loaded:
        other = loaded.plan(64, 32)
    context = plan.diff(other).context
    assert context["card of gpu0"] == ("rtx4090", "rtx3090")
    assert context["memory of gpu0"] == ("2.0 GiB", "1.0 GiB")
    assert context["largest buffer of gpu0"] == ("1.0 GiB", "no limit")
    assert context["context"] == ("768", "512")
    assert context["flags"] == ("-ot ffn_up=CPU -ngl 2 -c 768 -ctk q8_0 -t 1", "-ngl 1 -c 512")
    assert not {"model", "date", "processor"} & set(context)
    named = plan.made(plan.provenance.but(model="other.gguf", header="0" * 64))
    assert plan.diff(named).context["model"] == ("small.gguf", "other.gguf")
    assert plan.diff(plan.made(plan.provenance.but(date="x"))).context == {}
    older = ggml.Plan.from_json(old)
    assert older.diff(plan).context == {} and older.diff(plan).unrecorded == ("before",)
    assert "how the plan before was made is not recorded" in str(older.diff(plan))
    page = ggml.Plan.from_snapshot(other.snapshot())
    assert page.diff(plan).context["card of gpu0"] == ("rtx3090", "rtx4090")


def test_a_changed_property_of_the_same_card_differs(model):
    def on(device):
        with load(model, (device, "CPU"), n_gpu_layers=-1) as loaded:
            return loaded.plan()

    plain = on("sim:gpu0,profile=rtx4090,memory=1G")
    changed = on("sim:gpu0,profile=rtx4090,memory=1G,set.minor=6")
    assert plain.diff(changed).context["properties of gpu0"] == ("minor=9", "minor=6")


# --- predicted times


@pytest.fixture(scope="module")
def machine(model, plan, tmp_path_factory):
    """What calibrate would write for the CPU of this machine."""
    with load(model, n_threads=1) as loaded:
        plans = [plan, *(loaded.plan(n) for n in (1, 64))]
    ours = {"ggml": BUILD["ggml_version"], "build": BUILD["key"], "processor": host()}
    path = tmp_path_factory.mktemp("machine") / "m.json"
    knows_all(plans, **ours).save(path)
    return path


def test_a_saved_plan_has_the_time_of_the_plan(plan, saved, machine):
    known, read = Machine.load(machine), ggml.Plan.from_json(saved)
    cost = read.cost(known)
    assert cost.interval == plan.cost(known).interval and not cost.unknown
    by_hand = known.with_cards({"gpu0": "rtx4090"})
    assert cost.seconds == plan.cost(by_hand).seconds == plan.made(UNKNOWN).cost(by_hand).seconds
    assert plan.made(UNKNOWN).cost(known).missing_copies  # nothing is known of gpu0
    other = known.with_cards({"gpu0": "t4"})  # goes first
    assert plan.cost(other).seconds > cost.seconds


@pytest.mark.thorough("long")
def test_a_saved_plan_is_predicted_as_the_model_is(model, machine, tmp_path):
    words = ("-d", "sim:gpu0,profile=rtx4090", "-d", "CPU", "-t", 1, "-ngl", "all",
             "--n-tokens", 64)
    direct = run("plan", model, *words, "--machine", machine, "-o", tmp_path / "p.json.gz")
    assert direct.returncode == 0, direct.stderr
    ok("plan", model, *words, "--machine", machine, "-o", tmp_path / "direct.html")
    viewed = run("view", tmp_path / "p.json.gz", "--machine", machine, "-o",
                 tmp_path / "viewed.html", command=BLOCKED)  # fmt: skip
    assert viewed.returncode == 0, viewed.stderr
    pages = (data_in(tmp_path / f"{name}.html") for name in ("direct", "viewed"))
    times = [page["plans"][0]["times"] for page in pages]
    assert times[0] == times[1] and times[0]["compute"].startswith("data sheets (")
    assert "no limit" not in times[0]["compute"] and "nothing was" not in times[0]["compute"]
    sheet = "gpu0 was not measured: its times are from the data sheet of the rtx4090"
    assert sheet in direct.stdout and sheet in viewed.stderr
    again = ok("plan", tmp_path / "p.json.gz", "--machine", machine)
    line = next(x for x in direct.stdout.splitlines() if x.startswith("a compute is predicted"))
    assert line in again
    cost = ok("cost", tmp_path / "p.json.gz", "--machine", machine, command=BLOCKED)
    seconds = json.loads(ok("plan", model, *words, "--machine", machine, "--json"))["predicted"]
    same = json.loads(ok("cost", tmp_path / "p.json.gz", "--machine", machine, "--json"))
    assert sheet in cost and same["seconds"] == seconds["seconds"]


def test_build_processor_and_card_are_compared_for_a_saved_plan(plan, saved, machine):
    read = ggml.Plan.from_json(saved)
    known = Machine.load(machine)
    assert read.cost(known).stale == plan.cost(known).stale == ()
    described = replace(known.described, processor="Z80", build="0.1.0-00000000")
    gpu = replace(known.devices[0], name="gpu0", type="GPU", description="NVIDIA H100")
    elsewhere = replace(known, described=described, devices=(*known.devices, gpu))
    for one in (plan, read):
        assert one.cost(elsewhere).stale == (
            f"it was measured with build 0.1.0-00000000 of ggml, and this is {BUILD['key']}",
            f"it was measured on Z80, and this is {host()}",
        )
    card = read.provenance.devices[0]._replace(simulated=False, description="NVIDIA A100")
    real = read.made(read.provenance.but(devices=(card, read.provenance.devices[1])))
    assert "gpu0 was NVIDIA H100, and is NVIDIA A100 here" in real.cost(elsewhere).stale
    doubted = replace(known, doubts=("CPU: no time was left",))
    assert "doubt: CPU: no time was left" in _cost_of(saved, doubted, machine.parent / "doubt.json")


def _cost_of(plan, machine, path):
    machine.save(path, force=True)
    return ok("cost", plan, "--machine", path, command=BLOCKED)


# --- reading large plans


def capture_of(n):
    """A graph of n products that alternate between two devices, so that each is a split."""
    backends = (BackendRecord("gpu0", "gpu0", "GPU", 0), BackendRecord("CPU", "CPU", "CPU", 1))
    bufts = (BuftRecord("gpu0", False, 1), BuftRecord("CPU", True, 2))
    buffers = (BufferRecord(0, "weights", 1 << 20), BufferRecord(1, "weights", 1 << 20))
    nodes = tuple(
        tensor(i, NODE, f"ffn_out-{i // 20}", "MUL_MAT", flags=("compute",), use_count=1,
               src=(n + i, i - 1 if i else n), supports=2 | (i % 2 == 0))
        for i in range(n)
    )  # fmt: skip
    leafs = tuple(
        tensor(n + i, LEAF, f"blk.{i}.weight", buffer=i % 2, supports=3, use_count=1)
        for i in range(n)
    )
    return Capture(
        Settings("0.26.0", "0.26.0-00000000", True, 1, 0, 4 * n + 10, 0), backends, bufts, buffers,
        nodes + leafs, tuple(range(n, 2 * n)), optimizers=1,
        optimized=tuple(OptimizedRecord(0, i, i + 1, (), ()) for i in range(0, n, 2)),
    )  # fmt: skip


class _Counted(tuple):
    """Counts the items that are looked at."""

    looks = 0

    def __getitem__(self, i):
        type(self).looks += 1
        return super().__getitem__(i)

    def __iter__(self):
        type(self).looks += len(self)
        return super().__iter__()


def test_the_number_of_nodes_is_found_without_counting_them():
    capture = capture_of(3000)
    counted = replace(capture, tensors=_Counted(capture.tensors))
    _Counted.looks = 0
    assert counted.n_nodes == 3000 and _Counted.looks < 40
    counted = replace(capture, optimized=_Counted(capture.optimized))
    plan = reference.plan(counted)
    _Counted.looks = 0
    assert len(plan.splits) == 3000 and len(plan.order) == 3000
    assert _Counted.looks < 4 * len(capture.optimized)


@pytest.mark.thorough("long")
def test_reading_31_009_splits_takes_little_more_than_their_json(tmp_path):
    """Two seconds in a process of its own on a quiet core, where it took a minute and a half."""
    plan = reference.plan(capture_of(31_009))
    assert plan.n_splits == 31_009
    plan.to_json(tmp_path / "large.json.gz")
    times = [time.process_time()]
    with collection_paused():
        json.loads(gzip.decompress((tmp_path / "large.json.gz").read_bytes()))
    times.append(time.process_time())
    read = ggml.Plan.from_json(tmp_path / "large.json.gz")
    times.append(time.process_time())
    assert times[2] - times[1] < 12 * (times[1] - times[0])
    assert read == plan
