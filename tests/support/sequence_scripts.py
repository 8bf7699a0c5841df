"""Scripts of operations on a model's sequences, run by us and by libllama, compared bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ggml_py import ModelError
from ggml_py.llama import LlamaModel
from ggml_py.models import Batch

from .arch_files import load
from .oracle_programs import Oracle

Command = tuple[Any, ...]  # ("decode", token, …) or the name of a method and its arguments
Walk = Callable[[LlamaModel], Iterable[Command]]


def t(token: int, seq: int | Sequence[int] = 0, logits: bool = True, pos: int | None = None):
    """A token of a "decode"."""
    return token, pos, (seq,) if isinstance(seq, int) else tuple(seq), logits


def run(start: int, n: int, seq: int | Sequence[int] = 0, last: bool = False, pos=None):
    """n tokens of a sequence, derived from `start`. With `last`, only the last one has logits."""
    return [
        t(
            (start * 31 + i * 7919 + 11) % 97,
            seq,
            not last or i == n - 1,
            None if pos is None else pos + i,
        )
        for i in range(n)
    ]


def _line(command: Command) -> str:
    name, *arguments = command
    if name != "decode":
        return " ".join([name, *("-1" if a is None else str(a) for a in arguments)])
    tokens = (
        f"{token}/{'-' if pos is None else pos}/{'+'.join(map(str, seqs))}/{int(logits)}"
        for token, pos, seqs, logits in arguments
    )
    return " ".join(["decode", *tokens])


def execute(model: LlamaModel, command: Command):
    """The logits of a "decode"; None for other commands, and if it was refused."""
    name, *arguments = command
    try:
        if name == "decode":
            batch = Batch()
            for token, pos, seqs, logits in arguments:
                batch.add(token, pos, seqs, logits)
            return model.decode(batch)
        getattr(model, "reset" if name == "clear" else name)(*arguments)
    except ModelError:
        return False
    return None


def agree(
    oracle: Oracle, path: Path, commands: Iterable[Command] | Walk, scratch: Path, **options: Any
) -> list[Command]:
    """The bar: the same logits in every bit, the same positions, the same refusals. `commands` may
    be a function of the model. `nodes` is a file for libllama's nodes. Returns the commands."""
    done: list[tuple[Command, Any, list[list[int]]]] = []
    asked = {k: v for k, v in options.items() if k != "nodes"}
    with load(path, **asked, graphs="libllama") as model:
        for command in commands(model) if callable(commands) else commands:
            rows = execute(model, command)
            seqs = range(model.n_seq_max)
            positions = [[model.seq_pos_min(s), model.seq_pos_max(s)] for s in seqs]
            done.append((command, rows, positions))
    script = "\n".join(_line(command) for command, _rows, _positions in done)
    answers, expected = oracle.sequences(path, script, scratch, **options)
    at = 0
    for i, ((command, rows, positions), answer) in enumerate(zip(done, answers, strict=True)):
        said = f"command {i}: {_line(command)}"
        assert (rows is False) == (answer["status"] != 0), f"{said}: {answer}"
        assert positions == answer["positions"], f"{said}: {answer}"
        if isinstance(rows, np.ndarray):
            theirs = expected[at : at + len(rows)]
            at += len(rows)
            np.testing.assert_array_equal(rows, theirs, said)
    assert at == len(expected)
    return [command for command, _rows, _positions in done]


class Random:
    """A random walk: tokens of some sequences, then an operation on the sequences, and so on."""

    def __init__(self, seed: int, n_steps: int, unified: bool, shifts: bool = True) -> None:
        self.rng = random.Random(seed)
        self.n_steps = n_steps
        self.unified = unified
        self.shifts = shifts

    def __call__(self, model: LlamaModel) -> Iterator[Command]:
        for _ in range(self.n_steps):
            before = [model.seq_pos_max(s) for s in range(model.n_seq_max)]
            command = self.decode(model)
            yield command
            refused = before == [model.seq_pos_max(s) for s in range(model.n_seq_max)]
            if refused and any("sliding_window" in key for key in model.metadata):
                return  # libllama's windows have then lost some tokens
            if self.rng.random() < 0.6:
                yield from self.change(model)

    def decode(self, model: LlamaModel) -> Command:
        rng, seqs = self.rng, list(range(model.n_seq_max))
        chosen = rng.sample(seqs, rng.randint(1, len(seqs)))
        parts = [
            [t(rng.randrange(97), seq, rng.random() < 0.4) for _ in range(self.length())]
            for seq in chosen
        ]
        same = [s for s in seqs if span(model, s) == span(model, chosen[0])]
        if self.unified and len(same) > 1 and rng.random() < 0.5:
            both = rng.sample(same, 2)
            rest = [part for part, seq in zip(parts, chosen, strict=True) if seq not in both]
            parts = [[t(rng.randrange(97), both) for _ in range(self.length())], *rest]
        if rng.random() < 0.5:
            return "decode", *(token for part in parts for token in part)
        mixed = []
        while parts:
            part = rng.choice(parts)
            mixed.append(part.pop(0))
            parts = [part for part in parts if part]
        return "decode", *mixed

    def length(self) -> int:
        return self.rng.choice([1, 1, 1, 2, 5, 9, 24, 60])

    def change(self, model: LlamaModel) -> Iterator[Command]:
        rng = self.rng
        seq = rng.randrange(model.n_seq_max)
        end = model.seq_pos_max(seq) + 1
        p0, p1 = sorted(rng.randint(0, end) for _ in range(2))
        kinds = ["seq_rm", "seq_rm", "tail", "seq_cp", "all", "clear", "seq_keep"]
        if self.shifts:
            kinds += ["moved", "moved", "seq_add", "seq_div"]
        kind = rng.choice(kinds)
        if kind == "seq_rm":
            yield "seq_rm", seq, p0, p1
        elif kind == "tail":
            yield "seq_rm", seq, rng.randint(0, end), None
        elif kind == "all":
            yield "seq_rm", seq, 0, None
        elif kind == "clear" and rng.random() < 0.2:
            yield ("clear",)
        elif kind == "seq_keep" and self.unified and rng.random() < 0.3:
            yield "seq_keep", seq
        elif kind == "seq_cp":
            other = rng.randrange(model.n_seq_max)
            if self.unified:
                yield "seq_rm", other, 0, None
                yield "seq_cp", seq, other, rng.choice([0, p0]), rng.choice([None, p1])
            elif other != seq:
                yield "seq_cp", seq, other, 0, None
        elif kind == "moved":  # as when making room in a full context
            yield "seq_rm", seq, p0, p1
            yield "seq_add", seq, p1, None, p0 - p1
        elif kind == "seq_add":
            yield "seq_add", seq, p0, p1, rng.randint(-9, 9)
        elif kind == "seq_div":
            yield "seq_div", seq, p0, p1, rng.randint(1, 3)


def span(model: LlamaModel, seq: int) -> tuple[int, int]:
    return model.seq_pos_min(seq), model.seq_pos_max(seq)
