"""Reads tens of thousands of mutated plan files, and asks everything of those that are still plans.

    python benchmarks/fuzz_plan.py --cases 20000               about five minutes

A file that is not a plan must be refused with a ValueError. A file that is a plan must answer
everything that a plan can be asked. Any other exception, or more than five seconds, is a finding.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import search

sys.path.append(str(search.REPO))
import ggml_py as ggml
from ggml_py.export.json import plan_file as to_json
from tests.support import random_graphs

N_PLANS = 40
ODD = (
    -1, -2, 0, 1, 2, 3, 4, 5, 7, 16, 31, 64, 1 << 31, -(1 << 31), 1 << 63, 1 << 64, 10**30, True,
    False, None, "", "x", "x" * 300, "\ud800", "\0", "1.wgt", "1.wgt9", "1.off", "4.cpy", "usr",
    "node", "leaf", "other", "copy", "weights", "input", "compute", "VIEW", "MUL_MAT", "0.9.4",
    "0.21.0", "0.x", "debug log", "scheduler", "reference", float("nan"), float("inf"), 0.5, [],
    {}, [[]], [-1], [0], [0, 0], [99], {"x": 1},
)  # fmt: skip


@cache
def plans() -> list[dict[str, Any]]:
    """The plans to mutate: of random graphs on random devices, and from debug prints."""
    found = []
    for seed in range(10 * N_PLANS):
        if len(found) == N_PLANS:
            break
        world = random_graphs.build(random.Random(seed), 1, 10)
        try:
            world.pin()
            plan = world.scheduler.plan(world.graphs[0])
        except ggml.ArgumentError:
            continue
        finally:
            world.close()
        found.append(plan)
    logs = [ggml.Plan.from_debug_log(p.text()) for p in found[:8] if "node #" in p.text()]
    return [json.loads(json.dumps(p.to_json())) for p in found + logs]


@cache
def parsed() -> list[ggml.Plan]:
    """The same plans, parsed."""
    return [ggml.Plan.of(to_json.parse(json.dumps(data).encode(), "other")) for data in plans()]


# --- the mutator


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items if isinstance(data, dict | list) else ():
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))
        else:
            yield (*path, key)


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def _row(rng: random.Random, data: dict[str, Any]) -> tuple[Any, Any]:
    """A random row of a table, or the settings, and one of its fields."""
    table = rng.choice(
        ["tensors"] * 6 + ["splits", "bufts", "buffers", "backends", "settings", "settings", ""]
    )
    rows = data[table] if table else data
    row = rng.choice(rows) if isinstance(rows, list) and rows else rows
    return (row, rng.choice(list(row))) if row else (data, rng.choice(list(data)))


def _like(rng: random.Random, data: dict[str, Any]) -> None:
    """Sets another row's value, or a number close to the old one: often it is still a plan."""
    row, key = _row(rng, data)
    value = row[key]
    if isinstance(value, bool):
        row[key] = not value
    elif isinstance(value, int) and rng.random() < 0.6:
        row[key] = max(value + rng.choice((-2, -1, 1, 2, 5)), -1)
    elif isinstance(value, list) and value and rng.random() < 0.7:
        i = rng.randrange(len(value))
        if isinstance(value[i], int):
            value[i] = rng.choice((-1, 0, value[i] + 1, value[i] - 1, rng.randint(0, 20)))
    elif key in data["tensors"][0]:
        row[key] = copy.deepcopy(rng.choice(data["tensors"])[key])


def _edges(rng: random.Random, data: dict[str, Any]) -> None:
    """Changes a source or view source."""
    t = rng.choice(data["tensors"])
    id = rng.randint(-1, len(data["tensors"]))
    if rng.random() < 0.5 or not t["src"]:
        t["view_src"] = rng.choice((id, t["id"]))
    else:
        t["src"][rng.randrange(len(t["src"]))] = id


def _answers(rng: random.Random, data: dict[str, Any]) -> None:
    """Changes what backends answered at planning time."""
    for t in data["tensors"]:
        for key in ("supports", "offload"):
            if rng.random() < 0.3:
                t[key] = rng.getrandbits(len(data["backends"]))
    for buft in data["bufts"]:
        if rng.random() < 0.3:
            buft["readers"] = rng.getrandbits(len(data["backends"]))


def _odd(rng: random.Random, data: dict[str, Any]) -> None:
    row, key = _row(rng, data)
    row[key] = copy.deepcopy(rng.choice(ODD))


def _anywhere(rng: random.Random, data: dict[str, Any]) -> None:
    path = rng.choice(list(_places(data))[1:])
    _at(data, path[:-1])[path[-1]] = copy.deepcopy(rng.choice(ODD))


def _lost(rng: random.Random, data: dict[str, Any]) -> None:
    path = rng.choice(list(_places(data))[1:])
    del _at(data, path[:-1])[path[-1]]


