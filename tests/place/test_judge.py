"""A recommendation fits, has the gain that it claims, and names the basis of the claim."""

import json
import re
import shlex

import pytest

from ggml_py import llama
from ggml_py.cost import Machine
from ggml_py.llama import Fit
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import ok
from ..support.page_driver import data_in
from ..support.real_headers import LLAMA_8B, LLAMA_70B, MOE_30B, Spec

GIB = 1 << 30
BOTH = ("-d", "sim:gpu0,profile=rtx4090", "-d", "sim:gpu1,profile=rtx4090", "-d", "CPU")
ONE = ("-d", "sim:gpu0,profile=rtx4090", "-d", "CPU")
UNEQUAL = ("-d", "sim:gpu0,profile=p40", "-d", "sim:gpu1,profile=rtx4090", "-d", "CPU")
SMALL = ("-d", "sim:gpu0,profile=rtx3060", "-d", "CPU")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    specs = {"8b": LLAMA_8B, "70b": LLAMA_70B, "moe": MOE_30B}
    written = {name: spec.write(folder / f"{name}.gguf") for name, spec in specs.items()}
    write_llama(folder / "small.gguf", LlamaSpec(n_layer=4, n_vocab=512))
    return {**written, "small": folder / "small.gguf"}


def remedy_of(model, *options):
    data = json.loads(ok("plan", model, *options, "--graphs", "libllama", "--json"))
    return data["why"]["remedy"]


def words(flags):
    """The options that a remedy gives, without those that it takes away."""
    given = flags.partition("without ")[0]
    return [word.strip("'") for word in given.split()]


CASES = [
    ("70b", BOTH, ("-ngl", 60, "-c", 8192), ("-ngl", "all")),
    ("8b", ONE, ("-ngl", 20, "-ctk", "q4_1"), ("-ngl", "all")),
    ("8b", ONE, ("-nkvo", "-c", 32768), ("-kvo",)),
    ("8b", UNEQUAL, ("-c", 8192), ("-sm", "none", "-mg", "1")),
    ("8b", ONE, ("-ot", "ffn=CPU"), ()),
    ("moe", ONE, ("-ncmoe", 30), ()),
]


@pytest.mark.thorough("cases", quick=3)
@pytest.mark.parametrize(("model", "devices", "options", "expected"), CASES, ids=str)
def test_what_costs_most_is_mended(models, model, devices, options, expected):
    """llama.cpp #18914 and others: layers, caches and experts in host memory although a device has
    room, and a slower device that holds more."""
    remedy = remedy_of(models[model], *devices, *options)
    assert remedy["checked"] and remedy["known_by"] == "data sheets"
    assert remedy["gain"] > 1.1 and "by data sheets" in remedy["claim"]
    assert tuple(words(remedy["flags"])) == expected
    assert ("without" in remedy["flags"]) == (not expected)


@pytest.mark.parametrize(("model", "devices", "options", "expected"), CASES[:4], ids=str)
def test_what_is_recommended_fits_with_the_reserve(models, model, devices, options, expected):
    """Followed: planned again with the flags, by the same libllama."""
    again = json.loads(ok("memory", models[model], *devices, *options, *expected, "--no-changes",
                          "--json"))  # fmt: skip
    assert again["fits"]
    used = {}
    for row in again["breakdown"]:
        size = row["cache"] + row["compute"] + row["outputs"]
        mapped = row["buft"].endswith("_Mapped")
        used[row["device"]] = used.get(row["device"], 0) + size + (0 if mapped else row["weights"])
    assert used.pop("CPU") > 0 and used
    assert all(size <= again["devices"][name]["free"] - GIB for name, size in used.items())


def test_nothing_is_recommended_that_does_not_fit(models):
    """ "without -ot" lacks memory here: 3 MiB hold neither the feed-forward nor the rest of it."""
    device = ("-d", "sim:gpu0,profile=rtx4090,memory=3M", "-d", "CPU")
    options = ("-ngl", 99, "-ot", "ffn=CPU", "-c", 512, "--n-tokens", 64)
    assert remedy_of(models["small"], *device, *options) is None


HOST = r"^output\.weight$=CPU"
VULKAN = ("-d", "sim:gpu0,profile=rtx4090,max_size=256M", "-d", "CPU", "-c", 8192)


