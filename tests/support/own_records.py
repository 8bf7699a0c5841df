"""Records of this process."""

import numpy as np

import ggml_py as ggml

from . import graphs


def computed(case, times=1):
    """Allocates the case's graph and computes it."""
    case.scheduler.alloc_graph(case.graph)
    for leaf in case.graph.leafs:
        if ggml.enums.TensorFlag.INPUT in leaf.flags:
            leaf.set(np.ones(leaf.shape, np.float32))
    for _ in range(times):
        case.scheduler.compute(case.graph)


def recorded(path, **options):
    """A record of two graphs on one scheduler each, the first computed twice."""
    with ggml.record(path, **options) as record:
        for _ in range(2):
            case = graphs.mlp()
            computed(case, times=2)
            case.close()
        other = graphs.views()
        other.scheduler.alloc_graph(other.graph)
        other.close()
    return record
