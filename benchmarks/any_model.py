"""Plans of libllama's graphs from headers alone, compared with what an unmodified build prints.

    python benchmarks/any_model.py [--only REGEX] [--oracle DIR] [--models DIR] [--write]

For every model that upstream's `test-llama-archs -o` writes × SETTINGS × N_TOKENS
(tests/support/upstream_plans.py): our plan (`ggml_py.llama.open(…).plan(n)`, no weights read) line
for line, and bytes of weights, cache and compute, beside what libllama of an unmodified build
prints and allocates on the same devices when it evaluates so many tokens
(tests/oracle/llama_place.cpp). `--write` puts the table into
benchmarks/results/any_model.json. Exit status 1 means that something differs
that was not known (KNOWN).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

import search
from models import reference

from ggml_py.boundary.ffi import BUILD

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.oracle_programs import Oracle
from tests.support.upstream_plans import KNOWN, N_TOKENS, SETTINGS, compared

REPO = Path(__file__).resolve().parent.parent
PATTERNS = (
    "ggml_py/llama/*.py", "ggml_py/native/llama/*.cpp", "ggml_py/native/llama/*.h",
    "vendor/llama_edits.py",
    "ggml_py/sim/*.py", "benchmarks/any_model.py", "tests/support/upstream_plans.py",
)  # fmt: skip


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
    """Prints how many are equal; whether only what is known (upstream_plans.py) differs."""
    held = True
    print("| devices | models | equal | refused by both | different |")
    print("| --- | ---: | ---: | ---: | --- |")
    for setting in next(iter(table.values())):
        said = {name: row[setting] for name, row in table.items()}
        equal = sum(one == "equal" for one in said.values())
        refused = [name for name, one in said.items() if one.startswith("refused")]
        wrong = [name for name, one in said.items() if one != "equal" and name not in refused]
        held = held and all(
            said[name].startswith(KNOWN.get((name, setting), "none")) for name in wrong
        )
        print(f"| {setting} | {len(said)} | {equal} | {len(refused)} | {', '.join(wrong)} |")
    return held


def write(table: dict[str, dict[str, str]], held: bool, seconds: float) -> None:
    """Writes the record."""
    search.keep(
        "any_model", "python benchmarks/any_model.py --write", PATTERNS, build=BUILD["key"],
        seconds=round(seconds), equal=held, known=[[*what, said] for what, said in KNOWN.items()],
        n_tokens=N_TOKENS, table=table,
    )


if __name__ == "__main__":
    sys.exit(main())
