"""Partial offload and op offload on a real device: plans, results, speed, and when copies ran.

Plans are compared with those of a simulated device that is a card with the device's properties:
each node's backend and cause, each split and its copies. Results are compared with the CPU's.
Without a GPU a second simulated device stands for the real one.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from beside import compare, line_of
from gpu_part import Doing, main
from part_supports import properties

import ggml_py as ggml
from ggml_py.models import load

MODEL, HALF = "1.1B-q4_k", "half"
CASES: dict[str, dict[str, Any]] = {
    "all layers": {"n_gpu_layers": 99},
    "half of the layers": {"n_gpu_layers": HALF},
    "no layers": {"n_gpu_layers": 0},
    "half of the layers, no op offload": {"n_gpu_layers": HALF, "op_offload": False},
    "no layers, no op offload": {"n_gpu_layers": 0, "op_offload": False},
    "cache on the CPU": {"n_gpu_layers": 99, "offload_kqv": False},
    "no flash attention": {"n_gpu_layers": HALF, "flash_attn": "off"},
    "q8_0 cache": {"n_gpu_layers": HALF, "flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
}
SIZES = (1, 31, 32, 512)  # tokens of the plans that are compared
PROMPT = [(i * 7919 + 11) % 8000 for i in range(64)]
WORST = 3e-2  # of the logits, as in tests/models/test_models_gpu.py
SPEED = {
    "prompt, half of the layers": ("-p", 512, "-n", 0, "-ngl", HALF),
    "decode, half of the layers": ("-p", 0, "-n", 32, "-ngl", HALF),
    "prompt, op offload of all layers": ("-p", 512, "-n", 0, "-ngl", 0),
    "prompt, no op offload": ("-p", 512, "-n", 0, "-ngl", 0, "-nopo", 1),
}
FOR_A_ROW = 15.0


def shape(plan: ggml.Plan) -> dict[str, Any]:
    """A plan without the names of backends."""
    number = {name: i for i, name in enumerate(b.name for b in plan.backends)}
    return {
        "nodes": [[n.name, n.op, number[n.backend], n.cause.code] for n in plan.nodes],
        "splits": [
            [number[s.backend], [[i.tensor.name, i.nbytes] for i in s.inputs]] for s in plan.splits
        ],
    }


def planned(path: Path, device: str, options: dict[str, Any]) -> list[ggml.Plan]:
    """The plans of a model."""
    with load(path, devices=(device, "CPU"), **options) as model:
        return [model.plan(n_tokens=n) for n in SIZES]


@contextlib.contextmanager
def pair(doing: Doing) -> Iterator[tuple[str, str]]:
    """The names of the device and of a simulated one that is its card."""
    said = json.loads((doing.work / "machine.json").read_text(encoding="utf-8"))
    name, own = properties(doing, said["gpus"][0] if said["gpus"] else None)
    with contextlib.ExitStack() as stack:
        card = ggml.load_profile(name, **own)
        stack.enter_context(ggml.sim_device("kit-card", profile=card))
        if doing.dry_run:
            stack.enter_context(ggml.sim_device("kit-real", profile=card))
        yield "kit-real" if doing.dry_run else doing.device.name, "kit-card"


def cases(doing: Doing, path: Path, real: str, card: str) -> Iterator[dict[str, Any]]:
    """Plans and results, one row for each of CASES."""
    half = doing.recipe(MODEL).n_layer // 2
    for what, given in CASES.items():
        options = {k: half if v == HALF else v for k, v in given.items()}
        cache = {k: v for k, v in options.items() if k in ("flash_attn", "type_k", "type_v")}
        with load(path, repack=False, **cache) as model:  # with a GPU weights are not repacked
            expected = model.eval(PROMPT, all_logits=True)
        with load(path, devices=(real, "CPU"), **options) as model:
            mine = [model.plan(n_tokens=n) for n in SIZES]
            logits = model.eval(PROMPT, all_logits=True)
        theirs = planned(path, card, options)
        worst = float(np.abs(logits - expected).max() / np.abs(expected).max())
        equal = [shape(a) == shape(b) for a, b in zip(mine, theirs, strict=True)]
        if worst > WORST or not all(equal):
            doing.fail(f"{what}: plans equal {equal}, logits differ by {worst:.1e}")
        yield {
            "what": what,
            "plans_equal": equal,
            "n_tokens": list(SIZES),
            "n_splits": [plan.n_splits for plan in mine],
            "copy_bytes": [plan.copy_bytes for plan in mine],
            "offloaded": [sum(n.cause.code == "1.off" for n in plan.nodes) for plan in mine],
            "different": [str(a.diff(b))[:1500] for a, b, same in zip(mine, theirs, equal,
                          strict=True) if not same],
            "worst": worst,
        }  # fmt: skip


def recorded(path: Path, real: str, half: int) -> dict[str, Any]:
    """What ran, and when: a prompt with op offload, then tokens, half of the layers."""
    found = {}
    prompt = [(i * 7919 + 11) % 8000 for i in range(256)]
    with load(path, devices=(real, "CPU"), n_gpu_layers=half) as model:
        model.eval(prompt)
        for what, n_prompt, n_gen in (("prompt", 256, 1), ("tokens", 1, 16)):
            model.reset()
            with model.record() as recording:
                model.generate(prompt[:n_prompt], n_gen)
            summary = recording.run.summary()
            found[what] = {"text": str(summary), **summary.as_dict()}
    return found


def work(doing: Doing) -> str:
    """Plans and results first, then what was recorded, then speed."""
    path = doing.model(MODEL)
    with pair(doing) as (real, card):
        rows = doing.found["cases"] = []
        for row in cases(doing, path, real, card):
            rows.append(row)
            doing.save()
        doing.found["recorded"] = recorded(path, real, doing.recipe(MODEL).n_layer // 2)
        doing.save()
    speed = doing.found["rows"] = []
    wanted = {} if doing.dry_run else SPEED
    for n, (what, options) in enumerate(wanted.items()):
        if doing.left < FOR_A_ROW:
            doing.unfinished = what
            break
        share = (doing.left - FOR_A_ROW / 3) / (len(wanted) - n)
        half = doing.recipe(MODEL).n_layer // 2
        sizes = [half if one == HALF else one for one in options]
        place = (*sizes, "-dev", doing.device.name, "-fa", 1)
        speed.append(compare(doing, what, path, 5, share, place))
        print(line_of(speed[-1]), flush=True)
        if speed[-1]["verdict"] == "no":
            doing.fail(line_of(speed[-1]))
        doing.save()
    plans = [one for row in rows for one in row["plans_equal"]]
    worst = max(row["worst"] for row in rows)
    said = f"{sum(plans)} of {len(plans)} plans equal a card's; logits differ by {worst:.1e}"
    met = sum(row["verdict"] == "yes" for row in speed)
    return said + (f"; {met} of {len(speed)} rows at 1.00 or more" if speed else "")


if __name__ == "__main__":
    sys.exit(main(work))
