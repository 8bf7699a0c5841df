"""The verbs that explain: on models, on saved plans, and where the native library is missing."""

import gzip
import json
import re
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

import ggml_py as ggml
from ggml_py.advice.two_plans import verdict_of_change
from ggml_py.cli.shared.what_if_options import ChangeType, changed
from ggml_py.export.layers import layers as layers_of
from ggml_py.export.to_terminal import show_diff, show_passes
from ggml_py.export.wrapping import MANY
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.trace.promise import as_texts

from ..support.cli_runs import BLOCKED, fails, ok, run

pytestmark = pytest.mark.thorough("long", quick=10)

SIM = ("-d", "sim:gpu0,min_batch=32", "-d", "CPU", "-ngl", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """m.gguf, a model; p.json.gz and q.json, its plans over BLAS and CPU for 64 tokens and one;
    s.json.gz, its plan over a simulated GPU with all layers but the first."""
    path = tmp_path_factory.mktemp("why")
    write_llama(path / "m.gguf", LlamaSpec(n_layer=3, n_vocab=512))
    plans = {
        "p.json.gz": ("-d", "BLAS", "-d", "CPU", "-nr", "--n-tokens", 64),
        "q.json": ("-d", "BLAS", "-d", "CPU", "-nr"),
        "s.json.gz": SIM,
    }
    for name, options in plans.items():
        done = run("plan", path / "m.gguf", *options, "-o", path / name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert done.stderr.startswith(f"{path / name}: ")
    return path


# --- saved plans


@pytest.mark.thorough("long")
def test_output_is_the_plan(folder):
    plan = ggml.Plan.from_json(folder / "p.json.gz")
    data = json.loads(
        ok("plan", folder / "m.gguf", "-d", "BLAS", "-d", "CPU", "-nr", "--n-tokens", 64, "--json")
    )
    assert data.pop("why")["main"] == "CPU"
    saved = json.loads(gzip.decompress((folder / "p.json.gz").read_bytes()))
    assert saved.pop("provenance")["model"] == data.pop("provenance")["model"] == "m.gguf"
    assert saved == data
    assert json.loads((folder / "q.json").read_bytes())["n_splits"] == 1
    assert plan.n_splits == data["n_splits"] > 1


@pytest.mark.parametrize("options", [(), ("-v",), ("--text",), ("--passes",), ("--advice",)])
def test_a_saved_plan_shows_what_its_model_shows(folder, options):
    given = ("-d", "BLAS", "-d", "CPU", "-nr", "--n-tokens", 64)
    shown = ok("plan", folder / "m.gguf", *given, *options)
    lines = ok("plan", folder / "p.json.gz", *options, command=BLOCKED).splitlines(True)
    assert "".join(line for line in lines if not line.startswith("made with ")) == shown
    assert shown


def test_a_plan_is_read_from_standard_input(folder):
    plain = gzip.decompress((folder / "p.json.gz").read_bytes()).decode()
    assert ok("plan", "-", stdin=plain) == ok("plan", folder / "p.json.gz")
    assert "read only once" in fails("diff", "-", "-", code=2)


@pytest.mark.parametrize("options", [("-ngl", 3), ("-c", 64), ("--n-tokens", 2), ("--n-past", 1)])
def test_a_saved_plan_takes_no_model_options(folder, options):
    error = fails("plan", folder / "q.json", *options, code=2)
    assert re.search(rf"q\.json: {options[0]} can only apply to a model", error), error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"x is empty, not a model or a plan: make it again, or get it again"),
        (b"hello", r"x is neither a GGUF model"),
        (b"\x1f\x8b garbage", r"x is damaged: "),
        (b"{", r"x is not a plan: not valid JSON"),
        (b"{}", r"x is not a plan: it was not written by its to_json"),
        (b'{"kind": "ggml_py plan", "schema": 99}', r"x has schema 99"),
        (b"GGUF", r"x"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    (tmp_path / "x").write_bytes(content)
    error = fails("plan", tmp_path / "x")
    assert re.match(r"error: ", error) and re.search(message, error), error


def test_a_programs_model_is_a_model(folder):
    """Found wrong: a saved plan in its place was shown, and the command line left out."""
    error = fails("plan", "--", "llama-server", "-m", folder / "q.json", code=2)
    assert re.search(r"-m .*q\.json is a saved plan, not a model: ", error), error


def test_output_in_a_folder_that_is_not_there(folder):
    """Said before anything is read or computed."""
    for command in (("plan", folder / "q.json"), ("trace", folder / "no.gguf")):
        error = fails(*command, "-o", folder / "none" / "x.json")
        assert re.search(r"x\.json: cannot be written: there is no folder .*none$", error.strip())


# --- the parts of a plan


def test_passes(folder):
    plan = ggml.Plan.from_json(folder / "p.json.gz")
    data = json.loads(ok("plan", folder / "p.json.gz", "--passes", "--json"))
    assert list(data) == ["passes"]
    assert list(data["passes"])[:2] == ["1", "2 gpu down"]
    assert [n.backend for n in plan.nodes] == data["passes"]["4"]
    assert [leaf.backend for leaf in plan.leafs] == data["passes"]["leafs"]["4"]
    assert None in data["passes"]["1"]


N_STAGES = 7


def read(lines):
    """What lines of `--passes` say: of each tensor its letters, from top to bottom."""
    found, at = {}, 0
    while at < len(lines):
        layers, numbers = re.fullmatch(
            r"(?:layers? ([\d–]+).*|outside the layers): \w+ ([\d–]+)", lines[at]
        ).groups()
        first, _, last = numbers.partition("–")
        rows = [line[13:].split(" ") for line in lines[at + 1 : at + 1 + N_STAGES]]
        assert [len(row) for row in rows] == [len(rows[0])] * N_STAGES
        for i, column in enumerate(zip(*rows, strict=True)):
            found[int(first) + i] = (layers, column)
        assert last == "" or layers is None or int(last) >= int(first)
        at += 1 + N_STAGES
    return found


@pytest.mark.parametrize("width", [1, 17, 40, 80, 5000, None])
def test_passes_are_shown_by_layer_and_fit_a_terminal(folder, width):
    plan = ggml.Plan.from_json(folder / "p.json.gz")
    if width is None:
        *lines, letters = ok("plan", folder / "p.json.gz", "--passes").splitlines()
    else:
        file = StringIO()
        show_passes(plan, Console(file=file, width=width, force_terminal=True, color_system=None))
        *lines, letters = file.getvalue().splitlines()
    *expected, last = plan.passes().splitlines()
    assert letters == last
    if width is not None and width > 60:  # room for the headings
        assert max(map(len, lines)) <= width
    stages = [line[13:].split(" ") for line in expected[:N_STAGES]]
    nodes = read(lines[: lines.index("leafs")])
    columns = list(zip(*stages, strict=True))
    assert {i: column for i, (_layers, column) in nodes.items()} == {
        i: columns[i] for i in nodes
    }
    layers, shown = layers_of(plan), {told for told, _column in nodes.values()}
    for i, layer in enumerate(layers):
        if i in nodes:  # the first of its layers
            assert str(nodes[i][0]).partition("–")[0] == str(layer)
        else:
            assert any(
                told and int(told.partition("–")[0]) < layer <= int(told.partition("–")[2] or -1)
                for told in shown
            )


def test_layers_whose_passes_are_alike_are_shown_once(folder):
    plan = ggml.Plan.from_json(folder / "q.json")
    lines = ok("plan", folder / "q.json", "--passes").splitlines()
    nodes, layers = read(lines[: lines.index("leafs")]), layers_of(plan)
    assert ("0–1" in {told for told, _column in nodes.values()}) and 1 not in {
        layers[i] for i in nodes
    }
    assert len(lines) < 80


def test_steps(folder):
    plan = ggml.Plan.from_json(folder / "s.json.gz")
    out = ok("plan", folder / "s.json.gz", "--steps", command=BLOCKED)
    assert out == "".join(f"{step}\n" for step in plan.steps)
    steps = json.loads(ok("plan", folder / "s.json.gz", "--steps", "--json"))["steps"]
    assert len(steps) == len(plan.steps)
    assert steps[0].keys() == {
        "index", "pass", "sweep", "tensor", "backend", "query", "answer", "witness",
    }  # fmt: skip
    last = [s for s in steps if s["query"] == "assign" and s["tensor"]["name"] == "ffn_out-1"][-1]
    assert (last["backend"], last["answer"]) == ("gpu0", plan.node("ffn_out-1").cause.code)


def test_advice_says_when_there_is_none(folder):
    assert ok("plan", folder / "q.json", "--advice") == "nothing to advise\n"
    assert json.loads(ok("plan", folder / "q.json", "--advice", "--json")) == {"advice": []}


# --- what if


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        ("pin:ffn_out-1=CPU", {"pins": {"ffn_out-1": "CPU"}}),
        ("pin:norm-1=none", {"pins": {"norm-1": None}}),
        ("pin:3=CPU", {"pins": {3: "CPU"}}),
        ("move:blk.1.*=CPU", {"move_weights": {"blk.1.*": "CPU"}}),
        ("supports:gpu0/RMS_NORM=no", {"supports": {("gpu0", "RMS_NORM"): False}}),
        ("offload:gpu0/MUL_MAT=1", {"offload": {("gpu0", "MUL_MAT"): 1}}),
        ("offload:gpu0/MUL_MAT=yes", {"offload": {("gpu0", "MUL_MAT"): True}}),
        ("op_offload=off", {"op_offload": False}),
        ("parallel=on", {"parallel": True}),
        ("upstream=0.17.0", {"upstream": "0.17.0"}),
    ],
)
def test_what_if(folder, change, arguments, tmp_path):
    plan = ggml.Plan.from_json(folder / "s.json.gz")
    expected = plan.what_if(**arguments)
    done = run(
        "plan", folder / "s.json.gz", "--what-if", change, "--json", "-o", tmp_path / "w.json",
        command=BLOCKED,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ggml.Plan.from_json(tmp_path / "w.json") == expected
    data = json.loads(done.stdout)["what_if"]
    assert data["changes"] == [change]
    assert data["diff"] == json.loads(json.dumps(plan.diff(expected).to_dict()))


@pytest.mark.parametrize(
    "arguments",
    [
        {"pins": {"norm-1": "CPU", 3: None}},
        {"move_weights": {"blk.1.*": "CPU"}},
        {"supports": {("gpu0", "MUL"): False, ("gpu0", 7): True}},
        {"offload": {("gpu0", "MUL_MAT"): 32, ("gpu0", 3): True}},
        {"op_offload": False, "parallel": True, "upstream": "0.17.0", "drop": ["BLAS", "gpu0"]},
    ],
)
def test_changes_can_be_written(arguments):
    plan = SimpleNamespace(what_if=lambda **given: given, tensors=())
    changes = [ChangeType().convert(text, None, None) for text in as_texts(arguments)]
    assert changed(plan, changes) == arguments


def test_what_if_without_a_backend(folder):
    out = ok("plan", folder / "p.json.gz", "--what-if", "drop=BLAS", command=BLOCKED)
    moved = r"\d+ of \d+ nodes moved from BLAS to CPU; splits \d+ → 1, "
    assert re.match(rf"What if drop=BLAS:\n{moved}", out), out


def test_several_changes_are_one_plan(folder):
    changes = ("supports:gpu0/RMS_NORM=no", "supports:gpu0/MUL=no", "op_offload=off")
    options = [word for change in changes for word in ("--what-if", change)]
    plan = ggml.Plan.from_json(folder / "s.json.gz")
    supports = {("gpu0", "RMS_NORM"): False, ("gpu0", "MUL"): False}
    expected = plan.what_if(supports=supports, op_offload=False)
    assert ok("plan", folder / "s.json.gz", *options, "--text") == (
        f"What if {', '.join(changes)}:\n{_shown_diff(plan, expected)}"
        f"{expected.promise.text}\n{expected.text()}"
    )


def _shown_diff(plan, other, verdict=""):
    file = StringIO()
    show_diff(plan.diff(other), console=Console(file=file, width=MANY), verdict=verdict)
    return file.getvalue()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["nonsense"], r"expected WHAT=VALUE\. Changes are pin:NODE=BACKEND"),
        (["pin:=CPU"], r"expected WHAT=VALUE"),
        (["pin:x="], r"expected WHAT=VALUE"),
        (["color=red"], r"'color' is not a change"),
        (["paint:x=red"], r"'paint' is not a change"),
        (["op_offload=maybe"], r"expected yes or on or no or off"),
        (["supports:gpu0=yes"], r"expected supports:BACKEND/OP"),
        (["offload:gpu0/MUL=0"], r"expected yes or on or no or off"),
        (["supports:gpu0/MUL=1"], r"expected yes or on or no or off"),
        (["op_offload=on", "op_offload=off"], r"op_offload is given twice"),
        (["pin:norm-1=CPU", "pin:norm-1=gpu0"], r"given twice"),
    ],
)
def test_changes_that_are_none_are_wrong_usage(folder, changes, message):
    options = [word for change in changes for word in ("--what-if", change)]
    assert re.search(message, fails("plan", folder / "s.json.gz", *options, code=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pin:nrm-1=CPU", r"^error: pins: no tensor matches 'nrm-1'; near it: norm-1"),
        ("pin:norm-1=GPU9", r"no backend 'GPU9' in this plan; it has gpu0, CPU\. Did you mean"),
        ("drop=CPU", r"^error: drop: CPU is the last backend"),
        ("upstream=new", r"^error: .*new"),
        ("pin:99999=CPU", r"^error: pins: no tensor 99999"),
    ],
)
def test_changes_that_cannot_be_say_why(folder, change, message):
    error = fails("plan", folder / "s.json.gz", "--what-if", change)
    assert re.search(message, error.strip()) and len(error.splitlines()) == 1, error


