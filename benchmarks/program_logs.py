"""What llama.cpp's own programs allocate, read off their logs, beside `load(program=…)`.

    python benchmarks/program_logs.py --bin DIR [--write]

DIR has llama-server and llama-cli of an unmodified build of the release. They are run on the CPU,
with each of upstream's small models and no option but the model. A program's bytes of weights,
cache and compute buffers, in MiB as it prints them, are compared with `Model.memory`. The
server listens on loopback and is ended. `--write` puts the result into
benchmarks/results/program_logs.json. Exit status 1 means that something differs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import search
from models import reference

from ggml_py.boundary.ffi import BUILD
from ggml_py.models import load

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from arch_files import ARCHS
from oracle_programs import Oracle

REPO = Path(__file__).resolve().parent.parent
PATTERNS = (
    "ggml_py/llama/programs.py", "ggml_py/llama/options.py", "ggml_py/models/graphs.py",
    "benchmarks/program_logs.py",
)  # fmt: skip
SECONDS = 30
_KINDS = {"model": "weights", "KV": "cache", "RS": "cache", "compute": "compute"}
# The log's last load is the program's own; earlier ones are of its --fit.
_LOADING = "loading model tensors"
_DONE = re.compile(r"reserve took")


def log_of(program: Path, path: Path, folder: Path) -> str:
    """What the program logs until it has made its context."""
    command = [str(program), "-m", str(path), "-v"]
    if program.name == "llama-server":
        command += ["--host", "127.0.0.1", "--port", str(_free_port())]
    file = folder / f"{program.name}.log"
    with file.open("wb") as out:
        running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=folder
        )
    end = time.monotonic() + SECONDS
    log = ""
    try:
        while time.monotonic() < end:
            ended = running.poll() is not None
            log = file.read_text("utf-8", "replace")
            last = log.rpartition(_LOADING)[2]
            if ended or (_DONE.search(last) and time.monotonic() > end - SECONDS + 1):
                break
            time.sleep(0.2)
    finally:
        running.terminate()
        try:
            running.wait(5)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
    return log


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def sizes(log: str) -> dict[str, float]:
    """MiB of weights, cache and compute buffers, of all devices together."""
    found = dict.fromkeys(("weights", "cache", "compute"), 0.0)
    for kind, size in re.findall(r"(\w+) buffer size = +([\d.]+) MiB", log.rpartition(_LOADING)[2]):
        if kind in _KINDS:
            found[_KINDS[kind]] += float(size)
    return found


def equal(path: Path, program: str, theirs: dict[str, float]) -> bool:
    """Whether our bytes are the log's, which has two digits per buffer."""
    with load(path, program=program) as model:
        rows = model.memory
    ours = {what: sum(getattr(row, what) for row in rows) / (1 << 20) for what in theirs}
    return all(abs(ours[what] - theirs[what]) < 0.006 * len(rows) for what in theirs)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    programs = {name: args.bin / f"llama-{name}" for name in ("server", "cli")}
    oracle = Oracle(reference("llama_place").parent)
    table: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for arch, stem in ARCHS.items():
            only = f"^{arch.removesuffix('-moe')}$"
            oracle.run("test-llama-archs", "-a", only, "-s", 42, "-o", folder)
            path = Path(folder) / f"{stem}.gguf"
            for name, program in programs.items():
                if program.is_file():
                    theirs = sizes(log_of(program, path, Path(folder)))
                    table.setdefault(name, {})[arch] = equal(path, name, theirs)
    held = bool(table) and all(all(row.values()) for row in table.values())
    for name, row in table.items():
        wrong = [arch for arch, same in row.items() if not same]
        print(f"llama-{name}: {sum(row.values())} of {len(row)} equal; not: {wrong or 'none'}")
    if args.write:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, check=True
        ).stdout.strip()
        record = {
            "command": "python benchmarks/program_logs.py --bin DIR --write",
            "date": str(datetime.date.today()), "commit": commit, "build": BUILD["key"],
            "equal": held, "patterns": list(PATTERNS), "about": search.hashes(PATTERNS),
            "table": table,
        }  # fmt: skip
        target = REPO / "benchmarks" / "results" / "program_logs.json"
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
