"""benchmarks/handles.py with a planted bug, as handles were before: close() frees at once, even if
another thread is in the middle of a call."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "benchmarks")]
import handles  # noqa: E402
import search  # noqa: E402

from ggml_py.boundary.handle import Handle  # noqa: E402
from ggml_py.graphs import context  # noqa: E402


def free(self: Handle) -> None:
    self._finalizer()


if __name__ == "__main__":
    Handle._free = free  # type: ignore[method-assign]
    context.Context._free = free  # type: ignore[method-assign]
    sys.exit(search.main(handles.SEARCH))
