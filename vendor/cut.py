"""Cuts functions out of C++ sources, together with all definitions that they need.

A backend's `supports_op` needs no toolkit: it reads the op and a few properties of the device. This
module finds such a function in the preprocessed sources, follows every name in it to the definition
of that name, and prints the definitions in their order. `#line` keeps upstream's file and line.
Names that the caller provides (stubs of the toolkit's types and calls) are not followed. Functions
that are not wanted, though a table names them, keep their head and lose their body.

Functions whose result is a number or an enumerator record their lines, so that an answer knows
where it comes from: their body begins with `GP_FRAME`, and each `return VALUE` becomes `return
GP_AT VALUE` (`GP_ANSWER` in the functions that answer).

`cpp_source` reads the definitions. A local variable with the name of a function takes that function
along.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from vendor.cpp_source import TOKEN, Definition, Source, used
from vendor.report import BuildError

_NUMBERS = ("bool", "int", "int32_t", "uint32_t", "int64_t", "uint64_t", "size_t", "ggml_type")


@dataclass(frozen=True)
class Wanted:
    """What is cut out of a source."""

    roots: Sequence[str]  # each is defined exactly once, with a body or an initialiser
    provided: Collection[str] = ()  # names that are not followed
    ends: Sequence[str] = ()  # patterns of functions whose body is not wanted
    answers: Collection[str] = ()  # functions whose result is the answer
    members: Mapping[str, Collection[str]] = field(default_factory=dict)  # of types: those wanted
    # Of functions: the parameters of a function gp_NAME, and a pattern of the statements in it.
    slices: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # Of names that upstream's build generates, so that no source defines them: a pattern of the
    # names, and the type of the constant that takes their place.
    generated: Mapping[str, str] = field(default_factory=dict)

    def statements(self, source: Source, definition: Definition) -> list[tuple[int, int]] | None:
        """Where the parts of a definition are that alone are wanted; None if all of it is.

        Members of a type are wanted by name. Statements of a function are wanted if they match a
        pattern, and are in the same block as the first that does.
        """
        for name in definition.names[:1]:
            if wanted := self.members.get(name):
                parts = _parts(source, definition)
                return [(b, e) for b, e, depth in parts
                        if depth == 1 and _member(source.text[b:e]) in wanted]  # fmt: skip
            if name in self.slices and definition.has_body:
                pattern = self.slices[name][1]
                found = [part for part in _parts(source, definition)
                         if re.match(pattern, source.text[part[0] : part[1]])]  # fmt: skip
                return [(b, e) for b, e, depth in found if depth == found[0][2]]
        return None

    def uses(self, source: Source, definition: Definition) -> frozenset[str]:
        """The names in what is wanted of a definition."""
        if self.is_end(definition):
            return definition.head
        parts = self.statements(source, definition)
        if parts is None:
            return definition.uses
        text = " ".join(source.text[b:e] for b, e in parts)
        text += " ".join(self.slices[name][0] for name in definition.names if name in self.slices)
        return used([found[0] for found in TOKEN.finditer(text)])

    def is_end(self, definition: Definition) -> bool:
        """Whether only its head is wanted."""
        return definition.body >= 0 and any(
            fnmatchcase(name, pattern) and name not in self.slices
            for name in definition.names for pattern in self.ends
        )  # fmt: skip


def cut(source: Source, wanted: Wanted) -> str:
    """The definitions of the roots and of all names that they reach. Raises `BuildError` unless
    each root and each function that answers is defined exactly once."""
    for root in (*wanted.roots, *wanted.answers):
        if (n := sum(root in d.names and d.has_body for d in source.definitions)) != 1:
            raise BuildError(f"{root} is defined {n} times in upstream's source, expected once")
    taken = reached(source, wanted)
    kept = [d for d in source.definitions if id(d) in taken]
    if missing := _undefined(source, wanted, kept):
        raise BuildError(f"none of the files that are read defines {', '.join(missing)}")
    enums = (name for d in kept if d.kind == "enum" for name in d.names[:1])
    recorded = {*_NUMBERS, *enums}
    printed = [_printed(source, d, wanted, recorded) for d in kept]
    return "\n".join([*_generated(source, wanted, kept), *printed]) + "\n"


def _undefined(source: Source, wanted: Wanted, kept: Sequence[Definition]) -> list[str]:
    """The functions of which only a declaration is kept: nothing would link with them."""
    bodies = {name for d in source.definitions if d.has_body for name in d.names}
    return sorted(
        name for d in kept for name in d.names
        if name not in bodies and name not in wanted.provided and d.kind == ""
        and re.match(rf"[\w\s*&:<>,]*\b{name}\s*\(", source.text[d.begin : d.end])
    )  # fmt: skip


def _generated(
    source: Source, wanted: Wanted, kept: Sequence[Definition]
) -> Iterator[str]:
    """Constants in place of the generated names that are used."""
    defined = {name for d in source.definitions for name in d.names}
    used_names = frozenset[str]().union(*(wanted.uses(source, d) for d in kept))
    for name in sorted(used_names - defined - set(wanted.provided)):
        for pattern, kind in wanted.generated.items():
            if fnmatchcase(name, pattern):
                yield f"static const {kind} {name}{{}};"
                break


def reached(source: Source, wanted: Wanted) -> set[int]:
    """The `id` of each definition that the roots reach. A type takes along its members that are
    defined outside of it."""
    by_name: dict[str, list[Definition]] = {}
    for definition in source.definitions:
        for name in definition.names:
            by_name.setdefault(name, []).append(definition)
    outside = {name: name.partition("::")[0] for name in by_name if "::" in name}  # of its type
    taken: set[int] = set()
    done: set[str] = set(wanted.provided)
    names: set[str] = set()  # that are used
    pending = set(wanted.roots)
    while pending:
        for name in pending:
            for definition in by_name.get(name, ()):
                if id(definition) not in taken:
                    taken.add(id(definition))
                    names |= wanted.uses(source, definition)
        done |= pending
        owners = done - set(wanted.provided)
        names |= {name for name, owner in outside.items() if owner in owners}
        pending = names - done
    return taken


def _printed(
    source: Source, definition: Definition, wanted: Wanted, recorded: Collection[str]
) -> str:
    """Its text. Functions with a result of a type in `recorded` record their lines."""
    if wanted.is_end(definition):
        return _lines(source, definition.begin, definition.body, {}) + "{ GP_CUT_OFF }"
    parts = wanted.statements(source, definition)
    if parts is not None:
        name = definition.names[0]
        if name in wanted.slices:
            head = f"static void gp_{name}({wanted.slices[name][0]}) "
        else:
            head = source.text[definition.begin : source.text.index("{", definition.begin)]
        body = "\n".join(_lines(source, b, e, {}) for b, e in parts)
        return f"{head}{{\n{body}\n}}{'' if definition.body >= 0 else ';'}"
    marks: dict[int, str] = {}
    if definition.returns and definition.result in recorded:
        mark = "GP_ANSWER " if set(definition.names) & set(wanted.answers) else "GP_AT "
        marks = {definition.body + 1: " GP_FRAME", **dict.fromkeys(definition.returns, mark)}
    return _lines(source, definition.begin, definition.end, marks)


def _lines(source: Source, begin: int, end: int, marks: dict[int, str]) -> str:
    """The text between two places, with marks inserted at others. The preprocessor drops lines, so
    `#line` stands wherever the number jumps."""
    out: list[str] = []
    before: tuple[str, int] | None = None
    at = begin
    for text in source.text[begin:end].split("\n"):
        file, number = source.place(at)
        marked = text
        for place in sorted((p for p in marks if at <= p <= at + len(text)), reverse=True):
            marked = marked[: place - at] + marks[place] + marked[place - at :]
        at += len(text) + 1
        if not text.strip():
            continue
        if before != (file, number - 1):
            out.append(f'#line {number} "{file}"')
        out.append(marked)
        before = file, number
    return "\n".join(out)


# --- inside of a definition


def _parts(source: Source, definition: Definition) -> Iterator[tuple[int, int, int]]:
    """Where each statement or member begins and ends, and how many brackets it is in."""
    depth, begin = 0, -1
    for found in TOKEN.finditer(source.text, definition.begin, definition.end):
        text = found[0]
        if text == "{":
            depth, begin = depth + 1, -1
        elif text == "}":
            depth, begin = depth - 1, -1
        elif begin < 0:
            begin = found.start()
        if text == ";" and begin >= 0:
            yield begin, found.end(), depth
            begin = -1


def _member(text: str) -> str:
    """The name that a member's declaration declares."""
    words = [found[0] for found in TOKEN.finditer(re.split(r"[=\[{;]", text)[0])]
    return words[-1] if words else ""
