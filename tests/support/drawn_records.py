"""Runs and records that are hard to draw, quickly made and without real devices."""

from __future__ import annotations

import dataclasses

from ggml_py import Run
from ggml_py.export.page.of_record import PagePlan, PageProcess, PageRecord

from .drawn_plans import llama, ran, waited_late

FALLBACK, OTHER, UNUSED = llama(8, refused=("SOFT_MAX",)), llama(4), llama(1)
LATER = 2_000_000  # ns: when the second scheduler begins


def both(*runs):
    """One run of these: each has a scheduler of its own, and begins later."""
    events, schedulers, plans = [], [], []
    for i, run in enumerate(runs):
        first = len(events)
        (scheduler,) = run.schedulers
        schedulers.append(scheduler._replace(plans=tuple(len(plans) + p for p in scheduler.plans)))
        plans += run.plans
        events += [
            e._replace(scheduler=i, start=e.start + i * LATER, end=e.end + i * LATER,
                       inside=e.inside + first if e.inside >= 0 else -1)
            for e in run.events
        ]  # fmt: skip
    return Run(tuple(plans), tuple(schedulers), tuple(events), runs[0].per_op)


def unwaited(plan):
    """A run whose first backend is asynchronous, and nothing waits for it."""
    late = waited_late(plan)
    return dataclasses.replace(late, events=late.events[:-1])


RUN = both(ran(FALLBACK, per_op=False), waited_late(OTHER), unwaited(OTHER))


def listed(number, plan, label="decode of 1", tokens=1, **more):
    rows = {
        "n_nodes": len(plan.nodes), "n_splits": plan.n_splits, "n_copies": plan.n_inputs,
        "copy_bytes": 7, "computed": 3, "at_least": False, "when": number * 10**6,
        "difference": f"{number - 1}: 'x' is [{number}]" if number else "first",
    }  # fmt: skip
    return PagePlan(number, label, tokens, **{**rows, **more}, plan=lambda: plan)


def recording(run=RUN, name="llama-bench[7]", file="it's.ggrec"):
    plans = (
        listed(0, UNUSED, "reserved of 8", 8, computed=0),
        listed(1, FALLBACK),
        listed(2, OTHER, "prompt of 64", 64, computed=1, at_least=True),
        listed(3, OTHER, "prompt of 64", 64),
    )
    numbers = (1, 2, 3) if run is not None else ()
    process = PageProcess(name, ("ggml 0.26.0",), plans, run, numbers)
    return PageRecord("Record", (process,), (), file)
