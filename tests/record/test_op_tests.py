"""Files for test-backend-ops: written, read back, refused, and taken by upstream's own program."""

from __future__ import annotations

import io
import random
import re

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import enums
from ggml_py.record.op_tests import (
    OpSource,
    OpTest,
    left_out,
    op_test_lines,
    op_tests,
    read_op_tests,
    write_op_tests,
)

from ..support import graphs

PARAMS = (0,) * 16


def planned(case):
    plan = case.scheduler.plan(case.graph)
    case.close()
    return plan


def plan_of(build):
    """The plan of what `build` makes in a context, on the CPU."""
    with ggml.Context() as context, ggml.device("CPU").init() as cpu:
        graph = context.new_graph(64)
        graph.build_forward_expand(build(context))
        with ggml.Scheduler([cpu]) as scheduler:
            return scheduler.plan(graph)


@pytest.fixture(scope="module")
def plans():
    return [planned(make()) for make in graphs.CASES.values()]


def read(text, tmp_path, **names):
    path = tmp_path / "ops.txt"
    path.write_text(text)
    return read_op_tests(path, **names)


@pytest.mark.needs(release="default", why="the numbers are its own")
def test_a_line_is_what_upstream_writes():
    (first, relu, second), out = op_tests([planned(graphs.mlp())]), io.StringIO()
    assert (first.op, first.name, relu.op, second.name) == ("MUL_MAT", "h", "UNARY", "out")
    assert write_op_tests([planned(graphs.mlp())], out) == 3
    zeros = " 0" * 16
    sources = "0 64 128 1 1 4 256 32768 32768 0 64 48 1 1 4 256 12288 12288"
    assert out.getvalue().splitlines()[0] == f"29 0 128 48 1 1 16{zeros} 2 {sources} h"


def test_what_is_written_is_read(plans, tmp_path):
    path = tmp_path / "ops.txt"
    tests = op_tests(plans)
    assert write_op_tests(plans, path) == len(tests) > 10
    assert read_op_tests(path) == tests


def test_any_test_is_read_as_it_was(tmp_path):
    rng = random.Random(1)
    ops = [o.name for o in enums.Op if o.name != "COUNT"]
    types = [t.name.lower() for t in enums.Type if t.name != "COUNT"]

    def four(most):
        return tuple(rng.choice((0, 1, 7, most)) for _ in range(4))

    tests = [
        OpTest(
            rng.choice(ops), rng.choice(types), four(2**63 - 1),
            tuple(rng.choice((0, -1, -(2**31), 2**31 - 1)) for _ in range(16)),
            tuple(OpSource(rng.choice(types), four(2**63 - 1), four(2**64 - 1))
                  for _ in range(rng.randint(0, 10))),
            rng.choice(("", "a", "cache_k_l0 (view)", "ä🧨", "12 0 3", "--")),
        )
        for _ in range(300)
    ]  # fmt: skip
    path = tmp_path / "ops.txt"
    path.write_text("".join(f"{line}\n" for line in op_test_lines(tests)), encoding="utf-8")
    assert read_op_tests(path) == tests


