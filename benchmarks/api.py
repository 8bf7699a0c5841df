"""Calls the whole public API in random order, with valid and invalid arguments.

    python benchmarks/api.py --cases 100000 --jobs 2

A case is a short program: up to forty calls of functions, constructors, methods, properties,
`with`, `del` and `close`, on objects that earlier calls returned. A mistake must raise an exception
that says what is wrong. Any other exception, or the death of the process, is a finding.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import os
import random
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import search

sys.path.append(str(search.REPO))
import ggml_py as ggml
from ggml_py.boundary.handle import LIVE, Handle
from ggml_py.sim import sim_device as sim
from tests.support import handle_kinds

MOST_MEMORY = 6 << 30  # bytes of address space: the system refuses to give more
CALLS = 40
KEPT = 12  # objects kept of each class
# What a mistake may raise. A KeyError or IndexError must say more than the key.
REFUSALS = (ggml.GgmlError, TypeError, ValueError, OSError, MemoryError)
# Functions that start processes, networks or training loops or run their arguments; plain records.
LEFT_OUT = {"isolate", "rpc_devices", "fit", "epoch", "progress_bar", "load_backend", "strict"}
LEFT_OUT |= {"Progress", "Epoch", "Plan", "Run", "Nearest", "Variant", "OptResult", "Reallocation"}
LEFT_OUT |= {"DeviceCaps", "DeviceProps", "Recording"}
ODD: tuple[Any, ...] = (
    None, -1, 0, 1, 2**31 - 1, 2**31, 2**63, -(2**63), 2**70, 1.5, float("nan"), True, "", "x",
    "\0", "\ud800", "CPU", b"x", [], [1, 2], (), {}, object(), np.float32(1), np.zeros(0), int,
)  # fmt: skip
INTS = (0, 1, 1, 2, 3, 4, 4, 8, 16, 32, 64, 128, 2048)
TYPES = ("f32", "f32", "f16", "i32", "q4_0", "i64", "bf16", "q6_K")


_serial = itertools.count()


class World:
    """The objects that the calls so far returned."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.rng = rng
        self.folder = folder
        self.objects: dict[type, list[Any]] = {}
        self.done: list[str] = []
        (folder / "empty").write_bytes(b"")
        (folder / "noise").write_bytes(rng.randbytes(300))
        for device in ggml.devices():
            self.keep(device)
        self.stand = handle_kinds.Stand(folder)
        for name, value in vars(self.stand).items():
            if name != "path":
                self.keep(value)
        for name in rng.sample(sorted(handle_kinds.KINDS), 4):
            self.keep(handle_kinds.KINDS[name].make(self.stand))
        self.furnish()

    def furnish(self) -> None:
        """Adds a simulated GPU with weights, and a graph over it and the CPU."""
        gpu = ggml.sim_device(f"gpu{next(_serial)}", memory=64 << 20)
        backends = [gpu.init(), self.stand.cpu]
        weights, context = ggml.Context(), ggml.Context()
        w = weights.new_tensor(self.rng.choice(("f32", "f16", "q4_0")), 32, 4)
        weights.alloc(backends[0], usage="weights")
        x = context.new_tensor("f32", 32, 3)
        x.set_input()
        y = context.soft_max(context.mul_mat(w, x))
        graph = context.new_graph(64)
        graph.build_forward_expand(y)
        scheduler = ggml.Scheduler(backends, graph_size=64, parallel=self.rng.random() < 0.3)
        for value in (gpu, backends[0], weights, context, w, x, y, graph, scheduler):
            self.keep(value)

    def keep(self, value: Any) -> None:
        """Keeps a value as an argument for later calls."""
        kept = self.objects.setdefault(type(value), [])
        kept.append(value)
        if len(kept) > KEPT:
            del kept[self.rng.randrange(len(kept))]

    def one_of(self, name: str) -> Any:
        """An object of the named class, or None."""
        named = [x for cls, kept in self.objects.items() for x in kept if name in names_of(cls)]
        return self.rng.choice(named) if named else None

    def argument(self, annotation: str) -> Any:
        """An argument, usually one that fits the annotation."""
        rng = self.rng
        if rng.random() < 0.04:
            return rng.choice(ODD)
        if rng.random() < 0.02:
            return self.one_of(rng.choice([cls.__name__ for cls in self.objects]))
        parts = [part.strip() for part in split_union(annotation)]
        part = rng.choice(parts)
        if part == "None" and len(parts) > 1 and rng.random() < 0.5:
            part = parts[0]
        return self.of_type(part)

    def of_type(self, part: str) -> Any:
        rng = self.rng
        if found := re.fullmatch(r"(?:Sequence|Iterable|tuple|list)\[(.*?)(?:, \.\.\.)?\]", part):
            return [self.of_type(found[1]) for _ in range(rng.choice((0, 1, 1, 2, 3, 4)))]
        if part.startswith(("Callable", "CustomFunction", "EvalFunction", "CopyFunction")):
            return rng.choice((lambda *_: None, lambda *_: True, lambda *_: int("x"), lambda *a: a))
        if part.startswith("enums."):
            return rng.choice((0, 1, 2, 3, 100, -1))
        if part.startswith("npt."):
            shape = [rng.choice((0, 1, 2, 4, 32)) for _ in range(rng.randint(0, 4))]
            return np.ones(shape, rng.choice(("f4", "i4", "f2", "u1", "f8")))
        if part.startswith("TypeLike"):
            return rng.choice(TYPES)
        if "Path" in part:
            names = ("empty", "noise", "missing", "new.gguf", "new.json", "new.bin", ".")
            return self.folder / rng.choice(names)
        values: dict[str, Callable[[], Any]] = {
            "int": lambda: rng.choice(INTS),
            "bool": lambda: rng.random() < 0.5,
            "float": lambda: rng.choice((0.0, 0.5, 1.0, -1.0, 1e30)),
            "str": lambda: rng.choice(("x", "a.weight", "CPU", "weights", "compute", "node_0")),
            "Any": lambda: rng.choice(ODD),
            "None": lambda: None,
        }
        return values[part]() if part in values else self.one_of(part.partition("[")[0])

    def call(self) -> None:
        """One random call, which may be refused."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.2:
            name, function = rng.choice(functions())
            owner = None
        else:
            every = [x for kept in self.objects.values() for x in kept]
            owner = rng.choice(every or [self.stand.context])
            if isinstance(owner, int | str | float):
                owner = self.one_of("Context")
            if isinstance(owner, ggml.Context) and kind < 0.45:
                name = rng.choice(ops())
            else:
                name = rng.choice(members(type(owner)))
            function = None
        self.done.append(f"{type(owner).__name__}.{name}" if owner is not None else name)
        try:
            result = self.outcome(owner, name, function)
        except REFUSALS as error:
            assert str(error), f"{self.done[-1]}: a {type(error).__name__} without a message"
            return
        except LookupError as error:
            assert " " in str(error), f"{self.done[-1]}: a bare {type(error).__name__}"
            return
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Handle | ggml.Tensor | ggml.Device | ggml.BufferType):
                self.keep(value)

    def outcome(self, owner: Any, name: str, function: Any) -> Any:
        if owner is None:
            return call(function, self.arguments(function))
        if name == "del":
            self.objects[type(owner)].remove(owner)
            del owner
            return gc.collect() if self.rng.random() < 0.2 else None
        if name == "with":
            with owner:
                return self.call()
        if name == "iter":
            return list(itertools.islice(iter(owner), 100))
        if name == "look":
            return repr(owner), str(owner), hash(owner), owner == owner, bool(owner)
        value = getattr(owner, name)
        if callable(value) and not isinstance(value, type):
            return call(value, self.arguments(value))
        settable = getattr(getattr(type(owner), name, None), "fset", None)
        if settable is not None and self.rng.random() < 0.3:
            setattr(owner, name, self.argument("Any"))
        return value

    def arguments(self, function: Any) -> tuple[list[Any], dict[str, Any]]:
        """Arguments for a call: those before `*args` by position, the others by name."""
        given: dict[str, Any] = {}
        first: list[Any] = []
        for p in inspect.signature(function).parameters.values():
            if p.kind in (p.VAR_KEYWORD, p.POSITIONAL_ONLY):
                continue
            if p.kind is p.VAR_POSITIONAL:
                first = list(given.values())
                first += [self.argument(str(p.annotation)) for _ in range(self.rng.randint(0, 4))]
                given = {}
                continue
            if p.default is p.empty or self.rng.random() < 0.3:
                given[p.name] = self.argument(str(p.annotation))
        return first, given

    def close(self) -> None:
        """Closes all open handles in random order."""
        open_ones = [x for kept in self.objects.values() for x in kept if isinstance(x, Handle)]
        self.rng.shuffle(open_ones)
        for handle in open_ones:
            with contextlib.suppress(ggml.GgmlError):
                handle.close()
        self.objects.clear()


def call(function: Any, arguments: tuple[list[Any], dict[str, Any]]) -> Any:
    return function(*arguments[0], **arguments[1])


def split_union(annotation: str) -> Iterator[str]:
    """The parts of `A | B[C | D]`, split at the outer bars."""
    depth, part = 0, ""
    for c in annotation:
        depth += (c in "[(") - (c in ")]")
        if c == "|" and depth == 0:
            yield part
            part = ""
        else:
            part += c
    yield part


@cache
def names_of(cls: type) -> frozenset[str]:
    return frozenset(base.__name__ for base in cls.__mro__)


@cache
def functions() -> list[tuple[str, Any]]:
    """The public functions and constructors."""
    values = [(name, getattr(ggml, name)) for name in ggml.__all__ if name not in LEFT_OUT]
    return [
        (name, v)
        for name, v in values
        if callable(v) and not (isinstance(v, type) and issubclass(v, BaseException))
        and not name.startswith("ff") and type(v).__module__ in ("builtins", "abc")
    ]  # fmt: skip


@cache
def ops() -> list[str]:
    return sorted(n for n, f in vars(ggml.ops.Ops).items() if n[0] != "_" and callable(f))


@cache
def members(cls: type) -> list[str]:
    """Public methods and properties, and other things to do with an object."""
    known = {name for name in dir(cls) if not name.startswith("_") and name not in ops()}
    known -= {"ptr", "graph_dump_dot", "compute_by"}  # the last one runs its argument
    found = sorted(known)
    found += [name for name in found if "comput" in name or "alloc" in name]  # twice as often
    found += ["look", "del"]
    found += ["with"] if hasattr(cls, "__enter__") else []
    found += ["iter"] if hasattr(cls, "__iter__") or hasattr(cls, "__getitem__") else []
    return found


def case(seed: int) -> str:
    """One program."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.RLIM_INFINITY))
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # arguments may be file names
        world = World(rng, Path(folder))
        try:
            for _ in range(rng.randint(4, CALLS)):
                world.call()
        except Exception:
            print(*world.done[-12:], sep="\n", file=sys.stderr)
            raise
        finally:
            world.close()
            os.chdir(search.REPO)
    del world
    gc.collect()
    for device in reversed(list(sim._sims.values())):  # those that share a buffer type came later
        with contextlib.suppress(ggml.ArgumentError):
            device.close()
    left = {kind: n for kind, n in LIVE.items() if n}
    assert not left and not sim._sims, f"never closed: {left}, {list(sim._sims)}"
    return "lived"


SEARCH = search.Search(
    "api",
    (*search.OBJECTS, "ggml_py/native/*.cpp", "ggml_py/native/*.h", "vendor/*edits.py",
     "vendor/instrument.py", "vendor/bindgen*.py", "vendor/headers.py"),
    case,
    limit_s=20,
    per_process=200,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
