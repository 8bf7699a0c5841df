"""Variables of ggml's in the environment change nothing that we say of our own plans."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# What upstream's files that we compile look up, and why it cannot change an answer of ours.
LOOKED_UP = {
    "GGML_SCHED_DEBUG": "print_assignments only asks, and asking inserts nothing",
    "GGML_SCHED_DEBUG_REALLOC": "an abort on purpose, but for layouts that only we refuse",
    "GGML_NO_BACKTRACE": "what an abort prints, where no callback is set",
    "GGML_BACKTRACE_LLDB": "what an abort prints, where no callback is set",
    "GGML_BACKEND_PATH": "one more library that load_all loads; devices() shows its devices",
    "GGML_DISABLE_VULKAN": "devices() shows those that are there",
    "GGML_META_DEBUG": "prints",
    "GGML_RPC_DEBUG": "prints",
    "GGML_RPC_NO_COMM": "how RPC servers exchange data",
    "GGML_RPC_NO_RDMA": "how RPC connects",
    "GGML_RDMA_DEV": "how RPC connects",
    "GGML_RDMA_GID": "how RPC connects",
    "GGML_CPU_DISABLE_FUSION": "how the CPU computes a node, after planning",
    "GGML_CPU_TILED_MM": "how the CPU computes a node, after planning",
    "GGML_CPU_TILED_MM_FORCE": "how the CPU computes a node, after planning",
    "OMP_WAIT_POLICY": "how OpenMP's threads wait (in a comment there)",
    "KMP_BLOCKTIME": "how long OpenMP's threads spin",
}
SET = {
    "GGML_SCHED_DEBUG": ("1", "2"),
    "GGML_SCHED_DEBUG_REALLOC": ("1",),
    "GGML_OP_OFFLOAD_MIN_BATCH": ("1",),
    "GGML_CPU_DISABLE_FUSION": ("1",),
    "GGML_NO_BACKTRACE": ("1",),
    "LLAMA_GRAPH_REUSE_DISABLE": ("1",),
    "LLAMA_ARG_N_GPU_LAYERS": ("99",),
}


def told(n_random, **variables):
    """What `environment_plans.py` prints with these variables and no other of ggml's."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_S", "GGML_C", "LLAMA_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.environment_plans", str(n_random)],
        env={**ours, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def plain():
    return told(40)


@pytest.mark.thorough("cases", quick=2)
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in SET.items() for value in values]
)
def test_plans_are_the_same_with_a_variable_of_ggmls(plain, name, value):
    assert len(plain) > 60
    assert told(40, **{name: value}) == plain


@pytest.mark.thorough("sample")
def test_random_plans_are_the_same_with_the_debug_print():
    assert told(300, GGML_SCHED_DEBUG="2") == told(300)


SWAPPED = """
import ggml_py as ggml
gpu0 = ggml.sim_device("gpu0")  # with one buffer type the allocator reserves by itself
with gpu0.init() as gpu, ggml.device("CPU").init() as cpu, ggml.Context() as ctx:
    a, b = (ctx.new_tensor("f32", 64, name=n) for n in "ab")
    a.set_input(), b.set_input()
    with ggml.Scheduler([gpu, cpu]) as sched:
        for swapped in (False, True):
            s, t = ctx.sqr(a), ctx.sqr(b)
            x = ctx.add(s, t)
            y = ctx.mul(x, x if swapped else s)
            graph = ctx.new_graph()
            graph.build_forward_expand(y)
            sched.reset()
            sched.alloc_graph(graph)
        print(sched.reallocations[-1])
"""


def test_a_layout_that_only_we_refuse_is_not_called_unexpected():
    env = {**os.environ, "GGML_SCHED_DEBUG_REALLOC": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SWAPPED], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "edges" in done.stdout


def test_every_variable_that_upstream_looks_up_is_known():
    """A new one has to be looked at: it may change what we say."""
    from ggml_py.boundary.ffi import BUILD

    label = BUILD["ggml_version"]
    folders = (Path.home() / ".cache/ggml_py/sources").glob(f"{label}-*-whole/ggml/src")
    source = next(folders, None)
    if source is None:
        pytest.skip(f"the whole sources of ggml {label} are not here (`make oracle` gets them)")
    files = [*source.glob("*.c*"), *source.glob("ggml-cpu/*.c*"), *source.glob("ggml-cpu/tiled/*")]
    files += [f for b in ("blas", "rpc") for f in source.glob(f"ggml-{b}/*.cpp")]
    found = {
        name
        for file in files
        for name in re.findall(r'getenv\("(\w+)"\)', file.read_text(errors="replace"))
    }
    assert len(found) > 10
    assert found <= LOOKED_UP.keys()
