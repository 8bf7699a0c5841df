"""A model's header without its weights, as a file that can be loaded for plans.

libllama refuses a file that is shorter than its tensors, and so do we. The header of a file that
ends early is therefore copied into a sparse file of full length, which takes no room on the disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import GgufError
from .reader import Gguf
from .remote import Progress, header_of, is_address, named


@contextmanager
def described(
    path: str | os.PathLike[str], header_only: bool, progress: Progress | None = None
) -> Iterator[tuple[str | os.PathLike[str], str]]:
    """The path of a model, and why its weights must not be read; "" if they may.

    An http(s) address gives a local file with the header. With `header_only` a file may end after
    its header. Raises `GgufError`.
    """
    if is_address(path):
        with header_of(str(path), progress) as local:
            yield local, f"{path}: only its header was read, which is enough for plans: download it"
    elif header_only:
        with Gguf.open(path, header_only=True) as gguf, whole(gguf) as local:
            cut = f"{path} ends before its weights do, which is enough for plans: get all of it"
            yield path if local == gguf.path else local, "" if local == gguf.path else cut
    else:
        yield path, ""


def check_has_weights(gguf: Gguf) -> None:
    """Raises `GgufError` if a file has no tensors, such as a vocabulary."""
    if gguf.tensors:
        return
    has_tokenizer = any(key.startswith("tokenizer.") for key in gguf.metadata)
    what = "only a vocabulary: it has a tokenizer and" if has_tokenizer else "no model: it has"
    raise GgufError(
        f"{gguf.path} is {what} no tensors, so there is nothing to plan or to run. Expected the "
        "GGUF file of a model"
    )


@contextmanager
def whole(gguf: Gguf) -> Iterator[Path]:
    """A path of the model with the length that its header promises, for as long as the block runs:
    its own if the file is complete."""
    lengths = _lengths(gguf)
    if all(path.stat().st_size >= n for path, n in zip(gguf.paths, lengths, strict=True)):
        yield gguf.path
        return
    with tempfile.TemporaryDirectory(prefix="ggml_py-") as folder:
        copies = [Path(folder) / path.name for path in gguf.paths]
        with ExitStack() as stack:
            for path, copy, length in zip(gguf.paths, copies, lengths, strict=True):
                stack.enter_context(named(copy, path))
                _copy(path, copy, length)
            yield copies[0]


def _lengths(gguf: Gguf) -> list[int]:
    """Bytes of each part."""
    lengths = [0] * len(gguf.paths)
    for tensor in gguf.tensors.values():
        lengths[tensor.part] = max(lengths[tensor.part], tensor.offset + tensor.nbytes)
    return lengths


def _copy(path: Path, copy: Path, length: int) -> None:
    with Gguf.open(path, part=True, header_only=True) as part:
        header = part.data_offset
    with path.open("rb") as source, copy.open("wb") as target:
        rest = header
        while rest > 0:
            piece = source.read(min(rest, 1 << 20))
            if not piece:
                break  # the padding between the header and the first tensor may be missing
            target.write(piece)
            rest -= len(piece)
        try:
            target.truncate(max(length, header))
        except OSError as error:
            raise GgufError(
                f"no sparse file of {length:,} bytes can be made in {copy.parent} "
                f"({error.strerror}): set TMPDIR to a folder on another file system"
            ) from error
