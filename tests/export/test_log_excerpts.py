"""Excerpts of debug prints: they are read as far as they go, marked as partial, and never claim
what was cut; and causes that follow from a print without causes."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import jsonschema
import pytest
from click.testing import CliRunner
from rich.console import Console

import ggml_py as ggml
from ggml_py.cli import cli
from ggml_py.export import to_text
from ggml_py.export.formats import EXPORTERS
from ggml_py.export.json import plan_file as to_json
from ggml_py.export.to_terminal import show
from ggml_py.models import load

from ..support import graphs
from ..support.debug_logs import DUMP, MESSAGES, PREFIXES, pieces_of, printed
from ..support.named_worlds import worlds
from ..support.upstream_prints import lines_of

# As people paste them. The first has wider names than upstream prints.
LATER = """\
## SPLIT #8: CUDA1 # 0 inputs
node #18094 (  RMS_NORM):                 norm-37 (  48M) [CUDA1         ] use=1,c=1:          attn_output-37 (  48M) [CUDA1         ]
node #18096 (   MUL_MAT):                    z-37 (  48M) [CUDA1         ] use=1,c=1: blk.37.attn_gate.weight (  31M) [CUDA1         ]            attn_norm-37 (  40M) [CUDA1         ]
node #18101 (   MUL_MAT):      linear_attn_out-37 (  40M) [CUDA1         ] use=1,c=1:   blk.37.ssm_out.weight (  31M) [CUDA1         ]         final_output-37 (  48M) [CUDA1         ]

