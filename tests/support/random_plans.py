"""Plans of random graphs, for hypothesis."""

import random

from . import random_graphs
from .scheduler_checks import compare


def plans(seed, max_nodes):
    world = random_graphs.build(random.Random(seed), 2, max_nodes)
    try:
        world.pin()
        made = [compare(world, world.scheduler.plan, graph) for graph in world.graphs]
        return [p for p in made if p is not None]
    finally:
        world.close()
