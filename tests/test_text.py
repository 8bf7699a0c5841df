"""plan.text() is upstream's own debug print, line for line: captured from a pristine build."""

import json
import os
import subprocess
import sys
from pathlib import Path

import graphs
import pytest

from ggml_py.export import to_text

HERE = Path(__file__).parent

PRINT_CASES = """
import json, logging, sys
sys.path.insert(0, {here!r})
import graphs
from ggml_py._ffi import BUILD
assert BUILD["pristine"], BUILD
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("ggml").setLevel(logging.DEBUG)
logging.getLogger("ggml").addHandler(Keep())
printed = {{}}
for name, make in graphs.CASES.items():
    case = make()
    del lines[:]
    case.scheduler._alloc(case.graph)
    printed[name] = [l for l in lines if l.startswith(("## SPLIT", "node #")) or not l]
    case.scheduler._graph = None
    case.close()
print(json.dumps(printed))
"""


@pytest.fixture(scope="session")
def pristine() -> str:
    """The key of a pristine build of the installed package's release, made on first use."""
    command = [sys.executable, "-m", "ggml_py", "build", "--pristine", "--json"]
    env = {k: v for k, v in os.environ.items() if k != "GGML_PY_UPSTREAM"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["key"]


@pytest.fixture(scope="session")
def upstream_prints(pristine) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_CASES.format(here=str(HERE))],
        capture_output=True, text=True, check=False,
        env={**os.environ, "GGML_PY_UPSTREAM": pristine, "GGML_SCHED_DEBUG": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize("name", graphs.CASES)
def test_text_equals_upstreams_print(name, upstream_prints):
    case = graphs.CASES[name]()
    plan = case.scheduler.plan(case.graph)
    assert lines_of(to_text.render(plan, causes=False)) == lines_of(
        "\n".join(upstream_prints[name])
    )
    case.close()


def test_the_cause_column_is_filled():
    case = graphs.mlp()
    text = case.scheduler.plan(case.graph).text()
    assert "[ BLAS   1.wgt0]" in text and "[  CPU   3.best]" in text
    case.close()


def test_a_pristine_build_says_that_it_has_no_trace(pristine):
    program = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import graphs, ggml_py\n"
        "case = graphs.mlp()\n"
        "try: case.scheduler.plan(case.graph)\n"
        "except ggml_py.MissingFunctionError as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "GGML_PY_UPSTREAM": pristine},
    )  # fmt: skip
    assert "gp_sched_plan is not in this build" in done.stdout, done.stderr