## SPLIT #9: CUDA2 # 2 inputs: [post_ffn-37 (  40M)] [leaf_55 (  32K)]\x20
node #18111 (  RMS_NORM):                 norm-38 (  40M) [CUDA2         ] use=1,c=1:     CUDA2#post_ffn-37#0 (  40M) [ NULL         ]
node #18119 (       CPY): state_update_target-38  ( 120K) [CUDA2         ] use=0,c=1:     last_conv_states-38 (  80M) [CUDA2         ]  state_update_target-38 ( 120K) [CUDA2         ]
"""  # noqa: E501
INSIDE = "".join(DUMP.splitlines(keepends=True)[4:])
LEVEL_1 = "".join(line for line in DUMP.splitlines(keepends=True) if "node #" not in line)


def test_an_excerpt_that_begins_at_a_later_split():
    plan = ggml.Plan.from_debug_log(LATER)
    # no printed node reads leaf_55
    assert plan.headline().startswith(
        "partial (from split 8 on, its end may be missing): 2 splits, 2 copies"
    )
    assert [s.number for s in plan.splits] == [8, 9]
    assert plan.node("z-37").srcs[0].name == "blk.37.attn_gate.weight"
    assert "begins with node 18094 of the graph" in plan.unknown[0]
    assert "names are cut at 23 bytes" in "".join(plan.unknown)
    assert plan.text() == LATER
    # where it comes from is before the excerpt: it is no leaf
    assert plan.leafs == ()
    assert plan.node("attn_output-37").index is None


def test_an_excerpt_that_begins_inside_a_split():
    plan = ggml.Plan.from_debug_log(INSIDE)
    assert plan.headline().startswith("partial (from within split 1 on): 2 splits, 3 copies")
    assert [(s.number, s.backend) for s in plan.splits] == [(1, "CUDA0"), (2, "CPU")]
    assert [i.tensor.name for i in plan.splits[0].inputs] == ["inp_embd", "inp_pos"]
    assert plan.text() == INSIDE
    alone = ggml.Plan.from_debug_log("".join(INSIDE.splitlines(keepends=True)[:2]))
    assert alone.headline().startswith("partial (from within a split on")


def test_a_whole_name_of_a_backend_from_its_copies():
    text = INSIDE.replace("CUDA0#inp", "CUDA0x#in").replace("CUDA0#", "CUDA0x#")
    assert ggml.Plan.from_debug_log(text).splits[0].backend == "CUDA0x"


def test_level_1():
    plan = ggml.Plan.from_debug_log(LEVEL_1)
    assert plan.headline() == (
        "partial (splits without their nodes): 3 splits, 3 copies (at least 6.0 MiB), nodes: not "
        "printed"
    )
    assert plan.text().replace("\n\n", "\n") == LEVEL_1.replace("\n\n", "\n")
    assert "GGML_SCHED_DEBUG=2 the nodes" in plan.unknown[0]
    whole = ggml.Plan.from_debug_log(DUMP)
    assert plan.diff(whole).same and whole.diff(plan).same
    moved = ggml.Plan.from_debug_log(LEVEL_1.replace("#2: CPU", "#2: CUDA1"))
    assert [s.backend for s in whole.diff(moved).splits_added] == ["CUDA1"]
    later = ggml.Plan.from_debug_log(LEVEL_1[LEVEL_1.index("## SPLIT #1") :])
    assert later.headline().startswith("partial (splits without their nodes, from split 1 on)")
    assert later.diff(whole).same


def test_a_log_with_a_gap_has_an_excerpt_on_each_side():
    text = DUMP.replace("## SPLIT #2", "## SPLIT #7")
    first, last = (ggml.Plan.from_debug_log(text, i) for i in range(2))
    assert first.headline().startswith("partial (its end is missing): 2 splits")
    assert last.headline().startswith("partial (from split 7 on): 1 split")


def test_nodes_without_the_line_between_their_splits_are_refused():
    text = "".join(line for line in DUMP.splitlines(keepends=True) if "node #" in line)
    with pytest.raises(ValueError, match="is on CUDA0 and the one before on CPU, without a line"):
        ggml.Plan.from_debug_log(text)


@pytest.mark.parametrize(
    "line",
    [
        "node #  0 (  GET_ROWS):             inp_embd (   3M) [  CPU         ]",
        "node #  0 (  GET_ROWS) -> CUDA0",
        "## SPLIT #0: CPU, 0 inputs",
        "node #  0 (  GET_ROWS) [  CPU ] inp_embd: token_embd.weight",
    ],
)
def test_layouts_of_forks_are_refused(line):
    with pytest.raises(ValueError, match="a fork of ggml prints another layout, which is not read"):
        ggml.Plan.from_debug_log(f"## SPLIT #0: CPU # 0 inputs\n{line}\n")


@pytest.mark.parametrize("text", [LATER, INSIDE, LEVEL_1], ids=["later", "inside", "level 1"])
def test_every_output_is_marked(text, tmp_path):
    plan = ggml.Plan.from_debug_log(text)
    mark = plan.headline().partition(":")[0]
    assert mark.startswith("partial (")
    data = plan.to_json(tmp_path / "p.json")
    assert data["partial"] == mark
    jsonschema.validate(json.loads(json.dumps(data)), to_json.schema())
    again = ggml.Plan.from_json(tmp_path / "p.json")
    assert again == plan and again.headline() == plan.headline() and again.unknown == plan.unknown
    shown = io.StringIO()
    show(plan, nodes=True, console=Console(file=shown, width=200))
    assert mark in shown.getvalue() and "not known: " in shown.getvalue()
    for suffix in ("html", "md"):
        plan.export(tmp_path / f"p.{suffix}")
        assert mark in (tmp_path / f"p.{suffix}").read_text()
    title = re.search("<title>(.*)</title>", (tmp_path / "p.html").read_text())
    assert mark in title[1]
    diff = plan.diff(ggml.Plan.from_debug_log(DUMP))
    assert mark in diff.headline() and mark in str(diff.to_dict()["parts"])
    for exporter in EXPORTERS:
        plan.export(tmp_path / "any", format=exporter.name, force=True)
    (tmp_path / "report.log").write_text(text)
    for options in ((), ("-v",), ("--json",), ("--advice",), ("--order",), ("--cpu",)):
        done = CliRunner().invoke(cli, ["plan", *options, str(tmp_path / "report.log")])
        assert done.exit_code == 0, done.output
    if plan.nodes:
        assert mark in plan.snapshot()
        assert ggml.Plan.from_snapshot(plan.snapshot()).nodes
        told = plan.explain(plan.nodes[-1]).to_dict()["limits"]
        assert "excerpt of a print" in told[0]
    else:
        with pytest.raises(ValueError, match="nodes are not printed"):
            plan.snapshot()


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_excerpts_with_other_text_around_them(prefix):
    for text in (LATER, INSIDE, LEVEL_1):
        lines = [f"{prefix}{line}" for line in (*MESSAGES, *text.split("\n"), *MESSAGES)]
        assert ggml.Plan.from_debug_log("\n".join(lines)) == ggml.Plan.from_debug_log(text)
    for key in ("msg", "log"):
        wrapped = "\n".join(json.dumps({key: piece}) for piece in pieces_of(INSIDE))
        assert ggml.Plan.from_debug_log(wrapped) == ggml.Plan.from_debug_log(INSIDE)


# --- any excerpt


def wrong_claims(part, whole, from_line, to_line):
    """What the plan of an excerpt says that the whole plan contradicts."""
    first = part.capture.first_node
    for node in part.nodes:
        true = whole.nodes[first + node.id]
        at = node.backend or ""
        if node.name[:20] != true.name[:20] or not (true.backend or "").startswith(at):
            yield f"{node} is {true}"
    number = max(0, part.capture.first_split)
    for split in part.splits:
        candidates = [s for s in whole.splits if s.backend.startswith(split.backend)]
        if part.capture.first_split >= 0:
            candidates = [whole.splits[number + split.index]]
        inputs = {i.tensor.name for i in split.inputs}
        if (
            not any(
                s.backend.startswith(split.backend) and inputs <= {i.tensor.name for i in s.inputs}
                for s in candidates
            )
            and not part.capture.printed.begins_inside
        ):
            yield f"{split} with {inputs}"
    if part.capture.begins_late and part.leafs:
        yield f"{part.leafs} may be nodes before it"
    if not part.capture.is_partial:
        return
    for sides in (part.diff(whole), whole.diff(part)):
        if not sides.same:
            yield f"lines {from_line} to {to_line}: {sides}"


def cuts(text):
    """Each excerpt of a print that leaves out lines at its beginning or at its end."""
    lines = text.splitlines(keepends=True)
    for at in range(1, len(lines)):
        yield "".join(lines[at:]), at, len(lines)
        yield "".join(lines[:at]), 0, at


def check_cuts(text, step=1):
    whole = ggml.Plan.from_debug_log(text)
    unmarked = n = 0
    for part, start, end in list(cuts(text))[::step]:
        if "node #" not in part and "## SPLIT #" not in part:
            continue
        if not start and part.rstrip() == text.rstrip():
            continue
        plan = ggml.Plan.from_debug_log(part)
        assert list(wrong_claims(plan, whole, start, end)) == []
        assert "partial" in plan.headline() or not start, part[:200]
        told = "partial" in plan.headline()
        n += 1
        unmarked += not told
        # a cut that leaves nothing to see is not denied either
        assert told or any("a print has no last line" in text for text in plan.unknown)
    return unmarked, n


@pytest.mark.parametrize("causes", [False, True])
def test_any_cut_of_a_print(causes, plans):
    for name in graphs.CASES:
        text = printed(plans[name], causes=causes)
        if "node #" in text:
            check_cuts(text)


@pytest.mark.parametrize("name", graphs.CASES)
def test_any_cut_of_upstreams_print(name, upstream_prints):
    check_cuts("\n".join(upstream_prints[name]))


@pytest.mark.parametrize("n_tokens", [1, 64])
def test_any_cut_of_a_llama(n_tokens, model, sims):
    with load(model, devices=(sims("gpu0"), "CPU"), n_gpu_layers=2) as m:
        text = printed(m.plan(n_tokens=n_tokens))
    assert check_cuts(text)[0] == 0
    level_1 = "".join(line for line in text.splitlines(keepends=True) if "node #" not in line)
    check_cuts(level_1)


def test_a_cut_before_a_splits_inputs_are_read(model, sims):
    """Also in prints of older releases, which do not say how many nodes read a tensor."""
    with load(model, devices=(sims("gpu0"), "CPU"), n_gpu_layers=2) as m:
        text = re.sub(r" use=\d+,c=\d", "", printed(m.plan(n_tokens=64)))
    assert "partial" not in ggml.Plan.from_debug_log(text).headline()
    n = 0
    for part, start, _end in cuts(text):
        if start or "node #" not in part.rpartition("## SPLIT #")[2]:
            continue
        header, _, nodes = part.rpartition("## SPLIT #")[2].partition("\n")
        backend, inputs = header.split()[1], re.findall(r"\[(\S+) \(", header)
        if any(f"{backend}#{name}#0"[:20] not in nodes for name in inputs):
            n += 1
            plan = ggml.Plan.from_debug_log(part)
            assert plan.headline().startswith("perhaps partial (its end may be "), part[-300:]
    assert n > 10


@pytest.mark.thorough("sample")
def test_any_cut_of_random_graphs():
    for seed in range(60):
        for plan in worlds(seed):
            text = printed(plan)
            if "node #" in text:
                check_cuts(text)


def test_a_whole_print_is_not_called_partial(plans, model, sims):
    for name in graphs.CASES:
        text = printed(plans[name])
        assert not ggml.Plan.from_debug_log(text).headline().startswith("partial"), name
    with load(model, devices=(sims("gpu0"), "CPU"), n_gpu_layers=2) as m:
        plan = m.plan(n_tokens=4)
    assert "partial" not in ggml.Plan.from_debug_log(printed(plan)).headline()


# --- inferred causes


def inferred(plan):
    """The inferred causes of a plan's stock print, and the true ones."""
    log = ggml.Plan.from_debug_log(printed(plan))
    for t in (*log.nodes, *log.leafs, *log.copies):
        if not t.cause.is_inferred:
            continue
        assert not t.cause.is_known and t.cause.text.startswith("inferred from the print: ")
        assert "(inferred)" in log.explain(t).headline
        assert log.explain(t).to_dict()["links"][0]["inferred"] is True
        true = plan.nodes[t.id] if t.index is not None else plan.node(t.name)
        yield t.name, t.cause.code, true.cause.code


