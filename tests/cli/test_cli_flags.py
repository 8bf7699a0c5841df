"""Errors and warnings of a verb name its flags, not the keywords of `ggml_py.models.load`."""

import sys

import click
import pytest

from ggml_py.cli import main
from ggml_py.cli.plan import command as plan
from ggml_py.cli.shared.flag_names import with_flags
from ggml_py.llama.options import TABLE
from ggml_py.models.synthetic import LlamaSpec, write_llama

BAD = {
    "bool": [],
    "devices": ["3"],
    "int": ["-1", "x", "99999999999"],
    "layers": ["x", "-99999999999"],
    "overrides": ["blk.0", "blk.0=NONE", "*=CPU"],
    "parts": ["x", "-1,2", "1,2,3"],
    "program": ["x"],
    "type": ["x", "i32"],
    "word": ["x"],
}
MAY_BE_NEGATIVE = ("main_gpu",)  # then no GPU gets a layer
CASES = [
    (option, value)
    for option in TABLE
    for value in BAD.get(option.kind, ())
    if option.flags and (option.name, value) not in [(name, "-1") for name in MAY_BE_NEGATIVE]
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("flags") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=2, n_vocab=512))
    return path


@pytest.fixture
def said(model, monkeypatch, capsys):
    """Runs `plan` with options in this process; the exit status and standard error."""

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["ggml-py", "plan", str(model), *map(str, options)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("option", "value"), CASES, ids=[f"{option.name}={value}" for option, value in CASES]
)
def test_an_error_names_the_flag(said, option, value):
    """Every option of the table, with values that it does not take."""
    more = () if option.kind == "devices" else ("-d", "sim:gpu0,CPU")
    code, error = said(option.flags[0], value, *more)
    assert code in (1, 2)
    (line,) = (line for line in error.replace("'", "").splitlines() if line.startswith("error: "))
    assert {option.flags[0], f"{option.flags[0]}:"}.intersection(line.split())
    assert f"{option.name}=" not in line and f"{option.name}:" not in line


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--n-tokens", 0), "error: --n-tokens 0: one graph takes 1 to 512 tokens (-ub)"),
        (("--n-tokens", 400, "-np", 4), "error: --n-tokens 400 in each of 4 sequences: one graph "),
        (("--n-past", 9999), "error: --n-past 9999 and --n-tokens 1: expected --n-past 0 "),
        (("-ctv", "q4_0", "-fa", "off"), "flash attention. Use -fa on or -ctv f16"),
        (("-ub", 600), "-ub 600 is more than -b 512: as in llama.cpp it becomes 512"),
        (("-ot", r"\.none\.=CPU"), r"-ot: '\.none\.' matches none of the model's "),
        (("-ncmoe", 2), "-cmoe, -ncmoe (cpu_moe, n_cpu_moe): the model has no experts, so nothing"),
        (("-ngl", 9), "-ngl 9 has no effect: no GPU among the devices (CPU)"),
    ],
)  # fmt: skip
def test_messages_about_several_options(said, options, expected):
    assert expected in said("-d", "CPU", *options)[1]


@pytest.mark.parametrize("graphs", ["ours", pytest.param("libllama", marks=[
    pytest.mark.thorough("programs"), pytest.mark.needs(release="default")])])  # fmt: skip
def test_options_about_gpus(said, graphs):
    """llama.cpp's parser warns where there is no GPU. Found wrong: nothing was printed."""
    given = ("-sm", "none", "-mg", 7, "--graphs", graphs)
    code, error = said(*given, "-d", "CPU")
    assert code == 0
    assert "-mg 7 has no effect: no GPU among the devices (CPU)" in error
    assert "-sm none has no effect: no GPU among the devices (CPU)" in error
    code, error = said(*given, "-d", "sim:gpu0", "-d", "CPU")
    assert (code, error) == (1, "error: -mg 7: expected a number below 1 (gpu0)\n")
    code, error = said(*given[:4], "-mg", -1, "-ts", "1,2", "-d", "sim:a,sim:b,CPU")
    assert (code, error) == (0, "")


def test_the_verbs_own_flags():
    text = "devices='CPU' is a str: give a larger n_ctx (-c) or n_ubatch=1,024 (-ub), repack=False"
    said = "-d CPU is a str: give a larger -c or -ub 1024, -nr"
    assert with_flags(text, plan) == said
    other = click.Command(
        "other", params=[click.Option(["--on", "devices"]), click.Option(["--x"])]
    )
    assert with_flags(text, other) == said.replace("-d", "--on")
    assert with_flags("x=5 is too large, c=1", other) == "--x 5 is too large, c=1"


@pytest.mark.parametrize(
    "text",
    [
        "the devices: CPU",
        "use=1,c=1: a cut line",
        "llama_context: n_ctx = 512",
        "a n_ctx_train=5 of n_tokens",
        "x.n_ctx=5",
    ],
)
def test_other_words_stay(text):
    assert with_flags(text, plan) == text


def test_without_a_verb():
    assert with_flags("n_cpu_moe=-1: expected at least 0", None).startswith("-ncmoe -1: ")
