"""Misuse raises an exception at the user's line. Its message has the given and the expected value.
The process lives, and the library goes on. The rows are in tests/support/misuses.
"""

import gc
import importlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.handle import LIVE

from ..support import misuses
from ..support.misuses import Env, Misuse, misuse, user_frames

PYTHONS_OWN = (TypeError, ValueError, KeyError, AttributeError)
AREAS = sorted(table.stem for table in Path(misuses.__file__).parent.glob("[a-z]*.py"))
ROWS = {
    f"{area}/{row.id}": row
    for area in AREAS
    for row in importlib.import_module(f"{misuses.__name__}.{area}").MISUSES
}


def counts():
    gc.collect()
    return {kind: n for kind, n in LIVE.items() if n}


def error_of(row: Misuse, env: Env) -> BaseException:
    """What the row raises, after its class and its place were looked at."""
    with pytest.raises(row.error) as caught:
        row.act(env)
    error = caught.value
    assert isinstance(error, (ggml.GgmlError, *PYTHONS_OWN)), type(error)
    line = user_frames(error, row.file)[-1].lineno
    assert line in row.lines, f"raised at line {line}, the mistake is at {sorted(row.lines)}"
    return error


def check(row: Misuse, tmp_path: Path) -> None:
    before = counts()
    env = Env(tmp_path)
    try:
        message = str(error := error_of(row, env))
        missing = [word for word in row.words if word not in message]
        assert not missing, f"{type(error).__name__}: {message}\nlacks {missing}"
        assert row.abort or not isinstance(error, ggml.AbortError), f"bare abort: {message}"
        if row.spoils:
            with pytest.raises(ggml.SpoiledError, match="close it and make another"):
                env.scheduler.plan(env.graph)
        elif env.whole:
            assert env.computes()
    finally:
        error = None
        env.close()
    canary = Env(tmp_path)
    assert [n.backend for n in canary.scheduler.plan(canary.graph).nodes] == ["CPU", "CPU"]
    assert canary.computes()
    canary.close()
    assert counts() == before


@pytest.mark.thorough("cases", quick=350)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs(*row.needs, release=row.release))
        for name, row in ROWS.items()
    ],
)
def test_misuse(name, tmp_path):
    check(ROWS[name], tmp_path)


def test_the_table_is_whole():
    assert len(ROWS) >= 600
    assert set(AREAS) >= {"handles", "tensor", "graph", "scheduler", "gguf", "ops", "threads"}


def test_ids_are_distinct():
    ids = Counter(
        f"{area}/{row.id}"
        for area in AREAS
        for row in importlib.import_module(f"{misuses.__name__}.{area}").MISUSES
    )
    assert [name for name, n in ids.items() if n > 1] == []


def _wrong(env):
    env.w.set(np.ones(3))


KEPT = []
BROKEN = {  # a row with a flaw, and what the check says of it
    "another class": (misuse("a", _wrong, KeyError, "64", "elements"), "has ne"),
    "nothing raised": (misuse("b", lambda e: e.x.ne, ValueError, "64", "elements"), "DID NOT"),
    "no such word": (misuse("c", _wrong, ValueError, "64 elements", "piano"), r"lacks \['piano'\]"),
    "another place": (
        misuse("d", lambda e: (_wrong(e), e.w.ne), ValueError, "64", "elements"),
        "the mistake is at",
    ),
    "a bare abort": (
        misuse("e", lambda e: e.other.add(e.w, e.x), ggml.AbortError, "w", "x"),
        "bare abort",
    ),
    "a leak": (
        misuse("f", lambda e: (KEPT.append(ggml.Context()), e.w.set([])), ValueError, "64", "ne"),
        r"assert \{.*'Context': ",
    ),
    "no error of ours": (
        misuse("g", lambda e: 1 // 0, ZeroDivisionError, "zero", "by"),
        "isinstance",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_would_notice(name, tmp_path):
    row, said = BROKEN[name]
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError), match=said):
        check(row, tmp_path)
    KEPT.clear()