# --- diff

SAME = "Both make the same decisions."


def test_diff_of_the_same(folder):
    given = ("-d", "BLAS", "-d", "CPU", "-nr", "--n-tokens", 64)
    assert SAME.lower() in ok("diff", folder / "p.json.gz", folder / "m.gguf", *given).lower()
    assert SAME.lower() in ok("diff", folder / "q.json", folder / "q.json", command=BLOCKED).lower()


def test_diff_of_others_exits_1(folder):
    a, b = (ggml.Plan.from_json(folder / name) for name in ("p.json.gz", "q.json"))
    done = run("diff", folder / "p.json.gz", folder / "q.json", command=BLOCKED)
    assert (done.returncode, done.stderr) == (1, "")
    verdict = verdict_of_change(a, b, a.diff(b))
    assert done.stdout == _shown_diff(a, b, verdict)
    done = run("diff", folder / "p.json.gz", folder / "q.json", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "verdict": verdict, **json.loads(json.dumps(a.diff(b).to_dict()))
    }  # fmt: skip


def test_diff_shows_all_rows_when_asked(folder, mlp, tmp_path):
    mlp.to_json(tmp_path / "mlp.json")  # another graph, so that every node is only in one
    files = folder / "p.json.gz", tmp_path / "mlp.json"
    few, all_ = (run("diff", *files, *verbose).stdout for verbose in ((), ("-v",)))
    more = re.compile(r"^… +\d+ more", re.M)
    assert more.search(few) and not more.search(all_)
    assert len(all_) > len(few)


