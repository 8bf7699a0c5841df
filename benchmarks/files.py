"""Reads damaged files of every kind, and asks, draws, predicts and replays what is left of them.

    python benchmarks/files.py --cases 100000                  about ten minutes
    python benchmarks/sanitize.py --sanitize address --search files --cases 10000

A damaged file must be refused with an error of ours that has a message, or its remaining content
must answer every question, and be planned and computed by native code. Any other exception, a
death, more than ten seconds, or memory far over the file's size is a finding. The mutators are in
tests/support. Linux only, because it reads /proc.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import search

sys.path.append(str(search.REPO))
import ggml_py as ggml
from ggml_py.cost.machine import Machine
from ggml_py.export.formats import EXPORTERS, render
from ggml_py.export.json import plan_file, run_file
from ggml_py.record.session import Record
from ggml_py.scheduler.as_recorded import AsRecorded
from ggml_py.scheduler.replay import replay
from tests.support import drawn_plans, gguf_mutator, measured, plan_mutator, record_mutator
from tests.support.text_mutator import damaged_text

SPARE = 8 << 30  # address space beyond what a process has when it starts
EVENTS = 400  # of a run that is drawn


class Refused(Exception):
    """The file was refused, or a question to what is left of it."""


def attempt(call: Callable[[], Any]) -> Any:
    """The answer. Raises Refused for an error of ours that says something, and whatever else."""
    try:
        return call()
    except (ggml.GgmlError, ValueError, KeyError) as error:
        if isinstance(error, UnicodeError | json.JSONDecodeError) or not str(error):
            raise
        if isinstance(error, KeyError) and " " not in str(error.args[0]):
            raise  # a dict's KeyError
        raise Refused from error


def asked(*calls: Callable[[], Any]) -> None:
    """Asks each question, whether or not it is refused."""
    for call in calls:
        try:
            attempt(call)
        except Refused:
            continue


# --- questions


def ask(plan: ggml.Plan, rng: random.Random, much: bool = True) -> None:
    """Asks a plan everything once, or what is quick."""
    repr(plan), plan.headline(), plan.shares(), plan.copy_bytes, plan.assignments, plan.unknown
    plan.text(), plan.find("*"), hash(plan)
    again = ggml.Plan.of(plan_file.parse(json.dumps(plan.to_json()).encode(), "again"))
    assert again == plan, "another plan when it is written and read"
    if much:
        plan.advice(), plan.advice(0), plan.find("*")
        [repr(s) for s in plan.splits], [s.nodes for s in plan.splits]
        for t in map(plan.tensor, range(len(plan.tensors))):
            repr(t), t.cause.text, t.split, t.flops, t.buft, t.buffer, t.view_src
            answer = plan.explain(t)
            str(answer), answer.to_dict(), answer.headline, answer.root
        assert not plan.diff(plan), "differs from itself"
        _draw(plan)
    if not plan.nodes:  # a log of level 1
        return
    other = rng.choice(plan_mutator.plans())
    node, backend = rng.choice(plan.nodes), rng.choice(plan.backends).name
    calls = (
        lambda: (str(plan.diff(other)), str(other.diff(plan)), plan.diff(other).to_dict()),
        plan.passes,
        lambda: [(str(s), s.to_dict()) for s in plan.steps],
        lambda: _ask_reference(plan),
        *(
            lambda n=n, b=b: (str(w := plan.why_not(n, b.name)), w.to_dict())
            for n in rng.sample(plan.nodes, min(3, len(plan.nodes))) for b in plan.backends
        ),
        lambda: plan.what_if(pins={node.id: backend}),
        lambda: plan.what_if(supports={(backend, node.op): rng.random() < 0.5}),
        lambda: plan.what_if(offload={(backend, node.op): 8}, op_offload=True),
        lambda: plan.what_if(move_weights={"*": backend}),
        lambda: plan.what_if(drop=[backend]),
        lambda: plan.what_if(upstream="0.9.4", parallel=True),
        lambda: plan.what_if(upstream="0.21.0", parallel=False),
        lambda: plan.what_if(pins={node.name: None}),
        lambda: str(plan.memory),
        lambda: str(plan.cost(machine())),
    )  # fmt: skip
    asked(*(calls if much else rng.sample(calls, 3)))


def _ask_reference(plan: ggml.Plan) -> None:
    str(plan.diff(plan.reference))
    plan.reference.headline(), plan.reference.text(), plan.reference.advice()


def _draw(source: ggml.Plan | ggml.Run) -> None:
    """In every format."""
    is_run = isinstance(source, ggml.Run)
    for exporter in EXPORTERS:
        if exporter.runs or not is_run:
            asked(lambda exporter=exporter: render(source, exporter))


def run_natively(plan: ggml.Plan, rng: random.Random) -> None:
    """Plans the graph with upstream's scheduler on devices of this machine, and on ones that answer
    as recorded; computes it there."""
    devices = [ggml.device("CPU")]
    if rng.random() < 0.5:
        devices.insert(0, ggml.device("BLAS") if rng.random() < 0.5 else card())

    def as_recorded() -> None:
        with AsRecorded(plan, n_threads=1) as recorded:
            asked(
                lambda: recorded.plan(plan),
                lambda: recorded.observe(plan, in_depth=rng.random() < 0.1),
            )

    asked(lambda: replay(plan, devices).plan.headline(), as_recorded)


@cache
def card() -> ggml.Device:
    """A simulated card, which answers with CUDA's own code."""
    return ggml.sim_device("files0", profile="rtx4090")


