"""Plans of libllama's graphs from headers alone, compared with what an unmodified build prints.

    python benchmarks/any_model.py [--only REGEX] [--oracle DIR] [--models DIR] [--write]

For every model that upstream's `test-llama-archs -o` writes × SETTINGS × N_TOKENS: our plan
(`ggml_py.llama.open(…).plan(n)`, no weights read) line for line, and bytes of weights, cache and
compute, beside what libllama of an unmodified build prints and allocates on the same devices when
it evaluates so many tokens (tests/oracle/llama_place.cpp). `--write` puts the table into
benchmarks/results/any_model.json. Exit status 1 means that something differs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import search
from models import reference

import ggml_py as ggml
from ggml_py import llama
from ggml_py.boundary.ffi import BUILD
from ggml_py.llama.overrides import parse_overrides

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from oracle_programs import Oracle
from placements import Theirs, blank, sims_text

REPO = Path(__file__).resolve().parent.parent
PATTERNS = (
    "ggml_py/llama/*.py", "ggml_py/native/llama/*", "vendor/llama.py", "vendor/llama_edits.py",
    "ggml_py/sim/*.py", "benchmarks/any_model.py",
)  # fmt: skip
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
GPU: dict[str, dict[str, Any]] = {"gpu0": {"host_buffer": 1}}
TWO: dict[str, dict[str, Any]] = {"gpu0": {"memory": 4 << 30}, "gpu1": {"memory": 2 << 30}}
SETTINGS: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
    "CPU": ({}, {}),
    "BLAS and CPU": ({}, {"blas": True}),
    "GPU, all layers": (GPU, {"n_gpu_layers": 99}),
    "GPU, one layer": (GPU, {"n_gpu_layers": 1}),
    "2 GPUs": (TWO, {"n_gpu_layers": 99}),
    "experts on the CPU": (GPU, {"n_gpu_layers": 99, "overrides": EXPERTS}),
}  # fmt: skip
N_TOKENS = (31, 1)
_SIM = {"host_buffer": "host_buffer", "memory": "memory"}


def compared(oracle: Oracle, path: Path, setting: str) -> str:
    """ "equal", or what differs."""
    devices, options = SETTINGS[setting]
    options = dict(options)
    blas = options.pop("blas", False)
    theirs: Theirs | str
    try:
        more = {"blas": Path(BUILD["folder"]) / "libggml-blas.so.0"} if blas else {}
        theirs = Theirs(oracle, path, N_TOKENS, sims=sims_text(devices), **options, **more)
    except (AssertionError, ValueError) as error:  # of the program, with all that it printed
        said = re.findall(r"^(?:\S+\.cpp:\d+: |llama_place: )(.*)", str(error), re.M)
        theirs = said[-1] if said else "ended"
    if "overrides" in options:
        options["tensor_overrides"] = parse_overrides(options.pop("overrides"))
    with ExitStack() as stack:
        for name, settings in devices.items():
            stack.enter_context(ggml.sim_device(name, **settings))
        names = (*devices, *(("BLAS",) if blas else ()), "CPU")
        try:
            with llama.open(path, devices=names, repack=False, **options) as model:
                plans = {n: blank(model.plan(n).text()) for n in N_TOKENS}
                memory = {
                    row.buft: sizes for row in model.memory
                    if any(sizes := (row.weights, row.cache, row.compute))
                }  # fmt: skip
        except ggml.GgmlError as error:
            if isinstance(theirs, str):
                return f"refused: {theirs}"
            return f"ours raises {type(error).__name__}: {str(error)[:200]}"
    if isinstance(theirs, str):
        return f"theirs ends ({theirs}), ours plans"
    for n in N_TOKENS:
        if plans[n] != blank(theirs.plans[n]):
            return f"{n} tokens: {_first_difference(plans[n], blank(theirs.plans[n]))}"
    return "equal" if memory == theirs.memory else f"bytes: ours {memory}, theirs {theirs.memory}"


def _first_difference(ours: str, theirs: str) -> str:
    for a, b in zip(ours.splitlines(), theirs.splitlines(), strict=False):
        if a != b:
            return f"ours {a.strip()!r}, theirs {b.strip()!r}"
    return f"{len(ours.splitlines())} lines, theirs {len(theirs.splitlines())}"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--setting", action="append", choices=SETTINGS)
    parser.add_argument("--oracle", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    oracle = Oracle(args.oracle or reference("llama_place").parent)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        models = args.models or Path(folder)
        if args.models is None:
            oracle.run("test-llama-archs", "-s", 42, "-o", folder)
        table: dict[str, dict[str, str]] = {}
        for path in sorted(models.glob("*.gguf")):
            if not re.search(args.only, path.stem):
                continue
            row = {s: compared(oracle, path, s) for s in args.setting or SETTINGS}
            table[path.stem] = row
            wrong = {s: said for s, said in row.items() if said != "equal"}
            print(f"{path.stem}: {wrong or 'equal'}", file=sys.stderr)
    held = show(table)
    if args.write:
        write(table, held, time.monotonic() - start)
    return 0 if held else 1


def show(table: dict[str, dict[str, str]]) -> bool:
    """Prints how many are equal; whether none differs."""
    held = True
    print("| devices | models | equal | refused by both | different |")
    print("| --- | ---: | ---: | ---: | --- |")
    for setting in next(iter(table.values())):
        said = {name: row[setting] for name, row in table.items()}
        equal = sum(one == "equal" for one in said.values())
        refused = [name for name, one in said.items() if one.startswith("refused")]
        wrong = [name for name, one in said.items() if one != "equal" and name not in refused]
        held = held and not wrong
        print(f"| {setting} | {len(said)} | {equal} | {len(refused)} | {', '.join(wrong)} |")
    return held


def write(table: dict[str, dict[str, str]], held: bool, seconds: float) -> None:
    """Writes the record."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout.strip()
    record = {
        "command": "python benchmarks/any_model.py --write", "date": str(datetime.date.today()),
        "commit": commit, "build": BUILD["key"], "seconds": round(seconds), "equal": held,
        "n_tokens": N_TOKENS, "patterns": list(PATTERNS), "about": search.hashes(PATTERNS),
        "table": table,
    }  # fmt: skip
    target = REPO / "benchmarks" / "results" / "any_model.json"
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
