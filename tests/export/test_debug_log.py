"""Plans out of logs: what ggml prints for GGML_SCHED_DEBUG=2, and what is around it."""

import io
import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import ggml_py as ggml
from ggml_py.cli import cli
from ggml_py.export import to_text
from ggml_py.export.debug_log import dumps
from ggml_py.export.to_terminal import show
from ggml_py.models import load

from ..support import graphs
from ..support.debug_logs import DUMP, MESSAGES, PREFIXES, pieces_of, printed
from ..support.layered_plans import Layers, named
from ..support.random_plans import plans as random_plans
from ..support.upstream_prints import lines_of

RELEASES = ("0.9.4", "0.9.7", "0.11.0", "0.26.0")


def assert_round_trips(plan):
    for upstream in RELEASES:
        for causes in (False, True):
            text = printed(plan, upstream, causes)
            assert to_text.render(ggml.Plan.from_debug_log(text)) == text
            given = ggml.Plan.from_debug_log(text, upstream=upstream)
            assert given.text() == text and given.settings.upstream == upstream
            diff = plan.diff(given)
            assert diff.same, str(diff)
            assert diff.causes_compared == causes


@pytest.mark.parametrize("name", graphs.CASES)
def test_what_is_read_prints_the_same(name, plans):
    assert_round_trips(plans[name])


@pytest.mark.parametrize("n_tokens", [1, 64])
@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("names", [("gpu0",), ("Vulkan0", "Vulkan1")])
def test_a_llama_on_devices_whose_names_begin_alike(
    names, flash_attn, n_tokens, model, sims, tmp_path
):
    devices = (*(sims(name) for name in names), "CPU")
    with load(model, devices=devices, n_gpu_layers=2, flash_attn=flash_attn) as m:
        plan = m.plan(n_tokens=n_tokens)
    assert plan.n_inputs > 5
    assert_round_trips(plan)
    again = ggml.Plan.from_debug_log(plan.text())
    unknown = "".join(again.unknown)
    assert again.to_json(tmp_path / "p.json")["unknown"] == list(again.unknown)
    assert ("Vulkan0, Vulkan1 begin alike" in unknown) == (len(names) == 2)


def test_copies_for_pipelines_and_of_long_names(sims):
    with Layers(sims("RPC0[127.0.0.1:50052]"), parallel=True, op_offload=False) as net:
        c = net.c
        tokens = net.input("tokens", 4)
        looked_up = [
            named(c.get_rows(table, tokens), f"a name that is cut at the same place {i}")
            for i, table in enumerate(net.tables)
        ]
        out = c.mul_mat(net.w[1], c.add(c.mul_mat(net.w[0], looked_up[1]), looked_up[0]))
        plan = net.plan(*looked_up, named(out, "out"))
        assert plan.settings.n_copies == 4
    again = ggml.Plan.from_debug_log(plan.text())
    assert again.text() == plan.text()
    assert {i.tensor.name for i in again.splits[1].inputs} == {
        "a name that is cut at the same place 0", "a name that is cut at the same place 1",
    }  # fmt: skip
    by_name = {i.copy.id: i.tensor.name[-1] for i in again.splits[1].inputs}
    for node in again.splits[1].nodes:  # each reads its own
        expected = {"MUL_MAT": "1", "ADD": "0"}[node.op]
        read = [by_name[i] for i in node.placement.planned_src if i in by_name]
        assert read in ([expected], [])
    assert plan.diff(again).same


