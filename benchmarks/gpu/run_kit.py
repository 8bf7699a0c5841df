"""Runs a kit on the machine where it is: `make gpu-run OUT=DIR [PART=a,b] [BUDGET=540]`.

First it says within seconds what the machine lacks. Then it makes an environment from the kit
without a network, and runs the parts that have no result yet, one after the other, until the budget
is used. A part that fails, dies or takes too long is recorded, and the next one runs. Call it again
to go on; results are kept in the work folder, and those of an earlier machine are found in --have.
Exit status: 0 all asked parts have passed, 1 some have not, 2 the machine or the kit lacks
something, 3 there was no time for some: run it again.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]
import machine as machines  # noqa: E402
import record  # noqa: E402
from parts import ALL_S, SETUP_S, UNFINISHED, Part, named  # noqa: E402
from unpack import SetupError, Work, prepare  # noqa: E402

ROOT = Path(__file__).resolve().parent
GRACE_S = 5.0  # between SIGTERM, which lets a part stop its children, and SIGKILL


@dataclass(frozen=True)
class Run:
    """One call: the kit, its place of work, the machine."""

    kit: Mapping[str, Any]
    work: Work
    machine: machines.Machine

    @property
    def device(self) -> dict[str, Any]:
        """What results say of the device that they are of."""
        here = self.machine
        gpu = dict(here.gpus[0]) if here.gpus else {"name": here.processor}
        return gpu | {"n_gpus": len(here.gpus), "driver": here.driver, "cores": here.cores,
                      "processor": here.processor}  # fmt: skip

    def envelope(self, part: str, status: str, seconds: float, result: Any) -> dict[str, Any]:
        """The fields that every result has."""
        return {
            "format": record.FORMAT,
            "part": part,
            "status": status,
            "date": record.now(),
            "commit": self.kit["commit"],
            "kit": self.kit["id"],
            "build": self.kit["build"],
            "dry_run": self.kit["dry_run"],
            "device": self.device,
            "seconds": round(seconds, 1),
            "result": result,
            "about": self.kit["about"].get(part, {}),
        }


def _of_this_run() -> None:
    """In a part's process: a group that can be ended as a whole, and that goes when the runner is
    killed. Not a session of its own: where machines are lent, those outlive the command."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def run_part(run: Run, part: Part, limit_s: float) -> dict[str, Any]:
    """Runs one part, at most `limit_s` seconds. Returns and keeps its result, however it ended."""
    partial = run.work.folder / f"{part.name}.partial.json"
    log = run.work.folder / f"{part.name}.log"
    command = [
        str(run.work.python), str(run.work.tree / "benchmarks" / "gpu" / part.program),
        "--out", str(partial), "--work", str(run.work.folder), "--seconds", str(int(limit_s)),
        *(["--dry-run"] if run.kit["dry_run"] else []),
    ]  # fmt: skip
    start = time.monotonic()
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            preexec_fn=_of_this_run, env=run.machine.environment | {"PYTHONUNBUFFERED": "1"},
            cwd=run.work.folder,
        )  # fmt: skip
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(child)  # also when this process is told to end
    seconds = time.monotonic() - start
    found = _partial(partial)
    how = _how(status, found)
    data = run.envelope(part.name, how, seconds, found)
    data["limit_s"] = round(limit_s)
    data["tail"] = _tail(log)
    if status is None:
        data["why"] = f"it took more than {limit_s:.0f} s"
    elif how == record.TIMED_OUT:
        data["why"] = "it had no time for all of it"
    elif how == record.DIED:
        last = data["tail"].strip().rpartition("\n")[2]
        data["why"] = f"{_status(status)}: {last[:300]}"
    path = run.work.results / f"{part.name}.json"
    try:
        record.write(path, data)
    except record.BadResultError as error:
        data |= {"status": record.DIED, "why": str(error), "result": {}}
        record.write(path, data)
    if how in record.FINAL:
        partial.unlink(missing_ok=True)
    return data


def _how(status: int | None, found: Mapping[str, Any]) -> str:
    if status in (None, UNFINISHED):
        return record.TIMED_OUT
    if status not in (0, 1) or not found.get("complete"):
        return record.DIED
    return record.PASSED if status == 0 and not found.get("failures") else record.FAILED


def _status(status: int) -> str:
    if status < 0:
        return f"it died of {signal.Signals(-status).name}"
    return f"it exited with {status}, without a whole result"


