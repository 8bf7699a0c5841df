"""What the docstrings of ops say: the rows of ops_math.toml, ops_shape.toml and ops_net.toml.

A row is named as the op and has

    does      what it does, a sentence or more
    formula   the result's elements (y) by those of the operands
    shapes    ne of the operands -> ne of the result; behind a semicolon what else holds. `[..]`
              and `any` are any ne, absent dimensions are 1, `as a` is a's ne
    types     types that the CPU computes -> the result's
    grad      operands that upstream has gradients for, and `grad_note` what one has to know of them
    example   lines of Python, and `gives` what the last one shows; `raises` the error that it is
    numpy     the same in numpy, from the arrays that the example names
    defaults  of its last arguments: what upstream's callers nearly always pass
    note      what else one has to know
    like      a row, or a template (`_name`), that has what this one lacks

An op `X_inplace` without a row has X's. tests/graphs/test_op_docs.py holds all of it against what
the ops do. An op without a row, of a release that is newer than the table, has its C prototype
only, and its docstring says so.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import releases

TABLES = tuple(Path(__file__).with_name(f"ops_{name}.toml") for name in ("math", "shape", "net"))
IN_PLACE = "_inplace"
ABSENT = "No description: this op is newer than the table that has them."
# In the docstring of the class, and run by the test.
HELPERS = """\
def tensor(values, type="f32"):
    return ctx.from_numpy(np.array(values), type=type)

def compute(result):
    graph = ctx.new_graph()
    graph.build_forward_expand(result)
    with ggml.device("CPU").init(n_threads=1) as cpu:
        ctx.alloc(cpu)
        cpu.compute(graph)
        values = result.get()
    return (values if values.dtype.kind == "i" else values.astype(float).round(4)).tolist()
"""


@dataclass(frozen=True)
class Row:
    """What there is to say of one op."""

    does: str
    formula: str
    shapes: str
    types: str
    grad: str
    example: list[str]
    gives: str = ""
    raises: str = ""
    numpy: str = ""
    note: str = ""
    grad_note: str = ""
    defaults: str = ""
    like: str = field(default="", repr=False)
    ne: str = field(default="", repr=False)  # of templates: what {ne} stands for

    @property
    def default_of(self) -> dict[str, str]:
        """Python's text of each default, by argument."""
        pairs = (one.partition("=") for one in self.defaults.split(", ") if one)
        return {name: value for name, _, value in pairs}


@functools.cache
def rows() -> dict[str, Row]:
    """All rows by op, without templates and without the ops in place that have none."""
    table: dict[str, dict[str, Any]] = {}
    for path in TABLES:
        table |= releases.read_toml(path)
    return {name: _row(name, table) for name in table if not name.startswith("_")}


def _row(name: str, table: dict[str, dict[str, Any]]) -> Row:
    found: dict[str, Any] = {}
    above: str = name
    while above:
        found = {**table[above], **found}
        above = table[above].get("like", "")
    found["example"] = [line.format(op=name, ne=found.get("ne")) for line in found["example"]]
    return Row(**found)


def row(name: str) -> Row | None:
    """The row of an op without "ggml_", or of the op that it is in place; None for a new one."""
    known = rows()
    base = name.removesuffix(IN_PLACE)
    if name in known or base not in known:
        return known.get(name)
    return _in_place(known[base], base)


def _in_place(of: Row, base: str) -> Row:
    calls = [re.sub(rf"ctx\.{base}\(", f"ctx.{base}{IN_PLACE}(", line) for line in of.example]
    return replace(
        of,
        does=f"{of.does} Computed in a's memory: the result is a view of a.",
        grad="",
        grad_note="upstream has none for ops in place",
        note="",
        example=calls,
    )


def docstring(name: str, prototype: str) -> list[str]:
    """The lines of an op's docstring."""
    found = row(name)
    declared = wrapped(f"C: {prototype}")
    if found is None:
        return [ABSENT, "", *declared]
    gradients = ", ".join(found.grad.split()) or "none"
    after = f"; {found.grad_note}" if found.grad_note else ""
    shown = found.gives or f"Traceback (most recent call last): ... {found.raises}"
    lines = [*wrapped(found.does), ""]
    ne, semicolon, rest = found.shapes.partition(";")
    said = {  # a list with code, for the page of the API is Markdown
        "Formula": f"`{found.formula}`",
        "Shapes": f"`{ne}`{semicolon}{rest}",
        "Types": found.types,
        "Gradients": gradients + after,
    }
    for title, text in said.items():
        lines += wrapped(f"- {title}: {text}.", "  ")
    lines += wrapped(f"- {found.note}", "  ") if found.note else []
    lines += ["", "Example:", "", *(f"    >>> {line}" for line in found.example), f"    {shown}"]
    return [*lines, "", *declared]


def wrapped(text: str, indent: str = "", width: int = 88) -> list[str]:
    """`text` in lines of about `width`, all but the first after `indent`; none begins with what
    Markdown takes for a list."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width and word not in ("+", "-", "*"):
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]
