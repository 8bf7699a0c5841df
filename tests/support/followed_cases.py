"""Options of llama.cpp that `why-not` names, followed for real. `benchmarks/followed.py` runs them.

A case is one of upstream's small models, one of its programs' set-ups on simulated devices, and
nodes that are asked why they are not on another backend. Options of llama.cpp in the answer are
checked (`WhyNot.checked`). Then an unmodified libllama evaluates the graph with the option, on the
same devices. It must print the checked plan, and the node must be where the answer says.
"""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ggml_py as ggml
from ggml_py.llama.overrides import parse_overrides
from ggml_py.models import load
from ggml_py.sim.given import named_devices

from .oracle_programs import Oracle
from .placements import Theirs, blank, sims_text

REPO = Path(__file__).resolve().parents[2]
SET_UPS: tuple[dict[str, Any], ...] = (
    {}, {}, {"offload_kqv": False}, {"flash_attn": "off"}, {"flash_attn": "on"},
    {"type_k": "q4_1"}, {"type_k": "q4_1", "flash_attn": "on"}, {"n_gpu_layers": 1},
    {"n_gpu_layers": 0}, {"n_gpu_layers": 2}, {"overrides": "ffn=CPU"}, {"overrides": "attn=CPU"},
    {"overrides": r"blk\.0\.=CPU"}, {"op_offload": False},
)  # fmt: skip
CARDS = ("rtx4090", "m3max", "rx7900xtx", "")
NODES = 4  # asked in a case


class Differs(Exception):
    """A promise that libllama does not keep."""


@functools.cache
def oracle() -> Oracle:
    command = [sys.executable, REPO / "build_ggml.py", "--reference"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Oracle(Path(done.stdout.splitlines()[-1]) / "bin")


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@functools.cache
def models() -> tuple[Path, ...]:
    made = folder().name
    oracle().run("test-llama-archs", "-s", 42, "-o", made)
    return tuple(sorted(Path(made).glob("*.gguf")))


def check(seed: int) -> str:
    """Runs the case and returns its outcome. Raises `Differs`."""
    draw = random.Random(seed)
    path, set_up = draw.choice(models()), {"n_gpu_layers": 99, **draw.choice(SET_UPS)}
    cards = [draw.choice(CARDS) for _ in range(draw.choice((1, 1, 2)))]
    n_tokens = draw.choice((1, 40))
    names = [f"sim:gpu{i}" + (f",profile={card}" if card else "") for i, card in enumerate(cards)]
    sims = [device for name in names for device in named_devices(name)]
    try:
        world = _World(path, sims, cards, n_tokens)
        plan = world.planned(set_up)
        if isinstance(plan, str):
            return "not planned"
        followed = [_followed(world, plan, set_up, draw) for _ in range(NODES)]
        return "followed" if any(followed) else "no option named"
    finally:
        for device in reversed(sims):
            device.close()


class _World:
    """A model on devices."""

    def __init__(
        self, path: Path, sims: Sequence[Any], cards: Sequence[str], n_tokens: int
    ) -> None:
        self.path, self.sims, self.n_tokens = path, sims, n_tokens
        self.text = sims_text({f"gpu{i}": {"card": c} if c else {} for i, c in enumerate(cards)})

    def planned(self, options: dict[str, Any]) -> ggml.Plan | str:
        """The plan as `ggml-py why-not` makes it."""
        ours = dict(options)
        if "overrides" in ours:
            ours["tensor_overrides"] = parse_overrides(ours.pop("overrides"))
        try:
            with load(self.path, devices=[*self.sims, "CPU"], header_only=True,
                      graphs="libllama", **ours) as model:  # fmt: skip
                return model.plan(self.n_tokens)
        except ggml.GgmlError as error:
            return str(error)

    def real(self, options: dict[str, Any]) -> str | None:
        """The plan that an unmodified libllama prints; None if it ends."""
        try:
            theirs = Theirs(oracle(), self.path, (self.n_tokens,), sims=self.text, **options)
        except AssertionError:  # of the program, with all that it printed
            return None
        return theirs.plans[self.n_tokens]


def _followed(world: _World, plan: ggml.Plan, set_up: dict[str, Any], draw: random.Random) -> bool:
    """Whether an option was named for a node of the draw, and kept."""
    node = draw.choice([n for n in plan.nodes if n.is_computed])
    backend = draw.choice(plan.backends).name
    used: dict[str, tuple[dict[str, Any], ggml.Plan | str]] = {}

    def planned_with(flags: Sequence[Any]) -> tuple[ggml.Plan | str, str]:
        options = dict(set_up)
        first = [one for flag in flags for one in flag.options.get("overrides", ())]
        for flag in flags:
            options |= {k: v for k, v in flag.options.items() if k != "overrides"}
        given = [*first, *([set_up["overrides"]] if "overrides" in set_up else [])]
        if given:
            options["overrides"] = ",".join(given)
        found = world.planned(options)
        used[" ".join(flag.text for flag in flags)] = options, found
        return found, ""

    answer = plan.why_not(node, backend).checked(planned_with)
    for reason in answer.reasons:
        for change in reason.changes:
            if change.flags:
                key = " ".join(flag.text for flag in change.flags)
                _compare(world, str(change), change.is_there, backend, node, *used[key])
    return bool(used)


def _compare(
    world: _World,
    said: str,
    is_there: bool,
    backend: str,
    node: Any,
    options: dict[str, Any],
    ours: ggml.Plan | str,
) -> None:
    real = world.real({k: v for k, v in options.items() if k != "repack"})
    if isinstance(ours, str) or real is None:
        if isinstance(ours, str) != (real is None):
            raise Differs(f"{said}: {ours if real else 'libllama ends'}")
        return
    if blank(ours.text()) != blank(real):
        raise Differs(f"{said}: another plan with {options}")
    there = [n.backend == backend for n in ours.nodes if n.name == node.name and n.op == node.op]
    if is_there and not any(there):
        raise Differs(f"{said}: it is not there")
