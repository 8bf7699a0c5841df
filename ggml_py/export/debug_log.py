"""Reads what ggml prints with GGML_SCHED_DEBUG=2 from logs as people paste them.

This file has the grammar: which lines there are, and what may be around them.
`debug_log_plan.py` turns them into a plan.

ggml prints a line in pieces: the node, then each source; the split, then each input. So a log with
prefixes (a time, a level) has them in the middle of lines too. Another message may come between two
pieces, and some programs write each piece on its own line.

People paste excerpts: a dump may begin at a later split or inside one, and end anywhere.
GGML_SCHED_DEBUG=1 prints the splits without their nodes. A print whose names are wider than
upstream's 20 bytes is read with its own width.
C: ggml_backend_sched_print_assignments
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from ..trace.causes import EXAMPLES, PATTERN
from ..trace.names import counted
from .log_lines import BEGIN, lines

EXPECTED = (
    "expected the lines that ggml prints with GGML_SCHED_DEBUG=2 in the environment and a log that "
    "shows debug messages (llama.cpp: -lv 5): '## SPLIT #0: CUDA0 # 0 inputs', then "
    "'node #  0 (GET_ROWS): …', or an excerpt of them"
)

_NAME, _BACKEND, _CAUSE_WIDTH, _SIZE_WIDTH = 20, 5, 8, 5  # bytes printed
_SPLIT = re.compile(r"## SPLIT #(\d+): (.+?) # (\d+) inputs(.*)")
_OURS = re.compile(r"## SPLIT #\d+:|node #\s*\d+ \(")
_SIZE = r"\(\s*(\d+[KM]?)\s*\)"
_USE = r"(?: use=(\d+)(?:,c=([01]))?)?"
_NODE = re.compile(rf"node #\s*(\d+) \(\s*(.{{1,10}}?)\s*\):(.*?) {_SIZE} \[(.*?)\]{_USE}:(.*)")
_SOURCE = re.compile(rf"(.*?) {_SIZE} \[(.*?)\]")
_INPUT = re.compile(rf"\[((?:(?!\] \[).)*?) {_SIZE}\]")
# A line of only sources, which is left when another message comes between the pieces.
_MORE_SOURCES = "(?: .{%d} \\(.{5}\\) \\[.{5} .{8}\\])+\\s*"
# A source whose leading blanks a logger removed.
_STRIPPED = re.compile(rb"(.*?) \(.{5}\) \[.{5} .{8}\]")
# As wide as a source, but not readable as one: its size is damaged.
_DAMAGED = re.compile(r" \(.{5}\) \[.{5} .{8}\]")
_CUT_OFF = re.compile(r" \(\s*\d+[KM]?\s*\)?(?: \[[^]]*)?$")
# Node numbers that are skipped are views. A larger gap than this is a damaged number.
_MOST_VIEWS = 1 << 20


UNPRINTED = -1  # the number of a split whose first line is missing


def has_print(text: str) -> bool:
    """Whether a text has lines of a debug print, or of an excerpt of one."""
    return _OURS.search(text) is not None


class Printed(NamedTuple):
    """One tensor as a piece shows it."""

    name: str  # at most as many bytes as the print has room for, upstream 20
    nbytes: int  # rounded down to KiB or MiB
    backend: str  # at most 5 bytes
    cause: str


class PrintedInput(NamedTuple):
    """An input of a split; its name is complete."""

    name: str
    nbytes: int


@dataclass(slots=True)
class NodeLine:
    index: int
    op: str
    tensor: Printed
    use_count: int
    compute: bool | None  # None if the release does not print it
    is_marked: bool  # text that is not ggml's comes before it
    width: int  # bytes that its names have room for
    sources: list[Printed] = field(default_factory=list)


@dataclass(slots=True)
class SplitLine:
    index: int  # UNPRINTED if the log begins inside it
    backend: str
    n_inputs: int
    inputs: list[PrintedInput] = field(default_factory=list)
    nodes: list[NodeLine] = field(default_factory=list)
    is_headless: bool = False  # the log begins inside it: its first line is missing
    may_be_cut: bool = False  # its last line is the last of the text and may be cut off
    is_last: bool = True  # False if the log goes on with a later split that is not the next


def dumps(text: str) -> list[list[SplitLine]]:
    """The dumps in a log, one for each time that the scheduler planned, as lists of splits. An
    excerpt has its own splits only; a log with a gap has an excerpt on each side of it.

    Raises ValueError for a log without any, and for a damaged log, with the line.
    """
    found: list[list[SplitLine]] = []
    if not isinstance(text, str):
        raise TypeError(f"a log: expected its text, a str, got {type(text).__name__}")
    line, read, is_piece, is_followed = "", None, False, True
    for number, line in lines(text):
        if not line.isascii():  # JSON can have lone surrogates, too
            line = line.encode("utf-8", "replace").decode()
        try:
            read = _read(line, found)
        except ValueError as error:
            shown = line if len(line) <= 120 else f"{line[:117]}…"
            raise ValueError(f"line {number} of the log: {error}\n  {shown}") from None
        was_followed = is_followed
        if read is not None:
            is_piece, is_followed = read, False
        elif line.strip():
            is_followed = True
    if not found:
        raise ValueError(
            f"no debug print of a plan in this text ({len(text)} characters): {EXPECTED}"
        )
    for splits in found:
        for split in splits:
            if len(split.inputs) != split.n_inputs:
                raise ValueError(
                    f"split {split.index} should have {counted(split.n_inputs, 'input')}, but "
                    f"{len(split.inputs)} were found: the log is damaged or cut off"
                )
    # The last line has no end, or is only a piece of a line.
    has_no_end = bool(line) and (read is not None or not was_followed)
    last = found[-1][-1]
    has_lost_nodes = not last.nodes and any(split.nodes for split in found[-1])
    last.may_be_cut = has_no_end or has_lost_nodes or (is_piece and not is_followed)
    return found


def _read(line: str, found: list[list[SplitLine]]) -> bool | None:
    """Adds one line to what was found before it. Returns whether it may be only a piece of a line,
    or None if it does not belong to a debug print."""
    starts = [at for at in map(line.find, BEGIN) if at >= 0]
    if not starts:
        return True if _read_more(line, found) else None
    is_marked = min(starts) > 0
    line = line[min(starts) :]
    if split := _SPLIT.fullmatch(line):
        _read_split(split, found)
        return False
    if node := _NODE.fullmatch(line):
        _read_node(node, is_marked, found)
        return not found[-1][-1].nodes[-1].sources
    if _OURS.match(line):
        raise ValueError(
            "it is damaged or cut off, or a fork of ggml prints another layout, which is not read"
        )
    return False


def _read_split(m: re.Match[str], found: list[list[SplitLine]]) -> None:
    if _OURS.search(m[4]):
        raise ValueError("it has several lines of the print: the line ends are lost")
    split = SplitLine(int(m[1]), m[2], int(m[3]))
    before = found[-1][-1] if found else None
    if before is not None and before.index == UNPRINTED and split.index:
        before.index = split.index - 1
    if before is None or not split.index or split.index != before.index + 1:
        if before is not None:
            before.is_last = not split.index
        found.append([])
    found[-1].append(split)
    _add_inputs(split, m[4])


def _add_inputs(split: SplitLine, text: str) -> None:
    for m in _INPUT.finditer(text):
        if len(split.inputs) < split.n_inputs:
            split.inputs.append(PrintedInput(m[1], _nbytes(m[2])))


def _read_node(m: re.Match[str], is_marked: bool, found: list[list[SplitLine]]) -> None:
    width = max(_NAME, _width(m[3]) - 1)
    tensor = Printed(_name(m[3], width), _nbytes(m[4]), *_place(m[5]))
    compute = None if m[7] is None else m[7] == "1"
    node = NodeLine(int(m[1]), m[2], tensor, int(m[6] or 0), compute, is_marked, width)
    if not found:
        found.append([SplitLine(UNPRINTED, tensor.backend, 0, is_headless=True)])
    splits = found[-1]
    if splits[-1].is_headless and splits[-1].backend != tensor.backend:
        raise ValueError(
            f"node {node.index} is on {tensor.backend} and the one before on "
            f"{splits[-1].backend}, without a line '## SPLIT #…' between them: it is missing"
        )
    before = next((s.nodes[-1].index for s in reversed(splits) if s.nodes), -1)
    if node.index <= before:
        raise ValueError(
            f"node {node.index} after node {before}: a part of the log is missing, or two "
            "schedulers wrote it at the same time"
        )
    if node.index > before + _MOST_VIEWS:
        raise ValueError(f"node {node.index} after node {before}: its number is damaged")
    splits[-1].nodes.append(node)
    _add_sources(node, m[8])


def _read_more(line: str, found: list[list[SplitLine]]) -> bool:
    """Reads a line that continues the one before. Returns False if it is not one of ours."""
    if not found:
        return False
    split = found[-1][-1]
    if split.nodes:
        # Prefixes that are not llama.cpp's may come before it: we only know its width in bytes. A
        # character that was cut in two counts as one byte.
        raw = line.replace("\ufffd", "\x7f").encode()
        more_sources = re.compile((_MORE_SOURCES % split.nodes[-1].width).encode())
        if (m := more_sources.search(raw)) and m.end() == len(raw):
            more = m[0].decode(errors="replace").replace("\x7f", "\ufffd")
            _add_sources(split.nodes[-1], more)
            return True
        if m := _STRIPPED.fullmatch(raw.rstrip()):
            if split.nodes[-1].is_marked or len(m[1]) > split.nodes[-1].width:
                raise ValueError(
                    "the blanks before a source are lost, so its beginning is not known"
                )
            _add_sources(split.nodes[-1], f" {line.rstrip()}")
            return True
    elif len(split.inputs) < split.n_inputs:
        _add_inputs(split, line)
        return True
    return False


def _add_sources(node: NodeLine, text: str) -> None:
    end = 0
    for m in _SOURCE.finditer(text):
        _check_between(m[1])
        node.sources.append(Printed(_name(m[1], node.width), _nbytes(m[2]), *_place(m[3])))
        end = m.end()
    _check_between(text[end:])
    if _CUT_OFF.search(text[end:]):
        raise ValueError("its last source is cut off")


def _check_between(text: str) -> None:
    """Refuses a damaged source, which would otherwise be skipped like another message."""
    if damaged := _DAMAGED.search(text):
        raise ValueError(f"a source has no size: {damaged[0].strip()} is damaged")


def _name(piece: str, room: int) -> str:
    """The name in a piece: its last `room` bytes, which are padded with spaces on the left."""
    width, start = 0, len(piece)
    while start and width < room:
        start -= 1
        width += _width(piece[start])
    return piece[start:].lstrip(" ")


def _width(text: str) -> int:
    """Bytes of a text. A character that was cut in two has at least one."""
    return len(text.replace("\ufffd", "?").encode())


def _place(brackets: str) -> tuple[str, str]:
    """Backend and cause."""
    raw = brackets.encode()
    if len(raw) == _BACKEND + 1 + _CAUSE_WIDTH:
        backend = raw[:_BACKEND].decode("utf-8", "replace")
        cause = raw[_BACKEND:].decode("utf-8", "replace")
    else:  # a log whose spaces are lost
        backend, _, cause = brackets.strip().rpartition(" ")
        if not backend or not PATTERN.fullmatch(cause):
            backend, cause = brackets, ""
    backend = backend.strip()
    if not backend or len(backend.replace("\ufffd", "?").encode()) > _BACKEND:
        raise ValueError(f"[{brackets}] is damaged: expected a backend of at most 5 bytes")
    cause = cause.strip()
    if cause and not PATTERN.fullmatch(cause):
        raise ValueError(f"[{brackets}] is damaged: expected a cause like {EXAMPLES}")
    return backend, cause


def _nbytes(size: str) -> int:
    # With more than four digits of MiB the unit is cut off.
    if len(size) > _SIZE_WIDTH:
        raise ValueError(f"the size {size[:20]} is damaged: ggml prints {_SIZE_WIDTH} characters")
    return int(size[:-1]) << 10 if size.endswith("K") else int(size.removesuffix("M")) << 20
