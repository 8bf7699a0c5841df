"""A plan as a page for version control and reviews, and the way back.

The page has a line for each node that is not a view, in graph order: name, op, backend, cause.
Before the first node of a split come the copies for that split. Equal layers are written once, with
`{i}` for the layer's number. A layer that differs in a few lines is written as those lines. The
page shows the placement only: it leaves out shapes, and whatever depends on the machine or the
release (addresses, sizes of buffers, buffer types, versions, indices, dates). The head says how the
plan was made, as far as that does not depend on the machine: model, flags, graph, cards. `decided`
is a page without these facts, for comparisons.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..files import bounds
from ..files.reading import check_lines
from ..trace.answers.excerpt import mark
from ..trace.answers.match import AUTOMATIC, without_number
from ..trace.causes import EXAMPLES, PATTERN
from ..trace.names import LAYER_NUMBER, NODE_LAYER_NUMBER
from ..trace.planned import Planned, format_bytes
from ..trace.provenance import UNKNOWN, Provenance

MAGIC = "ggml_py plan snapshot"
_VERSION = 2  # a page of version 1 does not say how its plan was made
_MADE = "made with"
_WORDS = re.compile(r"\S+(?: \S+)*")
_FACT = re.compile(rf'  ("(?:[^"\\]|\\.)*"|{_WORDS.pattern})  +(\S.*)')
_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_COLUMNS = (38, 58, 68, 78)  # longer names push the rest of their line to the right
_MOST_LAYERS = 100_000  # a page with more is damaged
_NOBODY = "-"
_NOT_COMPUTED = "not computed"
_PLAIN = re.compile(r'[^\s",<{}]+(?: [^\s",<{}]+)*')  # a name that needs no quotation marks
_NEAR = {0: "{i}", -1: "{i-1}", 1: "{i+1}"}
_MARK = re.compile(r"\{i([+-]1)?\}")
_FIELD = re.compile(r'"(?:[^"\\]|\\.)*"|\S+(?: \S+)*')
_SHARE = re.compile(r'("(?:[^"\\]|\\.)*"|[^",]+) \d+(?:, |$)')
_HEAD = ("nodes ", "splits ", "copies ", "part ")
_SECTION = re.compile(r"layers? i = ([\d, -]+?)(?:, as i = (\d+) but)?")


class CopyLine(NamedTuple):
    """A tensor that is copied for a split."""

    name: str
    nbytes: int
    src: str | None  # a debug log may not tell


class Row(NamedTuple):
    """A node. `split` is the backend of the split that begins with it, if one does, and `copies`
    are the copies for that split."""

    name: str
    op: str
    backend: str | None
    cause: str
    is_computed: bool
    split: str | None
    copies: tuple[CopyLine, ...]


def render(plan: Planned) -> str:
    """The page. Plans that make the same decisions about the same graph have equal pages, but for
    the facts about how they were made."""
    nodes = ", ".join(f"{_token(name)} {n}" for name, n in plan.nodes_per_backend().items())
    facts = [f"  {_fact(said):24}{_fact(text)}" for said, text in plan.provenance.page_lines()]
    lines = [
        f"{MAGIC} {_VERSION if facts else 1}",
        "",
        *([_MADE, *facts, ""] if facts else ()),
        f"nodes   {nodes}",
        f"splits  {plan.n_splits}",
        f"copies  {plan.n_inputs}, {format_bytes(plan.copy_bytes)}",
    ]
    if not plan.nodes:
        raise ValueError("this plan's nodes are not printed (GGML_SCHED_DEBUG=1): no page shows it")
    if part := mark(plan.capture):
        lines.append(f"part    {part}")
    for head, rows in _sections(list(rows_of(plan))):
        lines += ["", head, *(line for row in rows for line in row)]
    return "\n".join(lines) + "\n"


def decided(page: str) -> str:
    """The part of a page that says what was decided, for comparisons."""
    _head, found, rest = page.partition("\n\nnodes   ")
    return found + rest if found else page


def rows_of(plan: Planned) -> Iterator[Row]:
    """The nodes of a plan that are not views, and the first node of every split."""
    starts = {first.id: split for split in plan.splits if (first := split.first) is not None}
    for node in plan.nodes:
        split = starts.get(node.id)
        if split is not None or not node.is_view_op:
            copies = () if split is None else tuple(
                CopyLine(i.tensor.name, i.nbytes, i.src_backend) for i in split.inputs
            )  # fmt: skip
            computed = node.is_computed or node.is_view_op
            yield Row(
                node.name, node.record.op_desc, node.backend, node.placement.cause, computed,
                split.backend if split else None, copies,
            )  # fmt: skip


# --- layers


def _sections(rows: Sequence[Row]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """The head of each section, and the lines of each row below it."""
    stack: dict[int, list[Row]] = {}
    for layer, block in _blocks(rows):
        if stack and (layer is None or layer <= max(stack)):
            yield from _stack(stack)
            if layer is not None:
                yield "nodes", []  # shows where layers begin again
            stack = {}
        if layer is None:
            yield "nodes", [_lines(row, None) for row in block]
        else:
            stack[layer] = block
    yield from _stack(stack)


def _blocks(rows: Sequence[Row]) -> Iterator[tuple[int | None, list[Row]]]:
    """Consecutive nodes of one layer, or of none."""
    block: list[Row] = []
    now: int | None = None
    for row, layer in zip(rows, _layers([row.name for row in rows]), strict=True):
        if block and layer != now:
            yield now, block
            block = []
        now = layer
        block.append(row)
    if block:
        yield now, block


def _layers(names: Sequence[str]) -> list[int | None]:
    """The layer of each node: the number in its name. A node that ggml named belongs to the layer
    before it. So does a node with its own name if the same layer continues after it."""
    own = [int(m[0]) if (m := NODE_LAYER_NUMBER.search(name)) else None for name in names]
    following: list[int | None] = []
    for layer in reversed(own):
        following.append(layer if layer is not None or not following else following[-1])
    found: list[int | None] = []
    last: int | None = None  # the last that was named
    for name, layer, after in zip(names, own, reversed(following), strict=True):
        if layer is None and found and _is_unnamed(name):
            layer = found[-1]
        elif layer is None and last == after:
            layer = last
        elif layer is not None:
            last = layer
        found.append(layer)
    return found


def _is_unnamed(name: str) -> bool:
    return not name or name.startswith(" ") or AUTOMATIC.search(name) is not None


def _stack(stack: dict[int, list[Row]]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """The sections of consecutive layers. Equal layers share one, at the place of the first."""
    groups: dict[tuple[tuple[str, ...], ...], list[int]] = defaultdict(list)
    for layer, block in stack.items():
        groups[tuple(_lines(row, layer) for row in block)].append(layer)
    whole: list[tuple[int, list[tuple[str, str]], tuple[tuple[str, ...], ...]]] = []
    for lines, layers in groups.items():
        keys = [(_token(r.name, layers[0]), r.op) for r in stack[layers[0]]]
        head = f"layer{'s' * (len(layers) > 1)} i = {_ranges(layers)}"
        for first, other_keys, others in reversed(whole):
            if keys != other_keys:
                continue
            pairs = zip(keys, lines, others, strict=True)
            changed = {key for key, line, other in pairs if line != other}
            told = [line for key, line in zip(keys, lines, strict=True) if key in changed]
            if 3 * len(told) <= len(lines):
                yield f"{head}, as i = {first} but", told
                break
        else:
            whole.append((layers[0], keys, lines))
            yield head, list(lines)


def _ranges(numbers: Sequence[int]) -> str:
    """ "0-2, 5" """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


# --- lines


def _lines(row: Row, layer: int | None) -> tuple[str, ...]:
    lines = []
    if row.split is not None:
        lines.append(f"  split on {_token(row.split)}")
        for c in row.copies:
            lines.append(_columns("    < " + _token(c.name, layer), _size(c.nbytes), _place(c.src)))
    fields = [row.op, _place(row.backend), row.cause or _NOBODY]
    fields += [] if row.is_computed else [_NOT_COMPUTED]
    return (*lines, _columns("    " + _token(row.name, layer), *fields))


def _columns(line: str, *fields: str) -> str:
    for start, field in zip(_COLUMNS, fields, strict=False):
        line = line.ljust(start - 2) + "  " + field
    return line


def _place(backend: str | None) -> str:
    return _NOBODY if backend is None else _token(backend)


def _token(name: str, layer: int | None = None) -> str:
    """A name as it is printed, in quotation marks if it could be mistaken for something else."""
    name = without_number(name)
    if not _PLAIN.fullmatch(name) or not name.isprintable() or name == _NOBODY:
        return json.dumps(name, ensure_ascii=not name.isprintable())
    if layer is None:
        return name
    return LAYER_NUMBER.sub(lambda m: _near(m[0], layer), name)


def _near(digits: str, layer: int) -> str:
    return _NEAR.get(int(digits) - layer, digits) if str(int(digits)) == digits else digits


def _size(nbytes: int) -> str:
    """An exact size, in the largest unit that gives a whole number."""
    unit = next(u for u, n in _UNITS.items() if nbytes % n == 0 and (nbytes or n == 1))
    return f"{nbytes // _UNITS[unit]} {unit}"


# --- back


class PageError(ValueError):
    """A page that `render` did not write; names the line."""


class _Token(NamedTuple):
    """A node as a section shows it."""

    name: str
    op: str
    backend: str
    cause: str
    is_computed: bool
    split: str | None
    copies: tuple[tuple[str, int, str], ...]


def parse(text: str) -> tuple[list[str], list[Row], Provenance]:
    """The backends of a page, highest priority first, its rows, and how its plan was made. Raises
    `PageError`."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()  # without lone surrogates
    check_lines(text, "the page", bounds.LINE)
    lines = text.split("\n")
    head = lines[0].rsplit(" ", 1)
    if head[0] != MAGIC:
        raise PageError(f"expected '{MAGIC} {_VERSION}' in the first line, got {lines[0]!r}")
    if head[1] not in ("1", str(_VERSION)):
        raise PageError(f"version {head[1]} of the format; this ggml_py reads 1 to {_VERSION}")
    made = _provenance(lines) if head[1] != "1" else UNKNOWN
    shares = next((line for line in lines if line.startswith("nodes ")), "")
    backends = [_name(name.strip()) for name in _SHARE.findall(shares.removeprefix("nodes "))]
    rows: list[Row] = []
    stack: dict[int, list[_Token]] = {}
    for layers, base, tokens in _read_sections(lines):
        if layers is None:
            rows += _expanded(stack)
            stack = {}
            rows += [_row(token, None) for token in tokens]
        else:
            if base is not None and base not in stack:
                raise PageError(f"layer {base} is referred to, but missing")
            block = tokens if base is None else _changed(stack[base], tokens)
            stack |= dict.fromkeys(layers, block)
    return backends, [*rows, *_expanded(stack)], made