@cache
def machine() -> Machine:
    """One that knows all work of the whole plans."""
    return measured.knows_all([p for p in plan_mutator.plans() if p.capture.source == "scheduler"])


# --- the kinds of files: each reads a damaged one, and asks what is left


def _ask_plan(plan: ggml.Plan, rng: random.Random) -> None:
    ask(plan, rng, rng.random() < 0.05)
    if plan.capture.source == "scheduler":
        run_natively(plan, rng)
    if plan.nodes and rng.random() < 0.02:
        asked(lambda: ggml.nearest(rng.choice(plan.nodes), ggml.device("CPU")))


def _glance(plan: ggml.Plan, _rng: random.Random) -> None:
    plan.headline(), plan.text(), plan.find("*")


def plan(seed: int, rng: random.Random) -> None:
    """A saved plan; some are compressed."""
    content, _names = plan_mutator.mutant(seed)
    if rng.random() < 0.05:
        content = plan_mutator.damaged_bytes(rng, gzip.compress(content, 1))
    _ask_plan(attempt(lambda: ggml.Plan.of(plan_file.parse(content, "m.json"))), rng)


def snapshot(_seed: int, rng: random.Random) -> None:
    """A plan's page for version control."""
    text = damaged_text(rng, rng.choice(plan_mutator.plans()).snapshot())
    ask(attempt(lambda: ggml.Plan.from_snapshot(text)), rng, rng.random() < 0.1)


def log(_seed: int, rng: random.Random) -> None:
    """A debug print, as text or as lines of JSON."""
    text = damaged_text(rng, rng.choice(plan_mutator.plans()).text())
    if rng.random() < 0.3:
        rows = [
            json.dumps({"msg": line}, ensure_ascii=rng.random() < 0.5) for line in text.split("\n")
        ]
        text = damaged_text(rng, "\n".join(rows))
    ask(attempt(lambda: ggml.Plan.from_debug_log(text)), rng, rng.random() < 0.1)


@cache
def _runs() -> list[dict[str, Any]]:
    whole = [drawn_plans.ran(p) for p in plan_mutator.plans()[:6]]
    return [json.loads(json.dumps(run_file.render(run))) for run in whole]


def run(_seed: int, rng: random.Random) -> None:
    """A saved run."""
    content = json.dumps(plan_mutator.damaged_json(rng, rng.choice(_runs()))).encode()
    found = attempt(lambda: ggml.Run.of(run_file.parse(content, "r.json")))
    _ask_run(found, rng)


def _ask_run(found: ggml.Run, rng: random.Random) -> None:
    str(found.summary()), found.summary().as_dict()
    if rng.random() < 0.2 and len(found.events) < EVENTS:
        _draw(found)