def _rows(rng: random.Random, data: dict[str, Any]) -> None:
    """Deletes, repeats or moves a row."""
    rows = data[rng.choice(["tensors", "splits", "bufts", "buffers", "backends", "leafs"])]
    if not rows:
        return
    row = rows.pop(rng.randrange(len(rows)))
    for _ in range(rng.randint(0, 2)):
        rows.insert(rng.randint(0, len(rows)), copy.deepcopy(row))


KINDS: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    _like, _like, _like, _like, _edges, _answers, _odd, _anywhere, _lost, _rows,
)  # fmt: skip


def mutant(seed: int) -> tuple[bytes, str]:
    """The content of a file, and the mutations in it."""
    rng = random.Random(seed)
    data = copy.deepcopy(rng.choice(plans()))
    names = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.choice(KINDS)
        names.append(kind.__name__.strip("_"))
        try:
            kind(rng, data)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            break  # an earlier mutation removed what this one would change
    content = json.dumps(data).encode()
    if rng.random() < 0.05:
        names.append("bytes")
        at = rng.randrange(len(content))
        flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
        content = rng.choice((
            content[:at], content[:at] + flipped + content[at + 1 :],
            content[:at] + b"[" * 100_000 + content[at:],
            content[:at] + b"9" * 5000 + content[at:],
        ))  # fmt: skip
    return content, ", ".join(names)


# --- questions to a plan


def ask(plan: ggml.Plan, rng: random.Random) -> None:
    """Asks everything once. Refusals must be ValueErrors with a message."""
    repr(plan), plan.headline(), plan.shares(), plan.copy_bytes, plan.assignments, plan.unknown
    plan.text(), plan.advice(), plan.advice(0), plan.find("*")
    [repr(s) for s in plan.splits], [s.nodes for s in plan.splits]
    for t in map(plan.tensor, range(len(plan.tensors))):
        repr(t), t.cause.text, t.split, t.flops, t.buft, t.buffer, t.view_src
        answer = plan.explain(t)
        str(answer), answer.to_dict(), answer.headline, answer.root
    plan.find("*"), plan.diff(plan), hash(plan)
    assert not plan.diff(plan), "differs from itself"
    again = ggml.Plan.of(to_json.parse(json.dumps(plan.to_json()).encode(), "again"))
    assert again == plan, "another plan when it is written and read"
    if not plan.nodes:  # a log of level 1
        return
    other = rng.choice(parsed())
    str(plan.diff(other)), str(other.diff(plan)), plan.diff(other).to_dict()
    node, backend = rng.choice(plan.nodes), rng.choice(plan.backends).name
    name = node.name
    for call in (
        plan.passes,
        lambda: [str(s) for s in plan.steps],
        lambda: [s.to_dict() for s in plan.steps],
        lambda: ask_reference(plan),
        *(
            lambda n=n, b=b: (str(w := plan.why_not(n, b.name)), w.to_dict())
            for n in rng.sample(plan.nodes, min(3, len(plan.nodes))) for b in plan.backends
        ),
        lambda: plan.what_if(pins={node.id: backend}),
        lambda: plan.what_if(supports={(backend, node.op): rng.random() < 0.5}),
        lambda: plan.what_if(offload={(backend, node.op): 8}, op_offload=True),
        lambda: plan.what_if(move_weights={"*": backend}),
        lambda: plan.what_if(drop=[backend]),
        lambda: plan.what_if(upstream="0.9.4", parallel=True),
        lambda: plan.what_if(upstream="0.21.0", parallel=False),
        lambda: plan.what_if(pins={name: None}),
    ):  # fmt: skip
        try:
            call()
        except (ValueError, KeyError) as error:
            if type(error).__name__ not in ("ValueError", "CannotPlanError", "KeyError"):
                raise
            if isinstance(error, KeyError) and " " not in str(error.args[0]):
                raise  # a dict's KeyError
            assert str(error), "an error without a message"


def ask_reference(plan: ggml.Plan) -> None:
    """Asks for the reference's plan and its differences."""
    str(plan.diff(plan.reference))
    plan.reference.headline(), plan.reference.text(), plan.reference.advice()


def case(seed: int) -> str:
    """Whether the mutant is refused, or answers everything that a plan can be asked."""
    try:
        plan = ggml.Plan.of(to_json.parse(mutant(seed)[0], "m.json"))
    except ValueError as error:
        if type(error) is ValueError and str(error).startswith("m.json "):
            return "refused"
        raise
    ask(plan, random.Random(seed))
    return "asked"


SEARCH = search.Search(
    "fuzz_plan", ("ggml_py/trace/*.py", "ggml_py/trace/*/*.py", "ggml_py/export/json/*.py"), case,
    limit_s=5.0,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
