"""No op can be made to end the process, whatever it is called with."""

import os
import subprocess
import sys

import pytest

from ..support.op_survival import call


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


LONG = pytest.mark.thorough("long")


@pytest.mark.parametrize(
    ("n", "n_threads"),
    [
        pytest.param(200, 0, marks=LONG), pytest.param(60, 1, marks=LONG),
        pytest.param(10, 2, marks=LONG), (20, 0), (2, 2),
    ],
)
def test_no_op_ends_the_process(n, n_threads):
    """Made only, then computed too, on one thread and on two."""
    done = run(f"from tests.support.op_survival import main; main({n}, {n_threads})")
    last = done.stdout.splitlines()[-1]
    assert last.startswith("survived"), f"died (exit {done.returncode}) in {last}\n{done.stderr}"
    assert ("'computed'" if n_threads else "'ok'") in last and "'AbortError'" in last


def test_a_death_would_be_noticed():
    done = run("import os; print('some_op', flush=True); os.abort()")
    assert done.returncode != 0 and not done.stdout.splitlines()[-1].startswith("survived")


@pytest.mark.parametrize("name", ["add", "mul_mat", "view_4d"])
def test_calls_are_the_same_for_a_seed(name):
    assert [call(name, i) for i in range(20)] == [call(name, i) for i in range(20)]