def _provenance(lines: list[str]) -> Provenance:
    """The facts of a page. Empties their lines, so that the others keep their numbers."""
    facts: dict[str, str] = {}
    start = lines.index(_MADE) if _MADE in lines else len(lines)
    for i in range(start, len(lines)):
        line, lines[i] = lines[i], ""
        if i > start and not line.strip():
            break
        found = _FACT.fullmatch(line)
        try:
            if i > start and found is None:
                raise ValueError("expected a fact and its text")
            if found is not None:
                said, text = (str(json.loads(t)) if t[0] == '"' else t for t in found.groups())
                Provenance.from_page({said: text})
                facts[said] = text
        except ValueError as error:
            raise PageError(f"line {i + 1} is damaged: {error}: {line!r}") from None
    return Provenance.from_page(facts)


def _fact(text: str) -> str:
    """A fact's name or text as it is printed."""
    plain = text.isprintable() and _WORDS.fullmatch(text) and text[:1] != '"'
    return text if plain else json.dumps(text)


def _read_sections(
    lines: Sequence[str],
) -> Iterator[tuple[list[int] | None, int | None, list[_Token]]]:
    """The layers of each section, the layer that it is based on, and its nodes."""
    tokens: list[_Token] | None = None
    layers: list[int] | None = None
    base: int | None = None
    split: str | None = None
    copies: list[tuple[str, int, str]] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            if not line.strip():
                continue
            if not line.startswith(" "):
                if tokens is not None:
                    yield layers, base, tokens
                if m := _SECTION.fullmatch(line):
                    layers, base = _numbers(m[1]), None if m[2] is None else int(m[2])
                    tokens = []
                elif line == "nodes":
                    layers, base, tokens = None, None, []
                elif tokens is not None or not line.startswith(_HEAD):
                    raise PageError("unknown section")
            elif tokens is None:
                raise PageError("a node outside of any section")
            elif line.startswith("  split on "):
                split = _name(line.removeprefix("  split on "))
            elif line.startswith("    < "):
                name, size, src = _FIELD.findall(line[6:])
                copies.append((name, _nbytes(size), src))
                for token in (name, src):
                    _name(token)
            else:
                name, op, backend, cause, *rest = _FIELD.findall(line)
                if cause != _NOBODY and not PATTERN.fullmatch(_name(cause)):
                    raise PageError(f"expected a cause like {EXAMPLES}")
                if copies and split is None:
                    raise PageError("there are copies before it, but no split that they are for")
                for token in (backend, cause):
                    _name(token)
                tokens.append(_Token(name, op, backend, cause, not rest, split, tuple(copies)))
                _name(name)
                split, copies = None, []
        except (ValueError, KeyError) as error:
            why = f": {error}" if isinstance(error, PageError) else ""
            raise PageError(f"line {number} is damaged{why}: {line!r}") from None
    if tokens is not None:
        yield layers, base, tokens


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition("-")
        end = int(last or first) + 1
        if end > _MOST_LAYERS:
            raise PageError(f"layer {end - 1} of at most {_MOST_LAYERS}")
        found += range(int(first), end)
    return found


