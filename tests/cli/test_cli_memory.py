"""`ggml-py memory`."""

import json
import re

import pytest

import ggml_py as ggml
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import fails, ok, run

GPU = ("-d", "sim:gpu0,memory=1G", "-d", "CPU", "-ngl", 99, "-c", 2048)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=2, n_vocab=512))
    return path


@pytest.fixture(scope="module")
def saved(model):
    path = model.with_name("plan.json.gz")
    ok("plan", model, *GPU, "--n-tokens", 64, "-o", path)
    return path


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_a_model(model):
    text = ok("memory", model, *GPU)
    fits, tight, head, gpu, *_ = text.splitlines()
    assert re.fullmatch(r"it fits: \S+ MiB of gpu0, \S+ GiB of CPU stay free", fits)
    assert "less than the reserve" in tight
    columns = "memory (MiB) weights cache compute outputs together free total"
    assert head.split() == columns.split()
    assert gpu.split()[0] == "gpu0" and gpu.split()[-1] == "1024.00"
    assert "gpu0 compute buffer, " in text and "alive at the peak" in text
    assert "what would lower it" in text and "  -ub 256" in text
    assert "(--at-peak shows them)" in text
    every = ok("memory", model, *GPU, "--at-peak", "-v", "--no-changes")
    assert "(--at-peak shows them)" not in every and "every tensor, in the order" in every
    assert "what would lower it" not in every
    data = json.loads(ok("memory", model, *GPU, "--json"))
    assert data["fits"] and data["lacks"] == {} and data["devices"]["gpu0"]["total"] == 1 << 30
    (buffer,) = [b for b in data["buffers"] if b["buft"] == "gpu0"]
    assert max(buffer["live"]) == buffer["peak"] <= buffer["size"]
    (row,) = [row for row in data["breakdown"] if row["buft"] == "gpu0"]
    assert row["compute"] == buffer["size"]
    assert any(one["change"] == "-ub 256" for one in data["changes"])


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_a_model_that_does_not_fit(model):
    tight = ("-d", "sim:gpu0,memory=6M", "-d", "CPU", "-ngl", 99, "-c", 8192, "-fitt", 0)
    text = ok("memory", model, *tight)
    assert "gpu0 lacks " in text and "it does not fit" in text
    assert "the smallest changes that make it fit" in text
    data = json.loads(ok("memory", model, *tight, "--json"))
    assert not data["fits"] and data["lacks"]["gpu0"] > 0 and 1 <= len(data["changes"]) <= 3
    flags = data["changes"][0]["change"].split()
    again = json.loads(ok("memory", model, *tight, *flags, "--json", "--no-changes"))
    room = again["devices"]["gpu0"]["free"]
    rows = [row for row in again["breakdown"] if row["device"] == "gpu0"]
    sizes = ("weights", "cache", "compute", "outputs")
    assert sum(row[size] for row in rows for size in sizes) <= room


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_changes_keep_a_reserve(model):
    """As --fit does: 1 GiB on each device, or -fitt."""
    tight = ("-d", "sim:gpu0,memory=20M", "-d", "CPU", "-ngl", 99, "-c", 8192)
    said = "no change of a single option makes it fit, with 1.0 GiB kept free on each device"
    assert said in ok("memory", model, *tight)
    text = ok("memory", model, *tight, "-fitt", 8)
    title = next(line for line in text.splitlines() if line.startswith("the smallest changes"))
    assert "with 8.0 MiB kept free on each device (-fitt)" in title
    data = json.loads(ok("memory", model, *tight, "-fitt", 8, "--json"))
    assert data["reserve"] == {"gpu0": 8 << 20, "CPU": 8 << 20}
    assert data["changes"] and all(one["left"]["gpu0"] >= 8 << 20 for one in data["changes"])
    text = ok("memory", model, *GPU, "--no-changes")  # it fits, and less than the reserve is left
    assert "gpu0 keeps " in text and "less than the reserve of 1.0 GiB (-fitt)" in text
    data = json.loads(ok("memory", model, *GPU, "--json", "--no-changes"))
    assert data["fits"] is True and data["below_reserve"]["gpu0"] < 1 << 30


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_a_largest_buffer(model):
    device = ("-d", "sim:gpu0,max_size=2M", "-ngl", "all", "-c", 2048, "-fa", "off")
    text = ok("memory", model, *device)
    assert (
        "'kq-0' (compute) needs 16,777,216 bytes, more than gpu0's largest buffer of 2,097,152 "
        "bytes: it does not fit"
    ) in text
    assert "  -ub 64  " in text
    data = json.loads(ok("memory", model, *device, "--json", "--no-changes"))
    assert data["fits"] is False and data["lacks"] == {}
    assert data["devices"]["gpu0"]["max_buffer"] == 2 << 20
    (one,) = data["shortfalls"]
    assert (one["device"], one["kind"], one["tensor"]) == ("gpu0", "compute", "kq-0")
    error = fails("generate", model, *device, "--graphs", "libllama", "--tokens", "1", "-n", 1)
    assert "'kq-0' (compute) needs 16,777,216 bytes" in error
    done = run("generate", model, *device, "--graphs", "ours", "--tokens", "1", "-n", 1)
    assert "'kq-0' needs 16,777,216 in one buffer, which has at most 2,097,152" in done.stderr
    assert json.loads(ok("memory", model, *device, "-ub", 64, "--json"))["fits"] is True


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--advice",), marks=pytest.mark.thorough("programs"))]
)
def test_plan_says_what_is_missing(model, options):
    """With our own graphs, too."""
    tight = ("--graphs", "ours", "-d", "sim:gpu0,memory=4M,CPU", "-ngl", 99)
    text = ok("plan", model, *tight, *options)
    needed = re.search(r"gpu0 lacks ([\d,]+) bytes .*: ([\d,]+) are needed and 4,194,304 ", text)
    assert int(needed[1].replace(",", "")) == int(needed[2].replace(",", "")) - (4 << 20)
    assert "it does not fit\n`ggml-py memory` with the same options looks for changes" in text
    enough = f"{(int(needed[2].replace(',', '')) >> 10) + 1}K"
    given = ("--graphs", "ours", "-d", f"sim:gpu0,memory={enough},CPU", "-ngl", 99)
    assert "fit" not in ok("plan", model, *given, *options).split("not known:")[0]


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_plan_says_the_same_as_memory(tmp_path):
    """Found wrong: plan was silent about a copy that no buffer holds."""
    large = tmp_path / "m.gguf"
    write_llama(large, LlamaSpec(n_layer=1, n_vocab=8192))
    tight = ("-d", "sim:gpu0,profile=rtx4090,max_size=1M,CPU", "-ngl", 0, "-ub", 32)
    lacks = json.loads(ok("memory", large, *tight, "--json", "--no-changes"))["shortfalls"]
    assert [one["tensor"] for one in lacks] == ["gpu0#output.weight#0"]
    for options in ((), ("--n-tokens", 32), ("--advice",), ("--graphs", "libllama"),
                    ("--graphs", "ours")):  # fmt: skip
        assert f"{lacks[0]['text']}: it does not fit" in ok("plan", large, *tight, *options)
    assert json.loads(ok("plan", large, *tight, "--json"))["why"]["shortfalls"] == lacks
    enough = json.loads(ok("plan", large, *tight, "--no-op-offload", "--json", "--advice"))
    assert enough["shortfalls"] == []
    words = ("plan", *tight[:2], "--", "llama-server", "-m", large, "-c", 512, "-ngl", 0)
    assert "does not fit" not in ok(*words)  # it reserves the logits of a few tokens only
    # why-not's batch makes the same copy.
    given = ("why-not", large, "ffn_out-0", "gpu0", *tight)
    assert f"it moves to gpu0; it does not fit: {lacks[0]['text']}" in ok(*given)
    answer = json.loads(ok(*given, "--json"))
    batch = answer["reasons"][0]["changes"][0]
    assert "a batch of 32 or more" in batch["text"] and batch["lacks"] == lacks[0]["text"]
    assert json.loads(ok(*given, "--json", "-ub", 16))["reasons"][0]["changes"][0]["lacks"]