def test_a_name_as_the_print_cuts_it(sims):
    """The scheduler's plan, and that of its print, whose split inputs have their whole names."""
    with Layers(sims("gpu0"), op_offload=False) as net:
        c = net.c
        tokens = net.input("tokens", 4)
        first, second = (c.get_rows(table, tokens) for table in net.tables)
        named(first, "a_result_with_a_long_name")
        named(second, "another_of_the_same_beginning-1")
        out = c.mul_mat(net.w[1], c.add(c.mul_mat(net.w[0], second), first))
        third = c.sqr(c.sqr(second))
        plan = net.plan(first, second, named(third, "another_of_the_same_beginning-2"),
                        named(out, "a_name_of_just_20_by"))  # fmt: skip
    for found in (plan, ggml.Plan.from_debug_log(plan.text())):
        node = found.node("a_result_with_a_long")
        assert (node.name, node.op) == ("a_result_with_a_long_name", "GET_ROWS")
        assert found.explain("a_result_with_a_long").subject == node
        assert found.node("a_name_of_just_20_by").op == "MUL_MAT"
        with pytest.raises(KeyError, match="similar: a_result_with_a_long_name"):
            found.node("a_result_with_a_lon")
    with pytest.raises(KeyError, match=r"2 names begin with it: another.*-1, another.*-2"):
        plan.node("another_of_the_same_")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(1, 24), st.booleans(), st.sampled_from(RELEASES))
def test_random_graphs_on_random_devices(seed, max_nodes, causes, upstream):
    for plan in random_plans(seed, max_nodes):
        if all(n.is_view_op for n in plan.nodes):
            continue  # nothing is printed but a split
        text = printed(plan, upstream, causes)
        again = ggml.Plan.from_debug_log(text)
        assert to_text.render(again) == text
        diff = plan.diff(again)
        assert diff.same, str(diff)


@pytest.mark.parametrize("name", graphs.CASES)
def test_upstreams_own_print(name, upstream_prints):
    text = "\n".join(upstream_prints[name])
    plan = ggml.Plan.from_debug_log(text, upstream=ggml.enums.UPSTREAM)
    assert lines_of(plan.text()) == upstream_prints[name]


@pytest.mark.needs(release="default")
def test_upstreams_log_of_a_llama(oracle, model, tmp_path):
    """What libllama logs, with all of its other messages."""
    log = oracle.plan(model, [1, 2, 3], tmp_path)
    plan = ggml.Plan.from_debug_log(log)
    assert plan.n_splits > 0 and plan.headline().endswith("(100%)")
    lines = [line for line in log.splitlines() if line.startswith(("## SPLIT", "node #"))]
    starts = [i for i, line in enumerate(lines) if line.startswith("## SPLIT #0:")]
    assert lines_of(plan.text()) == lines[starts[-1] :]
    assert len(dumps(log)) == len(starts)


# --- what it holds


def test_what_a_dump_holds():
    plan = ggml.Plan.from_debug_log(DUMP)
    assert plan.planner == plan.capture.source == "debug log"
    assert plan.headline() == (
        "3 splits, 3 copies (at least 6.0 MiB), nodes: CUDA0 3 (60%), CPU 2 (40%)"
    )
    moves = [(i.tensor.name, i.src_backend, i.dst_backend, i.nbytes)
             for s in plan.splits for i in s.inputs]  # fmt: skip
    assert moves == [
        ("inp_embd", "CPU", "CUDA0", 3 << 20), ("inp_pos", None, "CUDA0", 0),
        ("Qcur-0", "CUDA0", "CPU", 3 << 20),
    ]  # fmt: skip
    assert plan.splits[2].inputs[0].tensor.index == 4  # the last one that has the name
    rope = plan.node("Qcur-0")
    assert (rope.op, rope.index, rope.record.use_count) == ("ROPE", 4, 1)
    reshaped, positions = rope.srcs
    assert (reshaped.op, reshaped.view_src.index, positions.name) == ("RESHAPE", 2, "inp_pos")
    assert plan.tensor(rope.placement.planned_src[1]).name == "CUDA0#inp_pos#0"
    assert [n.index for n in plan.nodes if n.is_view_op and not n.name] == [3]
    assert [(s.start, s.end) for s in plan.splits] == [(0, 1), (1, 5), (5, 6)]
    assert {t.name for t in plan.leafs} == {
        "token_embd.weight", "inp_tokens", "blk.0.attn_q.weight", "inp_pos"
    }  # fmt: skip
    assert plan.node("token_embd.weight").nbytes == 512 << 20
    assert plan.text() == DUMP


