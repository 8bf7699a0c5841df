"""What is predicted for this machine is compared with: its calibration, and llama-bench's rows.

Predictions need libllama's plans, which the kit does not carry: `benchmarks/cost_error.py --devices
GPU` makes them afterwards, on a card with the device's properties, from what is kept here.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from gpu_part import Doing, main
from part_supports import properties

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from cost_models import LARGE, MODELS, model_file  # noqa: E402

from ggml_py.calibrate import calibrate  # noqa: E402

N_PROMPT, N_GEN, DEPTHS, REPETITIONS = 512, 64, (0, 512, 4096), 5
GPU_S, CPU_S = 90.0, 60.0  # of calibrating
TYPES = ("f32", "q4_K", "q8_0", "q4_0", "f16", "q6_K")
MOST_THREADS = 8
FOR_A_MODEL = 12.0  # seconds below which no other model is begun
WHERE = ("all", "half")  # of the layers, on the device


def work(doing: Doing) -> str:
    """Models, then the calibration while nothing else runs, then llama-bench."""
    found = doing.found
    folder = doing.work / "models"
    folder.mkdir(exist_ok=True)
    models = [*MODELS][:1] if doing.dry_run else [*MODELS]
    if not doing.dry_run:
        with ProcessPoolExecutor(max_workers=min(len(models), os.cpu_count() or 1)) as pool:
            list(pool.map(model_file, models, [folder] * len(models)))
    threads = min(MOST_THREADS, os.cpu_count() or 1)
    if not found["machine"]:
        said = json.loads((doing.work / "machine.json").read_text(encoding="utf-8"))
        found["card"] = properties(doing, said["gpus"][0] if said["gpus"] else None)
        calibrated(doing, threads)
    return measured(doing, models, folder, threads)


def calibrated(doing: Doing, threads: int) -> None:
    """Keeps the machine's file: the device, and the CPU beside it."""
    wanted: dict[str, Any] = {"CPU": {"seconds": 5.0, "types": ("f32", "q4_0")}}
    if not doing.dry_run:
        wanted = {doing.device.name: {"seconds": GPU_S, "types": TYPES},
                  "CPU": {"seconds": CPU_S, "types": TYPES}}  # fmt: skip
    kept: dict[str, Any] = {}
    for name, settings in wanted.items():
        found = calibrate([name], threads, **settings).to_dict()
        kept = kept or {**found, "devices": [], "doubts": []}
        kept["devices"] += found["devices"]
        kept["doubts"] += found["doubts"]
        doing.found["machine"] = kept
        doing.save()
        print(name, f"{found['machine']['seconds']} s", found["doubts"], flush=True)


def measured(doing: Doing, models: list[str], folder: Path, threads: int) -> str:
    """llama-bench's rows, by place and model; a model whose rows are there is left out."""
    rows = doing.found["measured"]
    device = "none" if doing.dry_run else doing.device.name
    wanted = [(where, model) for where in WHERE for model in models if not doing.dry_run
              if f"{where}/{model}/{threads}" not in rows]  # fmt: skip
    for n, (where, model) in enumerate(wanted):
        if doing.left < FOR_A_MODEL:
            doing.unfinished = f"{len(wanted) - n} models"
            break
        n_layer = MODELS[model].n_layer
        depths = DEPTHS[:1] if MODELS[model].n_params > LARGE and where == "half" else DEPTHS
        try:
            printed = doing.run(
                doing.programs / "llama-bench", "-m", folder / f"{model}.gguf", "-p", N_PROMPT,
                "-n", N_GEN, "-d", ",".join(map(str, depths)), "-t", threads, "-r", REPETITIONS,
                "-dev", device, "-ngl", 99 if where == "all" else n_layer // 2, "-o", "jsonl",
            )  # fmt: skip
        except RuntimeError as error:
            doing.fail(f"{where}/{model}: {error}")
            continue
        rows[f"{where}/{model}/{threads}"] = [
            {"test": f"pp{N_PROMPT}" if row["n_prompt"] else f"tg{N_GEN}", "depth": row["n_depth"],
             "samples": row["samples_ts"]}
            for row in map(json.loads, printed.splitlines())
        ]  # fmt: skip
        doing.save()
    n_samples = sum(len(device["samples"]) for device in doing.found["machine"]["devices"])
    n_rows = sum(map(len, rows.values()))
    return f"{n_samples} samples of the calibration; {n_rows} rows of llama-bench kept"


if __name__ == "__main__":
    sys.exit(main(work, {"machine": {}, "card": [], "measured": {}}))
