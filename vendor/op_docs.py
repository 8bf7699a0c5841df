"""Builds the docstrings of ops from the rows of ops_math.toml, ops_shape.toml and ops_net.toml.

A row has the op's name and these fields:

    does      what the op does, in one or more sentences
    formula   the result's elements (y) in terms of the operands' elements
    shapes    ne of the operands -> ne of the result; further conditions after a semicolon.
              `[..]` and `any` stand for any ne, missing dimensions are 1, `as a` means a's ne
    types     types that the CPU computes -> the result's type
    grad      operands that upstream has gradients for; `grad_note` adds a remark
    example   lines of Python; `gives` is what the last one shows, `raises` the error it raises
    numpy     the same computation in numpy, on the arrays that the example names
    defaults  defaults of the last arguments: what upstream's callers nearly always pass
    note      any other remark
    like      a row, or a template (`_name`), that supplies the missing fields

An op `X_inplace` without a row uses X's row. tests/graphs/test_op_docs.py checks every row against
what the ops do. An op of a release newer than the table has no row: its docstring says so and
gives only the C prototype.
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
ABSENT = "No description: this op is newer than the table of descriptions."
# Shown in the docstring of the class, and run by the test.
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
    """The description of one op."""

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
    ne: str = field(default="", repr=False)  # what {ne} stands for in a template

    @property
    def default_of(self) -> dict[str, str]:
        """The default of each argument, as Python source."""
        pairs = (one.partition("=") for one in self.defaults.split(", ") if one)
        return {name: value for name, _, value in pairs}


@functools.cache
def rows() -> dict[str, Row]:
    """All rows by op, without the templates. In-place ops without a row are missing."""
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
    """The row of an op, named without "ggml_". An in-place op without a row gets a row made from
    its base op's; an op newer than the table gets None."""
    known = rows()
    base = name.removesuffix(IN_PLACE)
    if name in known or base not in known:
        return known.get(name)
    return _in_place(known[base], base)


def _in_place(of: Row, base: str) -> Row:
    calls = [re.sub(rf"ctx\.{base}\(", f"ctx.{base}{IN_PLACE}(", line) for line in of.example]
    return replace(
        of,
        does=f"{of.does} Works in place: the result is a view of a.",
        grad="",
        grad_note="upstream has no gradients for in-place ops",
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
    said = {  # a list with code spans, because the API page is Markdown
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
    """`text` wrapped to lines of about `width`, all but the first indented by `indent`. No line
    begins with a character that Markdown would take for a list item."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width and word not in ("+", "-", "*"):
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]
