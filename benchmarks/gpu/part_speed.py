"""Prompt and decode with all layers on the GPU, beside llama-bench on the same libraries."""

from __future__ import annotations

import sys

from beside import compare, line_of
from gpu_part import Doing, main

MODELS = ("1.1B-q4_k", "8B-q4_k", "110M-q4_0")
TESTS = {"prompt": ("-p", 512, "-n", 0), "decode": ("-p", 0, "-n", 128)}
SHORT = {"prompt": ("-p", 64, "-n", 0), "decode": ("-p", 0, "-n", 8)}
ROUNDS = 7
FOR_A_ROW = 15.0  # seconds below which no other row is begun


def work(doing: Doing) -> str:
    """One row for each model and test. A model whose rows are there already is left out."""
    rows = doing.found["rows"]
    there = {(row["model"], row["what"]) for row in rows}
    on_cpu = ("-dev", "none", "-t", 2)
    place = on_cpu if doing.dry_run else ("-ngl", 99, "-dev", doing.device.name)
    tests, models = (SHORT, MODELS[:1]) if doing.dry_run else (TESTS, MODELS)
    wanted = [(model, what) for model in models for what in tests
              if (doing.model(model).stem, what) not in there]  # fmt: skip
    for n, (model, what) in enumerate(wanted):
        if doing.left < FOR_A_ROW:
            doing.unfinished = ", ".join(f"{what} of {model}" for model, what in wanted[n:])
            break
        share = (doing.left - FOR_A_ROW / 3) / (len(wanted) - n)
        rounds = 2 if doing.dry_run else ROUNDS
        options = (*tests[what], *place, "-fa", 1)
        row = compare(doing, what, doing.model(model), rounds, share, options)
        rows.append(row)
        print(line_of(row), flush=True)
        if row["verdict"] == "no" and not doing.dry_run:
            doing.fail(line_of(row))
        doing.save()
    verdicts = [row["verdict"] for row in rows]
    said = f"{verdicts.count('yes')} of {len(rows)} rows at 1.00 or more"
    if undecided := verdicts.count("undecided"):
        said += f", {undecided} undecided"
    return said + (": figures of a dry run mean nothing" if doing.dry_run else "")


if __name__ == "__main__":
    sys.exit(main(work, {"rows": []}))
