"""Follows everything that the tool recommends, on random set-ups (setups.py).

    python benchmarks/advice.py --cases 2000 --jobs 2
    python benchmarks/advice.py --only SEED

`plan`, `plan --advice`, `memory`, `why-not` and `place` are asked as a user asks them. Each change
that they name is made, and the model planned again through libllama. Findings:

- "does not fit": memory, or the largest buffer, is too small for what was recommended;
- "is slower": what was said to be quicker takes longer, by the same data sheets;
- "saves nothing": what should lower memory does not;
- "stays": a node that should move to a card does not;
- "unadvised": nothing was recommended, and one change of a fixed list (`single_changes`) that
  leaves as much memory free saves more than a fifth of the predicted time, and costs the other
  phase (a token of a prompt, or of the answer) less than that gains. Where times are not known,
  bytes are compared: a byte in host memory or over the link counts ten times;
- "cannot be followed": a change that is no list of llama.cpp's flags.

Where upstream's llama-fit-params was built, its estimate of recommended flags must fit, too.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import search
from setups import (
    MIB,
    Setup,
    change_of,
    drawn,
    left,
    single_changes,
    too_large,
)

from ggml_py import GgmlError
from ggml_py.boundary.ffi import BUILD
from ggml_py.builds.script import folder_of
from ggml_py.cli import cli
from ggml_py.cost import Machine
from ggml_py.cost.cost import cost_of
from ggml_py.cost.datasheets import DATASHEETS
from ggml_py.cost.time_difference import n_unknown
from ggml_py.place import Workload, place
from ggml_py.record.programs.sim_devices import sims_text
from ggml_py.trace.answers.passing import Passing, passing

ABOUT = (
    "ggml_py/place/*.py", "ggml_py/cost/*.py", "ggml_py/memory/*.py", "ggml_py/cli/*.py",
    "ggml_py/cli/shared/*.py", "ggml_py/advice/*.py", "ggml_py/trace/answers/*.py",
    "benchmarks/setups.py",
)  # fmt: skip
JUDGED = re.compile(r"In llama\.cpp: (?P<flags>(?:without )?-.+?): (?P<claim>.+)")
SLOWER = 10  # times that a byte takes in host memory or over the link, where speeds are not known
MUCH = 0.8  # a change should have been advised if less than this part of the time remains


class FindingError(Exception):
    """A recommendation that does not hold, or one that is missing."""


@dataclass(frozen=True)
class Offer:
    """A recommendation, and the options of `llama.open` that follow it."""

    verb: str
    text: str
    options: dict[str, Any] | None  # None: not checked by the tool either
    quicker: bool = False  # it promises less time
    fits: bool = True  # it promises to fit
    saves: tuple[str, ...] = ()  # devices on which it promises to need less memory
    words: tuple[str, ...] = ()  # the flags
    node: tuple[str, str] | None = None  # a node, and the device that it promises to move it to


@dataclass(frozen=True)
class Followed:
    """Memory and time of a set-up, from libllama's plans."""

    left: dict[str, int]  # bytes by card
    too_large: str
    seconds: float | None  # predicted; None: not known
    passing: Passing  # bytes of the graph

    @property
    def lacks(self) -> str:
        """The memory that is missing; "" if it fits."""
        short = (f"{name} lacks {-n / MIB:.2f} MiB" for name, n in self.left.items() if n < 0)
        return ", ".join(short) or self.too_large

    def part_of(self, other: Followed) -> float:
        """The ratio of the two times. Where times are not known, the ratio of the bytes: a byte in
        host memory or over the link counts `SLOWER` times. Infinite if more bytes are in host
        memory or over the link than before."""
        if self.seconds is not None and other.seconds is not None:
            return self.seconds / other.seconds
        mine, its = self.passing, other.passing
        if mine.host > its.host or mine.link > its.link:
            return math.inf
        weighed = (SLOWER * (one.host + one.link) + one.device for one in (mine, its))
        return next(weighed) / max(next(weighed), 1)


def follow(
    setup: Setup, path: Path, options: dict[str, Any], n_tokens: int | None = None
) -> Followed:
    """Plans the model through libllama, for the set-up's tokens or for others. Raises `GgmlError`.
    """
    with setup.opened(path, options) as model:
        n_tokens = min(setup.n_tokens if n_tokens is None else n_tokens, model.n_ubatch)
        n_past = model.n_ctx // 2 if n_tokens == 1 else 0
        machine = machine_of(setup)
        plan = model.plan(n_tokens, n_past)
        cost = cost_of(plan, machine, n_past)
        seconds = None if n_unknown(cost) else cost.seconds
        moved = passing(plan)
        assert moved is not None
        return Followed(left(setup, model), too_large(setup, model), seconds, moved)


def machine_of(setup: Setup) -> Machine:
    """Data sheets of the cards and of a usual host, as the command line has them."""
    cards = {card.name: card.profile for card in setup.cards if card.profile in DATASHEETS}
    return Machine.of_sheets(cards, len(os.sched_getaffinity(0)))


