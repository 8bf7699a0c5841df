"""Opens tens of thousands of mutated GGUF files. Any exception but `GgufError` is a finding.

    python benchmarks/fuzz_gguf.py --n 100000 --jobs 2         about two minutes

A watched worker process opens each file and reads all of its metadata and tensors. The death of the
process, more than two seconds, memory far over the file's size, or another exception is a finding,
saved as `SEED.gguf` in --save. `--seed` is the first mutant's number: `--n 1 --seed N` repeats N.
Linux only, because it reads /proc.
"""

from __future__ import annotations

import argparse
import os
import resource
import selectors
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "tests" / "support")]
from gguf_mutator import Mutant, mutant  # noqa: E402

LIMIT_S = 2.0
SPARE = 192 << 20  # address space beyond what a worker has when it starts
KEPT = 6 << 20  # resident bytes allowed beyond four times the file's size, for Python's caches


@dataclass
class Report:
    """The result of a run: the number of each outcome, and (outcome, seed, message) of each
    finding."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[str, int, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def n(self) -> int:
        """Number of mutants run."""
        return sum(self.outcomes.values())


def write(item: Mutant, path: Path) -> int:
    """Writes the file, with its hole left sparse. Returns its size."""
    with path.open("wb") as out:
        out.write(item.data)
        out.truncate(len(item.data) + item.hole)
    return len(item.data) + item.hole


# --- the worker: one flushed line of output per mutant, so silence means a hang


def read_all(path: Path) -> None:
    """Reads everything in the file."""
    import ggml_py as ggml

    with ggml.Gguf.open(path) as gguf:
        size, data = path.stat().st_size, None
        with path.open("rb") as file:
            _magic, n_tensors, n_kv = struct.unpack("<8sQQ", file.read(24))
        assert len(gguf.tensors) == n_tensors, f"{len(gguf.tensors)} of {n_tensors} tensors"
        assert len(gguf.metadata) == n_kv, f"{len(gguf.metadata)} of {n_kv} keys"
        repr(gguf.metadata)
        _ = gguf.version, gguf.alignment, gguf.data_offset
        for name, tensor in gguf.tensors.items():
            assert name == tensor.name and tensor.offset + tensor.nbytes <= size
            data = gguf.mmap() if data is None else data
            data[tensor.offset : tensor.offset + tensor.nbytes].sum()


def planted(seed: int, plant: str) -> None:
    """Plants a fault for the tests, to see that it is noticed: crash, hang, memory or error, as
    `crash@7`."""
    what, _, at = plant.partition("@")
    if not at or seed != int(at):
        return
    if what == "crash":
        os.abort()
    if what == "hang":
        time.sleep(60)
    if what == "memory":
        bytearray(32 << 20)[::4096] = b"x" * 8192
    if what == "error":
        raise KeyError("planted")


def peak(reset: bool = False) -> int:
    """Peak resident bytes since the last reset. (ru_maxrss would start at the parent's value.)"""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def outcome_of(seed: int, path: Path, plant: str) -> tuple[str, str]:
    """The outcome of one mutant, and the message."""
    from ggml_py import GgufError

    item = mutant(seed)
    size = write(item, path)
    before = peak(reset=True)
    try:
        planted(seed, plant)
        read_all(path)
        result = "opened", ""
    except GgufError as error:
        result = "refused", str(error)
    except BaseException as error:
        return "exception", f"{type(error).__name__}: {error}"
    grown = peak() - before
    if grown > KEPT + 4 * size:
        return "memory", f"{grown:,} bytes for a file of {size:,}"
    return result


def work(first: int, last: int, step: int, folder: Path, plant: str) -> None:
    """Runs the mutants first, first+step, … below last. Ends after a finding, so that the next
    mutant starts in a clean process."""
    path = folder / f"{os.getpid()}.gguf"
    for seed in range(100, 120):  # lets Python and ggml make their one-time allocations
        outcome_of(seed, path, "")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # libasan reserves terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", flush=True)
    for seed in range(first, last, step):
        outcome, message = outcome_of(seed, path, plant)
        print(f"{seed}\t{outcome}\t{message[:300]!r}", flush=True)
        if outcome not in ("opened", "refused"):
            return


# --- the watcher


class Worker:
    """A worker process, restarted after each mutant that ends it."""

    def __init__(self, first: int, last: int, step: int, folder: Path, plant: str) -> None:
        self.next, self.last, self.step, self.folder, self.plant = first, last, step, folder, plant
        self.start()

    def start(self) -> None:
        """Starts a new process for the remaining mutants."""
        numbers = [str(n) for n in (self.next, self.last, self.step)]
        command = [sys.executable, __file__, "--worker", *numbers, str(self.folder), self.plant]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.rest = b""
        self.ready = False
        self.heard = time.monotonic()

    def lines(self) -> list[str] | None:
        """The lines since the last call; None if the process ended."""
        chunk = self.process.stdout.read()
        if chunk == b"":
            return None
        self.heard = time.monotonic()
        *whole, self.rest = (self.rest + (chunk or b"")).split(b"\n")
        return [line.decode() for line in whole]

    def stop(self) -> str:
        """Ends the process. Returns its exit status and the last line of stderr."""
        self.process.kill()
        code = self.process.wait()
        self.process.stdout.close()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines()
        self.errors.close()
        (self.folder / f"{self.process.pid}.gguf").unlink(missing_ok=True)
        return f"exit status {code}: {said[-1] if said else ''}"


def fuzz(
    n: int,
    seed: int,
    jobs: int,
    save: Path | None = None,
    plant: str = "",
    progress: Callable[[], None] | None = None,
    limit_s: float = LIMIT_S,
) -> Report:
    """Runs the mutants `seed` … `seed + n - 1`."""
    report, start = Report(), time.monotonic()
    shm = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder,
        selectors.DefaultSelector() as selector,
    ):

        def begin(worker: Worker) -> None:
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            workers.append(worker)

        def count(worker: Worker, outcome: str, at: int, message: str) -> None:
            report.outcomes[outcome] += 1
            worker.next = at + worker.step
            if outcome not in ("opened", "refused"):
                report.findings.append((outcome, at, message))
                if save:
                    save.mkdir(parents=True, exist_ok=True)
                    write(mutant(at), save / f"{at}.gguf")
            if progress:
                progress()

        def end(worker: Worker, outcome: str | None) -> None:
            """Continues after a finding: `outcome`, or one that the worker reported."""
            selector.unregister(worker.process.stdout)
            workers.remove(worker)
            how = worker.stop()
            if not worker.ready:
                raise RuntimeError(f"the worker did not start: {how}")
            if outcome:
                count(worker, outcome, worker.next, how)
            if worker.next < worker.last:
                worker.start()
                begin(worker)

        workers: list[Worker] = []
        try:
            for job in range(min(jobs, n)):
                begin(Worker(seed + job, seed + n, jobs, Path(folder), plant))
            while workers:
                for key, _events in selector.select(0.25):
                    worker = key.data
                    lines = worker.lines()
                    if lines is None:
                        told = worker.process.wait() == 0
                        end(worker, None if told else "death")
                        continue
                    for line in lines:
                        if line == "ready":
                            worker.ready = True
                            continue
                        at, outcome, message = line.split("\t", 2)
                        count(worker, outcome, int(at), message)
                for worker in list(workers):
                    limit = limit_s if worker.ready else 60
                    # A worker that reported its last mutant may take any time to exit.
                    if worker.next < worker.last and time.monotonic() - worker.heard > limit:
                        end(worker, "hang")
        finally:
            for worker in workers:
                worker.stop()
    report.seconds = time.monotonic() - start
    return report


