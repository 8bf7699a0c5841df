"""What recording a run costs: decoding with it, beside the same without, and beside upstream's own
scheduler without our instrumentation.

    python benchmarks/recording.py      builds the pristine library on first use, half a minute
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import models
from plans import pristine
from rounds import Row, children, compare, parser, seconds, show

N_GEN = 32
_DECODE = """
import time
from ggml_py.models import load
model = load({path!r}, n_threads=1, flash_attn=True)

def run():
    model.reset()
    model.eval([1], copy=False)
    start = time.perf_counter()
    for _ in range({n}):
        model.eval([1], copy=False)
    return (time.perf_counter() - start) / {n}

rounds(run)
"""


def rows(rounds: int, _peer: str) -> list[Row]:
    """A token of the 110M model, one thread."""
    with tempfile.TemporaryDirectory() as folder:
        path = models.file_of("110M-q4_0", Path(folder))
        code = _DECODE.format(path=str(path), n=N_GEN)
        peers = {"not recorded": (code, {}), "pristine": (code, {"GGML_PY_UPSTREAM": pristine()})}
        with (
            models.load(path, n_threads=1, flash_attn=True) as model,
            children(**peers) as theirs,
        ):
            model.eval([1])

            def decode(per_op: bool) -> float:
                model.reset()
                model.eval([1], copy=False)
                with contextlib.ExitStack() as stack:
                    recording = stack.enter_context(model.record(per_op))
                    model.eval([1], copy=False)  # reads the plan, once
                    took = seconds(lambda: [model.eval([1], copy=False) for _ in range(N_GEN)])
                assert len(recording.run.computes) == N_GEN + 1
                return took / N_GEN

            found = []
            for per_op, bars in ((False, dict.fromkeys(theirs, 1.01)), (True, None)):
                what = "a token, recorded" + (" node by node" if per_op else "")
                found += compare(what, lambda: decode(per_op), theirs, rounds=rounds, bars=bars)  # noqa: B023
            return found


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)
