"""Damaged plan files: values, edges, answers, keys and rows of real plans that were changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import ggml_py as ggml
from ggml_py.export.json import plan_file
from ggml_py.scheduler.as_recorded import AsRecorded

from . import random_graphs
from .op_survival import NAMES
from .wild_nodes import wild

N_PLANS = 40
ODD = (
    -1, -2, 0, 1, 2, 3, 4, 5, 7, 16, 31, 64, 1 << 31, -(1 << 31), 1 << 63, 1 << 64, 10**30, True,
    False, None, "", "x", "x" * 300, "\ud800", "\0", "1.wgt", "1.wgt9", "1.off", "4.cpy", "usr",
    "node", "leaf", "other", "copy", "weights", "input", "compute", "VIEW", "MUL_MAT", "0.9.4",
    "0.21.0", "0.x", "debug log", "scheduler", "reference", float("nan"), float("inf"), 0.5, [],
    {}, [[]], [-1], [0], [0, 0], [99], {"x": 1},
)  # fmt: skip


SIZES = ("ne", "nb", "view_offs", "op_params", "type", "nbytes", "op", "op_desc", "flags", "src")


@cache
def plans() -> list[ggml.Plan]:
    """The plans to mutate: of random graphs on random devices, of each op, of debug prints."""
    found: list[ggml.Plan] = []
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
    data = [json.dumps(p.to_json()).encode() for p in (*found, *logs, *_of_ops())]
    return [ggml.Plan.of(plan_file.parse(content, "other")) for content in data]


def _of_ops() -> Iterator[ggml.Plan]:
    """For each op a plan with a node of it, and random arguments with which it can be computed."""
    with ggml.device("CPU").init() as cpu, ggml.Scheduler([cpu]) as scheduler:
        for name in NAMES:
            for seed in range(60):
                with ggml.Context(reserve=4 << 20) as context:
                    node = wild(name, seed, context)
                    if node is None or any(n > 1 << 20 for n in node.ne):
                        continue
                    graph = context.new_graph(64)
                    graph.build_forward_expand(node)
                    try:
                        plan = scheduler.plan(graph)
                        with AsRecorded(plan, n_threads=1) as recorded:
                            computed = not recorded.observe(plan).left_out
                    except ggml.ArgumentError:
                        continue
                if computed:
                    yield plan
                    break


@cache
def files() -> list[dict[str, Any]]:
    """The same plans as data."""
    return [json.loads(json.dumps(p.to_json())) for p in plans()]


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items if isinstance(data, dict | list) else ():
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))
        else:
            yield (*path, key)


def at(data: Any, path: tuple[Any, ...]) -> Any:
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
    path = rng.choice(list(places(data))[1:])
    at(data, path[:-1])[path[-1]] = copy.deepcopy(rng.choice(ODD))


def _lost(rng: random.Random, data: dict[str, Any]) -> None:
    path = rng.choice(list(places(data))[1:])
    del at(data, path[:-1])[path[-1]]


def _rows(rng: random.Random, data: dict[str, Any]) -> None:
    """Deletes, repeats or moves a row."""
    rows = data[rng.choice(["tensors", "splits", "bufts", "buffers", "backends", "leafs"])]
    if not rows:
        return
    row = rows.pop(rng.randrange(len(rows)))
    for _ in range(rng.randint(0, 2)):
        rows.insert(rng.randint(0, len(rows)), copy.deepcopy(row))


def _node(rng: random.Random, data: dict[str, Any]) -> None:
    """Changes what native code relies on: shapes, strides, types, parameters and ops."""
    t, other = rng.choice(data["tensors"]), rng.choice(data["tensors"])
    key = rng.choice(SIZES)
    if isinstance(t[key], list) and t[key] and key != "flags" and rng.random() < 0.8:
        number = rng.choice((0, 1, 3, 8, 64, 1 << 20, (1 << 31) - 1, -1, 1 << 40))
        t[key][rng.randrange(len(t[key]))] = number
    else:
        t[key] = copy.deepcopy(other[key])


KINDS: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    _like, _like, _node, _node, _node, _edges, _answers, _odd, _anywhere, _lost, _rows,
)  # fmt: skip


def damaged_json(rng: random.Random, data: Any) -> Any:
    """The data with some values taken away or replaced by odd ones."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        paths = list(places(data))[1:]
        if not paths:
            break
        path = rng.choice(paths)
        owner = at(data, path[:-1])
        if rng.random() < 0.3:
            del owner[path[-1]]
        else:
            owner[path[-1]] = copy.deepcopy(rng.choice(ODD))
    return data


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """The content with bits flipped, cut, or with nesting or digits without end."""
    raw = bytearray(content)
    if rng.random() < 0.3:
        where = rng.randrange(len(raw))
        raw[where:where] = rng.choice((b"[" * 100_000, b"9" * 5000))
    for _ in range(rng.choice((1, 3, 20))):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw[: rng.randint(1, len(raw))] if rng.random() < 0.3 else raw)


def mutant(seed: int) -> tuple[bytes, str]:
    """The content of a file, and the mutations in it."""
    rng = random.Random(seed)
    data = copy.deepcopy(rng.choice(files()))
    names = []
    kinds = (_node,) if rng.random() < 0.4 else KINDS
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.choice(kinds)
        names.append(kind.__name__.strip("_"))
        try:
            kind(rng, data)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            break  # an earlier mutation removed what this one would change
    content = json.dumps(data).encode()
    if rng.random() < 0.05:
        names.append("bytes")
        content = damaged_bytes(rng, content)
    return content, ", ".join(names)