def test_an_op_is_there_once_by_its_first_name(plans):
    tests = op_tests(plans + plans)
    assert tests == op_tests(plans)
    assert len({test.key for test in tests}) == len(tests)
    assert not {test.op for test in tests} & {"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "NONE"}
    computed = {n.op for plan in plans for n in plan.nodes if n.is_computed}
    assert {test.op for test in tests} == computed


def test_white_space_in_a_name_cannot_end_the_line(tmp_path):
    def build(c):
        out = c.relu(c.new_tensor("f32", 4))
        out.name = " a\n1 2\t "
        return out

    plan, path = plan_of(build), tmp_path / "ops.txt"
    write_op_tests([plan], path)
    assert read_op_tests(path) == op_tests([plan])
    assert op_tests([plan])[0].name == "a 1 2"


@pytest.mark.needs("ggml_soft_max_add_sinks")
def test_an_op_with_a_gap_in_its_sources_is_left_out():
    def build(c):
        out = c.soft_max_ext(c.new_tensor("f32", 8, 4, 2), None, 1.0, 0.0)
        out.add_sinks(c.new_tensor("f32", 2))
        return c.relu(out)

    plan = plan_of(build)
    assert [test.op for test in op_tests([plan])] == ["UNARY"]
    ((node, why),) = left_out([plan])
    assert node.op == "SOFT_MAX"
    assert why == "it has no src[1], but sources behind it"


def test_an_op_of_the_program_is_left_out():
    plan = plan_of(lambda c: c.map_custom1(c.new_tensor("f32", 4), lambda dst, a, *_: None))
    assert op_tests([plan]) == []
    ((_node, why),) = left_out([plan])
    assert "address" in why


def test_numbers_of_another_release(plans, tmp_path):
    ops = sorted((op.name for op in enums.Op), reverse=True)
    types = ["F16", "f32", "i32"]
    path = tmp_path / "ops.txt"
    write_op_tests(plans, path, ops=ops, types=types)
    assert read_op_tests(path, ops=ops, types=types) == op_tests(plans)
    assert path.read_text().split()[:2] == [str(ops.index("MUL_MAT")), "1"]
    with pytest.raises(ValueError, match="op MUL_MAT has no number in the release"):
        write_op_tests(plans, path, ops=["NONE", "ADD"])


def test_a_plan_without_shapes_is_refused(plans):
    log = ggml.Plan.from_debug_log(plans[0].text())
    with pytest.raises(ValueError, match="read from a debug log"):
        op_tests([log])


GOOD = "29 0 1 2 3 4 2 5 -6 1 1 7 8 9 10 2 14 16 18 name of it"


@pytest.mark.needs(release="default", why="the numbers are its own")
def test_fewer_op_params_than_upstream_writes(tmp_path):
    (test,) = read(f"{GOOD}\n", tmp_path)
    assert test == OpTest(
        "MUL_MAT", "f32", (1, 2, 3, 4), (5, -6, *PARAMS[2:]),
        (OpSource("f16", (7, 8, 9, 10), (2, 14, 16, 18)),), "name of it",
    )  # fmt: skip
    assert read("", tmp_path) == []


@pytest.mark.needs(release="default", why="the numbers are its own")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "it ends: expected op"),
        ("x", "'x': expected op, a number from 0"),
        ("29", "it ends: expected type"),
        ("999", "no op has the number 999"),
        ("29 4", "no type has the number 4"),
        ("29 0 1 2 3", r"it ends: expected ne\[3\]"),
        ("29 0 1 2 3 -1", r"'-1': expected ne\[3\], a number from 0"),
        ("29 0 1 2 3 1.5", r"'1.5': expected ne\[3\]"),
        ("29 0 1 2 3 \u0661", ": expected ne.3."),
        ("29 0 1 2 3 4 17", "'17': expected the number of op_params, a number from 0 to 16"),
        ("29 0 1 2 3 4 1 2147483648", r"expected op_params\[0\]"),
        ("29 0 1 2 3 4 0 11", "expected the number of sources, a number from 0 to 10"),
        ("29 0 1 2 3 4 0 1 1 1 1 1", r"it ends: expected ne of source 0\[3\]"),
        ("29 0 1 2 3 4 0 1 1 1 1 1 1 1 2 3 name", r"'name': expected nb of source 0\[3\]"),
        ("29 0 1 2 3 4 0 0", "it ends: expected the name, or '-'"),
    ],
)
def test_a_wrong_line_is_refused(words, says, tmp_path):
    with pytest.raises(ValueError, match=f"line 2: .*{says}"):
        read(f"{GOOD}\n{words}\n", tmp_path)


def test_a_file_that_is_cut_off_is_refused(plans, tmp_path):
    path = tmp_path / "ops.txt"
    write_op_tests(plans, path)
    whole = path.read_text()
    for end in np.random.default_rng(0).integers(1, len(whole), 50):
        if whole[end - 1] != "\n":
            with pytest.raises(ValueError, match="cut off"):
                read(whole[:end], tmp_path)


@pytest.mark.needs(release="default", why="whose programs are built")
def test_upstreams_program_takes_and_passes_every_line(plans, oracle, tmp_path):
    """New memory is cleared: upstream compares some that it does not write."""
    path = tmp_path / "ops.txt"
    n = write_op_tests(plans, path)
    given = ("-b", "CPU", "--test-file", path)
    said = oracle.run("test-backend-ops", "support", *given, "--output", "csv").stdout
    rows = [line.split('","')[1] for line in said.splitlines()[1:]]
    assert said.count('"support","1","yes"') == len(rows) == n
    assert len(set(rows)) > 5
    said = oracle.run("test-backend-ops", "test", *given, MALLOC_PERTURB_="255").stdout
    assert re.findall(r"(\d+)/(\d+) tests passed", said) == [(str(n), str(n))]
