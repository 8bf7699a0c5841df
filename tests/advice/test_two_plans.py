"""The sentence with which every comparison of two plans begins."""

import json
import re
from dataclasses import replace

import pytest

from ggml_py import Plan
from ggml_py.advice.checkup import phase_of
from ggml_py.advice.two_plans import verdict_of_change, verdict_of_two
from ggml_py.cost.time_difference import known_cost
from ggml_py.trace.answers.diff import Side

from ..support.cli_runs import ok, run
from ..support.drawn_plans import llama
from ..support.foreign_text import markdown_shape
from ..support.real_headers import LLAMA_8B

GPU = ("-d", "sim:gpu0,profile=rtx4090")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    model = folder / "m.gguf"
    replace(LLAMA_8B, n_layer=4).write(model)
    for name, flags in {"all": (), "few": ("-ngl", 2), "long": ("-c", 8192)}.items():
        given = {"-ngl": 99, "-c": 4096, **dict(zip(flags[::2], flags[1::2], strict=True))}
        words = [word for pair in given.items() for word in pair]
        ok("plan", model, *GPU, *words, "-o", folder / f"{name}.json")
    return folder


def verdict(before, after):
    return verdict_of_change(before, after, before.diff(after))


def test_time_by_its_knowledge_and_what_moved_where(files):
    before, after = (Plan.from_json(files / f"{name}.json") for name in ("all", "few"))
    diff = before.diff(after)
    moved = sum(c.is_computed and c.moved for c in diff.changed)
    weights = {
        t.name: t.nbytes for t in before.leafs
        if t.is_weight and after.tensor(t.id).backend != t.backend
    }  # fmt: skip
    assert sum(c.weight_bytes for c in diff.changed) == sum(weights.values()) > 0
    said = verdict(before, after)
    assert re.match(r"The second takes \S+ times as long by data sheets \(\S+ ms → \S+ ms\):", said)
    size = f"{sum(weights.values()) / 2**20:.1f} MiB"
    assert f": {moved} of {diff.before.n_nodes} nodes and {size} of weights moved from gpu" in said
    back = verdict(after, before)
    assert back.startswith("The second is ") and " moved from CPU to gpu0; splits " in back


def test_memory_is_told_where_no_weights_moved(files):
    before, after = (Plan.from_json(files / f"{name}.json") for name in ("all", "long"))
    said = verdict(before, after)
    assert re.search(r": both make the same decisions; gpu0 needs \S+ MiB more\.$", said)
    assert verdict(after, before).endswith(" less.")


def test_measured_beside_predicted(files):
    plan = Plan.from_json(files / "all.json")
    cost = known_cost(plan, None)
    one, two = phase_of(plan, (), None, 2 * cost.seconds), phase_of(plan, (), cost)
    said = verdict_of_two(one, two, plan.diff(plan))
    assert said.startswith("The second is 2 times as quick (")
    assert " by measurement → " in said and " by data sheets): both " in said
    said = verdict_of_two(one._replace(n_tokens=64), two, plan.diff(plan))
    assert " by data sheets; 64 → 1 tokens): both " in said  # what they take is of other work


def test_no_time_is_made_up():
    before = llama(8, refused=("SOFT_MAX",))
    said = verdict(before, llama(8))
    assert said.startswith("12 of 80 nodes moved from CPU to gpu0; splits 26 → 2, copies ")
    assert verdict(before, before) == "Both make the same decisions."


def test_ways_of_which_most_go_one():
    diff = llama(8, refused=("SOFT_MAX",)).diff(llama(8))
    one, *others = diff.moved
    back = replace(one, before=one.after, after=Side(0, "CPU", "", None))
    headline = replace(diff, changed=(back, *others)).headline()
    assert headline.startswith("12 of 80 nodes moved, most from CPU to gpu0; ")


def test_all_outputs_begin_with_it(files, tmp_path):
    one, two = files / "all.json", files / "few.json"
    said = verdict(Plan.from_json(one), Plan.from_json(two))
    done = run("diff", one, two)
    assert done.returncode == 1 and " ".join(done.stdout.split()).startswith(said)
    assert json.loads(run("diff", one, two, "--json").stdout)["verdict"] == said
    assert " ".join(ok("view", one, two).split()).startswith(said)
    assert json.loads(run("check", one, two, "--json").stdout)["verdict"] == said
    ok("view", one, two, "-o", tmp_path / "two.md")
    text = (tmp_path / "two.md").read_text()
    assert text.startswith(f"**{said}**\n") and "| flags | -ngl 99 " in text
    assert markdown_shape(text).count("table_open") == len(
        Plan.from_json(one).diff(Plan.from_json(two)).sections()
    )
