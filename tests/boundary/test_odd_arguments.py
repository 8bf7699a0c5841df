"""What each argument of each public call does with what does not fit: an error that says so."""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support import drawn_plans

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import api

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits what a process may have")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[api.World]:
    """One object of each kind, a plan and a run."""
    before = Path.cwd()
    os.chdir(tmp_path)  # names of files among the arguments
    world = api.World(random.Random(1), tmp_path)
    plan = drawn_plans.llama(4)
    world.keep(plan)
    world.keep(drawn_plans.ran(plan))
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (2 << 30), limits[1]))  # who asks for more
    yield world
    resource.setrlimit(resource.RLIMIT_AS, limits)
    world.close()
    os.chdir(before)


def _calls(world: api.World) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield from api.functions()
    for kept in list(world.objects.values()):
        for name in api.members(type(kept[0])):
            if name != "close" and callable(getattr(type(kept[0]), name, None)):
                yield f"{type(kept[0]).__name__}.{name}", getattr(kept[0], name)


def _refusal(call: Callable[..., Any], given: dict[str, Any]) -> str | None:
    """What is wrong with how it ends."""
    try:
        call(**given)
    except api.REFUSALS as error:
        return None if str(error) else f"a {type(error).__name__} without a message"
    except LookupError as error:
        return None if " " in str(error) else f"a bare {error!r}"
    except Exception as error:
        return repr(error)
    return None


@pytest.mark.thorough("long")
def test_each_argument_of_each_call(world):
    wrong, n_calls = [], 0
    for name, call in _calls(world):
        with contextlib.suppress(ValueError):  # a few builtins have no signature
            parameters = inspect.signature(call).parameters.values()
            needed = [p for p in parameters if p.kind in NAMED and p.default is p.empty]
            for asked in (p.name for p in parameters if p.kind in NAMED):
                for odd in api.ODD:
                    given = {p.name: world.argument(str(p.annotation)) for p in needed}
                    found = _refusal(call, {**given, asked: odd})
                    n_calls += 1
                    if found:
                        wrong.append(f"{name}({asked}={odd!r:.30}): {found}")
    assert not wrong, "\n".join(wrong)
    assert n_calls > 5000


def test_a_call_that_says_nothing_is_noticed():
    def bare(x: object) -> None:
        raise KeyError(x)

    assert _refusal(bare, {"x": 1}) and _refusal(lambda x: x.ptr, {"x": 1})
    assert _refusal(lambda x: int(x).to_bytes(1, "big"), {"x": -1})  # "can't convert negative int"
