"""Reads damaged user files: snapshots of plans, runs, logs, compressed plans, profiles.

    python benchmarks/files.py --cases 20000

A damaged file must be refused with a ValueError that has a message, or its remaining content must
answer every question. Any other exception, a crash, or more than ten seconds is a finding.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "benchmarks")]
sys.path.append(str(REPO))
import fuzz_plan  # noqa: E402
from search import Search, main  # noqa: E402

import ggml_py as ggml  # noqa: E402
from ggml_py.export.json import plan_file as to_json  # noqa: E402
from ggml_py.export.json import run_file as run_json  # noqa: E402

ODD_TEXT = (
    "", " ", "\n", "\x00", "\ud800", "é", "-1", "0", "99999999999999999999", "1.5", "nan",
    "  split on",
    "    < ", "nodes", "layer 0", "layers 0-9", "layers 0-999999999", "- ", "{", "}", '"', "\\",
    "node #", "## SPLIT #0: CPU # 0 inputs", "## SPLIT #1: CPU # 1 inputs: [x (   0K)] ",
    "0 B", "7 XiB",
)  # fmt: skip


@cache
def plans() -> list[ggml.Plan]:
    """The plans that all files are made from."""
    texts = [json.dumps(data).encode() for data in fuzz_plan.plans()[:20]]
    return [ggml.Plan.of(to_json.parse(text, "p")) for text in texts]


@cache
def snapshots() -> list[str]:
    return [p.snapshot() for p in plans()]


@cache
def logs() -> list[str]:
    return [p.text() for p in plans()]


@cache
def compressed() -> list[bytes]:
    return [gzip.compress(json.dumps(p.to_json()).encode()) for p in plans()]


@cache
def runs() -> list[tuple[bytes, list[tuple[Any, ...]]]]:
    """Runs of a few of the plans, and the places of each run's values."""
    from tests.support import drawn_plans

    data = [run_json.render(drawn_plans.ran(p)) for p in plans()[:6]]
    return [(json.dumps(d).encode(), list(fuzz_plan._places(d))[1:]) for d in data]


def _damaged_text(rng: random.Random, text: str) -> str:
    """Deletes, repeats and moves lines, takes words of other lines, and cuts lines."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        lines = text.split("\n")
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(7)
        if kind == 0:
            del lines[i]
        elif kind == 1:
            lines.insert(i, lines[j])
        elif kind == 2:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 3:
            words, others = lines[i].split(" "), lines[j].split(" ")
            words[rng.randrange(len(words))] = rng.choice((*others, *ODD_TEXT))
            lines[i] = " ".join(words)
        elif kind == 4:
            at = rng.randint(0, len(lines[i]))
            lines[i] = lines[i][:at] + rng.choice(ODD_TEXT) + lines[i][at + rng.randint(0, 4) :]
        elif kind == 5:
            lines = lines[: max(i, 1)]
        else:
            lines[i] = lines[i].strip() if rng.random() < 0.5 else f"  {lines[i]}"
        text = "\n".join(lines)
    return text


def _damaged_json(rng: random.Random, content: bytes, paths: list[tuple[Any, ...]]) -> bytes:
    data: dict[str, Any] = json.loads(content)
    for i in range(rng.choice((1, 1, 2, 4))):
        if i:
            paths = list(fuzz_plan._places(data))[1:]
        if not paths:
            break
        path = rng.choice(paths)
        owner = fuzz_plan._at(data, path[:-1])
        if rng.random() < 0.3:
            del owner[path[-1]]
        else:
            owner[path[-1]] = copy.deepcopy(rng.choice(fuzz_plan.ODD))
    return json.dumps(data).encode()


def _flipped(rng: random.Random, content: bytes) -> bytes:
    raw = bytearray(content)
    for _ in range(rng.choice((1, 3, 20))):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw[: rng.randint(1, len(raw))] if rng.random() < 0.3 else raw)


def _snapshot(rng: random.Random) -> ggml.Plan:
    return ggml.Plan.from_snapshot(_damaged_text(rng, rng.choice(snapshots())))


def _log(rng: random.Random) -> ggml.Plan:
    text = _damaged_text(rng, rng.choice(logs()))
    if rng.random() < 0.3:
        rows = [
            json.dumps({"msg": line}, ensure_ascii=rng.random() < 0.5) for line in text.split("\n")
        ]
        text = _damaged_text(rng, "\n".join(rows))
    return ggml.Plan.from_debug_log(text)


def _run(rng: random.Random) -> ggml.Run:
    return ggml.Run.of(run_json.parse(_damaged_json(rng, *rng.choice(runs())), "r.json"))


def _compressed(rng: random.Random) -> ggml.Plan:
    return ggml.Plan.of(to_json.parse(_flipped(rng, rng.choice(compressed())), "p.json.gz"))


def _profile(rng: random.Random) -> None:
    from ggml_py.sim.profile import Profile

    rows = ["backend_name,op_name,op_params,supported,error_message"]
    rows += [
        f'"gpu0","{op}","type=f32,ne=[{n},1,1,1],op_params=[],sources=f32[{n},1,1,1]","{n % 2}",""'
        for op in ("ADD", "MUL")
        for n in range(4)
    ]
    path = Path(f"/tmp/ggml_py-files-{rng.random()}.csv")
    try:
        path.write_bytes(_damaged_text(rng, "\n".join(rows)).encode("utf-8", "surrogatepass"))
        Profile(path)
    finally:
        path.unlink(missing_ok=True)


KINDS = (_snapshot, _snapshot, _log, _log, _run, _compressed, _profile)


def case(seed: int) -> str:
    """One damaged file."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    name = kind.__name__.strip("_")
    try:
        found = kind(rng)
    except ValueError as error:
        if isinstance(error, (UnicodeError, json.JSONDecodeError)) or not str(error):
            raise
        return f"{name} refused"
    if isinstance(found, ggml.Run):
        str(found.summary()), found.summary().as_dict()
    elif found is not None:
        fuzz_plan.ask(found, rng)
    return f"{name} asked"


SEARCH = Search(
    "files",
    (
        "benchmarks/files.py", "ggml_py/export/snapshot*.py", "ggml_py/export/debug_log*.py",
        "ggml_py/export/log_lines.py", "ggml_py/export/json/*.py", "ggml_py/sim/rows.py",
    ),
    case,
    limit_s=10,
    per_process=10_000,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(SEARCH))