def _nbytes(size: str) -> int:
    number, unit = size.split(" ")
    nbytes = int(number) * _UNITS[unit]
    if not 0 <= nbytes < 1 << 63:
        raise PageError("the size is larger than a tensor can be")
    return nbytes


def _changed(base: list[_Token], changed: list[_Token]) -> list[_Token]:
    """The layer `base`, with nodes of `changed` in place of those with the same name and op."""
    others = defaultdict(list)
    for token in changed:
        others[token.name, token.op].append(token)
    return [others[t.name, t.op].pop(0) if others.get((t.name, t.op)) else t for t in base]


def _expanded(stack: dict[int, list[_Token]]) -> Iterable[Row]:
    return [_row(token, layer) for layer in sorted(stack) for token in stack[layer]]


def _row(t: _Token, layer: int | None) -> Row:
    copies = tuple(CopyLine(_name(n, layer), nbytes, _backend(src)) for n, nbytes, src in t.copies)
    name, backend, cause = _name(t.name, layer), _backend(t.backend), t.cause
    cause = "" if cause == _NOBODY else cause
    return Row(name, t.op, backend, cause, t.is_computed, t.split, copies)


def _backend(token: str) -> str | None:
    return None if token == _NOBODY else _name(token)


def _name(token: str, layer: int | None = None) -> str:
    if token.startswith('"'):
        return str(json.loads(token))
    if layer is None:
        return token
    return _MARK.sub(lambda m: str(layer + int(m[1] or 0)), token)