@pytest.mark.thorough("long")
def test_what_is_larger_than_the_largest_buffer_is_not_recommended(models):
    """One of the commonest reports about Vulkan: "-ngl all" has the memory, and fails for one
    tensor, output.weight. All other layers fit. Attention scores and the copy of a weight for
    prompts can be too large, too."""
    host = ("-ot", HOST)
    remedy = remedy_of(models["8b"], *VULKAN, "-ngl", 0, "--no-op-offload")
    assert words(remedy["flags"]) == ["-ngl", "all", *host] and remedy["gain"] > 2
    remedy = remedy_of(models["8b"], *VULKAN, "-ngl", 0, "--no-op-offload", "-fa", "off")
    assert words(remedy["flags"]) == ["-ngl", "all", *host, "-fa", "auto"]
    remedy = remedy_of(models["8b"], *VULKAN, "-ngl", 0)
    assert words(remedy["flags"]) == ["-ngl", "all", *host, "--no-op-offload"]
    small = (*VULKAN[:1], f"{VULKAN[1]},memory=3G", *VULKAN[2:])
    remedy = remedy_of(models["8b"], *small, "-ngl", 0, "--no-op-offload")
    assert re.fullmatch(r"-ngl 1\d -ot '\^output\\\.weight\$=CPU'", remedy["flags"])


@pytest.mark.parametrize(
    ("options", "tensor", "change"),
    [
        (("-ub", 16, "-b", 16), "output.weight", ("-ot", HOST)),
        (("-ngl", 10), "output.weight", ("-ot", HOST, "--no-op-offload")),
        (("-ngl", 0), "gpu0#output.weight#0", ("--no-op-offload",)),
        (("-ngl", 10, "-fa", "off"), "output.weight",
         ("-ot", HOST, "--no-op-offload", "-fa", "auto")),
    ],
    ids=str,
)  # fmt: skip
def test_memory_names_what_to_keep_off_a_device(models, options, tensor, change):
    """`memory` offers the same change where nothing else would fit."""
    found = json.loads(ok("memory", models["8b"], *VULKAN, *options, "--json"))
    assert not found["fits"] and tensor in [one["tensor"] for one in found["shortfalls"]]
    offered = [shlex.split(one["change"]) for one in found["changes"]]
    assert sorted(change) in [sorted(words) for words in offered]
    given = [word for word in options if (word, change[-2:]) != ("off", ("-fa", "auto"))]
    given = given[: given.index("-fa")] if "-fa" in given else given
    again = json.loads(ok("memory", models["8b"], *VULKAN, *given, *change, "--json",
                          "--no-changes"))  # fmt: skip
    assert again["fits"]


@pytest.mark.thorough("long")
def test_a_moe_that_is_too_large_gets_two_options(models):
    """One option is not enough: all layers go to the card, the experts of some do not."""
    remedy = remedy_of(models["moe"], *SMALL, "-ngl", 20, "-c", 8192)
    given = words(remedy["flags"])
    assert {"-ngl", "-ncmoe"} <= set(given) or "-ot" in given
    assert re.search(r"fits, \d+\.\d GiB on gpu0 stay free", remedy["room"])


def test_what_is_best_is_left_alone(models):
    assert remedy_of(models["8b"], *ONE, "-ngl", "all", "-c", 8192) is None
    assert remedy_of(models["8b"], "-d", "CPU") is None


def test_without_a_data_sheet_bytes_decide(models):
    """A simulated device without a card, or a server: nobody knows how fast it is."""
    remedy = remedy_of(models["8b"], "-d", "sim:gpu0", "-d", "CPU", "-ngl", 20)
    assert remedy["known_by"] == "bytes" and remedy["seconds"] is None
    assert "times are not known" in remedy["claim"] and "host memory" in remedy["claim"]
    assert "times as quick" not in remedy["claim"]


@pytest.mark.thorough("long")
def test_findings_have_the_smallest_remedy_that_mends_them(models):
    """Without anything that fits they say so."""
    text = ok("plan", models["70b"], *BOTH, "-ngl", 60, "-c", 8192, "--advice", "--graphs",
              "libllama")  # fmt: skip
    assert text.startswith("GP119 weights in host memory") and "of 21 layers" in text
    assert re.search(r"In llama.cpp: -ngl\s+all: 3\.\d times as quick", text)
    small = ("-d", "sim:gpu0,profile=rtx3060,memory=6G", "-d", "CPU")
    text = ok("plan", models["70b"], *small, "-ngl", 8, "--advice", "--graphs", "libllama")
    assert "GP119" in text and " -ngl all" not in text