def test_weights_that_no_buffer_holds_have_a_place(tmp_path):
    """Found wrong: the error named -ot without the tensor."""
    large = tmp_path / "m.gguf"
    write_llama(large, LlamaSpec(n_layer=2, n_vocab=8192))
    given = ("--graphs", "ours", "-c", 256, "-ngl", 99, "-d", "sim:gpu0,max_size=1M,CPU")
    error = fails("plan", large, *given)
    assert "'output.weight' needs 1,179,648 in one buffer, which has at most 1,048,576" in error
    assert r"Keep what is larger on the CPU: -ot '^output\.weight$=CPU'" in error
    assert "A prompt needs a copy as large, unless --no-op-offload" in error
    place = re.search(r"-ot '(.*?)'", error)[1]
    assert "output.weight" in ok("plan", large, *given, "-ot", place, "--no-op-offload", "-v")
    small = (*given[:-1], "sim:gpu0,max_size=100K,CPU")
    error = fails("plan", large, *small)
    places = re.search(r"-ot '(.*?)'", error)[1]
    assert places.startswith(place + r",blk\.") and ok("plan", large, *small, "-ot", places)


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_the_cpus_memory(model):
    """Another machine's, for whatever asks the CPU."""
    given = ("-d", "CPU,memory=1T", "-c", 512, "--json", "--no-changes")
    data = json.loads(ok("memory", model, *given))
    assert data["devices"]["CPU"] == {"free": 1 << 40, "total": 1 << 40, "max_buffer": None}
    less = ("-d", "sim:gpu0,memory=1G,CPU,memory=1M", "-c", 512, "--no-changes")
    data = json.loads(ok("memory", model, *less, "--json"))
    assert data["fits"] is False and list(data["lacks"]) == ["CPU"]
    assert "CPU lacks " in ok("memory", model, *less)
    # llama.cpp's own --fit sees it.
    fitted = [
        run(
            "plan", model, "-d", f"CPU,memory={size}", "-fit", "on", "-fitt", 0, "-fitc", 256
        ).stderr
        for size in ("1T", "3M")
    ]
    assert "-c 2048 " in fitted[0] and "-c 2048 " not in fitted[1]


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_the_log_and_the_parts_of_split_mode_tensor(model):
    two = ("-d", "sim:gpu0,memory=1G", "-d", "sim:gpu1,memory=1G", "-ngl", 99, "--no-changes")
    text = ok("memory", model, *two, "-sm", "tensor")
    start = text[text.index("memory (MiB)") :].splitlines()[1:4]
    rows = {line.split()[0]: line.split() for line in start}
    assert list(rows) == ["gpu0", "gpu1", "CPU"] and rows["gpu0"][1] == rows["gpu1"][1] != "0.00"
    assert "these are each GPU's parts" in text and "Meta(" not in "".join(rows)
    assert "llama.cpp's log has: graph: nodes = " in text and ", splits = " in text


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_what_does_not_fit_is_said_without_changes_too(model):
    tight = ("-d", "sim:gpu0,memory=1M", "-d", "CPU", "-ngl", 99, "-c", 8192, "--no-changes")
    text = ok("memory", model, *tight)
    assert "gpu0 lacks " in text and "no change" not in text
    data = json.loads(ok("memory", model, *tight, "--json"))
    assert data["fits"] is False and data["lacks"]["gpu0"] > 0 and data["changes"] == []


