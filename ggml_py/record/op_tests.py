"""The ops of plans, in the file that upstream's `test-backend-ops --test-file` reads, and back.

With it any backend can be tested with the shapes that a program really computes, without the
program and its model. Each op is a line of numbers and a name, with spaces between them. First come
its op and type, its ne (4), the number of op_params (16) and the op_params. Then come the number of
sources, the type, ne (4) and nb (4) of each source, and the node's name, "-" if it has none.

Upstream, ggml 0.26.0: `test_object::serialize` in tests/test-export-graph-ops.cpp writes such
lines, `make_test_cases_from_file` in tests/test-backend-ops.cpp reads them. Ops and types are
numbers, which differ between releases. So a file fits the test-backend-ops of one release, by
default that of this process's build. For another release, `ops` and `types` are its names, each at
its number, as in the head of a recorded process.

Not written, because upstream's reader has no way to say it (`left_out` lists them):

- An op with a gap in its sources, such as SOFT_MAX with sinks and no mask. Upstream's writer cuts
  the sources at the gap, so its file has another op.
- MAP_CUSTOM1, MAP_CUSTOM2, MAP_CUSTOM3 and CUSTOM, whose op_params have the address of a function
  in the program. test-backend-ops would call it.

What `support` and `perf` take and `test` does not, although the op is written as upstream does:

- Upstream does not initialise the memory around an op and the part of a result that the op leaves
  alone (SET_ROWS). With a NaN there `test` says "[NONE] NaN" or "[SET_ROWS] NaN". With glibc, run
  it with MALLOC_PERTURB_=255 in the environment, which clears new memory.
- Sources are random numbers from -1 to 1. LOG and SQRT of them are NaN, which fails. RWKV_WKV7 and
  ADD1 of quantized data differ by more than the limit, and COUNT_EQUAL's two results differ.
- GET_ROWS_BACK gets row numbers that are too large, and aborts. So do sources of type q8_1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

from .. import enums
from ..files.bounds import TABLE
from ..files.reading import in_utf8, read_file
from ..files.writing import write_whole
from ..sim.profiles.call import CUSTOM_OPS, Call, recorded_call
from ..trace.planned import Planned
from ..trace.record import VIEW_OPS
from ..typed import describe, typed

if TYPE_CHECKING:
    from ..plan import Plan
    from ..trace.plan_tensor import PlanTensor

N_PARAMS = 16  # GGML_MAX_OP_PARAMS / sizeof(int32_t)
MAX_SRC = 10
_NUMBER = re.compile(r"-?[0-9]{1,20}")
_INT32, _INT64 = 1 << 31, 1 << 63
Names = Sequence[str] | None


class OpSource(NamedTuple):
    """A source of an op: its type in lower case, its shape and its strides in bytes."""

    type: str
    ne: tuple[int, ...]
    nb: tuple[int, ...]


class OpTest(NamedTuple):
    """One line of such a file."""

    op: str  # ggml's name, "MUL_MAT"
    type: str  # in lower case, "f32"
    ne: tuple[int, ...]
    op_params: tuple[int, ...]  # all 16, as int32
    sources: tuple[OpSource, ...]
    name: str  # of the node; upstream's reader takes its first word

    @property
    def key(self) -> tuple[object, ...]:
        """What upstream tells ops apart by: all but the name."""
        return self[:5]


class LeftOut(NamedTuple):
    """A node that `write_op_tests` leaves out, and the reason."""

    node: PlanTensor
    why: str


@typed
def op_tests(plans: Iterable[Plan]) -> list[OpTest]:
    """The different ops that the plans' nodes compute, each once, in the order of the nodes.

    Views are left out, as upstream does, and what `left_out` lists. Ops are different if their op,
    type, ne, op_params or sources are; a later one's name is dropped. White space in a name is one
    space each. Raises ValueError for a plan without shapes, which was read from a log or snapshot.
    """
    found: dict[tuple[object, ...], OpTest] = {}
    for node in _computed(plans):
        call = recorded_call(node.plan, node.record)
        if not why_no_test(call):
            test = op_test(call)
            found.setdefault(test.key, test)
    return list(found.values())


@typed
def left_out(plans: Iterable[Plan]) -> list[LeftOut]:
    """The nodes that cannot be tested from a file, each with the reason. Raises as `op_tests`."""
    calls = ((node, recorded_call(node.plan, node.record)) for node in _computed(plans))
    return [LeftOut(node, why) for node, call in calls if (why := why_no_test(call))]


@typed
def write_op_tests(
    plans: Iterable[Plan],
    path_or_file: str | os.PathLike[str] | TextIO,
    *,
    ops: Names = None,
    types: Names = None,
) -> int:
    """Writes the different ops of plans, as `op_tests` lists them, and returns how many they are.

    `ops` and `types` are the names of another release, each at its number: by default those of
    this process's build. An existing file is replaced. Raises ValueError for a plan without shapes
    and for an op or type that has no number there, OSError if the file cannot be written.
    """
    tests = op_tests(plans)
    content = "".join(f"{line}\n" for line in op_test_lines(tests, ops=ops, types=types))
    if isinstance(path_or_file, str | os.PathLike):
        write_whole(os.fspath(path_or_file), content.encode("utf-8", "replace"))
    else:
        path_or_file.write(content)
    return len(tests)


def op_test_lines(
    tests: Iterable[OpTest], *, ops: Names = None, types: Names = None
) -> Iterator[str]:
    """The line of each test, without its end. Raises ValueError as `write_op_tests`."""
    op_of = {name: i for i, name in _op_names(ops).items()}
    type_of = {name: i for i, name in _type_names(types).items()}

    def number(numbers: dict[str, int], name: str, what: str) -> int:
        if name not in numbers:
            raise ValueError(
                f"{what} {name} has no number in the release that the file is for: give the names "
                "of the release that the plan is from, as ops and types"
            )
        return numbers[name]

    for test in tests:
        words = [number(op_of, test.op, "op"), number(type_of, test.type, "type"), *test.ne]
        words += [len(test.op_params), *test.op_params, len(test.sources)]
        for source in test.sources:
            words += [number(type_of, source.type, "type"), *source.ne, *source.nb]
        yield " ".join([*map(str, words), test.name or "-"])


@typed
def read_op_tests(
    path: str | os.PathLike[str], *, ops: Names = None, types: Names = None
) -> list[OpTest]:
    """The tests in a file that `write_op_tests` or upstream's test-export-graph-ops wrote.

    Raises ValueError with the line's number and the expected text, also for text that upstream's
    reader would take for zeros or cut off. Raises OSError if the file cannot be read.
    """
    op_names, type_names = _op_names(ops), _type_names(types)
    lines = in_utf8(read_file(path, TABLE)).decode("utf-8", "replace").split("\n")
    if lines[-1]:
        raise ValueError(f"{path}, line {len(lines)}: it is cut off: expected the line's end")
    found = []
    for i, line in enumerate(lines[:-1], 1):
        try:
            found.append(_Words(line).test(op_names, type_names))
        except ValueError as error:
            raise ValueError(f"{path}, line {i}: {error}") from None
    return found


class _Words:
    """The words of a line, taken one after another."""

    def __init__(self, line: str) -> None:
        self.line, self.at = line, 0

    def number(self, what: str, low: int, high: int) -> int:
        """The next number, from `low` to `high` - 1."""
        word = self.line[self.at :].lstrip().partition(" ")[0]
        self.at = self.line.find(word, self.at) + len(word)
        if not word:
            raise ValueError(f"it ends: expected {what}")
        if not _NUMBER.fullmatch(word) or not low <= int(word) < high:
            raise ValueError(f"{word!r}: expected {what}, a number from {low} to {high - 1}")
        return int(word)

    def numbers(self, what: str, n: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.number(f"{what}[{i}]", low, high) for i in range(n))

    def named(self, what: str, names: dict[int, str]) -> str:
        """The next number, which stands for a name."""
        number = self.number(what, 0, 1 << 16)
        if number not in names:
            raise ValueError(f"no {what} has the number {number} in this release")
        return names[number]

    def test(self, ops: dict[int, str], types: dict[int, str]) -> OpTest:
        """The whole line."""
        op, type_ = self.named("op", ops), self.named("type", types)
        ne = self.numbers("ne", 4, 0, _INT64)
        n_params = self.number("the number of op_params", 0, N_PARAMS + 1)
        params = self.numbers("op_params", n_params, -_INT32, _INT32)
        sources = []
        for s in range(self.number("the number of sources", 0, MAX_SRC + 1)):
            kind = self.named("type", types)
            shape = self.numbers(f"ne of source {s}", 4, 0, _INT64)
            strides = self.numbers(f"nb of source {s}", 4, 0, 2 * _INT64)
            sources.append(OpSource(kind, shape, strides))
        name = _clean(self.line[self.at :])
        if not name:
            raise ValueError("it ends: expected the name, or '-'")
        params += (0,) * (N_PARAMS - n_params)  # as upstream's reader
        return OpTest(op, type_, ne, params, tuple(sources), "" if name == "-" else name)


def _computed(plans: Iterable[Plan]) -> Iterator[PlanTensor]:
    """The nodes that upstream's writer does not skip."""
    for plan in plans:
        if not isinstance(plan, Planned):
            raise TypeError(f"plans: expected Plans, got {describe(plan)}")
        if plan.capture.source != "scheduler":
            raise ValueError(
                f"this plan was read from a {plan.capture.source}, which does not have the shapes "
                "of all sources: plan the graph, or load a record or a .json file"
            )
        for node in plan.nodes:
            if node.op not in VIEW_OPS and node.op != "NONE":
                yield node


def why_no_test(call: Call) -> str:
    """Why upstream's reader cannot make this op; "" if it can."""
    if call.kind in CUSTOM_OPS:
        return "its op_params have the address of a function"
    if -1 in call.places:
        return f"it has no src[{call.places.index(-1)}], but sources behind it"
    return ""


def op_test(call: Call) -> OpTest:
    """The test of an op call."""
    sources = tuple(OpSource(one.type, one.ne, one.nb) for one in call.src if one)
    name = _clean(call.out.name)
    return OpTest(
        call.kind, call.out.type, call.out.ne, call.params, sources, "" if name == "-" else name
    )


def _clean(name: str) -> str:
    """A name that has one line, and no white space that would be lost."""
    return " ".join(name.split())


def _op_names(ops: Names) -> dict[int, str]:
    if ops is not None:
        return dict(enumerate(ops))
    return {op.value: op.name for op in enums.Op if op.name != "COUNT"}


def _type_names(types: Names) -> dict[int, str]:
    if types is not None:
        return {i: name.lower() for i, name in enumerate(types)}
    return {type_.value: type_.name.lower() for type_ in enums.Type if type_.name != "COUNT"}