def test_diff_with_renamed_backends(folder, tmp_path):
    card = ("-d", "sim:card,min_batch=32", *SIM[2:])
    ok("plan", folder / "m.gguf", *card, "-o", tmp_path / "c.json")
    files = folder / "s.json.gz", tmp_path / "c.json"
    assert run("diff", *files).returncode == 1
    assert ok("diff", *files, "--rename", "gpu0=card").startswith(SAME)
    assert "no backend 'x'" in fails("diff", *files, "--rename", "x=card")
    assert "expected OLD=NEW" in fails("diff", *files, "--rename", "x", code=2)
    twice = ("--rename", "gpu0=card", "--rename", "gpu0=CPU")
    assert "renamed twice" in fails("diff", *files, *twice, code=2)


def test_diff_of_saved_plans_takes_no_model_options(folder):
    files = folder / "p.json.gz", folder / "q.json"
    assert "-ngl, -c can only apply to a model" in fails("diff", *files, "-c", 8, "-ngl", 1, code=2)


# --- logs


@pytest.fixture(scope="module")
def log(folder):
    """Of a program that planned twice: with BLAS, and with a GPU."""
    texts = [ggml.Plan.from_json(folder / name).text() for name in ("p.json.gz", "s.json.gz")]
    path = folder / "log.txt"
    path.write_text("llama_context: reserving\n" + "main: done\n".join(texts))
    return path


