"""`plan` says by itself why there are so many splits, and which options help."""

import json
import re
import textwrap

import pytest

import ggml_py as ggml
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import BLOCKED, ok
from ..support.moe_files import write_moe

pytestmark = pytest.mark.thorough("long", quick=4)

N_LAYER = 48
CARD = ("-d", "sim:gpu0,profile=cuda", "-nr")
SCREEN = {"COLUMNS": "80"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """moe.gguf, of 48 layers; m.gguf, a small dense model."""
    path = tmp_path_factory.mktemp("why_splits")
    write_moe(path / "moe.gguf", N_LAYER)
    write_llama(path / "m.gguf", LlamaSpec(n_layer=4, n_vocab=512))
    return path


def on_screen(text):
    """The lines that a terminal of 80 columns shows."""
    return [row for line in text.splitlines() for row in textwrap.wrap(line, 80) or [""]]


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (("-ngl", "all", "-cmoe"), 25),
        (("-ngl", "all", "-ncmoe", 24, "--n-tokens", 64), 27),
        (("-ngl", 24, "--n-tokens", 64), 32),  # four kinds of reasons
    ],
    ids=str,
)
def test_a_mixture_of_experts_is_answered_on_one_screen(folder, options, most):
    text = ok("plan", folder / "moe.gguf", *CARD, *options, env=SCREEN)
    assert len(on_screen(text)) <= most
    n = int(re.search(r"^(\d+) splits", text, re.M)[1])
    assert n > N_LAYER and f"why {n} splits and not one on gpu0\n" in text
    assert re.search(rf"remedy: .*[:,] {n} → 2 splits; .*fits, ", " ".join(text.split()))


def test_equal_splits_are_one_row_and_reasons_have_their_bytes(folder):
    text = ok("plan", folder / "moe.gguf", *CARD, "-ngl", "all", "-cmoe", env=SCREEN)
    rows = [re.split(r"  +", line) for line in text.splitlines() if line.startswith("#")]
    assert ["#2–#96: 48 ×", "CPU", "3× MUL_MAT_ID, SWIGLU", "12.4 KiB"] in rows
    head = "  144× MUL_MAT_ID, GET_ROWS on CPU [offload.batch]: 49 splits, 36.9 KiB copied"
    assert head in text.splitlines()
    assert "its weight 'blk.0.ffn_gate_exps.weight' is in CPU_Mapped memory" in text
    assert re.search("remedy: without -cmoe: .*, 98 → 2 splits; ", " ".join(text.split()))


def test_the_same_as_json(folder):
    saved = folder / "moe.json"
    arguments = ("plan", folder / "moe.gguf", *CARD, "-ngl", "all", "-cmoe")
    data = json.loads(ok(*arguments, "--json"))
    why = data.pop("why")
    saved.write_text(json.dumps(data | {"why": why}))
    plan = ggml.Plan.from_json(saved)  # what is added does not matter to it
    assert data == json.loads(json.dumps(plan.to_json()))
    assert why["main"] == "gpu0" and why["remedy"]["flags"] == "without -cmoe"
    assert why["remedy"]["n_splits"] == 2
    assert sorted(i for g in why["groups"] for i in g["splits"]) == list(range(plan.n_splits))
    assert sum(g["copy_bytes"] for g in why["groups"]) == plan.copy_bytes
    counted = sum(r["copy_bytes"] for r in why["reasons"]) + why["other_bytes"]
    assert counted == plan.copy_bytes
    experts = why["reasons"][0]
    assert (experts["op"], experts["backend"], len(experts["nodes"])) == ("MUL_MAT_ID", "CPU", 144)
    assert {plan.nodes[i].op for i in experts["nodes"]} == {"MUL_MAT_ID"}


@pytest.mark.thorough("long")
def test_of_a_saved_plan_without_the_native_library(folder):
    path = folder / "moe.json.gz"
    ok("plan", folder / "moe.gguf", *CARD, "-ngl", "all", "-cmoe", "-o", path)
    text = ok("plan", path, command=BLOCKED)
    flag = re.search(r"^remedy: -ot '(.*)=gpu0': 98 → 2 splits, .*; not checked: ", text, re.M)
    plan = ggml.Plan.from_json(path)
    moved = {t.name for t in plan.leafs if re.search(flag[1], t.name)}
    assert moved == {t.name for t in plan.leafs if "_exps" in t.name}
    override = ("-ot", f"{flag[1]}=gpu0", "-cmoe")
    again = ok("plan", folder / "moe.gguf", *CARD, "-ngl", "all", *override)
    assert re.search("^2 splits, ", again, re.M)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("-ngl", 99), None),
        (("-ngl", 99, "-nkvo"), "-kvo"),
        (("-ngl", 2, "-nkvo", "--n-tokens", 64), "-ngl all -kvo"),
        (("-ngl", 99, "-ctk", "iq4_nl", "-ctv", "iq4_nl"), "-ctk f16 -ctv f16"),
        (("-ngl", 99, "-ot", r"ffn_up=CPU"), "without -ot"),
        (("-ngl", 99, "-ncffn", 2), "without -ncffn"),
    ],
    ids=str,
)
def test_a_remedy_is_one_that_helps(folder, options, remedy):
    text = ok("plan", folder / "m.gguf", *CARD, *options)
    found = re.search(r"^remedy: (.*?): .* (\d+) → (\d+) splits?; ", text, re.M)
    assert (found and found[1]) == remedy
    if remedy is not None and "without" not in remedy:
        again = ok("plan", folder / "m.gguf", *CARD, *options, *remedy.split())
        assert re.search(f"^{found[3]} splits, ", again, re.M) and int(found[3]) < int(found[2])


def test_experts_go_to_the_device_as_far_as_they_fit(folder):
    """Weights, cache and compute buffers count; --fit-target says what stays free."""
    device = ("-d", "sim:gpu0,profile=cuda,memory=13M", "-d", "CPU", "-nr", "-ngl", "all")
    text = ok("plan", folder / "moe.gguf", *device, "-cmoe", "-fitt", 0)
    n = int(re.search(r"^remedy: -ncmoe (\d+): .*98 → \d+ splits; ", text, re.M)[1])
    assert 0 < n < N_LAYER

    def fits(n):
        more = ("-ncmoe", n, "-fitt", 0, "--no-changes", "--json")
        return json.loads(ok("memory", folder / "moe.gguf", *device, *more))["fits"]

    assert fits(n) and not fits(n - 1)


def test_v_has_every_split_and_node(folder):
    text = ok("plan", folder / "m.gguf", *CARD, "-ngl", 99, "-nkvo", "-v")
    n = int(re.search(r"^(\d+) splits", text, re.M)[1])
    assert len(re.findall(r"^ *\d+  \w+ +\d+–\d+  ", text, re.M)) == n
    assert "why" in text and "computed nodes" in text


def test_of_logs_the_causes_are_the_reasons(folder):
    log = folder / "log.txt"
    arguments = ("plan", folder / "m.gguf", *CARD, "-ngl", 99, "-nkvo")
    log.write_text(ok(*arguments, "--text"))
    text = ok("plan", log)
    assert "\n  8× SET_ROWS on CPU [1.dst]: 4 splits, " in text and "remedy" not in text
    log.write_text(ok(*arguments, "--text").replace("1.dst", "     "))
    assert re.search(r"\n  .*\bon CPU \[unknown\]: ", ok("plan", log))


def test_one_split_has_no_reasons(folder):
    text = ok("plan", folder / "m.gguf", "-d", "CPU")
    assert "why" not in text and "#0" in text