def test_what_a_dump_cannot_tell_is_said(mlp, tmp_path):
    plan = ggml.Plan.from_debug_log(DUMP)
    said = "\n".join(plan.unknown)
    for part in (
        "shapes, types", "whole KiB or MiB", "what the backends support",
        "1 node is a view: views are not printed",
        "assumed to be 0.11.0", "assumed to be CUDA0, CPU", "causes are not printed",
        "where 1 tensor is copied from is not printed: inp_pos",
    ):  # fmt: skip
        assert part in said
    assert mlp.unknown == () and mlp.shares() is not None
    assert plan.shares() is None and plan.nodes[0].flops is None
    for ask in (
        lambda: plan.reference,
        lambda: plan.steps,
        plan.passes,
        lambda: plan.what_if(op_offload=False),
    ):
        with pytest.raises(ValueError, match="debug log"):
            ask()
    assert plan.explain("selected") is not None and plan.advice() is not None
    out = io.StringIO()
    show(plan, nodes=True, console=Console(file=out, width=200))
    assert "not known: shapes" in out.getvalue()


def test_causes_that_are_printed_are_read():
    case = graphs.sweeps()
    plan = case.scheduler.plan(case.graph)
    case.close()
    again = ggml.Plan.from_debug_log(plan.text())
    assert [n.cause.code for n in again.nodes] == [n.cause.code for n in plan.nodes]
    assert again.node("middle").cause.witness.name == "w"
    assert again.node("above").cause.text == (
        "BLAS supports it and spread to it from a neighbour, or nothing else placed it"
    )


def test_the_weight_that_a_cause_names_is_found_behind_an_empty_place():
    """#25800: the fifth source, behind a mask that is not there and so is not printed."""
    read = "".join(f" {name:>20} (   8K) [CUDA0    1.dst]" for name in ("q", "k", "v"))
    sinks = (
        "## SPLIT #0: CUDA0 # 0 inputs\n"
        "node #  0 (FLASH_ATTN):               attn-0 (   8K) [CUDA0   1.wgt4] use=0,c=1:"
        f"{read} blk.0.attn_sinks.wei (   0K) [CUDA0    1.dst]\n"
    )
    plan = ggml.Plan.from_debug_log(sinks)
    assert plan.nodes[0].cause.witness.name == "blk.0.attn_sinks.wei"
    assert plan.text() == sinks


def test_offload_without_a_witness_is_a_sentence():
    text = DUMP.replace("Qcur-0 (   3M) [CUDA0         ] use=1,c=1:  blk", "Qcur-0 (   3M) [CUDA0   1.off] use=1,c=1:  blk")  # noqa: E501
    assert "its weight (not recorded) is in host memory" in (
        ggml.Plan.from_debug_log(text).nodes[2].cause.text
    )


