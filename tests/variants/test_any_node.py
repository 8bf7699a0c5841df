"""Any node of any op can be asked about, and is made again as it was."""

import json
import time

import pytest

import ggml_py as ggml
from ggml_py.variants.nearest import MOST_ASKED
from ggml_py.variants.rebuild import Replay, node_of

from ..support import op_survival as survive
from ..support.blas_device import blas
from ..support.wild_nodes import wild


@pytest.fixture
def nothing():
    """A simulated device that supports nothing."""
    with ggml.sim_device("nearest0", supports=lambda _t: False) as device:
        yield device


@pytest.mark.thorough("long")
def test_any_node_is_made_again_as_it_was():
    by_constructor = total = 0
    for name in survive.NAMES:
        for seed in range(30):
            with ggml.Context(reserve=4 << 20) as ctx, ggml.Context() as scratch:
                node = wild(name, seed, ctx)
                if node is None or node.op.name in ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"):
                    continue
                replay = Replay(node_of(node), scratch)
                assert node_of(replay.build(replay.state)) == node_of(node), (name, seed)
                total += 1
                by_constructor += bool(replay.recipe.method)
                assert replay.is_made == bool(replay.recipe.method), (name, seed)
    assert total > 1500 and by_constructor > 0.98 * total


@pytest.mark.thorough("long")
@pytest.mark.parametrize("device", ["CPU", "BLAS", "nearest0"])
def test_any_node_can_be_asked_about(nothing, device):
    if device == "BLAS":
        blas()
    slowest, most = 0.0, 0
    for name in survive.NAMES:
        for seed in range(1):
            with ggml.Context(reserve=4 << 20) as ctx:
                node = wild(name, seed, ctx)
                if node is None:
                    continue
                before = (node.ne, node.nb, node.type, list(node._ptr.op_params), node.src)
                start = time.perf_counter()
                answer = ggml.nearest(node, ggml.device(device))
                slowest = max(slowest, time.perf_counter() - start)
                most = max(most, answer.tried)
                assert before == (node.ne, node.nb, node.type, list(node._ptr.op_params), node.src)
                json.dumps(answer.to_dict(), allow_nan=False)
                assert answer.render().startswith(answer.op)
    assert slowest < 5 and most < MOST_ASKED  # usually 0.03 s and 1,000