def record(seed: int, rng: random.Random) -> None:
    """A record: what is whole of it answers."""
    from ggml_py.cli.shared import records
    from ggml_py.record.to_page import page
    from ggml_py.releases.kept import kept_of_record

    content = record_mutator.mutant(seed)
    found = attempt(lambda: Record("m.ggrec", content))
    [str(damage) for damage in found.damage]
    records.table(found), json.dumps(records.to_dict(found)), repr(found)
    asked(lambda: kept_of_record(found, "m"))
    if rng.random() < 0.2:
        asked(lambda: page(found))
    for one in found.plans:
        asked(lambda one=one: (_ask_plan if rng.random() < 0.1 else _glance)(one.plan, rng))
    for process in found.processes:
        asked(lambda process=process: _ask_run(process.run, rng))


@cache
def _machine_file() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(machine().to_dict()))
    device = copy.deepcopy(data["devices"][0])
    device["samples"] = device["samples"][:40]
    data["devices"] = [device, {**device, "name": "GPU0", "type": "GPU"}]
    return data


def machine_file(_seed: int, rng: random.Random) -> None:
    """A machine's file."""
    content = json.dumps(plan_mutator.damaged_json(rng, _machine_file())).encode()
    if rng.random() < 0.1:
        content = plan_mutator.damaged_bytes(rng, content)
    path = folder() / "machine.json"
    path.write_bytes(content)
    found = attempt(lambda: Machine.load(path))
    repr(found), found.to_dict(), found.doubts_about(["CPU"]), found.stale(ggml="0.1")
    scheduled = [p for p in plan_mutator.plans() if p.capture.source == "scheduler"]
    asked(lambda: str(rng.choice(scheduled).cost(found)))


def profile(_seed: int, rng: random.Random) -> None:
    """A profile of a device."""
    from ggml_py.sim.profile import Profile

    rows = ["backend_name,op_name,op_params,supported,error_message"]
    rows += [
        f'"gpu0","{op}","type=f32,ne=[{n},1,1,1],op_params=[],sources=f32[{n},1,1,1]","{n % 2}",""'
        for op in ("ADD", "MUL")
        for n in range(4)
    ]
    path = folder() / "profile.csv"
    path.write_bytes(damaged_text(rng, "\n".join(rows)).encode("utf-8", "surrogatepass"))
    attempt(lambda: Profile(path))


def gguf(seed: int, _rng: random.Random) -> None:
    """A model: all that it has is read, in memory of about its size."""
    path = folder() / "x.gguf"
    if gguf_mutator.outcome_of(gguf_mutator.mutant(seed), path) == "refused":
        raise Refused


# Kinds and how many of a hundred cases they get.
KINDS: dict[Callable[[int, random.Random], None], int] = {
    plan: 30, record: 20, gguf: 20, machine_file: 12, snapshot: 6, log: 6, run: 4, profile: 2,
}  # fmt: skip


@cache
def folder() -> Path:
    """A folder of this process, whose memory is limited from now on."""
    shm = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None)
    FOLDERS.append(made)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # libasan reserves terabytes of addresses
        machine(), card()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + SPARE
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    return Path(made.name)


FOLDERS: list[Any] = []  # removed when the process ends


def case(seed: int) -> str:
    """One damaged file."""
    rng = random.Random(f"files {seed}")
    folder()
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    try:
        kind(seed, rng)
    except Refused:
        return f"{kind.__name__} refused"
    return f"{kind.__name__} asked"


SEARCH = search.Search(
    "files",
    (
        "ggml_py/trace/*.py", "ggml_py/trace/*/*.py", "ggml_py/export/*.py",
        "ggml_py/export/json/*.py", "ggml_py/record/*.py", "ggml_py/gguf/*.py",
        "ggml_py/cost/machine.py", "ggml_py/graphs/node.py", "ggml_py/scheduler/rebuilt.py",
        "ggml_py/scheduler/as_recorded.py", "ggml_py/scheduler/replay.py",
        "ggml_py/variants/rebuild.py", "ggml_py/sim/rows.py", "tests/support/*_mutator.py",
    ),
    case,
    limit_s=10,
    per_process=8_000,
)  # fmt: skip

if __name__ == "__main__":
    if "--child" in sys.argv:
        folder()  # takes seconds, which are not the first case's
    sys.exit(search.main(SEARCH))
