"""`ggml-py memory --fit-print` beside llama-fit-params: every model × FLAGS × DEVICES, in bytes.

    test-llama-archs -s 42 -o MODELS
    python benchmarks/fit_print.py MODELS [--write]

Upstream's own program has the same devices: simulated ones are loaded into it. Both may refuse a
combination, for the same reason. `--write` puts the counts into benchmarks/results/fit_print.json.
Exit status 1 means that a line differs.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import search
from models import reference
from rich.progress import track

import ggml_py as ggml
from ggml_py import llama
from ggml_py.boundary.ffi import BUILD
from ggml_py.builds.script import folder_of
from ggml_py.record.programs.sim_devices import sims_text

PATTERNS = (
    "ggml_py/llama/*.py", "ggml_py/native/llama/*.cpp", "vendor/llama_edits.py",
    "benchmarks/fit_print.py",
)  # fmt: skip
TWO = ("sim:fit0,profile=metal,memory=4G", "sim:fit1,profile=vulkan,memory=2G")
DEVICES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # and more of the command line
    "CPU": ((), ()),
    "GPU, one layer": (TWO[:1], ("-ngl", "1")),
    "GPU, all layers": (TWO[:1], ("-ngl", "99")),
    "2 GPUs": (TWO, ("-ngl", "99")),
    "2 GPUs, half": (TWO, ("-ngl", "2", "-ts", "3,1")),
}
FLAGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {  # and the options of `llama.open`
    "-c 4096": (("-c", "4096"), {"n_ctx": 4096}),
    "-c 1024 -ub 128 -fa off": (
        ("-c", "1024", "-ub", "128", "-fa", "off"),
        {"n_ctx": 1024, "n_ubatch": 128, "flash_attn": "off"},
    ),
    "-c 8192 -ctk q8_0 -nkvo": (
        ("-c", "8192", "-ctk", "q8_0", "-nkvo"),
        {"n_ctx": 8192, "type_k": "q8_0", "offload_kqv": False},
    ),
    "-c 2048 -np 4": (
        ("-c", "2048", "-np", "4"),
        {"n_ctx": 2048, "n_seq_max": 4},
    ),
}


def main() -> int:
    """Prints a row per combination."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    program = str(reference("llama-fit-params"))
    module = folder_of("--simulator", "--upstream", BUILD["label"]) / "libggml_py_sim.so"
    models = sorted(args.models.glob("*.gguf"))
    start = time.monotonic()
    rows, different = {}, []
    for devices in DEVICES:
        for flags in FLAGS:
            counts: Counter[str] = Counter()
            for path in track(models, f"{devices}, {flags}", transient=True):
                said = compared(program, module, path, devices, flags)
                counts[said.partition(":")[0]] += 1
                if said.partition(":")[0] not in ("equal", "refused by both"):
                    different.append(f"{path.stem}, {devices}, {flags}: {said}")
            rows[f"{devices}, {flags}"] = dict(counts)
            print(f"{devices}, {flags}: {dict(counts)}", flush=True)
    print("\n".join(different))
    if args.write:
        search.keep(
            "fit_print", "python benchmarks/fit_print.py MODELS --write", PATTERNS,
            equal=not different, build=BUILD["key"], seconds=round(time.monotonic() - start),
            models=len(models), rows=rows, different=different,
        )  # fmt: skip
    return 1 if different else 0


def compared(program: str, module: Path, path: Path, devices: str, flags: str) -> str:
    """ "equal", "refused by both", or what differs."""
    (names, more), (words, options) = DEVICES[devices], FLAGS[flags]
    env = dict(os.environ)
    command = [program, "-m", str(path), "-fitp", "on", *words, *more]
    if names:
        env |= {"GGML_BACKEND_PATH": str(module), "GGML_PY_SIMS": sims_text(names)}
        command += ["-dev", ",".join(name[4:].partition(",")[0] for name in names)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    given = dict(zip(more[::2], more[1::2], strict=True))
    with ExitStack() as stack:
        sims = [stack.enter_context(ggml.sim.text.sim_device_of(name[4:])) for name in names]
        placed: dict[str, Any] = {"n_gpu_layers": int(given.get("-ngl", 0))}
        if "-ts" in given:
            placed["tensor_split"] = tuple(map(float, given["-ts"].split(",")))
        try:
            with llama.open(
                path, devices=[*sims, "CPU"], n_batch=2048, load_mode="none", **placed, **options
            ) as model:
                ours = model.fit_print()
        except ggml.GgmlError as error:
            return "refused by both" if done.returncode else f"ours raises: {error}"
    if done.returncode:
        return f"theirs ends: {done.stderr[-200:]}"
    return "equal" if ours == done.stdout else f"different: {ours!r}, theirs {done.stdout!r}"


if __name__ == "__main__":
    sys.exit(main())
