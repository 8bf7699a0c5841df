"""Public calls with arguments that do not fit: each raises an error that says so.

tests/support/odd_calls.py makes the calls from the signatures.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.typed import typed

from ..support import odd_calls

OF_LIBLLAMA = ("LlamaModel", "Tokenizer", "llama.open", "Plan.cost")


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits what a process may have")


def outcome(labels):
    with ThreadPoolExecutor(2) as pool:
        halves = [*pool.map(odd_calls.run, (labels[::2], labels[1::2]))]
    wrong = [line for lines, _n in halves for line in lines]
    assert not wrong, "\n".join(wrong)
    return sum(n for _lines, n in halves)


def test_some_arguments_of_some_calls():
    calls = [name for name in odd_calls.calls() if not name.startswith(("Context.", *OF_LIBLLAMA))]
    assert outcome(calls[::24]) > 300


@pytest.mark.needs(release="default")
@pytest.mark.thorough("sample")
def test_each_argument_of_each_call():
    calls = list(odd_calls.calls())
    assert len(calls) > 450
    assert {"Model.eval", "LlamaModel.seq_rm", "Scheduler.plan", "ggml_py.device"} <= {*calls}
    assert outcome(calls) > 80_000


def _c(value):
    return ggml.ffi.new("int32_t *", value)


def _bare(value):
    raise KeyError(value)


@pytest.mark.parametrize(
    "act",
    [
        lambda: len(5), lambda: None.x, lambda: _c("a"), lambda: {}[[]], lambda: "a".encode("cp0"),
        lambda: np.zeros(2)[9], lambda: _bare(3), lambda: (-1).to_bytes(1, "big"),
        lambda: int(np.ones(2) > 0), lambda: "\ud800".encode(),
    ],
)  # fmt: skip
def test_an_error_that_nobody_wrote_for_the_caller_is_noticed(act):
    with pytest.raises(Exception) as caught:
        act()
    assert odd_calls.flaw(caught.value)


@pytest.mark.thorough("long")
def test_a_death_and_a_hang_are_noticed(monkeypatch):
    monkeypatch.setattr(odd_calls, "HANG_S", 1.0)
    wrong, _n = odd_calls.run(["test: hangs", "test: dies", "ggml_py.device"])
    assert wrong == ["hangs: hangs for more than 1 s", "dies: ends the process (-9)"]


@typed
def _typed(n: int, text: str | None = None, *rest: float, some: dict[str, list[int]] = {}) -> None:  # noqa: B006
    return n, text, rest, some


@typed("n")
def _partly(n: int, path: str) -> object:
    return n, path


TYPED = {
    "n: expected a whole number, got NoneType": lambda: _typed(None),
    "n: expected a whole number, got bool True": lambda: _typed(True),
    "text: expected a str or None, got bytes": lambda: _typed(1, b"x"),
    "rest: expected a number, got str '2'": lambda: _typed(1, "x", 1.5, "2"),
    "some['a'][1]: expected a whole number, got NoneType": lambda: _typed(1, some={"a": [1, None]}),
    "a key of some: expected a str, got int 1": lambda: _typed(1, some={1: []}),
    "some: expected a dict {a str: a sequence of whole numbers}, got list []": (
        lambda: _typed(1, some=[])
    ),
    "n: expected a whole number, got float 1.5": lambda: _partly(1.5, 2),
}


@pytest.mark.parametrize("words", TYPED)
def test_what_annotations_say(words):
    with pytest.raises(TypeError) as caught:
        TYPED[words]()
    assert str(caught.value) == words


def test_what_fits_annotations():
    assert _typed(np.int64(1), None, np.float32(2), 3) == (1, None, (2, 3), {})
    assert _typed(1, some={"a": [1]})[3] == {"a": [1]}
    assert _partly(1, 2) == (1, 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'n'"):
        _typed()
