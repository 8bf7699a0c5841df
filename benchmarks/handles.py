"""Random programs on two to four threads that share handles of every kind.

    python benchmarks/handles.py --cases 1000000 --jobs 2       goes on where the record ends
    python benchmarks/handles.py --only 4711

Each thread does some random things with random handles (`tests/support/handle_world.py`) while
Python changes threads every microsecond. What may come out of that is listed there (`REFUSED`:
BusyError, ClosedError, ..); another exception, a death, a wait for ever, and a native object that
is left when all is closed, dropped and collected are findings.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests" / "support")]
import handle_world  # noqa: E402
import search  # noqa: E402

STEPS = 40  # of all threads together
_folder: list[Path] = []


def case(seed: int) -> str:
    """One program; raises the first exception that was none of those expected."""
    from ggml_py.boundary.handle import LIVE

    rng = random.Random(seed)
    if not _folder:
        _folder.append(handle_world.folder())
    gc.collect()
    # What there is now stays: modules, and what was made once. Collections that do not look at it
    # take a fiftieth of the time; what a case leaves was looked for at its end.
    gc.freeze()
    before = dict(LIVE)
    n = rng.choice((2, 2, 3, 4))
    raised = run(handle_world.World(seed, _folder[0]), rng, n)
    if raised:
        raise raised[0]
    for _ in range(3):  # what the finalizers of a cycle held ends with the next collection
        gc.collect()
    if left := more(before):
        raise AssertionError(f"native objects are left: {left}, there were {before}")
    return f"{n} threads"


def more(before: dict[str, int]) -> dict[str, int]:
    """The kinds of handles that more are open of now."""
    from ggml_py.boundary.handle import LIVE

    return {kind: count for kind, count in LIVE.items() if count > before.get(kind, 0)}


def run(world: handle_world.World, rng: random.Random, n: int) -> list[BaseException]:
    """What the threads raised that was not to be expected."""
    start, raised = threading.Barrier(n), list[BaseException]()

    def work(own: random.Random) -> None:
        start.wait()
        try:
            for _ in range(STEPS // n):
                handle_world.step(world, own)
        except BaseException as error:
            raised.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, args=(random.Random(rng.random()),)) for _ in range(n)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if not raised:
        world.close(rng)
    return raised


SEARCH = search.Search(
    "handles",
    (
        *search.OBJECTS, "ggml_py/native/*.h", "ggml_py/native/*.cpp",
        "vendor/bindgen*.py", "vendor/headers.py",
        "vendor/thread_edits.py", "tests/support/handle_world.py", "benchmarks/handles.py",
    ),
    case,
    limit_s=60,
    per_process=500,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
