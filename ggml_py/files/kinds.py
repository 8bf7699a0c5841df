"""Recognises a file of the wrong kind by its first bytes."""

from __future__ import annotations

import json
import re
import shlex
import zlib
from collections.abc import Callable
from typing import NamedTuple

N_HEAD = 1 << 16  # first bytes that are looked at


def in_command(advice: str, path: object) -> str:
    """The advice with a path in its command, quoted: a shell may be given it."""
    return advice.format(path=shlex.quote(str(path)))


class FileKind(NamedTuple):
    """`what` a file is, and `advice` on using it, in which {path} is the file's path."""

    what: str
    advice: str

    def told(self, path: object, expected: str) -> str:
        """The message that `path` is this kind, not `expected` ("a GGUF file")."""
        return f"{path} is {self.what}, not {expected}: {in_command(self.advice, path)}"


MODEL = FileKind(
    "a model", "`ggml-py plan {path}` plans its graph, ggml_py.models.load and ggml_py.Gguf read it"
)
PLAN = FileKind(
    "a saved plan",
    "`ggml-py view {path}` shows it, the verbs check, plan, explain, why-not, diff, memory, cost, "
    "compare, ops and corpus add take it, and so does ggml_py.Plan.from_json",
)
RECORD = FileKind(
    "a record",
    "`ggml-py view {path}` lists its plans, the verbs check, plan, explain, why-not, diff, sweep, "
    "memory, cost, compare, ops and corpus add take it, and so does ggml_py.Record.read",
)
RUN = FileKind(
    "a recorded run",
    "`ggml-py view {path}` shows it, the verbs check and cost take it, and so does "
    "ggml_py.Run.from_json",
)
SNAPSHOT = FileKind(
    "a plan snapshot",
    "`ggml-py view {path}` shows it, the verbs check, plan, explain, why-not and diff take it, and "
    "so does ggml_py.Plan.from_snapshot",
)
_TRACE = FileKind(
    "a Chrome trace",
    "open it in https://ui.perfetto.dev. To read a run back, save it as .json",
)
_PAGE = FileKind(
    "an HTML page",
    "open it in a browser. To read a plan or a run back, save it as .json. If you downloaded the "
    "file, the server sent a page instead of it",
)
_POINTER = FileKind("a Git LFS pointer", "`git lfs pull` gets the file that it points to")
_TENSORS = FileKind(
    "a checkpoint in another format",
    "llama.cpp's convert_hf_to_gguf.py converts its folder to GGUF",
)
_OLD = FileKind(
    "a model in a format older than GGUF", "get it as GGUF, or convert the original again"
)
_SEQUENCE = FileKind("a saved sequence", "LlamaModel.load_seq reads it")
_SESSION = FileKind("a saved session of llama.cpp", "only llama.cpp reads it")
_ZIP = FileKind(
    "a ZIP archive",
    "unpack it. If it is a PyTorch checkpoint, llama.cpp's convert_hf_to_gguf.py converts its "
    "folder to GGUF",
)
LOG = FileKind(
    "a log with a debug print of a plan",
    "the verbs check, plan, explain, diff and view take it, and so does "
    "ggml_py.Plan.from_debug_log",
)
_OTHER_LOG = FileKind(
    "a log without a debug print of a plan",
    "run the program again with GGML_SCHED_DEBUG=2 in its environment, and with debug messages "
    "(llama.cpp's programs: -lv 5, llama-bench: -v)",
)
_EMPTY = FileKind("empty", "make it again, or get it again")


# Functions whose names begin lines of programs that use ggml.
_LOGGED = re.compile(
    rb"(?m)^.{0,40}?\b((llama|llm|ggml|gguf|whisper|common)_\w+|load_tensors|load_model|print_info|"
    rb"sched_reserve|graph_reserve|system_info) *: "
)


def _logged(head: bytes) -> bool:
    return b"\0" not in head and _LOGGED.search(head) is not None


def _safetensors(head: bytes) -> bool:
    """The file begins with the length of its header, then the header as JSON."""
    return head[8:10] in (b'{"', b"{}") and int.from_bytes(head[:8], "little") < 1 << 32


def _json(kind: str) -> Callable[[bytes], object]:
    text = re.compile(rb'\s*\{[^{}\[\]]*"kind":\s*' + json.dumps(kind).encode())
    return text.match


_KINDS: tuple[tuple[FileKind, Callable[[bytes], object]], ...] = (
    (_EMPTY, lambda head: not head),
    (MODEL, re.compile(rb"GGUF").match),
    (RECORD, re.compile(rb"GGMLPYRECORD\d").match),
    (PLAN, _json("ggml_py plan")),
    (RUN, _json("ggml_py run")),
    (_TRACE, re.compile(rb'\s*\{\s*"traceEvents"').match),
    (SNAPSHOT, re.compile(rb"ggml_py plan snapshot").match),
    (_PAGE, re.compile(rb"\s*<(!doctype\s+html|html)\b", re.IGNORECASE).match),
    (_POINTER, re.compile(rb"version https://git-lfs").match),
    (_OLD, re.compile(rb"lmgg|fmgg|tjgg|algg").match),  # ggml, ggmf, ggjt, ggla
    (_SEQUENCE, re.compile(rb"qsgg").match),  # LLAMA_STATE_SEQ_MAGIC
    (_SESSION, re.compile(rb"nsgg").match),  # LLAMA_SESSION_MAGIC
    (_ZIP, re.compile(rb"PK\x03\x04").match),
    (_TENSORS, _safetensors),
    (LOG, re.compile(rb"## SPLIT #").search),
    (_OTHER_LOG, _logged),
)


def kind_of(head: bytes) -> FileKind | None:
    """The kind of a file that begins with `head` (`N_HEAD` bytes, or all). None for unknown
    kinds. A gzip file has the kind of its content, unless that cannot be read so."""
    compressed = head.startswith(b"\x1f\x8b")
    if compressed:
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, N_HEAD)
        except zlib.error:
            return FileKind("a damaged gzip file", "get it again")
    kind = next((kind for kind, fits in _KINDS if fits(head)), None)
    if compressed and kind in (MODEL, RECORD):
        return FileKind(f"{kind.what} compressed with gzip", "`gunzip {path}` decompresses it")
    return kind
