"""Nodes of any op, with random arguments."""

import inspect
import random

from . import op_survival as survive


def wild(name, seed, ctx):
    """A node of the op with whatever it takes; None where it takes nothing of it."""
    rng = random.Random(f"{name} {seed}")
    tensors = [survive.tensor(ctx, rng) for _ in range(4)]
    parameters = inspect.signature(getattr(ctx, name)).parameters.values()
    try:
        made = getattr(ctx, name)(
            *(survive.argument(str(p.annotation), tensors, rng) for p in parameters)
        )
    except survive.REFUSALS:
        return None
    return made if 0 not in made.ne and all(0 not in s.ne for s in made.src) else None
