"""Graphs with many inputs."""

from ggml_py.trace.record import (
    LEAF,
    NODE,
    BackendRecord,
    BuftRecord,
    Capture,
    Settings,
)

from .captures import tensor


def many_inputs(n, upstream, capacities=(), n_copies=1):
    """A chain of n nodes on gpu0; each reads another graph input, which is on the CPU."""
    settings = Settings(upstream, f"{upstream}-0", True, n_copies, 0, 1000, 0)
    backends = (BackendRecord("gpu0", "gpu0", "GPU", 0), BackendRecord("CPU", "CPU", "CPU", 1))
    bufts = (BuftRecord("gpu0", False, 1), BuftRecord("CPU", True, 2))
    nodes = [
        tensor(
            i, NODE, f"n{i}", "ADD", src=(max(i - 1, 0) if i else n, n + i), supports=3, pin=0
        )
        for i in range(n)
    ]  # fmt: skip
    leafs = [tensor(n + i, LEAF, f"x{i}", flags=("input",), supports=3) for i in range(n)]
    leaf_ids = tuple(t.id for t in leafs)
    return Capture(
        settings, backends, bufts, (), (*nodes, *leafs), leaf_ids, split_capacities=capacities
    )