# --- what is recommended


def asked(verb: str, path: Path, setup: Setup, *more: str) -> Any:
    """A verb's answer as JSON; None if it refuses the set-up. It runs in this process, as its start
    would take longer than its answer."""
    devices = [word for card in setup.cards for word in ("-d", card.text)]
    words = [verb, str(path), *more, *devices, "-d", "CPU", *setup.words, "--graphs", "libllama",
             "--json"]  # fmt: skip
    if verb != "memory":
        words += ["--n-tokens", str(setup.n_tokens)]
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(io.StringIO()):
            cli.main(words, prog_name="ggml-py", standalone_mode=False)
    except (click.ClickException, GgmlError, OSError, ValueError, KeyError):  # as `cli.main`
        return None
    return json.loads(said.getvalue())


def with_change(verb: str, text: str, setup: Setup, **said: Any) -> Offer:
    """An offer that names flags. Raises `FindingError` if it names none."""
    changes = change_of(text)
    if changes is None:
        raise FindingError(f"cannot be followed: {verb}: {text}")
    after = setup.changed(changes)
    return Offer(verb, text, after.options(), words=tuple(after.words), **said)


def of_plan(path: Path, setup: Setup) -> Iterator[Offer]:
    """The remedies of `plan`."""
    why = (asked("plan", path, setup) or {}).get("why") or {}
    for remedy in why.get("remedies") or [why.get("remedy")]:
        if remedy and remedy.get("checked", True):
            yield with_change("plan", remedy["flags"], setup, quicker=True)


def of_advice(path: Path, setup: Setup) -> Iterator[Offer]:
    """The flags in the findings of `plan --advice`."""
    for finding in (asked("plan", path, setup, "--advice") or {}).get("advice", ()):
        said = JUDGED.search(finding["suggestion"])
        if said and "not checked" not in said["claim"]:
            yield with_change("advice", said["flags"], setup, quicker="as quick" in said["claim"])


def of_memory(path: Path, setup: Setup) -> Iterator[Offer]:
    """The changes that would lower it, or make it fit."""
    found = asked("memory", path, setup) or {}
    for change in found.get("changes", ()):
        saves = tuple(name for name, n in change["saved"].items() if n > 0 and name != "CPU")
        yield with_change(
            "memory", change["change"], setup, saves=saves if found["fits"] else (),
            fits=not found["fits"],
        )  # fmt: skip


def of_why_not(path: Path, setup: Setup, rng: random.Random) -> Iterator[Offer]:
    """The flags that would bring a node of the CPU to the first card."""
    with setup.opened(path, setup.options()) as model:
        plan = model.plan(setup.n_tokens)
        nodes = [n.name for n in plan.nodes if n.backend == "CPU" and n.op == "MUL_MAT"]
    if nodes:
        name = rng.choice(nodes)
        answer = asked("why-not", path, setup, name, setup.cards[0].name) or {}
        for change in (c for reason in answer.get("reasons", ()) for c in reason["changes"]):
            said = re.search(r"\(llama\.cpp: (.+)\)", change["text"])
            if said and change["is_there"]:
                flags = said[1]
                if flags.startswith("-ot ") and "-ot" in dict(setup.flags):  # the first one counts
                    flags = f"{flags},{shlex.quote(dict(setup.flags)['-ot'])}"
                node = (name, setup.cards[0].name)
                yield with_change("why-not", flags, setup, node=node, fits=not change["lacks"])


def of_place(path: Path, setup: Setup) -> Iterator[Offer]:
    """The way that `place` chooses."""
    given = {k: v for k, v in setup.options().items() if k != "n_ctx"}
    n_ctx = int(dict(setup.flags)["-c"])
    work = Workload(0, 64) if setup.n_tokens == 1 else Workload(256, 0)
    found = place(
        path, [machine_of(setup)], [*(card.text for card in setup.cards), "CPU"], [work],
        given=given, n_ctx=n_ctx, plans=60, reserve=setup.reserve,
    )  # fmt: skip
    if not found.verdict.keep and not found.chosen.lacks and not found.chosen.refused:
        flags = found.chosen.flags
        options = {**flags.options, "n_ctx": n_ctx, "program": "server"}  # as place plans it
        yield Offer("place", str(flags), options, quicker=True)


# --- cases


