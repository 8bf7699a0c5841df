"""Several graphs in flight (`parallel`): a chain of products and a model on two devices in turns.

Upstream never puts one GPU into a scheduler twice: both backends would use the same memory without
waiting for each other. With one GPU the second device is a simulated one, asynchronous and with
events as the first. Results are compared with numpy's and the CPU's. The model computes a prompt
of several graphs, of which most are reused, as by llama.cpp: those wait for the one before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from gpu_part import Doing, gpus, main
from in_flight import submitted

import ggml_py as ggml
from ggml_py.models import load

MODEL = "110M-q4_0"
N_PROMPT, N_UBATCH = 512, 64
WORST = 3e-2


@contextlib.contextmanager
def devices(doing: Doing) -> Iterator[list[str]]:
    """Two devices or more: this machine's GPUs, and simulated ones if there are too few."""
    names = [] if doing.dry_run else [device.name for device in gpus()]
    with contextlib.ExitStack() as stack:
        for n in range(len(names), 2):
            stack.enter_context(ggml.sim_device(f"kit-gpu{n}", profile="h100", memory=8 << 30))
            names.append(f"kit-gpu{n}")
        yield names


def evaluated(doing: Doing, names: list[str], **options: Any) -> dict[str, Any]:
    """A prompt of several graphs on these devices, and what was recorded."""
    prompt = [(i * 7919 + 11) % 8000 for i in range(N_PROMPT)]
    path = doing.model(MODEL)
    with load(
        path, devices=(*names, "CPU"), n_gpu_layers=99 if names else 0, n_ctx=1024,
        n_ubatch=N_UBATCH,
        # By free memory one device could get all layers.
        tensor_split=[1.0] * len(names) if len(names) > 1 else None, **options,
    ) as model:  # fmt: skip
        model.eval(prompt)
        model.reset()
        with model.record() as recording:
            logits = model.eval(prompt)
        parallel = model.placement.parallel
        plan = model.plan(n_tokens=N_UBATCH)
    events = recording.run.events
    return {
        "devices": names,
        "parallel": parallel,
        "splits": [split.backend for split in plan.splits],
        "computes": len(recording.run.computes),
        "slots": sorted({event.copy for event in events if event.kind == "copy"}),
        "summary": str(recording.run.summary()),
        "synced": [row._asdict() for row in recording.run.summary().synced],
        "logits": logits,
    }


def work(doing: Doing) -> str:
    """With and without parallelism, and on the CPU."""
    rows = doing.found["rows"] = []
    chains = doing.found["chains"] = []
    with devices(doing) as names:
        for parallel in (False, True, False, True):
            row = submitted([ggml.device(name) for name in names], parallel)
            chains.append(row)
            if row["worst"] > WORST or row["slots"] != ([0, 1, 2, 3] if parallel else [0]):
                doing.fail(f"chain, parallel={parallel}: slots {row['slots']}, results differ by "
                           f"{row['worst']:.1e}")  # fmt: skip
    doing.save()
    expected = evaluated(doing, [])["logits"]
    with devices(doing) as names:
        for what, used in (("one device", names[:1]), ("pipeline", names)):
            row = evaluated(doing, used)
            logits = row.pop("logits")
            row |= {"what": what}
            row["worst"] = float(np.abs(logits - expected).max() / np.abs(expected).max())
            rows.append(row)
            doing.save()
            if row["worst"] > WORST:
                doing.fail(f"{what}: logits differ by {row['worst']:.1e}")
    pipeline = rows[-1]
    if not pipeline["parallel"]:
        doing.fail("two devices make no pipeline")
    waits = sum(row["times"] for row in pipeline["synced"] if row["what"] == "event_wait")
    if len(pipeline["slots"]) < 2 or not waits:
        doing.fail(f"copies used the slots {pipeline['slots']}, {waits} waits for events")
    plain, piped = (min(row["done_ms"] for row in chains if row["parallel"] == p) for p in (0, 1))
    return (
        f"{chains[0]['graphs']} graphs without waiting on {' and '.join(pipeline['devices'])}: "
        f"{plain:.1f} ms, {piped:.1f} ms with parallel, slots {chains[-1]['slots']}; a model's "
        f"logits differ by {pipeline['worst']:.1e}, {waits} waits for events"
    )


if __name__ == "__main__":
    sys.exit(main(work))
