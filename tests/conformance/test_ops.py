"""`ggml-py ops`: what upstream's test-backend-ops says, read, counted and compared."""

import json
import re
import sys
from pathlib import Path

import pytest

from ggml_py.builds import current
from ggml_py.conformance import OpCase, OpResults, OpResultsDiff, check_ops
from ggml_py.conformance.op_results import (
    FAILED,
    NOT_RUN,
    OK,
    UNDECIDED,
    UNSUPPORTED,
    parse_case,
)
from ggml_py.conformance.program import OpProgram, numbered_names
from ggml_py.enums import Op, Type
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import fails, ok, run


@pytest.mark.parametrize(
    ("line", "outcome", "error", "limit"),
    [
        ("  SQR(type=f16,ne=[7,1,5,3]): \x1b[1;32mOK\x1b[0m", OK, None, None),
        ("[ADD] ERR = 0.500000000 > 0.000000100   ADD(type=f32): \x1b[1;31mFAIL\x1b[0m",
         FAILED, 0.5, 1e-7),
        ("  ADD(type=f32): [ADD] ERR = inf > 0.000000100 \x1b[1;31mFAIL\x1b[0m",
         FAILED, float("inf"), 1e-7),
        ("  ADD(type=f32): not supported [BLAS]", UNSUPPORTED, None, None),
        ("[LOG] NaN at index 3 (CPU=nan CPU=-nan)   LOG(type=f32): FAIL", UNDECIDED, None, None),
        ("[LOG] NaN at index 3 (CPU=nan CPU=0.100000)   LOG(type=f32): FAIL", FAILED, None, None),
        ("[A] NaN at index 3 (CPU=nan CPU=nan) [B] ERR = 2.0 > 1.0   LOG(type=f32): FAIL",
         FAILED, 2.0, 1.0),
        ("sentinel mismatch: sent_2   CPY(type=f32): FAIL", FAILED, None, None),
        ("compare failed   CPY(type=f32): FAIL", FAILED, None, None),
    ],
)  # fmt: skip
def test_a_line_is_understood(line, outcome, error, limit):
    case = parse_case(line)
    assert (case.outcome, case.error, case.limit) == (outcome, error, limit)
    assert (case.text == "") == (outcome in (OK, UNSUPPORTED))


@pytest.mark.parametrize(
    "line", ["", "  Backend CPU: OK", "2/2 backends passed", "OK", "Testing 2 devices", "FAIL"]
)
def test_other_lines_are_no_cases(line):
    assert parse_case(line) is None


def results(release, **outcomes):
    cases = tuple(OpCase(op, "n=1", how) for op, how in outcomes.items())
    return OpResults("CPU", release, "upstream's own", cases)


def test_two_releases():
    old = results("1", ADD=OK, MUL=OK, SQR=UNSUPPORTED, LOG=FAILED, OLD=OK, SAME=FAILED)
    new = results("2", ADD=FAILED, MUL=UNSUPPORTED, SQR=OK, LOG=OK, NEW=FAILED, SAME=FAILED)
    diff = OpResultsDiff(old, new)
    assert [c.op for c in diff.newly_wrong] == ["ADD"]
    assert [c.op for c in diff.no_longer_supported] == ["MUL"]
    assert [c.op for c in diff.newly_supported] == ["SQR"]
    assert [c.op for c in diff.newly_right] == ["LOG"]
    assert diff.only == ({"OLD": 1}, {"NEW": 1})
    assert bool(diff)
    assert "5 cases of both, 4 changed: 1 newly wrong" in diff.headline()
    assert "newly wrong: ADD, 1 case: n=1" in str(diff)
    assert (diff.ops_gained, diff.ops_lost) == (["NEW", "SQR"], ["MUL"])
    assert not OpResultsDiff(old, old)
    # Upstream writes cases otherwise: nothing can be matched, and still an op was lost.
    other = OpResults("CPU", "2", "upstream's own", (OpCase("ADD", "n=1,v=0", UNSUPPORTED),))
    lost = OpResultsDiff(results("1", ADD=OK), other)
    assert lost and not lost.changes and "ops that no case of is supported now: ADD" in str(lost)
    ends = OpResultsDiff(results("1", ADD=OK), results("2", ADD=NOT_RUN))
    assert [c.op for c in ends.newly_wrong] == ["ADD"]
    both = OpResultsDiff(results("1", ADD=UNSUPPORTED), results("2", ADD=FAILED))
    assert both.newly_wrong == both.newly_supported  # it is both, and so it is worse
    assert both


# --- the program, played by a few lines of Python

PLAYED = """#!{python}
import os, sys
words = sys.argv[1:]
def value(flag): return words[words.index(flag) + 1] if flag in words else None
if "--help" in words:
    print("  -o <op>"); sys.exit(1)
if value("-b") == "-" or words[0] == "test":
    print("Backend 1/2: GPU0\\n  Skipping\\nBackend 2/2: CPU\\n  Skipping", flush=True)
if words[0] == "support" and value("-b") != "-":
    print('"op_name","op_params","supported"')
    for op, n, yes in (("ADD", 1, 1), ("ADD", 2, 0), ("MUL", 1, 1), ("MUL", 2, 1), ("SQR", 1, 0)):
        print('"%s","n=%d","%d"' % (op, n, yes))
if words[0] == "test":
    ops = (value("-o") or "ADD,MUL,SQR,MUL_ADD").split(",")
    if "ADD" in ops:
        print("  ADD(n=1): OK\\n  ADD(n=2): not supported [GPU0]", flush=True)
    if "MUL" in ops:
        print("[MUL] ERR = 0.3 > 0.1   MUL(n=1): FAIL", flush=True)
        {mul}
        print("  MUL(n=2): OK", flush=True)
    if "MUL_ADD" in ops:
        print("  MUL_ADD(n=1): OK", flush=True)
"""