def main() -> int:
    """Runs the command. Returns 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=int, default=100_000, help="number of mutants to run")
    parser.add_argument("--seed", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="worker processes")
    save = Path(tempfile.gettempdir()) / "gguf-findings"
    parser.add_argument("--save", type=Path, default=save, help=f"folder for findings ({save})")
    options = parser.parse_args()
    console = Console()
    columns = TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=options.n)
        report = fuzz(
            options.n, options.seed, options.jobs, options.save, "", lambda: bar.advance(task)
        )
    table = Table("outcome", "mutants", title=f"seeds from {options.seed}")
    for outcome, n in report.outcomes.most_common():
        table.add_row(outcome, f"{n:,}")
    console.print(table)
    rate = report.n / report.seconds
    console.print(f"{report.n:,} mutants in {report.seconds:.0f} s, {rate:.0f} per second")
    kinds = Counter((outcome, mutant(at).kinds, m[:110]) for outcome, at, m in report.findings)
    for (outcome, names, message), n in kinds.most_common(25):
        console.print(f"{n:5} {outcome}: {', '.join(names)}: {message}", markup=False)
    if report.findings:
        first = sorted(at for _outcome, at, _message in report.findings)[:8]
        console.print(f"the files are in {options.save}, first seeds: {first}")
    return bool(report.findings)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        first, last, step = map(int, sys.argv[2:5])
        work(first, last, step, Path(sys.argv[5]), sys.argv[6])
    else:
        sys.exit(main())