@pytest.mark.thorough("programs")
@pytest.mark.needs(release="default")
def test_fit_print_and_command_lines(model):
    lines = ok("memory", model, *GPU, "--fit-print").splitlines()
    assert [line.split()[0] for line in lines] == ["gpu0", "Host"]
    assert all(line.endswith(" ") and len(line.split()) == 4 for line in lines)
    text = ok("memory", *GPU[:4], "--", "llama-server", "-m", model, "-c", "4096", "--fit", "off")
    assert "gpu0 compute buffer" in text
    error = fails("memory", model, "--graphs", "ours", code=2)
    assert "not with --graphs ours" in error
    assert "--plan applies to records only" in fails("memory", model, "--plan", 0, code=2)
    assert "not with --json or --html" in fails("memory", model, "--fit-print", "--json", code=2)


def test_a_saved_plan_and_a_record(saved, tmp_path):
    assert json.loads(ok("plan", saved, "--json"))["why"]["shortfalls"] is None
    text = ok("memory", saved)
    assert "gpu0 compute buffer" in text and "weights" in text
    page = tmp_path / "memory.html"
    done = run("memory", saved, "--html", page)
    assert done.returncode == 0 and "the memory of" in done.stderr and page.stat().st_size > 10_000
    assert "--force replaces it" in fails("memory", saved, "--html", page)
    ok("memory", saved, "--html", page, "--force")
    data = json.loads(ok("memory", saved, "--json"))
    assert data["unknown"] is None and data["devices"] == {} and data["fits"] is None
    error = fails("memory", saved, "--html", saved, "--force", code=2)
    assert "would replace what is read" in error and saved.stat().st_size > 1000
    assert "no such file" in fails("memory", saved.with_name("none.gguf"))
    assert "--fit-print can only apply to a model" in fails("memory", saved, "--fit-print", code=2)


def test_a_graph_in_another_plans_layout(tmp_path):
    """A record says in whose layout a graph got its memory."""
    path = tmp_path / "r.ggrec"
    with ggml.Context() as ctx, ggml.device("CPU").init() as cpu, ggml.record(path):
        graphs = []
        for n in (32, 8):
            x = ctx.new_tensor("f32", 64, n, name="x")
            x.set_input()
            graphs.append(ctx.new_graph())
            graphs[-1].build_forward_expand(ctx.mul(ctx.sqr(x), x))
        with ggml.Scheduler([cpu]) as scheduler:
            scheduler.reserve(graphs[0])
            scheduler.alloc_graph(graphs[1])
    said = "the program gave it its places in the larger layout of plan 0"
    assert said in ok("memory", path, "--plan", 1) and said not in ok("memory", path, "--plan", 0)


def test_a_log_says_what_it_lacks(plans, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text(plans["mlp"].text())
    text = ok("memory", log)
    assert "the compute buffers are not known: a debug log does not say" in text
    done = run("memory", log, "--html", tmp_path / "m.html")
    assert done.returncode == 1 and "nothing to draw" in done.stderr
    assert not (tmp_path / "m.html").exists()
