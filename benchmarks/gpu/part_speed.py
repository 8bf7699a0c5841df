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
    left_out = []
    for model in MODELS[:1] if doing.dry_run else MODELS:
        path = doing.model(model)
        for what, sizes in (SHORT if doing.dry_run else TESTS).items():
            if (path.stem, what) in there:
                continue
            if doing.left < FOR_A_ROW:
                left_out.append(f"{what} of {model}")
                continue
            rounds = 2 if doing.dry_run else ROUNDS
            row = compare(doing, what, path, rounds, (*sizes, *place, "-fa", 1))
            rows.append(row)
            print(line_of(row), flush=True)
            if row["verdict"] == "no" and not doing.dry_run:
                doing.fail(line_of(row))
            doing.save()
    doing.unfinished = ", ".join(left_out)
    verdicts = [row["verdict"] for row in rows]
    said = f"{verdicts.count('yes')} of {len(rows)} rows at 1.00 or more"
    if undecided := verdicts.count("undecided"):
        said += f", {undecided} undecided"
    return said + (": figures of a dry run mean nothing" if doing.dry_run else "")


if __name__ == "__main__":
    sys.exit(main(work, {"rows": []}))
