"""explain, why-not and sweep: on models, on saved plans, and without the native library."""

import json
import re
from dataclasses import asdict, replace

import pytest

import ggml_py as ggml
from ggml_py.cli.shared.model_options import with_properties
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.sim.profile import row_of
from ggml_py.sim.profiles.call import call_of_record

from ..support.cli_runs import BLOCKED, fails, ok, run

pytestmark = pytest.mark.thorough("long", quick=6)

# A CUDA GPU that is simulated, with all layers, and a cache of a type that
# its attention does not take.
CARD = "sim:card,profile=cuda"
OPTIONS = ("-d", CARD, "-d", "CPU", "-ngl", 99, "-ctk", "iq4_nl", "-ctv", "iq4_nl",
           "--n-tokens", 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """m.gguf, a model; p.json.gz, its plan."""
    path = tmp_path_factory.mktemp("answers")
    write_llama(path / "m.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    run("plan", path / "m.gguf", *OPTIONS, "-o", path / "p.json.gz")
    return path


@pytest.fixture(scope="module")
def plan(folder):
    return ggml.Plan.from_json(folder / "p.json.gz")


@pytest.fixture(scope="module")
def attention(plan):
    """The number of the second layer's attention."""
    return [n.index for n in plan.nodes if n.op == "FLASH_ATTN_EXT"][1]


# --- explain


@pytest.mark.parametrize("node", ["ffn_out-1", "blk.0.attn_q.weight", "inp_pos", "3"])
def test_explain(folder, plan, node):
    expected = plan.explain(int(node) if node == "3" else node)
    assert ok("explain", folder / "m.gguf", node, *OPTIONS) == f"{expected}\n"
    assert ok("explain", folder / "p.json.gz", node, command=BLOCKED) == f"{expected}\n"
    data = ok("explain", folder / "p.json.gz", node, "--json", command=BLOCKED)
    assert json.loads(data) == json.loads(json.dumps(expected.to_dict()))


def test_explain_goes_back_to_the_root(folder, attention):
    text = ok("explain", folder / "p.json.gz", attention)
    assert re.search(r"is on CPU: 3\.best\n.*the sweeps brought card, which cannot run", text)
    data = json.loads(ok("explain", folder / "p.json.gz", attention, "--json"))
    assert (data["root"], data["subject"]["index"]) == ("unsupported op", attention)
    assert data["links"][-1]["root"] == data["root"]


def test_a_name_that_several_have_means_the_last_and_says_so(folder, plan):
    indices = [n.index for n in plan.find("Qcur-0")]
    done = run("explain", folder / "p.json.gz", "Qcur-0", "--json")
    assert json.loads(done.stdout)["subject"]["index"] == indices[-1]
    assert done.stderr == (
        f"nodes {indices[0]}, {indices[1]} and {indices[2]} are all called Qcur-0: "
        f"using {indices[2]}\n"
    )
    assert run("explain", folder / "p.json.gz", indices[0]).stderr == ""


@pytest.mark.parametrize("verb", ["explain", "why-not"])
@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("ffn_ot-1", r"^error: no node named 'ffn_ot-1'; similar: ffn_out-1, "),
        ("ffn_out", r"^error: no node named 'ffn_out'; similar: ffn_out-0, ffn_out-1$"),
        ("99999", r"^error: node 99999: the graph has nodes 0\.\.\d+$"),
    ],
)
def test_wrong_nodes(folder, verb, node, message):
    arguments = ("explain", folder / "p.json.gz", node)
    if verb == "why-not":
        arguments = ("why-not", folder / "p.json.gz", node, "CPU")
    assert re.search(message, fails(*arguments, command=BLOCKED).strip())


# --- why-not


def told(answer, *changes, more=""):
    """What is printed of it."""
    lines = [str(answer), *([more] if more else [])]
    if changes:
        lines.append("To see everything that a change affects, run ggml-py plan ... with")
    lines += ["  " + " ".join(f"--what-if {one}" for one in change) for change in changes]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("node", "backend", "changes"),
    [
        ("embd", "card",
         [["offload:card/0=yes"], ["move:token_embd.weight=card"], ["pin:embd=card"]]),
        ("ffn_out-1", "CPU", None),
        ("ffn_out-1", "card", []),
    ],
)  # fmt: skip
def test_why_not(folder, plan, node, backend, changes):
    answer = plan.why_not(node, backend)
    data = json.loads(ok("why-not", folder / "p.json.gz", node, backend, "--json"))
    if changes is not None:
        assert data["what_if"] == changes
    assert data == {
        **json.loads(json.dumps(answer.to_dict())),
        "what_if": data["what_if"], "not_asked": "", "decision": None,
    }  # fmt: skip
    expected = told(answer, *data["what_if"])
    # The model is planned with the options that are named, which here change nothing else.
    checked = re.sub(r"; not checked: with -.* may build another graph", "", expected)
    if changes is not None:
        assert (checked != expected) == bool(changes)
    assert ok("why-not", folder / "m.gguf", node, backend, *OPTIONS) == checked
    assert ok("why-not", folder / "p.json.gz", node, backend, command=BLOCKED) == expected