def played(tmp_path, mul):
    path = tmp_path / "test-backend-ops"
    path.write_text(PLAYED.format(python=sys.executable, mul=mul))
    path.chmod(0o755)
    return OpProgram(path, (tmp_path,), current())


def test_all_cases_are_counted(tmp_path):
    shares = []
    found = check_ops("gpu0", played(tmp_path, "pass"), progress=shares.append)
    assert found.device == "GPU0" and not found
    by_op = {row.op: row for row in found.rows}
    assert (by_op["ADD"].ok, by_op["ADD"].unsupported) == (1, 1)
    assert (by_op["MUL"].ok, by_op["MUL"].failed) == (1, 1)
    assert by_op["MUL"].worst.params == "n=1"
    assert by_op["MUL"].worst.excess == pytest.approx(3)
    assert by_op["MUL_ADD"].ok == 1  # a combined op, which `support` does not list
    assert by_op["SQR"].unsupported == 1
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert "not supported in any case: SQR" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["failed"][0]["op"] == "MUL"


def test_an_op_that_ends_the_program_is_named_and_the_rest_is_tested(tmp_path):
    dies = "print('x.c:1: GGML_ASSERT(false) failed', flush=True); os.abort()"
    found = check_ops("GPU0", played(tmp_path, dies))
    by_op = {row.op: row for row in found.rows}
    assert by_op["MUL"].ended == "SIGABRT: x.c:1: GGML_ASSERT(false) failed"
    assert (by_op["MUL"].failed, by_op["MUL"].not_run) == (1, 1)
    assert (by_op["ADD"].ok, by_op["ADD"].ended) == (1, "")
    assert list(found.ended) == ["MUL"] and not found
    assert "the program ended in MUL" in found.headline()
    assert "combined ops were not tested" in str(found)


def test_nothing_is_computed_for_support(tmp_path):
    found = check_ops("GPU0", played(tmp_path, "os.abort()"), support_only=True)
    assert found.headline().startswith("GPU0, ggml ")
    assert "3 supported (nothing was computed), 2 not supported; 2 ops supported" in str(found)
    assert found.to_dict()["right"] is None


@pytest.mark.parametrize(
    ("device", "options", "says"),
    [
        ("gpu1", {}, "device 'gpu1': test-backend-ops sees GPU0, CPU$"),
        ("sim:gpu0", {}, "computes with the CPU's kernels: test CPU"),
        ("rpc:localhost:50052", {}, "run it on the server's machine"),
        ("CPU", {"ops": ["SQRT", "ADD"]}, "no case of SQRT; there are ADD, MUL, SQR"),
        ("CPU", {"plans": [None]}, "reads no ops from files.*ask a newer release"),
    ],
)
def test_bad_input(tmp_path, device, options, says):
    with pytest.raises(ValueError, match=says):
        check_ops(device, played(tmp_path, "pass"), **options)


def test_a_program_that_does_not_run(tmp_path):
    program = played(tmp_path, "pass")
    program.path.write_text(f"#!{sys.executable}\nimport os; os.abort()\n")
    with pytest.raises(RuntimeError, match="does not run: SIGABRT"):
        check_ops("CPU", program)


def test_the_names_of_a_build_are_at_their_numbers():
    ops, types = numbered_names(current())
    assert (ops[Op.MUL_MAT], types[Type.Q8_0], types[4]) == ("MUL_MAT", "Q8_0", "no_4")
    assert "COUNT" not in ops


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("CPU", "--against", "BLAS"), 2, "ggml-py diverge MODEL --between BLAS CPU"),
        (("CPU", "--upstream", "1", "--upstream", "2", "--upstream", "3"), 2, "one or two"),
        (("CPU", "--record", "there-is-none"), 1, "there-is-none: no such file"),
        (("CPU", "--upstream", "7.7.7", "--no-build"), 1, "7.7.7"),
    ],
)
def test_wrong_words(words, code, says):
    assert says in fails("ops", *words, code=code)


# --- upstream's own


@pytest.mark.thorough("programs")
@pytest.mark.parametrize("device", ["CPU", "BLAS"])
def test_upstreams_program_finds_nothing_wrong(device):
    found = json.loads(ok("ops", device, "-o", "OUT_PROD", "-o", "SOFT_MAX", "--json"))
    by_op = {row["op"]: row for row in found["ops"]}
    assert by_op["OUT_PROD"]["ok"] > 4 and found["right"]
    assert (by_op["SOFT_MAX"]["ok"] > 100) == (device == "CPU")


@pytest.mark.thorough("programs")
def test_the_ops_of_a_model(tmp_path):
    write_llama(tmp_path / "m.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    ok("plan", tmp_path / "m.gguf", "-d", "CPU", "--n-tokens", 8, "-o", tmp_path / "p.json.gz")
    printed = ok("ops", "CPU", "--record", tmp_path / "p.json.gz")
    assert "0 wrong" in printed and "SWIGLU" in printed
    refused = run("ops", "CPU", "--record", tmp_path / "m.gguf")
    assert refused.returncode == 2 and "is a model: save a plan of it" in refused.stderr


@pytest.mark.thorough("programs")
def test_the_page_shows_what_ops_prints():
    page = (Path(__file__).resolve().parents[2] / "docs" / "CONFORMANCE.md").read_text()
    ((command, shown),) = re.findall(r"(?s)```\n\$ ggml-py (ops .*?)\n(.*?)```", page)
    assert ok(*command.split()) == shown
