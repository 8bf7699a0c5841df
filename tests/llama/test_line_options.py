"""Every option of upstream's parser, by what a plan does with it."""

import pytest

from ggml_py import llama
from ggml_py.errors import GgmlError
from ggml_py.llama.command_line import parse
from ggml_py.llama.library import library
from ggml_py.llama.line_options import (
    LEFT_OUT,
    NEUTRAL,
    PLANNED,
    SAMPLING,
    SPECULATIVE,
    not_planned,
    options_of,
)
from ggml_py.models.synthetic import LlamaSpec, write_llama

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
PROGRAMS = ("server", "cli", "completion", "perplexity", "fit-params")
DEVICES = ("sim:opts0,profile=cuda,memory=8G", "sim:opts1,profile=cuda,memory=8G", "CPU")

# Values that are not the default, for options whose hint of a value does not say enough.
VALUES = {
    "--flash-attn": "off", "--rope-scaling": "yarn", "--pooling": "mean", "--cache-type-k": "q8_0",
    "--cache-type-v": "q8_0", "--load-mode": "none", "--lazy-mode": "on", "--device": "opts0",
    "--override-tensor": "ffn=CPU", "--split-mode": "none", "--tensor-split": "3,1", "--fit": "off",
    "--fit-target": "7", "--override-kv": "llama.expert_used_count=int:3", "--main-gpu": "1",
    "--n-gpu-layers": "1", "--perf": None, "--moe-cache-mib": "3",
}  # fmt: skip
WITH = {"--kv-unified": ["-np", "2"]}  # other options without which it changes nothing
# Options of the model's parameters that need another, or whose only value is the default here.
NOT_TRIED = frozenset({"--model", "--hellaswag", "--winogrande", "--multiple-choice"})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=2))
    return str(path)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_has_its_place(program):
    known = PLANNED | LEFT_OUT | NEUTRAL
    options = options_of(library(True), program)
    assert len(options) > 100
    lost = [o.name for o in options if o.name not in known and o.group == ""]
    assert not lost, "which of the sets of llama/line_options.py are these in?"


def test_the_sets_are_disjoint_and_all_there():
    every = {o.name for p in PROGRAMS for o in options_of(library(True), p)}
    assert not PLANNED & LEFT_OUT and not PLANNED & NEUTRAL and not LEFT_OUT & NEUTRAL
    assert every >= (PLANNED | LEFT_OUT | NEUTRAL)


def params_of(path, program, words):
    """All that a command line asks of a model and its context, as plain data."""
    head = [f"llama-{program}", "-m", path] + ["-c", "256"] * (program == "perplexity")
    line = parse(library(True), [*head, *words], DEVICES)
    ffi = library(True).ffi
    found = {"fit": line.fit, "options": {**line.options, "devices": None}}
    for struct in (line.model, line.context):
        for name, field in ffi.typeof(struct).fields:
            value = getattr(struct, name)
            if field.type.kind in ("primitive", "enum"):
                found[name] = value
            elif field.type.kind == "pointer":
                found[name] = value != ffi.NULL
    row, found["overrides"] = line.model.tensor_buft_overrides, []
    while row != ffi.NULL and row.pattern != ffi.NULL:
        found["overrides"].append((ffi.string(row.pattern), int(ffi.cast("uintptr_t", row.buft))))
        row += 1
    found["options"]["devices"] = [d.name for d in line.options["devices"]]
    return found


def values_of(option, folder):
    """Words that give the option another value than its default."""
    if option.name in VALUES:
        value = VALUES[option.name]
        return [] if value is None else [value]
    if not option.value:
        return []
    if "FNAME" in option.value or "PATH" in option.value:
        return [str(folder)]
    return ["5"]


@pytest.mark.parametrize("program", ["server", "completion"])
def test_the_parameters_change_with_planned_options_and_with_no_other(path, program, tmp_path):
    file = tmp_path / "file"
    file.write_text("{}")
    wrong, tried, refused = [], 0, []
    for option in options_of(library(True), program):
        if option.name in NOT_TRIED or option.name in LEFT_OUT or option.group == SPECULATIVE:
            continue
        changed, beside = False, WITH.get(option.name, [])
        before = params_of(path, program, beside)
        for name in [option.names[-1], *option.negative[-1:]]:
            try:
                after = params_of(path, program, [*beside, name, *values_of(option, file)])
            except GgmlError:
                refused.append(option.name)
                continue
            tried += 1
            changed |= after != before
        if changed != (option.name in PLANNED) and option.name not in refused:
            wrong.append((option.name, changed))
    assert tried > 100 and len(set(refused)) < 60
    assert not wrong


@pytest.mark.parametrize("words, said", [
    ("--spec-type draft-mtp", ["--spec-type draft-mtp"]),
    ("--spec-type ngram-simple", ["--spec-type ngram-simple"]),
    ("--spec-draft-n-max 7", ["--spec-draft-n-max"]),
    ("--temp 0.1 --port 81 --alias x --no-warmup", []),
    ("--mmproj-offload", ["--mmproj-offload"]),
    ("-ngl 1 -fa off --no-op-offload", []),
])  # fmt: skip
def test_what_a_plan_leaves_out_is_said(path, words, said, caplog):
    with llama.open_command_line(["llama-server", "-m", path, *words.split()]) as model:
        assert [name.split(" (")[0] for name in model.left_out] == said
    assert ("not part of plans" in caplog.text) == bool(said)


def test_an_option_of_a_release_that_is_not_known_is_called_so():
    assert not_planned(["--new-thing", "--port"], [], []) == (
        "--new-thing (not known whether plans depend on it)",
    )
    assert not_planned([], ["--lora"], []) == ("--lora",)


def test_sampling_options_have_their_group():
    (temp,) = [o for o in options_of(library(True), "server") if "--temp" in o.names]
    assert temp.group == SAMPLING
