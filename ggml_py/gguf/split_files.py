"""Split models: finds the parts and checks that they belong together (llama-gguf-split)."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import GgufError
from ..files.bounds import PARTS


def paths_of(path: Path, no: object, count: object) -> tuple[Path, ...]:
    """All parts of the model whose first part is `path`. `no` and `count` are its metadata
    `split.no` and `split.count` (None: absent). Only `path` if it is not a part.

    Raises `GgufError` if `path` is not the first part, or if parts are missing.
    """
    if not isinstance(count, int) or count < 2:
        return (path,)
    if count > PARTS:
        raise GgufError(
            f"{path} says that it is one of {count:,} parts of a split model (split.count), "
            f"expected at most {PARTS:,}"
        )
    name = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name, re.DOTALL)
    if name is None or int(name[3]) != count:
        raise GgufError(
            f"{path} is one of {count:,} parts of a split model (split.count), but its name is "
            f"not NAME-00001-of-{count:05}.gguf, so the others cannot be found. Rename it back"
        )
    paths = tuple(
        path.with_name(f"{name[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)
    )
    what = f"{path} is part {int(name[2])} of {count} of a split model"
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" * (len(missing) > 3))
        raise GgufError(f"{what}; its folder lacks {shown}: get all parts")
    if path != paths[0]:
        raise GgufError(f"{what}; open the first part, which reads all: {paths[0]}")
    check_place(path, no, count, 0, count)
    return paths


def check_place(path: Path, no: object, count: object, i: int, n: int) -> None:
    """Raises `GgufError` if the metadata of `path` does not say that it is part `i` (from 0) of
    `n`."""
    if type(no) is not int or type(count) is not int or (no, count) != (i, n):
        raise GgufError(
            f"{path} says split.no={no!r}, split.count={count!r}, but its name says split.no={i}, "
            f"split.count={n}: it was renamed or belongs to another model. Get all parts again"
        )


def check_total(path: Path, expected: object, n_tensors: int, n_parts: int) -> None:
    """Raises `GgufError` unless all parts together have `split.tensors.count` tensors."""
    if expected != n_tensors:
        raise GgufError(
            f"{path}: its {n_parts} parts have {n_tensors} tensors, but split.tensors.count says "
            f"{expected}: they do not belong together. Get all parts of one model again"
        )