def _partial(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a part and everything that it started."""
    for how, wait_s in ((signal.SIGTERM, GRACE_S if child.poll() is None else 0.2),
                        (signal.SIGKILL, 5.0)):  # fmt: skip
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_bytes()[-record.TAIL :].decode(errors="replace")
    return ""


def done_before(run: Run, *folders: Path) -> dict[str, dict[str, Any]]:
    """Final results of this kit on a device of this name, copied into the work folder."""
    for folder in folders:
        for name, data in record.results(folder).items():
            same = data["kit"] == run.kit["id"] and data["device"]["name"] == run.device["name"]
            kept = run.work.results / f"{name}.json"
            if same and data["status"] in record.FINAL and not kept.exists():
                record.write(kept, data)
    return {
        name: data
        for name, data in record.results(run.work.results).items()
        if data["status"] in record.FINAL
    }


def line_of(data: Mapping[str, Any]) -> str:
    """One line about a part's result."""
    said = data["result"].get("said", "") or data.get("why", "")
    return f"{data['part']:12} {data['status']:10} {data['seconds']:6.1f} s  {said}"


def _copy(run: Run, out: Path) -> None:
    """All results so far; what lies in `out` is brought back."""
    out.mkdir(parents=True, exist_ok=True)
    for path in (run.work.folder / "machine.json", *sorted(run.work.results.glob("*.json"))):
        if path.resolve() != (out / path.name).resolve():
            shutil.copy2(path, out / path.name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    kit = ROOT.parent
    add("--kit", type=Path, default=kit, help="the kit's folder (default: %(default)s)")
    add("--work", type=Path, default=kit.parent / "gpu-run", help="where it works and keeps state")
    add("--out", type=Path, default=Path("build/gpu-results"), help="where results are copied to")
    add("--have", type=Path, default=Path("benchmarks/results/gpu"), help="earlier results")
    add("--part", default="", metavar="A,B", help="only these parts")
    add("--again", action="store_true", help="also parts that have a result")
    add("--budget", type=float, default=540.0, metavar="S", help="seconds for this call")
    return parser.parse_args()


def main() -> int:
    """Checks the machine, sets up, runs the parts that have no result."""
    arguments = _arguments()
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the part
    try:
        kit = json.loads((arguments.kit / "kit.json").read_text(encoding="utf-8"))
        asked = named(arguments.part)
    except (OSError, ValueError) as error:
        print(f"error: {error}\nmake gpu-kit makes a kit; make gpu-run KIT=DIR names another")
        return 2
    work = (arguments.work / kit["id"]).resolve()
    here = machines.look(kit, work)
    run = Run(kit, Work(work), here)
    print(f"kit {kit['id']} of {kit['commit'][:10]}, {kit['build']}; {run.device['name']}")
    for what in here.missing:
        print(f"missing: {what}")
    if here.missing:
        _say_machine(run)
        status = 2
    else:
        with locked(work) as alone:
            status = _set_up(run, arguments.kit) if alone else 2
            if status == 0:
                left = arguments.budget - (time.monotonic() - start)
                status = run_parts(run, asked, left, arguments.again, arguments.have)
    _copy(run, arguments.out)
    print(f"results: {arguments.out} ({time.monotonic() - start:.0f} s)")
    return status


@contextlib.contextmanager
def locked(work: Path) -> Iterator[bool]:
    """Whether no other run works here; none begins meanwhile."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"error: another run is working in {work}: wait for it, or end it")
            yield False
        else:
            yield True


def _set_up(run: Run, kit: Path) -> int:
    """Makes the environment. Writes machine.json, which says what is missing or went wrong."""
    error = ""
    try:
        start = time.monotonic()
        prepare(kit, run.kit, run.machine, run.work.folder)
        if (took := time.monotonic() - start) > SETUP_S:
            print(f"setting up took {took:.0f} s: more than the {SETUP_S} s that are planned")
    except (SetupError, OSError) as failure:
        error = str(failure)
        print(f"error: cannot set up: {error}")
    _say_machine(run, error)
    return 2 if error else 0


def _say_machine(run: Run, error: str = "") -> None:
    about = {k: v for k, v in run.kit.items() if k not in ("about", "files")}
    said = {"date": record.now(), "kit": about, "error": error, **run.machine.as_dict()}
    record.write(run.work.folder / "machine.json", said)


def run_parts(
    run: Run, asked: tuple[Part, ...], left_s: float, again: bool, have: Path
) -> int:
    """Runs those of the asked parts that have no result, as far as the time goes."""
    end = time.monotonic() + min(left_s, ALL_S)
    before = {} if again else done_before(run, have)
    later, ok = [], True
    for part in asked:
        if part.name in before:
            print(f"{line_of(before[part.name])} (from before)")
            ok &= before[part.name]["status"] == record.PASSED
            continue
        left = end - time.monotonic()
        if left < part.least_s:
            later.append(part.name)
            continue
        data = run_part(run, part, min(part.limit_s, left - GRACE_S))
        print(line_of(data), flush=True)
        ok &= data["status"] == record.PASSED
    if later:
        print(f"no time for {', '.join(later)}: run it again")
        return 3
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
