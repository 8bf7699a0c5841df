"""The ops of plans in the file that upstream's `test-backend-ops --test-file` reads, and back.

So the shapes that a program really computes can be tested, timed (`perf`) or asked about
(`support`) on any backend, without the program and its model. Each op is one line of numbers and a
name, separated by spaces: op, type, ne (4), the number of op_params and these (16), the number of
sources, for each source its type, ne (4) and nb (4), and last the node's name, or "-".

Upstream, version 0.26.0: tests/test-export-graph-ops.cpp writes such files,
`make_test_cases_from_file` in tests/test-backend-ops.cpp reads them. Ops and types are numbers
there, and releases number them differently. So the file fits only the `test-backend-ops` of the
release whose numbers it has: those of the build that this process uses, unless others are given.

What upstream's reader cannot express is not written, `left_out` lists it:

- an op with a gap in its sources, such as ROPE or FLASH_ATTN_EXT without a source that has others
  behind it. Upstream's writer drops all sources behind the gap, which makes another op of it.
- MAP_CUSTOM1, MAP_CUSTOM2, MAP_CUSTOM3 and CUSTOM: their op_params are addresses of functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .. import enums

if TYPE_CHECKING:
    pass

N_PARAMS = 16  # GGML_MAX_OP_PARAMS / sizeof(int32_t)
N_SOURCES = 10  # GGML_MAX_SRC


class TestSource(NamedTuple):
    type: str
    ne: tuple[int, ...]
    nb: tuple[int, ...]


class OpTest(NamedTuple):
    op: str
    type: str
    ne: tuple[int, ...]
    op_params: tuple[int, ...]
    sources: tuple[TestSource, ...]
    name: str


def line(t: OpTest) -> str:
    ops = {o.name: o.value for o in enums.Op}
    types = {o.name.lower(): o.value for o in enums.Type}
    w: list[object] = [
        ops[t.op],
        types[t.type],
        *t.ne,
        len(t.op_params),
        *t.op_params,
        len(t.sources),
    ]
    for s in t.sources:
        w += [types[s.type], *s.ne, *s.nb]
    return " ".join(map(str, [*w, t.name or "-"]))


def of(plan, n):
    r = n.record
    src = r.src[: r.src.index(-1)] if -1 in r.src else r.src
    T = plan.tensors
    return OpTest(
        r.op,
        r.type.lower(),
        r.ne,
        tuple(r.op_params) + (0,) * (16 - len(r.op_params)),
        tuple(TestSource(T[i].type.lower(), T[i].ne, T[i].nb) for i in src),
        r.name,
    )