def test_a_log_is_a_plan(folder, log):
    plan = ggml.Plan.from_debug_log(log.read_text())
    done = run("plan", log, "--text", command=BLOCKED)
    assert done.stdout == plan.text() == ggml.Plan.from_json(folder / "s.json.gz").text()
    assert done.stderr == (
        f"{log} has 2 debug prints: using the last, --dump N (from 0) chooses another\n"
    )
    assert "not known: shapes, types and op parameters" in ok("plan", log, command=BLOCKED)
    assert "GP100 checks skipped" in ok("plan", log, "--advice", command=BLOCKED)
    explained = ok("explain", log, "ffn_out-1", command=BLOCKED)
    assert explained == f"{plan.explain('ffn_out-1')}\n"


def test_which_print_of_a_log(folder, log):
    for dump, name in ((0, "p.json.gz"), (1, "s.json.gz"), (-2, "p.json.gz")):
        done = run("diff", log, folder / name, "--dump", dump, command=BLOCKED)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(SAME)
    assert run("diff", log, folder / "p.json.gz").returncode == 1
    error = fails("plan", log, "--dump", 2)
    assert error == f"error: {log}: --dump 2: the log has 2 debug prints, from 0\n"
    assert "--dump applies to logs only" in fails("plan", folder / "q.json", "--dump", 0, code=2)