def test_changes_that_are_named_can_be_tried(folder, plan):
    data = json.loads(ok("why-not", folder / "p.json.gz", "embd", "card", "--json"))
    for change in data["what_if"]:
        options = [word for one in change for word in ("--what-if", one)]
        out = ok("plan", folder / "p.json.gz", *options, command=BLOCKED)
        assert re.search(r"1 of \d+ nodes( and \S+ \S+ of weights)? moved from CPU to card;", out)
        assert re.search(r"^embd \(GET_ROWS\) +CPU [\w.]+ → card ", out, re.M)


def test_why_not_says_what_the_device_would_support(folder, plan, attention):
    out = ok("why-not", folder / "m.gguf", attention, "card", *OPTIONS)
    # Not in this process, where other tests have devices of the name.
    expected = replace(plan.why_not(attention, "card"), nearest=Answer())
    changes = [f"supports:card/{attention}=yes"], [f"pin:{plan.node(attention).name}=card"]
    decides = f"  its profile says {decision(plan, attention).text}"
    assert out == told(expected, *changes, more=decides)


class Answer:
    """What `nearest` answers."""

    def render(self):
        return (
            "FLASH_ATTN_EXT 'node_76' on card: not supported, but would be with:\n"
            "  together    K and V f16 instead of iq4_nl "
            "(or f32, bf16, q8_0, q4_0, q4_1, q5_0, q5_1)"
        )


def decision(plan, index, profile="cuda"):
    return ggml.load_profile(profile).decide(plan.node(index))


@pytest.mark.thorough("long")
def test_why_not_asks_another_device_about_a_saved_plan(folder, plan, attention):
    given = ("why-not", folder / "p.json.gz", attention, "card")
    assert "\n  what it would support instead: card is not here; --ask" in ok(*given)
    out = ok(*given, "--ask", "sim:other,profile=cuda")
    assert "on other: not supported, but would be with:\n    together    K and V f16" in out
    data = json.loads(ok(*given, "--ask", "sim:other,profile=metal", "--json"))
    assert data["decision"] == asdict(decision(plan, attention, "metal"))
    assert data["decision"]["row"].startswith("ggml-metal")
    data = json.loads(ok(*given, "--ask", "CPU", "--json"))
    assert data["decision"] is None
    assert data["nearest"]["supported"] is True and data["nearest"]["device"] == "CPU"
    assert "no device named 'GPU9'" in fails(*given, "--ask", "GPU9")


def test_why_not_without_the_native_library(folder, plan, attention):
    given = ("why-not", folder / "p.json.gz", attention, "card")
    out = ok(*given, command=BLOCKED)
    answer = f"{plan.why_not(attention, 'card')}\n"
    assert out.startswith(answer)
    said = "\n  what it would support instead: no device can be asked here (the native module"
    assert said in out
    data = json.loads(ok(*given, "--json", command=BLOCKED))
    assert data["nearest"] is None and "native module" in data["not_asked"]
    assert data["reasons"][0]["id"] == "op"
    assert "the native module" in fails(*given, "--ask", "CPU", command=BLOCKED)


def test_why_not_lists_the_backends(folder):
    given = ("why-not", folder / "p.json.gz", "embd")
    hint = "Others take part if their devices are given when it is planned (-d)"
    error = f"error: no backend 'CUDA0' in this plan; it has card, CPU. {hint}\n"
    assert fails(*given, "CUDA0") == error
    error = "error: no backend 'cards' in this plan; it has card, CPU. Did you mean card?\n"
    assert fails(*given, "cards") == error
    assert "it has card, CPU. 'norm-0' is a tensor\n" in fails(*given, "norm-0")


@pytest.mark.parametrize("words", [("card", "embd"), ("card", "3"), ("CUDA7", "embd")])
def test_why_not_knows_a_node_in_the_place_of_the_backend(folder, words):
    error = fails("why-not", folder / "p.json.gz", *words, code=2)
    backend, node = words
    said = f"{node} is a node, not a backend: the node comes first, {node} {backend}"
    assert said in error
    error = fails("explain", folder / "p.json.gz", "card")
    assert error == "error: no node named 'card': it is a backend\n"


def test_why_not_when_it_is_there(folder):
    assert ok("why-not", folder / "p.json.gz", "embd", "CPU").endswith(" is on CPU\n")


def test_what_if_it_were_another_device(folder, plan, attention, tmp_path):
    saved = ggml.Plan.from_json
    command = ("plan", folder / "p.json.gz", "-o", tmp_path / "w.json", "--force")
    calls = [call_of_record(t.record, plan.capture.tensors) for t in plan.nodes]
    for supported, backend in ((0, "CPU"), (1, "card")):
        rows = "".join(f'{c.op},"{row_of(c)}",{int(c.op != "FLASH_ATTN_EXT" or supported)}\n'
                       for c in calls)  # fmt: skip
        profile = tmp_path / "mine.csv"
        profile.write_text(f"op_name,op_params,supported\n{rows}")
        answers = ggml.load_profile(profile).answers(plan, "card")
        change = ("--what-if", f"profile:card={profile}")
        ok(*command, *change, command=BLOCKED)
        expected = plan.what_if(supports=answers)
        assert saved(tmp_path / "w.json") == expected
        assert expected.node(attention).backend == backend
    # What is told of a node counts more, in whatever order.
    single = ("--what-if", f"supports:card/{attention}=no")
    for changes in ((*change, *single), (*single, *change)):
        ok(*command, *changes, command=BLOCKED)
        assert saved(tmp_path / "w.json").node(attention).backend == "CPU"
    error = fails("plan", folder / "p.json.gz", "--what-if", "profile:card=amiga", command=BLOCKED)
    assert error.startswith("error: no device profile 'amiga': expected one of ")