def test_it_is_a_file_like_others(tmp_path):
    plan = ggml.Plan.from_debug_log(DUMP)
    plan.to_json(tmp_path / "p.json")
    program = (
        "import sys; sys.modules['ggml_py._ggml'] = None\n"
        "import ggml_py\n"
        f"plan = ggml_py.Plan.from_json({str(tmp_path / 'p.json')!r})\n"
        "again = ggml_py.Plan.from_debug_log(plan.text())\n"
        "assert again == plan, (again, plan)\n"
        "print(again.headline(), len(again.unknown))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{plan.headline()} {len(plan.unknown)}\n", done.stderr
    assert json.loads((tmp_path / "p.json").read_text())["shares"] is None


def test_commands_take_logs(tmp_path):
    (tmp_path / "report.log").write_text("prefix\n" + DUMP)
    moved = DUMP.replace("## SPLIT #2: CPU", "## SPLIT #2: CUDA1").replace("CPU#Qcur", "CUDA1#Qcur")
    moved = moved.replace("[  CPU         ] use=0", "[CUDA1         ] use=0")
    (tmp_path / "other.log").write_text(moved)
    run = CliRunner().invoke
    shown = run(cli, ["plan", str(tmp_path / "report.log")])
    assert "3 splits, 3 copies (at least 6.0 MiB)" in shown.output, shown.output
    assert run(cli, ["plan", "--text", str(tmp_path / "report.log")]).output == DUMP
    lines = "\n".join(json.dumps({"level": "debug", "msg": piece}) for piece in pieces_of(DUMP))
    again = run(cli, ["diff", str(tmp_path / "report.log"), "-"], input=lines)
    assert (again.exit_code, again.output.splitlines()[0]) == (0, "Both make the same decisions.")
    different = run(cli, ["diff", str(tmp_path / "report.log"), str(tmp_path / "other.log")])
    assert different.exit_code == 1 and "1 of 5 nodes moved" in different.output
    why = run(cli, ["why-not", str(tmp_path / "report.log"), "selected", "CUDA0"])
    assert isinstance(why.exception, ValueError), why.output


# --- what is around it


def test_pieces_are_the_text():
    assert lines_of("".join(pieces_of(DUMP))) == lines_of(DUMP)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_prefixes_of_lines(prefix, newline):
    text = newline.join(f"{prefix}{line}" for line in (*MESSAGES, *DUMP.split("\n"), *MESSAGES))
    assert ggml.Plan.from_debug_log(text) == ggml.Plan.from_debug_log(DUMP)


@pytest.mark.parametrize("prefix", ["0.00.123.456 D ", "D ", "\x1b[33mD \x1b[0m", "[debug] "])
def test_prefixes_of_pieces(prefix):
    """llama.cpp marks each message, and ggml prints a line in several."""
    text = "".join(prefix + piece for piece in pieces_of(DUMP))
    assert ggml.Plan.from_debug_log(text) == ggml.Plan.from_debug_log(DUMP)


def test_each_piece_on_a_line_of_its_own():
    text = "\n".join(piece.strip("\n") for piece in pieces_of(DUMP))
    assert ggml.Plan.from_debug_log(text) == ggml.Plan.from_debug_log(DUMP)


@pytest.mark.parametrize("key", ["msg", "log"])
def test_each_piece_in_a_json_object(key):
    lines = [json.dumps({"type": "log", "level": "debug", key: p}) for p in pieces_of(DUMP)]
    text = "\n".join([*MESSAGES, *lines, *MESSAGES, '{"not": "ours"}', "{broken}"])
    assert ggml.Plan.from_debug_log(text) == ggml.Plan.from_debug_log(DUMP)


def test_a_page_that_lost_its_spaces():
    text = re.sub(" +", " ", DUMP)
    assert ggml.Plan.from_debug_log(text) == ggml.Plan.from_debug_log(DUMP)
    text = re.sub(" +", " ", DUMP.replace("CPU         ]", "CPU  1.wgt0]"))
    assert ggml.Plan.from_debug_log(text).nodes[0].cause.code == "1.wgt0"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.thorough("long")
def test_messages_between(data):
    """Other messages come before, after, and between the lines of the print, in every log."""
    plan = ggml.Plan.from_debug_log(DUMP)
    prefix = data.draw(st.sampled_from(list(PREFIXES.values())))
    other = st.lists(st.sampled_from(MESSAGES) | st.text(st.characters(codec="utf-8"), max_size=30))
    lines = []
    for line in DUMP.splitlines():
        lines += [*data.draw(other), prefix + line]
    text = "\n".join([*lines, *data.draw(other)])
    read = ggml.Plan.from_debug_log(text)
    assert read == plan and read.text() == DUMP


def test_several_prints(mlp, plans):
    log = "\n".join([printed(mlp), MESSAGES[0], printed(plans["views"]), DUMP])
    assert ggml.Plan.from_debug_log(log).text() == DUMP
    assert ggml.Plan.from_debug_log(log, index=0).diff(mlp).same
    assert ggml.Plan.from_debug_log(log, index=-2).diff(plans["views"]).same
    with pytest.raises(ValueError, match="index=3: this log has 3 debug prints"):
        ggml.Plan.from_debug_log(log, index=3)


def test_the_release_is_concluded_from_the_layout(mlp):
    upstream = [ggml.Plan.from_debug_log(printed(mlp, r)).settings.upstream for r in RELEASES]
    assert upstream == ["0.9.4", "0.9.7", "0.11.0", "0.11.0"]
    assert ggml.Plan.from_debug_log(DUMP, upstream="0.18.0").settings.release == "0.18.0"
    with pytest.raises(ValueError, match="upstream='b1234' is not a known release of ggml"):
        ggml.Plan.from_debug_log(DUMP, upstream="b1234")


def test_prints_without_use_counts():
    """As releases before 0.9.4 have it."""
    old = re.sub(r" use=\d+,c=\d", "", DUMP)
    plan = ggml.Plan.from_debug_log(old)
    assert plan.settings.upstream == "0.9.4"
    assert plan.diff(ggml.Plan.from_debug_log(DUMP)).same


@pytest.mark.parametrize("size", ["  10K", "1023K", "   1M", "9999M", "10240"])
def test_sizes(size):
    """Of 10240M five bytes are printed."""
    text = DUMP.replace("( 512M)", f"({size})")
    assert ggml.Plan.from_debug_log(text).text() == text


def test_names_with_brackets_spaces_and_cut_letters():
    for name in ("a [b] (c)", " (view)", "x (copy) [1]", "(  4K)", "ffn ä#0", "é" * 10, "ä�"):
        text = DUMP.replace("           inp_tokens", f" {name:>20}"[:21])
        if len(name.encode()) > len(name):
            width = 20 - len(name.encode())
            text = DUMP.replace("           inp_tokens", " " + " " * width + name)
        assert ggml.Plan.from_debug_log(text).text() == text, name
    copied = DUMP.replace("[inp_pos (", "[inp [pos] (x) (").replace(
        "     CUDA0#inp_pos#0", " CUDA0#inp [pos] (x)"
    )
    assert ggml.Plan.from_debug_log(copied).splits[1].inputs[1].tensor.name == "inp [pos] (x)"


# --- what is no log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no debug print of a plan in this text \(0 characters\): expected the lines"),
        ("llama_context: graph splits = 2\n", "GGML_SCHED_DEBUG=2"),
        (DUMP.replace("node #  4", "node #  1"), "node 1 after node 2: a part of the log"),
        (DUMP[: DUMP.index("[ NULL") + 4], "line 5 of the log: its last source is cut off"),
        (re.sub(r"   .K\) \[ NULL", "   1G) [ NULL", DUMP), "a source has no size"),
        (DUMP.replace("(  GET_ROWS): ", "(  GET_"), "line 2 of the log: it is damaged or cut off"),
        (DUMP.replace("[inp_pos (   0K)] ", ""), "should have 2 inputs, but 1 were found"),
    ],
)
def test_what_is_not_a_whole_print_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        ggml.Plan.from_debug_log(text)