def case(seed: int) -> str:
    """Draws a set-up, and checks every recommendation for it."""
    logging.disable(logging.CRITICAL)
    rng, setup = random.Random(seed), drawn(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = setup.spec.write(Path(folder) / "model.gguf")
        try:
            return _case(rng, setup, path)
        except FindingError as error:
            raise FindingError(f"{error}\n  {setup}") from None


def _case(rng: random.Random, setup: Setup, path: Path) -> str:
    try:
        before = follow(setup, path, setup.options())
    except GgmlError:
        return "not loaded"
    offers = list(of_memory(path, setup)) if before.lacks or rng.random() < 0.2 else []
    if not before.lacks:
        advised = list(of_plan(path, setup))
        if not advised:
            _plain(setup, path, before)
        offers += advised
        if rng.random() < 0.4:  # the same judge as for `plan`
            offers += of_advice(path, setup)
        if rng.random() < 0.2:
            offers += of_why_not(path, setup, rng)
        if rng.random() < 0.1 and before.seconds is not None:
            offers += of_place(path, setup)
    for offer in offers:
        _check(setup, path, before, offer)
    how = "fits" if not before.lacks else "does not fit"
    verbs = sorted({offer.verb for offer in offers})
    return f"{how}, {'nothing offered' if not verbs else 'held: ' + ' '.join(verbs)}"


def _check(setup: Setup, path: Path, before: Followed, offer: Offer) -> None:
    assert offer.options is not None
    said = f"{offer.verb}: {offer.text}"
    try:
        after = follow(setup, path, offer.options)
    except GgmlError as error:
        raise FindingError(f"does not fit: {said}: {error}") from None
    if offer.fits and after.lacks:
        raise FindingError(f"does not fit: {said}: {after.lacks}")
    if offer.fits and offer.words and (lack := upstream_lacks(setup, path, offer.words)):
        raise FindingError(f"does not fit: {said}: llama-fit-params: {lack}")
    if offer.quicker and None not in (before.seconds, after.seconds):
        seconds = float(before.seconds or 0), float(after.seconds or 0)
        if seconds[1] > seconds[0]:
            change = " → ".join(f"{one * 1e3:.3g} ms" for one in seconds)
            raise FindingError(f"is slower: {said}: {change}")
    if offer.node is not None:
        with setup.opened(path, offer.options) as model:
            nodes = {node.name: node.backend for node in model.plan(setup.n_tokens).nodes}
        if nodes.get(offer.node[0]) != offer.node[1]:
            where = nodes.get(offer.node[0])
            raise FindingError(f"stays: {said}: {offer.node[0]} is on {where}")
    for device in offer.saves:
        if after.left[device] <= before.left[device]:
            raise FindingError(f"saves nothing: {said}: on {device}")


def _plain(setup: Setup, path: Path, before: Followed) -> None:
    """Raises `FindingError` for a single change that saves much."""
    best, flags = MUCH, ""
    for changes in single_changes(setup):
        try:
            after = follow(setup, path, setup.changed(changes).options())
        except GgmlError:
            continue
        roomy = all(n >= min(setup.reserve, before.left[name]) for name, n in after.left.items())
        if not roomy or after.lacks or after.part_of(before) >= best:
            continue
        if after.part_of(before) * _other_phase(setup, path, changes) < 1:
            words = (f"without {k}" if v is None else f"{k} {v}" for k, v in changes.items())
            best, flags = after.part_of(before), " ".join(words)
    if flags:
        what = "bytes" if before.seconds is None else "time"
        raise FindingError(f"unadvised: {flags}: {best:.0%} of the {what}")


def _other_phase(setup: Setup, path: Path, changes: dict[str, str | None]) -> float:
    """The part of the time, or of the bytes, that a token of the other phase takes with changes.
    A prompt's graph has n_ubatch tokens."""
    ways = setup.options(), setup.changed(changes).options()
    sizes = [options["n_ubatch"] if setup.n_tokens == 1 else 1 for options in ways]
    pairs = zip(ways, sizes, strict=True)
    before, after = (follow(setup, path, options, n) for options, n in pairs)
    return after.part_of(before) * sizes[0] / sizes[1]


# --- upstream's own program


@cache
def fit_params() -> tuple[Path, Path] | None:
    """llama-fit-params and the simulated devices that it loads; None if they were not built."""
    built = ("--upstream", BUILD["label"], "--no-build")
    programs = folder_of("--reference", *built, quiet=True)
    simulator = folder_of("--simulator", *built, quiet=True)
    if programs is None or simulator is None:
        return None
    found = programs / "bin" / "llama-fit-params", simulator / "libggml_py_sim.so"
    return found if all(path.exists() for path in found) else None


def upstream_lacks(setup: Setup, path: Path, words: tuple[str, ...]) -> str:
    """A card that is too small by upstream's estimate, which rounds down to MiB; "" if all fits, or
    if the program refuses the flags."""
    found = fit_params()
    if found is None:
        return ""
    program, module = found
    texts = [card.text for card in setup.cards]
    env = {**os.environ, "GGML_BACKEND_PATH": str(module), "GGML_PY_SIMS": sims_text(texts),
           "GGML_NO_BACKTRACE": "1"}  # fmt: skip
    names = ",".join(card.name for card in setup.cards)
    command = [str(program), "-m", str(path), "-fitp", "on", "-dev", names, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return ""
    memory = {card.name: card.memory for card in setup.cards}
    for line in done.stdout.splitlines():
        name, *sizes = line.split()
        if name in memory and sum(map(int, sizes)) * MIB > memory[name]:
            return f"{name} needs {'+'.join(sizes)} MiB"
    return ""


SEARCH = search.Search("advice", ABOUT, case, limit_s=900, per_process=40)

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
