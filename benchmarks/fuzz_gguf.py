"""Opens tens of thousands of mutated GGUF files. Any exception but `GgufError` is a finding.

    python benchmarks/fuzz_gguf.py --cases 100000 --jobs 2         about two minutes

Each file is opened, and all of its metadata and tensors are read. A death, more than two seconds,
memory far over the file's size, or another exception is a finding. Linux only, because it reads
/proc.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import shutil
import struct
import sys
import tempfile
from functools import cache
from pathlib import Path

import search

sys.path.append(str(search.REPO))
from tests.support.gguf_mutator import Mutant, mutant

SPARE = 192 << 20  # address space beyond what a process has when it starts
KEPT = 6 << 20  # resident bytes allowed beyond four times the file's size, for Python's caches


def write(item: Mutant, path: Path) -> int:
    """Writes the file, with its hole left sparse. Returns its size."""
    with path.open("wb") as out:
        out.write(item.data)
        out.truncate(len(item.data) + item.hole)
    return len(item.data) + item.hole


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


def peak(reset: bool = False) -> int:
    """Peak resident bytes since the last reset. (ru_maxrss would start at the parent's value.)"""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def outcome_of(item: Mutant, path: Path) -> str:
    """Whether the file is opened or refused. Raises MemoryError if reading it takes too much."""
    from ggml_py import GgufError

    size = write(item, path)
    before = peak(reset=True)
    outcome = "opened"
    try:
        read_all(path)
    except GgufError:
        outcome = "refused"
    grown = peak() - before
    if grown > KEPT + 4 * size:
        raise MemoryError(f"{grown:,} bytes for a file of {size:,}")
    return outcome


@cache
def path_here() -> Path:
    """The file of this process, whose memory is limited from now on."""
    shm = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None)) / "x.gguf"
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    for seed in range(100, 120):  # lets Python and ggml make their one-time allocations
        with contextlib.suppress(MemoryError):
            outcome_of(mutant(seed), path)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # libasan reserves terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return path


def case(seed: int) -> str:
    """Whether the mutant is opened or refused."""
    return outcome_of(mutant(seed), path_here())


SEARCH = search.Search(
    "fuzz_gguf", ("ggml_py/gguf/*.py", "tests/support/gguf_mutator.py"), case, limit_s=2.0
)

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
