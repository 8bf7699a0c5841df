"""Random set-ups of llama.cpp, whose plans must be upstream's own print, causes included.

`benchmarks/causes.py` runs them. Odd cases record an unmodified llama-bench on the GPUs of
oracle_gpus.cpp. Even cases plan the model on simulated devices. An unmodified program prints
the expected plan, with upstream's own cause column (cause_oracle.py).
"""

from __future__ import annotations

import functools
import os
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import ggml_py as ggml
from ggml_py.llama.overrides import parse_overrides
from ggml_py.models import load
from ggml_py.record.programs import launch
from ggml_py.record.programs.identify import recorder_for
from ggml_py.sim.given import named_devices

from . import followed_cases
from .cause_oracle import CauseOracle, compared, lines_of, prints
from .oracle_programs import Oracle
from .placements import Theirs, memory_of, sims_text

GIB = 1 << 30
LACKED = (
    "GET_ROWS", "MUL_MAT", "ADD", "ROPE", "RMS_NORM", "SOFT_MAX", "FLASH_ATTN_EXT", "MUL_MAT_ID",
    "CPY", "CONT", "MUL", "GLU", "UNARY", "SSM_SCAN", "SSM_CONV", "ARGSORT", "NORM",
)  # fmt: skip


class Differs(Exception):
    """A plan that upstream does not print, or a print that is no plan of ours."""


@functools.cache
def _causes() -> CauseOracle:
    return CauseOracle.make(Path(tempfile.mkdtemp(dir=followed_cases.folder().name)))


class _Printing(Oracle):
    """The programs with upstream's cause column on."""

    def run(self, program: str, *arguments: object, **env: str) -> Any:
        return super().run(program, *arguments, **env, LD_PRELOAD=str(_causes().causes))


def check(seed: int) -> str:
    """Runs the case and returns its outcome. Raises `Differs`."""
    draw = random.Random(seed)
    path = draw.choice(followed_cases.models())
    return (_recorded if seed % 2 else _planned)(path, draw)


def _recorded(path: Path, draw: random.Random) -> str:
    oracle = followed_cases.oracle()
    command = [
        str(oracle.bin / "llama-bench"), "-m", str(path), "-r", "1", "-t", "1",
        "-p", draw.choice(("64", "128", "40", "64,128")), "-n", draw.choice("048"),
        "-ub", draw.choice(("16", "16", "8", "32")), "-ngl", draw.choice(("99",) * 6 + ("1", "2")),
    ]  # fmt: skip
    for chance, *words in (
        (0.2, "-pg", "64,4"), (0.2, "-d", "32"), (0.3, "-fa", draw.choice(("on", "off", "off,on"))),
        (0.2, "-ctk", "q8_0"), (0.2, "-ts", draw.choice(("1/1", "1/3", "3/1"))),
        (0.1, "-nkvo", "1"), (0.1, "-ot", draw.choice(("ffn=CPU", "attn=CPU"))),
        (0.1, "-sm", draw.choice(("none", "row"))),
    ):  # fmt: skip
        command += words if draw.random() < chance else []
    devices = _causes().devices([_gpu(i, draw) for i in range(draw.choice((1, 2, 2, 3)))])
    try:
        log = _causes().log([*command, "-v"], devices)
    except AssertionError:  # of the program, with all that it printed
        return "refused"
    recorder = recorder_for(next(oracle.bin.resolve().parent.glob("lib/libggml-base.so")))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x"
        variables = launch.environment(recorder, str(file), launch.RecordOptions(quiet=True), {})
        env = {**os.environ, **devices, **variables}
        subprocess.run(command, env=env, capture_output=True, check=True, timeout=300)
        plans = [one.plan for one in ggml.Record.read(file)]
    if wrong := compared(plans, prints(log)):
        raise Differs("\n".join([" ".join(command), str(devices), *wrong]))
    return "a pipeline recorded" if max(p.settings.n_copies for p in plans) > 1 else "recorded"


def _gpu(i: int, draw: random.Random) -> str:
    parts = [f"G{i}", f"memory={draw.choice((3, 3, 8, 24)) * GIB}"]
    for chance, word in (
        (0.2, "unified"), (0.4, "host_buffer"), (0.1, "peers"), (0.07, "sync"),
        (0.2, f"max_size={draw.choice((1 << 20, 1 << 16))}"),
        (0.3, f"min_batch={draw.choice((1, 8, 64))}"),
        (0.25, f"lacks={draw.choice(LACKED)}"), (0.1, f"lacks={draw.choice(LACKED)}"),
    ):  # fmt: skip
        parts += [word] if draw.random() < chance else []
    return ",".join(parts)


def _planned(path: Path, draw: random.Random) -> str:
    options: dict[str, Any] = {"n_gpu_layers": 99, **draw.choice(followed_cases.SET_UPS)}
    if draw.random() < 0.3:
        options["n_ctx"] = draw.choice((100, 1000, 2048))
    n_tokens, devices = draw.choice((1, 31, 64)), dict[str, dict[str, Any]]()
    for i in range(draw.choice((1, 2, 2, 3))):
        card = draw.choice((*followed_cases.CARDS, ""))
        settings: dict[str, Any] = {
            "memory": draw.choice((3, 24)) * GIB, "min_batch": draw.choice((1, 8, 32, 64)),
        }  # fmt: skip
        devices[f"gpu{i}"] = {"card": card} if card else settings
    if draw.random() < 0.2:
        options["tensor_split"] = (1, draw.choice((1, 3)), 1)[: len(devices)]
    try:
        theirs = Theirs(
            _Printing(followed_cases.oracle().bin), path, (n_tokens,), sims=sims_text(devices),
            **options,
        )  # fmt: skip
    except AssertionError:  # of the program, with all that it printed
        theirs = None
    names = [_named(name, settings) for name, settings in devices.items()]
    sims = [device for name in names for device in named_devices(name)]
    ours = {k: v for k, v in options.items() if k != "overrides"}
    if "overrides" in options:
        ours["tensor_overrides"] = parse_overrides(options["overrides"])
    try:
        with load(path, devices=[*sims, "CPU"], header_only=True, graphs="libllama",
                  **ours) as model:  # fmt: skip
            plan, memory = model.plan(n_tokens), memory_of(model)
    except ggml.GgmlError as error:
        if theirs is None:
            return "refused"
        raise Differs(f"{path.name} {devices} {options}: we refuse: {error}") from None
    finally:
        for device in reversed(sims):
            device.close()
    if theirs is None:
        raise Differs(f"{path.name} {devices} {options}: libllama refuses")
    wrong = [] if memory == theirs.memory else [f"bytes: {memory}, not {theirs.memory}"]
    wrong += compared([plan], [lines_of(theirs.plans[n_tokens])])
    if wrong:
        raise Differs("\n".join([f"{path.name} {devices} {options} {n_tokens}", *wrong]))
    return "a pipeline planned" if plan.settings.n_copies > 1 else "planned"


def _named(name: str, settings: dict[str, Any]) -> str:
    keys = {"card": "profile"}
    return "sim:" + ",".join([name, *(f"{keys.get(k, k)}={v}" for k, v in settings.items())])