# --- several sequences


@pytest.mark.parametrize(
    ("options", "mask"), [((), (256, 2, 1, 3)), (("-kvu",), (512, 6, 1, 1))]
)
def test_plans_of_several_sequences(folder, tmp_path, options, mask):
    """Each with a part of the cache, or with one for all."""
    given = ("-d", "CPU", "-np", 3, "--n-tokens", 2, "--n-past", 120, *options)
    ok("plan", folder / "m.gguf", *given, "-o", tmp_path / "p.json")
    plan = ggml.Plan.from_json(tmp_path / "p.json")
    assert {leaf.name: leaf.ne for leaf in plan.leafs}["attn_inp_kq_mask"] == mask
    assert plan.node("result_output").ne[1] == 3


# --- sweep


def test_sweep_finds_the_threshold(folder):
    data = json.loads(
        ok("sweep", folder / "m.gguf", "-d", "BLAS", "-d", "CPU", "-nr", "--n-tokens", "1,512",
           "--json")
    )
    assert data["axes"] == {"n_tokens": [1, 512], "n_past": [0]}
    (threshold,) = data["thresholds"]
    assert (threshold["axis"], threshold["before"], threshold["after"]) == ("n_tokens", 31, 32)
    assert "BLAS supports it with" in threshold["reason"]
    assert {m["op"] for m in threshold["moved"]} == {"MUL_MAT"}
    assert data["points"][0]["totals"]["n_splits"] == 1


def test_sweep_prints_tables(folder):
    given = ("-d", CARD, "-d", "CPU", "-ngl", 0, "-c", 1024, "--n-tokens", "1,40", "--n-past",
             "0,900")  # fmt: skip
    done = run("sweep", folder / "m.gguf", *given)
    assert (done.returncode, done.stderr) == (0, "")
    verdict, head, *rows = done.stdout.splitlines()
    assert re.fullmatch(r"n_tokens 31 → 32: \d+ nodes move.* at n_past=0 or n_past=900", verdict)
    assert head.split()[:2] == ["n_tokens", "n_past"]
    shapes = [["1", "0"], ["1", "900"], ["40", "0"], ["40", "900"]]
    assert [row.split()[:2] for row in rows[:4]] == shapes


def test_a_sweep_needs_the_model(folder):
    error = fails("sweep", folder / "p.json.gz", command=BLOCKED, code=2)
    assert "is a saved plan: a sweep makes many plans, so it needs the model" in error
    assert fails("sweep", folder / "m.gguf", command=BLOCKED).startswith("error: the native module")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--n-tokens", "1,x"), 2, r"'1,x': expected numbers of tokens separated by commas, like"),
        (("--n-tokens", "0"), 2, r"'0': expected numbers of tokens"),
        (("--n-past", "-1"), 2, r"'-1': expected numbers of tokens"),
        (("--n-tokens", "1,513"), 1, r"--n-tokens 513: one graph takes 1 to 512 tokens"),
        (("--n-past", "4096"), 1, r"--n-past 4096 .* at most 512 tokens together, the size of"),
    ],
)
def test_wrong_shapes(folder, options, code, message):
    assert re.search(message, fails("sweep", folder / "m.gguf", *options, code=code))


@pytest.mark.thorough("long")
def test_properties_of_all_cards_are_set(folder):
    model, two = folder / "m.gguf", ("-d", "sim:a,profile=rtx3060,sim:b,profile=p40,sim:c", "-nr")
    small = ("--profile-set", "totalGlobalMem=1000000", "--profile-set", "minor=9")
    ok("plan", model, *two)
    assert with_properties(("sim:a,profile=x", "sim:c", "CPU"), small[1::2]) == (
        "sim:a,profile=x,set.totalGlobalMem=1000000,set.minor=9", "sim:c", "CPU"
    )  # fmt: skip
    one = ("-d", "sim:a,profile=rtx3060", "-nr")
    assert "of 1,000,000 bytes of a are free" in fails("plan", model, *one, *small)
    for change, code, expected in (
        ("minor", 2, "expected KEY=VALUE"), ("a=1,b=2", 2, "expected KEY=VALUE"),
        ("miner=9", 1, "has no property 'miner'"), ("minor=nine", 1, "expected an integer"),
    ):  # fmt: skip
        assert expected in fails("plan", model, *two, "--profile-set", change, code=code)
    no_card = ("-d", "sim:c", "--profile-set", "minor=9")
    assert "no device has a profile" in fails("plan", model, *no_card, code=2)