def test_logs_from_a_pipe_compressed_and_from_powershell(log, tmp_path):
    text = log.read_text()
    shown = ok("plan", log, "--text")
    assert ok("plan", "-", "--text", stdin=text) == shown
    (tmp_path / "log.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "log16").write_bytes(text.encode("utf-16"))
    assert ok("plan", tmp_path / "log.gz", "--text") == shown
    assert ok("plan", tmp_path / "log16", "--text") == shown


@pytest.mark.parametrize("options", [("--steps",), ("--passes",), ("--what-if", "op_offload=off")])
def test_what_a_log_does_not_hold(log, options):
    error = fails("plan", log, "--dump", 0, *options)
    assert re.match(r"error: .*debug log", error) and len(error.splitlines()) == 1, error
    error = fails("why-not", log, "ffn_out-1", "CPU", "--dump", 0)
    assert error.startswith("error: this plan was read from a debug log, which does not contain")


def test_logs_without_a_whole_print(tmp_path):
    (tmp_path / "x").write_text("## SPLIT #0: \n")
    error = fails("plan", tmp_path / "x")
    assert error.startswith(f"error: {tmp_path / 'x'}: "), error


# --- where the native library is missing


def test_a_model_needs_it(folder):
    error = fails("plan", folder / "m.gguf", command=BLOCKED)
    assert error.startswith("error: the native module"), error


# --- two cards


@pytest.fixture(scope="module")
def two(folder):
    """A saved plan over two equal cards."""
    cards = ("-d", "sim:gpu0,profile=cuda", "-d", "sim:gpu1,profile=cuda", "-d", "CPU")
    ok("plan", folder / "m.gguf", *cards, "-ngl", 99, "-o", folder / "two.json.gz")
    return folder / "two.json.gz"


@pytest.mark.needs(release="default")
def test_the_other_cards_memory_is_the_reason(two):
    said = ok("why-not", two, "ffn_up-2", "gpu0")
    lies = "its weight 'blk.2.ffn_up.weight' is in gpu1 memory, which gpu0 cannot read"
    assert f"op.memory, pass 1: {lies} (gpu0 supports the op itself)" in said
    assert "does not support" not in said
    asked = ok("why-not", two, "ffn_up-2", "gpu0", "--ask", "sim:x,profile=cuda")
    assert "what it would support instead: this op, with that source in its own memory" in asked
    assert "supported as it is" not in asked and "not supported" not in asked
# --- options of llama.cpp that why-not names


@pytest.mark.parametrize(
    "graphs", ["ours", pytest.param("libllama", marks=pytest.mark.thorough("programs"))]
)
def test_why_not_plans_a_model_with_the_options_that_it_names(folder, tmp_path, graphs):
    """-ngl decides on which of two devices a cache is."""
    two = ("-d", "sim:gpu0", "-d", "sim:gpu1", "-d", "CPU", "-ngl", 99, "--graphs", graphs)
    said = ok("why-not", folder / "m.gguf", "cache_k_l0", "gpu1", *two)
    assert "gpu1 memory (llama.cpp: -ngl all -kvo): it is on gpu0\n" in said
    said = ok("why-not", folder / "m.gguf", "cache_k_l0", "CPU", *two)
    assert "CPU memory (llama.cpp: -nkvo, for all layers): it moves to CPU\n" in said
    run("plan", folder / "m.gguf", *two, "-o", tmp_path / "two.json")
    said = ok("why-not", tmp_path / "two.json", "cache_k_l0", "gpu1")
    assert "it moves to gpu1; not checked: with -ngl -kvo llama.cpp may build another graph" in said


def test_an_option_that_does_not_fit_our_graphs_says_so(folder):
    """Weights and cache have room, the compute buffer has none."""
    given = ("why-not", folder / "m.gguf", "cache_k_l0", "gpu0", "-ngl", 0, "--graphs", "ours")
    said = ok(*given, "-d", "sim:gpu0,memory=4M,CPU")
    there = "(llama.cpp: -ngl all -kvo): it moves to gpu0; it does not fit: gpu0 lacks "
    assert there in said and " are needed and 4,194,304 are free" in said
    assert "does not fit" not in ok(*given, "-d", "sim:gpu0,memory=10M,CPU")


@pytest.mark.thorough("programs")
def test_an_option_that_does_not_fit_says_so(folder):
    """llama.cpp would load the model with it, and end for lack of memory."""
    small = ("-d", "sim:gpu0,memory=64K", "-d", "CPU", "-ngl", 0, "--graphs", "libllama")
    said = ok("why-not", folder / "m.gguf", "cache_k_l0", "gpu0", *small)
    there = "(llama.cpp: -ngl all -kvo): it moves to gpu0; it does not fit: gpu0 lacks "
    assert there in said
    answer = json.loads(ok("why-not", folder / "m.gguf", "cache_k_l0", "gpu0", *small, "--json"))
    changes = [change for reason in answer["reasons"] for change in reason["changes"]]
    assert any(change["is_there"] and "gpu0 lacks" in change["lacks"] for change in changes)
    large = ("-d", "sim:gpu0", *small[2:])
    assert "does not fit" not in ok("why-not", folder / "m.gguf", "cache_k_l0", "gpu0", *large)


@pytest.mark.thorough("programs")
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_options_that_why_not_names_are_followed_for_real(oracle, monkeypatch, first):
    """benchmarks/followed.py, with an unmodified libllama."""
    from ..support import followed_cases

    monkeypatch.setattr(followed_cases, "oracle", lambda: oracle)
    outcomes = [followed_cases.check(seed) for seed in range(first, first + 8)]
    assert outcomes.count("followed") >= 4
