"""Runs random programs on two to four threads that share handles of every kind.

    python benchmarks/handles.py --cases 1000000 --jobs 2       continues where the record ends
    python benchmarks/handles.py --only 4711

Each thread does random things with random handles (`tests/support/handle_world.py`) while Python
switches threads every microsecond. `REFUSED` there lists the expected exceptions (BusyError,
ClosedError, ..). Findings are any other exception, the death of the process, a hang, and a native
object that remains after everything was closed, dropped and collected.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]
sys.path.append(str(Path(__file__).parent.parent))
import search  # noqa: E402

from tests.support import handle_world  # noqa: E402

STEPS = 40  # for all threads together
_folder: list[Path] = []


def case(seed: int) -> str:
    """Runs one program. Raises its first unexpected exception."""
    from ggml_py.boundary.handle import LIVE

    rng = random.Random(seed)
    if not _folder:
        _folder.append(handle_world.folder())
    gc.collect()
    # Objects that exist now stay: modules and one-time objects. Freezing them makes collections 50
    # times as fast. Anything that an earlier case left was found at that case's end.
    gc.freeze()
    before = dict(LIVE)
    n = rng.choice((2, 2, 3, 4))
    raised = run(handle_world.World(seed, _folder[0]), rng, n)
    if raised:
        raise raised[0]
    for _ in range(3):  # objects held by a cycle's finalizers go with the next collection
        gc.collect()
    if left := more(before):
        raise AssertionError(f"native objects remain: {left}; before there were {before}")
    return f"{n} threads"


def more(before: dict[str, int]) -> dict[str, int]:
    """The kinds of handles of which more are open now than `before`."""
    from ggml_py.boundary.handle import LIVE

    return {kind: count for kind, count in LIVE.items() if count > before.get(kind, 0)}


def run(world: handle_world.World, rng: random.Random, n: int) -> list[BaseException]:
    """The unexpected exceptions that the threads raised."""
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
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
