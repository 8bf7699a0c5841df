"""Reads C++ sources as top-level definitions: which names each defines and uses, and where it is.

The stream is what the preprocessor leaves; definitions end where their brackets match. Names are
not resolved as a compiler does it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from vendor.report import BuildError, check_outside

TOKEN = re.compile(
    r"""
    R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | [A-Za-z_]\w* | \.?\d(?:[eEpP][+-]|[\w.'])* | :: | -> | \S
    """,
    re.DOTALL | re.VERBOSE,
)
_LINE = re.compile(r'# (\d+) "((?:[^"\\]|\\.)*)"')
_TYPE = re.compile(r"(?m)^[ \t]*(?:typedef )?(?:struct|class|union|enum) (\w+)(?: \{|$)")
_WORD = re.compile(r"[A-Za-z_]\w*\Z")
_RECORDS = ("struct", "class", "union", "enum")
_ATTRIBUTES = ("__attribute__", "__launch_bounds__", "__declspec", "alignas", "decltype")
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


@dataclass
class Definition:
    """A top-level definition or declaration: a function, a type, a variable."""

    names: tuple[str, ...]  # what it defines; "T::f" for a member that is defined outside of T
    has_body: bool
    uses: frozenset[str]  # the names in it, but for those after "." and "->"
    begin: int
    end: int  # in the text of its `Source`
    head: frozenset[str] = frozenset()  # the names before the body
    body: int = -1  # where the body of a function begins; -1 if it is none
    result: str = ""  # the type of a function's result if it is one word; "" for constexpr
    returns: tuple[int, ...] = ()  # where the VALUEs of its `return VALUE` begin
    kind: str = ""  # "enum", "struct", ..


@dataclass
class Source:
    """A preprocessed source: the lines that come from the wanted files, and what they define."""

    text: str
    lines: Sequence[tuple[str, int]]  # file and number of each line of `text`
    starts: Sequence[int]  # where each line begins
    definitions: list[Definition] = field(default_factory=list)

    def place(self, offset: int) -> tuple[str, int]:
        """The file and line of a position in `text`."""
        return self.lines[bisect_right(self.starts, offset) - 1]


def preprocessed(
    compiler: Sequence[str], files: Iterable[str], folders: Iterable[Path], defines: Iterable[str]
) -> str:
    """What the preprocessor makes of all `files`, which are named as in an `#include`. So is
    `__FILE__` in it: no path of this machine is kept."""
    command = [*compiler, "-E", "-x", "c++", "-w"]
    for folder in folders:
        command += [f"-I{folder}", f"-fmacro-prefix-map={folder}/="]
    command += [*(f"-D{d}" for d in defines), "-"]
    text = "".join(f'#include "{file}"\n' for file in files)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        check_outside("preprocessing", Path(tempfile.gettempdir()), done.returncode, done.stderr)
        raise BuildError(f"the preprocessor failed on {', '.join(files)}: {done.stderr.strip()}")
    return done.stdout


def read(stream: str, wanted: Set[str]) -> Source:
    """The definitions of a preprocessed stream. Lines count if the name of their file or of its
    folder is in `wanted`; the rest comes from headers that the cut source includes itself."""
    kept: list[str] = []
    lines: list[tuple[str, int]] = []
    elsewhere: list[str] = []
    names: dict[str, str] = {}  # of the wanted files; "" for the others
    name, number = "", 0
    for text in stream.splitlines():
        if text.startswith("# ") and (mark := _LINE.match(text)):
            number, file = int(mark[1]), mark[2]
            if file not in names:
                path = Path(file)
                names[file] = "" if wanted.isdisjoint((path.parent.name, path.name)) else path.name
            name = names[file]
            continue
        if name:
            kept.append("" if text.lstrip().startswith("#") else text)  # #pragma
            lines.append((name, number))
        else:
            elsewhere.append(text)
        number += 1
    types = set(_TYPE.findall("\n".join(elsewhere)))  # that other headers define
    starts, at = [], 0
    for text in kept:
        starts.append(at)
        at += len(text) + 1
    source = Source("\n".join(kept), lines, starts)
    words: list[str] = []  # and signs; two lists, because half a million pairs take a second
    begins: list[int] = []
    for token in TOKEN.finditer(source.text):
        words.append(token[0])
        begins.append(token.start())
    # A header without a guard is read once for each file that includes it.
    found = _definitions(words, begins)
    once = {(*source.place(d.begin), source.text[d.begin : d.end]): d for d in found}
    source.definitions = [
        d for d in once.values() if d.has_body or not d.kind or d.names[0] not in types
    ]
    return source


# --- the top level of a file


def _definitions(words: Sequence[str], begins: Sequence[int]) -> Iterator[Definition]:
    at = 0
    while at < len(words):
        if words[at] in (";", "}"):  # the end of `extern "C" {`
            at += 1
            continue
        if words[at : at + 3] == ["extern", '"C"', "{"]:
            at += 3
            continue
        end = _end(words, at)
        yield _definition(words[at:end], begins[at:end])
        at = end


def _end(words: Sequence[str], begin: int) -> int:
    """Where the definition at `begin` ends: after its `;`, or after the body of a function."""
    depth, body = 0, False
    for at in range(begin, len(words)):
        text = words[at]
        if text in _OPEN:
            if text == "{" and depth == 0:
                body = words[begin] == "namespace" or _is_body(words[begin:at])
            depth += 1
        elif text in _CLOSE:
            depth -= 1
            if depth == 0 and text == "}" and body:
                return at + 1
        elif text == ";" and depth == 0:
            return at + 1
    return len(words)


def _is_body(head: Sequence[str]) -> bool:
    """Whether a `{` after `head` begins the body of a function, not an initialiser or a type."""
    depth = 0
    for word in head:
        depth += (word in _OPEN) - (word in _CLOSE)
        if word == "=" and depth == 0:
            return False
    last = head[-6:]
    return last[-1:] == [")"] or last[-1] in ("const", "noexcept", "override") or "->" in last


def _definition(words: Sequence[str], begins: Sequence[int]) -> Definition:
    names = tuple(dict.fromkeys(_names(words)))
    end = begins[-1] + len(words[-1])
    made = Definition(names, "{" in words, used(words), begins[0], end)
    made.kind = words[0] if words[0] in _RECORDS else ""
    body = _body(words) if len(names) == 1 else -1
    if body >= 0:
        head = words[:body]
        made.head, made.body = used(head), begins[body]
        made.result = _result(head, names[0])
        made.returns = tuple(
            begins[i + 1] for i in range(body, len(words) - 1)
            if words[i] == "return" and words[i + 1] not in (";", "{")
        )  # fmt: skip
    return made


def _result(head: Sequence[str], name: str) -> str:
    """The type of a function's result, if it is one word and can be recorded at run time."""
    if "constexpr" in head or name not in head:
        return ""
    rest = [w for w in head[: head.index(name)] if w not in ("static", "inline", "enum", "const")]
    return rest[0] if len(rest) == 1 else ""


def used(words: Sequence[str]) -> frozenset[str]:
    return frozenset(
        word for before, word in zip(["", *words], words, strict=False)
        if _WORD.match(word) and before not in (".", "->")
    )  # fmt: skip


def _body(words: Sequence[str]) -> int:
    """The index of the `{` that begins the body of a function; -1 if it is none."""
    depth = 0
    for at, word in enumerate(words):
        if word == "{" and depth == 0:
            return at if words[0] != "namespace" and _is_body(words[:at]) else -1
        depth += (word in _OPEN) - (word in _CLOSE)
    return -1


def _names(words: Sequence[str]) -> Iterator[str]:
    """What a definition defines."""
    if words[:2] == ["[", "["]:  # [[noreturn]]
        words = words[words.index("]") + 2 :]
    if words[0] in ("namespace", "static_assert"):
        return
    if "template" in words[:2]:
        begin = words.index("template") + 1
        if words[begin] != "<":  # an explicit instantiation
            return
        words = words[_after(words, begin, "<", ">") :]
    if words[0] == "using":
        if "=" in words:
            yield words[1]
    elif words[0] == "typedef":
        pointer = [i for i in range(len(words) - 2) if words[i : i + 2] == ["(", "*"]]
        yield words[pointer[0] + 2] if pointer else [w for w in words if _WORD.match(w)][-1]
        yield from _record_names(words[1:])
    elif function := _function(words):
        yield function
    elif any(w in _RECORDS for w in words[:3]) and _is_record(words):
        yield from _record_names(words)
    else:  # variables
        ends = (i for i, w in enumerate(words) if w in ("=", "[", "{", ";"))
        head = [w for w in words[: next(ends, len(words))] if _WORD.match(w)]
        yield from head[-1:]


def _after(words: Sequence[str], begin: int, opens: str, closes: str) -> int:
    """The index after the bracket that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(words)):
        depth += (words[i] == opens) - (words[i] == closes)
        if depth == 0:
            return i + 1
    return len(words)


def _function(words: Sequence[str]) -> str:
    """The name before the first bracket that is not an attribute's; "" if it is not a function."""
    depth, attribute = 0, False
    for i, word in enumerate(words):
        if word == "(":
            if depth == 0:
                attribute = i > 0 and words[i - 1] in _ATTRIBUTES
                if not attribute:
                    break
            depth += 1
        elif word == ")":
            depth -= 1
        elif depth == 0 and word in ("=", "{", "["):
            return ""
    else:
        return ""
    if i == 0 or not _WORD.match(words[i - 1]):
        return ""
    name = words[i - 1]
    if i >= 3 and words[i - 2] == "::":
        return f"{words[i - 3]}::{name}"
    if i >= 4 and words[i - 2 : i - 1] == ["~"] and words[i - 3] == "::":
        return f"{words[i - 4]}::~{name}"
    return name


def _is_record(words: Sequence[str]) -> bool:
    if "{" in words:
        return "=" not in words[: words.index("{")]
    return words[-1] == ";" and len(words) <= 4  # a forward declaration


def _record_names(words: Sequence[str]) -> Iterator[str]:
    kinds = [i for i, w in enumerate(words) if w in _RECORDS]
    if not kinds or kinds[0] > 2:
        return
    at = kinds[0] + 1
    while at < len(words) and (words[at] in ("class", "struct") or words[at] in _ATTRIBUTES):
        at += 1
    if at < len(words) and _WORD.match(words[at]):
        yield words[at]
    if "{" in words:
        if words[kinds[0]] == "enum":
            yield from _members(words[words.index("{") + 1 :])
        rest = words[_after(words, words.index("{"), "{", "}") :]  # struct { .. } variable[] = ..
        if rest and _WORD.match(rest[0]):
            yield rest[0]


def _members(words: Sequence[str]) -> Iterator[str]:
    """The names of an enum's members."""
    depth, first = 0, True
    for word in words:
        if word == "}":
            return
        if first and _WORD.match(word):
            yield word
        first = word == "," and depth == 0
        depth += (word == "(") - (word == ")")
