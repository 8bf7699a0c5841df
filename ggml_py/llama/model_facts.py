"""Facts that the plan of a model keeps: model, flags, devices."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ..backends.device import Device
from ..gguf.reader import Gguf
from ..scheduler.process_facts import described, made_here, now
from ..trace.provenance import Provenance
from .command_line import CommandLine
from .flags import FREE, NO_FIT, words_of
from .options import Options


def model_made(
    gguf: Gguf, options: Options, devices: Iterable[Device], line: CommandLine | None = None
) -> Provenance:
    """The provenance of a model's plans, without the size of a graph and its context. The memory of
    the devices is that of now: before the model is loaded."""
    program = line.program if line is not None else options.program
    return described(gguf, made_here(devices)).but(
        program=None if program is None else f"llama-{program.removeprefix('llama-')}",
        flags=words_of(options) if line is None else line.words,
    )


def with_fit(made: Provenance, chosen: str) -> Provenance:
    """`made`, with the options of --fit behind the given ones."""
    if not chosen or made.flags is None:
        return made
    return made.but(flags=(*_without_fit(made.flags), *shlex.split(chosen), *NO_FIT))


def _without_fit(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The flags without --fit off, and without the numbers that stood for "choose"."""
    rest = list(flags[: -len(NO_FIT)] if flags[-len(NO_FIT) :] == NO_FIT else flags)
    for flag, free in FREE.items():
        for i in range(len(rest) - 1):
            if rest[i] == flag and rest[i + 1] == free:
                del rest[i : i + 2]
                break
    return tuple(rest)


def made_for(
    made: Provenance, n_ctx: int, n_tokens: int, n_past: int | None, n_seqs: int
) -> Provenance:
    """`made` for a plan of now. `n_tokens` counts all sequences, `n_past` the tokens of each
    sequence in the cache."""
    return made.but(
        n_ctx=n_ctx, n_tokens=int(n_tokens), n_past=None if n_past is None else int(n_past),
        n_seqs=int(n_seqs), date=now(),
    )  # fmt: skip
