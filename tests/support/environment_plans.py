"""Prints the plans of many graphs. `test_environment.py` runs it with environment variables set."""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys

import ggml_py as ggml

from . import graphs, random_graphs


def plans(n_random):
    """(name, plan) of each graph: planned, planned again, and, if possible, allocated."""
    for name, make in graphs.CASES.items():
        case = make()
        for time in ("planned", "planned again"):
            yield f"{name}, {time}", case.scheduler.plan(case.graph)
        yield f"{name}, allocated", case.scheduler.alloc_graph(case.graph)
        case.close()
    for seed in range(n_random):
        world = random_graphs.build(random.Random(seed), n_graphs=2)
        world.pin()
        for i, graph in enumerate(world.graphs):
            try:
                yield f"random {seed}.{i}", world.scheduler.plan(graph)
            except ggml.GgmlError as error:
                yield f"random {seed}.{i}", error
        world.close()


def told(plan):
    """Everything in a plan except addresses, and how and when it was made."""
    if isinstance(plan, Exception):
        return {"error": f"{type(plan).__name__}: {str(plan).splitlines()[0]}"}
    # GGML_CPU_DISABLE_FUSION changes what the CPU fuses, which is part of plans.
    written = {k: v for k, v in plan.to_json().items() if k != "provenance"}
    data = re.sub(r'"fused": \[[\d, ]*\]', "", json.dumps(written, sort_keys=True))
    return {
        "used": plan.outcome.hash_set_used,
        "causes": [t.placement.cause for t in (*plan.nodes, *plan.leafs, *plan.copies)],
        "advice": [str(f) for f in plan.advice(0)],
        "text": hashlib.sha256(plan.text().encode()).hexdigest(),
        "plan": hashlib.sha256(data.encode()).hexdigest(),
    }


def main():
    """Prints a JSON object with the plans by the names of the graphs."""
    found = {name: told(plan) for name, plan in plans(int(sys.argv[1]))}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
