"""Llamas with random weights, compared with llama-bench and libllama: speed, loading, planning.

    python benchmarks/models.py [--models 110M-q4_0,1.1B-q4_k,…] [--what prompt,decode,load,cold]
                                [--threads 2] [--folder DIR]

Measures prompts of 512 tokens and the decoding of 128 tokens, with weights repacked for the CPU and
(`--repack 0`) as they are in the file. `model_speed.py` and llama-bench get the same options; each
is a process that loads, warms up and is timed three times, of which the median counts. Loading is
measured in separate processes, up to the first token's logits and the end: libllama from its start,
ours from the call of `load` (benchmarks/startup.py measures imports). "cold" repeats this with the
file on the disk and none of its pages in memory. Planning has no peer and is measured only if
nothing is left out. benchmarks/decode_step.py shows where a token's time goes.

After the smallest and the largest ratio comes the 95 % confidence interval of their median
(bootstrap over the rounds). A bar is decided only if the whole interval is on one side of it. The
machine's load is printed first, because waiting threads spin: on a busy machine these figures mean
nothing. The reference programs are built on first use (three minutes). The models are made in DIR
and kept.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track
from rounds import Row, measured, parser, seconds, show, some_of

from ggml_py.boundary.ffi import lib
from ggml_py.models import Model, load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.scheduler.refusal import deciding

REPO = Path(__file__).resolve().parent.parent
SIZES = {
    "tiny": {},
    "110M": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_head_kv": 12, "n_ff": 2048},
    "1.1B": {"n_layer": 22, "n_embd": 2048, "n_head": 32, "n_head_kv": 4, "n_ff": 5632},
}
USUAL = "110M-q4_0,110M-f16,1.1B-q4_0,1.1B-q4_k"
CAN_FORGET = hasattr(os, "posix_fadvise")  # can evict a file's pages from memory; not on macOS
WHAT = ("prompt", "decode", "load", *(("cold",) if CAN_FORGET else ()))
N_PROMPT, N_GEN = 512, 128
REPETITIONS = "3"
SLOWEST = 1.03  # the largest ratio that counts as the same speed
T = TypeVar("T")
_FIRST_TOKEN = """
import sys, time
from ggml_py.models import load
start = time.perf_counter()
with load(sys.argv[1], n_threads=int(sys.argv[2])) as model:
    model.eval([1])
print(time.perf_counter() - start)
"""
# A process inherits the peak memory of the one that forked it, so a small process is in between.
_RUN = """
import json, os, sys, time
start = time.perf_counter()
child = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
print(json.dumps([status, time.perf_counter() - start, usage.ru_maxrss * 1024]))
"""


def reference(program: str) -> Path:
    """The path of one of upstream's programs, or of our programs on libllama."""
    build = [sys.executable, REPO / "build_ggml.py", "--reference"]
    done = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.splitlines()[-1]) / "bin" / program


def spec_of(name: str) -> LlamaSpec:
    """The spec of a model named "SIZE-TYPE"."""
    size, type_ = name.rsplit("-", 1)
    return LlamaSpec(**{"n_vocab": 32000, **SIZES[size]}, type=type_)


def file_of(name: str, folder: Path) -> Path:
    """The model's file, made on first use."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_llama(path, spec_of(name))
    return path


def opened(path: Path, threads: int, repack: bool) -> Model:
    """Our model, with llama-bench's settings."""
    n_ctx = N_PROMPT + N_GEN
    return load(path, n_threads=threads, n_ctx=n_ctx, flash_attn=True, repack=repack)


def speed(
    name: str, path: Path, threads: int, rounds: int, repack: bool, only: Sequence[str] = WHAT
) -> list[Row]:
    """Prompt and decode, in seconds per token."""
    programs = {
        "ours": [sys.executable, str(REPO / "benchmarks" / "model_speed.py")],
        "theirs": [str(reference("llama-bench"))],
    }
    peer = "llama-bench" if repack else "llama-bench --repack 0"
    rows = []
    for what, *sizes in (("prompt", N_PROMPT, 0), ("decode", 0, N_GEN)):
        if what not in only:
            continue
        n_prompt, n_gen = map(str, sizes)
        options = [
            "-m", str(path), "-p", n_prompt, "-n", n_gen, "-t", str(threads), "-r", REPETITIONS,
            "-fa", "1", "--repack", str(int(repack)), "-dev", "none", "-o", "json",
        ]  # fmt: skip
        ours, theirs = in_turns(
            {who: partial(_by_token, [*program, *options]) for who, program in programs.items()},
            rounds,
            named := f"{what} of {name}, by token",
        )
        rows.append(measured(named, peer, "ms", [(ours, theirs)], SLOWEST))
    return rows