@pytest.mark.parametrize("n_tokens", [1, 64])
@pytest.mark.parametrize("n_gpu_layers", [0, 2, 99])
@pytest.mark.parametrize("more", [(), ("BLAS",), ("gpu1",)], ids=["gpu", "blas", "two"])
def test_inferred_causes_of_a_llama_are_true(more, n_gpu_layers, n_tokens, model, sims):
    devices = [sims("gpu0"), *(name if name == "BLAS" else sims(name) for name in more), "CPU"]
    with load(model, devices=devices, n_gpu_layers=n_gpu_layers) as m:
        found = list(inferred(m.plan(n_tokens=n_tokens)))
    assert [row for row in found if row[1] != row[2]] == []
    assert len(found) > 10
    assert any(code.startswith("1.wgt") for _name, code, _true in found)
    if n_tokens == 64 and not n_gpu_layers:
        assert any(code == "1.off" for _name, code, _true in found)


def test_nothing_is_inferred_that_only_might_be(plans):
    """The names of other programs prove nothing; copies are made for splits in all of them."""
    for name in graphs.CASES:
        for _name, code, true in inferred(plans[name]):
            assert code == "4.cpy" and true in ("4.cpy", "6.cpy")
    for seed in range(10):
        for plan in worlds(seed):
            if "node #" in printed(plan):
                assert all(code == "4.cpy" for _name, code, _true in inferred(plan))
    with_causes = ggml.Plan.from_debug_log(printed(plans["sweeps"], causes=True))
    assert not any(n.cause.is_inferred for n in with_causes.nodes)


def test_an_inferred_cause_in_an_excerpt():
    plan = ggml.Plan.from_debug_log(LATER)
    assert plan.explain("z-37").headline == "1.wgt0 (inferred) via src[0] blk.37.attn_gate.weight"
    assert not plan.node("norm-37").cause.is_inferred  # llama.cpp may have pinned it
    assert to_text.render(plan) == LATER  # the column stays blank
    assert replace(plan).headline() == plan.headline()
    assert lines_of(plan.text())