@pytest.mark.thorough("long")
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(0, len(DUMP)), st.integers(0, 40), st.text(max_size=5)), max_size=4
    )
)
def test_damage_is_a_plan_or_a_value_error(damages):
    text = DUMP
    for at, n, instead in damages:
        text = text[:at] + instead + text[at + n :]
    try:
        plan = ggml.Plan.from_debug_log(text)
    except ValueError as error:
        assert str(error)
        return
    assert plan.headline() and plan.unknown and plan.text()
    assert plan.nodes or "not printed" in plan.headline()
    assert all(n.cause.text for n in plan.nodes)


def test_the_words_of_the_error_do_not_grow_with_the_log():
    line = "node #  0 (" + "x" * 10_000
    with pytest.raises(ValueError) as error:
        ggml.Plan.from_debug_log(f"## SPLIT #0: CPU # 0 inputs\n{line}\n")
    assert len(str(error.value)) < 300


def test_lone_surrogates_in_lines_of_json_are_replaced():
    """They are in no file as text, but JSON can write them; a plan with one could not be saved."""
    rows = [json.dumps({"msg": line}) for line in DUMP.split("\n")]
    (name,) = {b.name for b in ggml.Plan.from_debug_log(DUMP).backends[:1]}
    plan = ggml.Plan.from_debug_log("\n".join(rows).replace(name, f"{name[:-1]}\\ud800"))
    assert plan.backends[0].name == f"{name[:-1]}?" and plan.unknown
    json.dumps(plan.to_json()).encode()
