"""Runs both sides of a model in processes of their own, and compares them op by op."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..boundary.isolate import last_error
from ..releases.planned_cases import prepared
from ..typed import typed
from .divergence import Divergence, NodeError
from .forced import FIRST, SECOND, last_begun, read_rows

Progress = Callable[[float], None]


class ModelSide(NamedTuple):
    """The options of one side. `words` are options of `ggml-py plan`. `release` is a release or the
    folder of a checkout; "" is the release of this process."""

    name: str
    words: tuple[str, ...]
    release: str

    @classmethod
    @typed
    def parse(cls, text: str) -> ModelSide:
        """ "BLAS,CPU threads=2", "upstream=0.24.0", "-ngl 9 -d sim:gpu0 -d CPU". Raises
        ValueError."""
        words: list[str] = []
        release = ""
        try:
            parts = shlex.split(text)
        except ValueError as error:
            raise ValueError(f"--between {text!r}: {error}: {_EXPECTED}") from None
        if not parts:
            raise ValueError(f"--between {text!r}: {_EXPECTED}")
        behind_option = False
        for part in parts:
            key, equals, value = part.partition("=")
            if part.startswith("-"):
                words.append(part)
                behind_option = not equals
                continue
            if behind_option:
                words.append(part)
            elif key == "threads" and equals:
                words += ["-t", value]
            elif key in ("upstream", "source") and value:
                if key == "source" and not Path(value).is_dir():
                    raise ValueError(f"--between {text!r}: {value} is no folder")
                release = value
            elif equals and not part.startswith(("sim:", "rpc:")):
                raise ValueError(f"--between {text!r}: {part} is unknown: {_EXPECTED}")
            else:
                words += ["-d", part]
            behind_option = False
        return cls(text, tuple(words), release)


_EXPECTED = (
    "expected devices (BLAS,CPU), threads=N, upstream=RELEASE, source=DIR, options of `ggml-py "
    "plan`, or several of these, in quotation marks"
)


def diverge(
    words: Sequence[str],
    between: tuple[ModelSide, ModelSide],
    *,
    limit: float | None = None,
    build: bool = True,
    progress: Progress | None = None,
) -> Divergence:
    """Runs `ggml-py diverge` with these words on both sides; each op of the second has the inputs
    that it had on the first. `limit` replaces upstream's limits of the error.

    Raises ValueError with the reason if a side does not run, and names the op in which it ended;
    `NotBuiltError` for a release that cannot be had.
    """
    tell = progress or (lambda _share: None)
    keys = [prepared(side.release, build) if side.release else "" for side in between]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i, (side, key, which) in enumerate(zip(between, keys, (FIRST, SECOND), strict=True)):
            _run(words, side, key, which, folder)
            tell((i + 1) / 2)
        return _divergence(between, folder, limit)


def _run(words: Sequence[str], side: ModelSide, key: str, which: str, folder: Path) -> None:
    package = str(Path(__file__).resolve().parents[2])  # this code, wherever the caller stands
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    if key:
        environment["GGML_PY_UPSTREAM"] = key
    done = subprocess.run(
        [sys.executable, "-m", "ggml_py", "diverge", *words, *side.words, "--side", which,
         "--folder", str(folder)],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    if not done.returncode:
        return
    why = last_error(done.stderr.decode("utf-8", "replace"))
    if done.returncode < 0:
        why = f"the process ended with signal {-done.returncode}"
    at = last_begun(folder, which)
    where = f", in {at['name']} ({at['desc']}) on {at['backend']}" if at else ""
    raise ValueError(f"{side.name} does not run{where}: {why or f'status {done.returncode}'}")


def _divergence(
    between: tuple[ModelSide, ModelSide], folder: Path, limit: float | None
) -> Divergence:
    first, second = read_rows(folder, FIRST), read_rows(folder, SECOND)
    matched = {row["first"] for row in second if "first" in row}
    if not matched:
        raise ValueError(
            f"{between[0].name} and {between[1].name} have no node in common: nothing to compare"
        )
    alone = (
        tuple(row["name"] for row in first if row["index"] not in matched),
        tuple(row["name"] for row in second if "first" not in row),
    )
    nodes = tuple(_node(row, limit) for row in second if "first" in row)
    return Divergence((between[0].name, between[1].name), nodes, alone)


def _node(row: dict[str, Any], limit: float | None) -> NodeError:
    shape = ", ".join(f"{kind} {_trimmed(ne)}" for kind, ne in row["src"])
    return NodeError(
        row["index"], row["graph"], row["name"], row["desc"], shape,
        (row["first_on"], row["backend"]), row["error"], row["limit"] if limit is None else limit,
        row["case"], row["why_no_case"],
    )  # fmt: skip


def _trimmed(ne: list[int]) -> list[int]:
    while len(ne) > 1 and ne[-1] == 1:
        ne = ne[:-1]
    return ne
