"""Several releases live side by side in one installation; GGML_PY_UPSTREAM selects one at start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PROGRAM = """
import json, sys
sys.path.insert(0, {here!r})
import graphs
import ggml_py as ggml
from ggml_py import enums
from ggml_py._ffi import BUILD
plans = {{}}
for name, make in graphs.CASES.items():
    case = make()
    first = case.scheduler.plan(case.graph)
    assert case.scheduler.plan(case.graph) == first
    assert case.scheduler.alloc_graph(case.graph) == first
    case.graph["inp"].set([[1.0] * case.graph["inp"].ne[0]] * case.graph["inp"].ne[1])
    case.scheduler.compute(case.graph)
    plans[name] = [(n.op, n.backend, n.record.cause) for n in first.nodes]
    case.close()
print(json.dumps({{
    "key": BUILD["key"],
    "enums": enums.UPSTREAM,
    "n_ops": len(enums.Op),
    "op_count": ggml.lib.GGML_OP_COUNT,
    "plans": plans,
}}))
"""


def run(upstream: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(here=str(HERE))],
        capture_output=True, text=True, check=False,
        env={**os.environ, "GGML_PY_UPSTREAM": upstream},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("selector", "version"), [("0.2.4", "0.9.4"), ("b10566", "0.21.0")])
def test_an_older_release_beside_the_default(selector, version):
    command = [sys.executable, "-m", "ggml_py", "build", "--upstream", selector, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    key = json.loads(done.stdout.splitlines()[-1])["key"]
    older, default = run(selector), run("0.26.0")
    assert older["key"] == key != default["key"]
    # its own numbers, generated from its own headers
    assert older["enums"] == version
    assert older["n_ops"] == older["op_count"] + 1
    assert default["n_ops"] == default["op_count"] + 1 >= older["n_ops"]
    # nothing in these small graphs is planned otherwise than today
    assert older["plans"] == default["plans"]