def test_some_layers_on_a_device_where_none_do_not_fit(tmp_path):
    """Small layers take longer to copy than to compute; without any, the output of a prompt is
    larger than the largest buffer of the card. A seed of benchmarks/advice.py."""
    small = Spec(
        "qwen3moe", n_layer=11, n_embd=512, n_head=8, n_head_kv=4, n_ff=1024, n_vocab=4096,
        n_ctx_train=32768, freq_base=1e4, quantised="q4_0", n_embd_head=64, n_expert=8,
        n_expert_used=2, n_ff_exp=256,
    )  # fmt: skip
    cards = ("profile=rtx4090,memory=86M,max_size=5376K", "profile=rtx4090,memory=78M",
             "profile=rtx3090,memory=71M")  # fmt: skip
    devices = [word for i, card in enumerate(cards) for word in ("-d", f"sim:gpu{i},{card}")]
    remedy = remedy_of(
        small.write(tmp_path / "small.gguf"), *devices, "-d", "CPU", "-ngl", 11, "-ncmoe", 4,
        "-nkvo", "-fa", "off", "-c", 512, "-b", 512, "-fitt", 0, "--n-tokens", 1,
    )  # fmt: skip
    assert words(remedy["flags"])[:2] == ["-ngl", "2"] and remedy["gain"] > 1.25


def test_a_fit_is_chosen_once(models):
    """--fit is asked for what the user gave, and its choice is what others are compared with."""
    done = ok("plan", models["8b"], *ONE, "--fit", "on", "-c", 4096, "--json")
    assert json.loads(done)["why"]["remedy"] is None


def test_the_claim_is_the_cost_models(models):
    """ "3.1 times as quick" is the ratio of two predictions of the same graph."""
    remedy = remedy_of(models["70b"], *BOTH, "-ngl", 60, "-c", 8192)
    machine = Machine.of_sheets({"gpu0": "rtx4090", "gpu1": "rtx4090"})
    seconds = []
    for n in (60, -1):
        devices = ("sim:gpu0,profile=rtx4090", "sim:gpu1,profile=rtx4090", "CPU")
        with llama.open(models["70b"], devices=devices, n_gpu_layers=n, n_ctx=8192) as model:
            seconds.append(model.plan(1, 4096).cost(machine, 4096).seconds)
    assert remedy["seconds"] == pytest.approx(seconds)
    assert remedy["gain"] == pytest.approx(seconds[0] / seconds[1])


@pytest.mark.parametrize(
    ("model", "options", "instead", "copied"),
    [
        ("8b", ("-ngl", 20), "-ngl 20", "-ngl all"),
        ("moe", ("-ncmoe", 30), "-ncmoe 30", "-ngl all "),
    ],
    ids=str,
)
def test_a_page_names_the_flags_that_go_and_copies_some_that_can_be_pasted(
    models, tmp_path, model, options, instead, copied
):
    ok("plan", models[model], *ONE, *options, "-o", tmp_path / "x.html")
    (plan,) = data_in(tmp_path / "x.html")["plans"]
    first = plan["advice"][0]
    assert (first["instead"], first["fits"]) == (instead, True)
    assert first["gain"].endswith(" times as quick")
    for one in (first, plan["remedy"]):
        assert one["copy"].startswith(copied) and "without" not in one["copy"]
        assert "-ncmoe" not in one["copy"]
    assert ("xperts of 30 of 48 layers" in plan["verdict"]) == (model == "moe")


def test_fit_agrees_that_it_fits(models):
    """llama.cpp's own --fit, with the same margin, takes all layers too."""
    devices = ("sim:gpu0,profile=rtx4090", "sim:gpu1,profile=rtx4090", "CPU")
    with llama.open(models["70b"], devices=devices, n_gpu_layers=-1, n_ctx=8192,
                    fit=Fit((GIB,))) as model:  # fmt: skip
        assert model.fits and model.fitted["n_gpu_layers"] in (-1, 81)


@pytest.mark.thorough("cases", quick=2)
@pytest.mark.parametrize(("model", "devices", "options", "expected"), CASES, ids=str)
def test_a_programs_command_line_gets_the_same(models, model, devices, options, expected):
    line = ("llama-server", "-m", models[model], "--fit", "off", "-np", 1, "-b", 512, *options)
    n_ctx = () if "-c" in options else ("-c", 512)
    data = json.loads(ok("plan", *devices, "--json", "--", *line, *n_ctx, "--temp", "0.7"))
    remedy = data["why"]["remedy"]
    assert tuple(words(remedy["flags"])) == expected and remedy["gain"] > 1.1


def test_a_program_that_fits_by_itself_is_compared_with_its_choice(models):
    """llama-server takes --fit unless it is switched off."""
    line = ("llama-server", "-m", models["8b"], "-c", 4096, "-np", 1)
    data = json.loads(ok("plan", *ONE, "--json", "--", *line))
    assert data["why"]["remedy"] is None