def _by_token(command: list[str]) -> float:
    """Seconds per token: the median of the repetitions in llama-bench's JSON."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (result,) = json.loads(done.stdout)
    return 1 / statistics.median(result["samples_ts"])


def loading(name: str, path: Path, threads: int, rounds: int, cold: bool = False) -> list[Row]:
    """Time and peak memory of a process that loads a model and evaluates one token."""
    with tempfile.TemporaryDirectory() as folder:
        program, out = str(reference("llama_logits")), str(Path(folder) / "logits")
        commands = {
            "ours": [sys.executable, "-c", _FIRST_TOKEN, str(path), str(threads)],
            "theirs": [program, str(path), "1", "1", out, "--threads", str(threads), "--repack"],
        }
        runs = {
            who: partial(_process, command, path if cold else None)
            for who, command in commands.items()
        }
        ours, theirs = in_turns(runs, rounds, f"loading {name}")
    figures = [("load and first token, cold" if cold else "load and first token", "ms", 0)]
    if not cold:
        figures.append(("its peak memory", "MB", 1))
    rows = []
    for what, unit, n in figures:
        mine, other = ([one[n] for one in all_] for all_ in (ours, theirs))
        rows.append(measured(f"{what}, {name}", "libllama", unit, [(mine, other)], 1.05))
    return rows


def in_turns(runs: dict[str, Callable[[], T]], rounds: int, what: str) -> list[list[T]]:
    """The results of each run in each round. An extra round first reads the file into memory."""
    took: dict[str, list[T]] = {who: [] for who in runs}
    order = list(runs)
    console = Console(stderr=True)
    shown = {"console": console, "transient": True, "disable": not console.is_terminal}
    for _ in track(range(rounds + 1), what, **shown):
        for who in order:
            took[who].append(runs[who]())
        order.reverse()  # neither always follows the other
    return [values[1:] for values in took.values()]


def _process(command: list[str], forgotten: Path | None) -> tuple[float, float]:
    """A process's seconds and its peak memory in bytes. The seconds are those that it prints, or
    else its whole life. When it starts, no page of the file `forgotten` is in memory."""
    if forgotten:
        with forgotten.open("rb") as file:
            os.fsync(file.fileno())  # pages not yet on the disk would stay in memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    run = [sys.executable, "-S", "-c", _RUN, *command]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    *said, last = done.stdout.splitlines()
    status, took, nbytes = json.loads(last)
    if status:
        raise RuntimeError(f"{command}: {done.stderr}")
    return float(said[-1]) if said and said[-1][0].isdigit() else took, nbytes


def planning(path: Path, rounds: int) -> dict[str, float]:
    """Milliseconds from the call of `load` to the first plan, and for one more plan."""

    def first() -> None:
        with load(path, n_threads=1) as model:
            model.plan()

    firsts = [seconds(first) for _ in range(rounds)]
    with load(path, n_threads=1) as model:
        again = [seconds(model.plan) for _ in range(rounds)]
    return {
        "load_and_plan_ms": statistics.median(firsts) * 1e3,
        "another_plan_ms": statistics.median(again) * 1e3,
    }


def graph_of_32_layers(folder: Path, rounds: int) -> dict[str, float]:
    """Milliseconds to build a decoding graph of 32 layers, and then to plan it natively."""
    path = folder / "32-layers.gguf"
    if not path.exists():
        write_llama(path, LlamaSpec(n_layer=32, n_vocab=512))
    builds, plans = [], []
    with load(path, n_threads=1) as model:
        graphs, shape = model._graphs, model._memory.planned_shape(1, 0)
        with graphs._scheduler() as sched:
            for _ in range(4 * rounds):
                start = time.perf_counter()
                builder = graphs._build(shape, model.flash_attn)
                builds.append(time.perf_counter() - start)
                with deciding(sched, builder.graph):
                    lib.ggml_backend_sched_split_graph(sched.ptr, builder.graph.ptr)
                plans.append(time.perf_counter() - start)
                builder.close()
    return {
        "build_32_layers_ms": statistics.median(builds) * 1e3,
        "build_and_plan_32_layers_ms": statistics.median(plans) * 1e3,
    }


def rows(rounds: int, _peer: str) -> list[Row]:
    """The rows for the table of all benchmarks."""
    with tempfile.TemporaryDirectory() as folder:
        path = file_of("110M-q4_0", Path(folder))
        return speed("110M-q4_0", path, 2, min(rounds, 5), repack=True)


def main() -> None:
    """Measures the models one after the other."""
    options = parser(__doc__)
    options.set_defaults(rounds=5)
    options.add_argument("--models", default=USUAL, help="SIZE-TYPE, comma-separated")
    options.add_argument("--what", type=some_of(*WHAT), default=WHAT, help="comma-separated")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repack", choices=["both", "1", "0"], default="both")
    folder = Path(tempfile.gettempdir()) / "ggml_py_models"
    options.add_argument("--folder", type=Path, default=folder)
    args = options.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found, alone = [], {}
    print(f"load average {os.getloadavg()[0]:.2f}, {args.threads} threads", file=sys.stderr)
    for name in args.models.split(","):
        path = file_of(name, args.folder)
        for repack in (True, False) if args.repack == "both" else (args.repack == "1",):
            found += speed(name, path, args.threads, args.rounds, repack, args.what)
        if "load" in args.what:
            found += loading(name, path, args.threads, args.rounds)
        if "cold" in args.what:
            found += loading(name, path, args.threads, args.rounds, cold=True)
        if args.what == WHAT:
            alone[name] = planning(path, args.rounds)
    show(found, args.form)
    if alone:
        alone["32 layers"] = graph_of_32_layers(args.folder, args.rounds)
        print(json.dumps(alone, indent=1), file=sys.stderr)


if __name__ == "__main__":
    main()
