"""Numbered changes of single rules in C and C++ functions, by text: conditions negated, operands of
"&&" and "||" dropped, comparisons and numbers off by one, statements and cases of a switch dropped.

`sites_of` finds the places, `switched` writes all changes into one source, each chosen by a number
at run time, so that one compilation serves all of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\d[\w.]*'
    r"|->|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|\s+|.",
    re.DOTALL,
)
_DROPPED = re.compile(  # blocks that no build of ours compiles
    r"(?m)^[ \t]*#[ \t]*(?:if 0|ifndef NDEBUG|ifdef GGML_(?:ALLOCATOR_DEBUG|SCHED_NO_REALLOC))"
    r".*?^[ \t]*#[ \t]*endif[^\n]*",
    re.DOTALL,
)
# What is printed or checked, and what our own edits put there: no rule of upstream's.
_NO_RULE = re.compile(
    r"^(?:GGML_ASSERT|GGML_ABORT|GGML_LOG_\w+|GGML_UNUSED|AT_PRINTF|SET_CAUSE|assert|free|GP_\w+|gp::?.*"
    r"|gp_.*|ggml_format_name|extern|ggml_backend_buffer_free|ggml_free|ggml_hash_set_free|using|auto)\b"
)
_DECLARED = re.compile(
    r"^(?:(?:static|const|struct|enum|auto)\s+)*[A-Za-z_][\w:]*(?:\s*<[^;=]*>)?(?:[\s*&]+)"
    r"(?:\*\s*)?[A-Za-z_]\w*\s*=\s*(?!=)"
)
_FLIPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}


@dataclass(frozen=True)
class Site:
    """A place in a function that can be written otherwise."""

    function: str
    begin: int
    end: int
    kind: str  # "condition", "value" (an expression), "statement"
    text: str
    others: tuple[tuple[str, str], ...]  # what is done, the text in its place
    guard: str = field(default="", compare=False)


@dataclass(frozen=True)
class Mutant:
    """One change."""

    number: int
    site: Site
    how: str
    text: str
    line: int  # of the source
    near: str = field(default="", compare=False)  # the line, behind "»", and those around it

    def __str__(self) -> str:
        was, now = (" ".join(t.split()) for t in (self.site.text, self.text))
        return f"{self.site.function}: {self.how}: {was[:90]} → {now[:90] or '(nothing)'}"


def blanked(text: str) -> str:
    """The text with comments and blocks that are not compiled as spaces; nothing moves."""

    def spaces(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    def without(found: re.Match[str]) -> str:
        return spaces(found) if found[0].startswith(("//", "/*")) else found[0]

    return _TOKEN.sub(without, _DROPPED.sub(spaces, text))


def body_of(text: str, function: str) -> tuple[int, int]:
    """Where the body of a function is in a blanked text, without its braces."""
    pattern = rf"(?m)^[A-Za-z_][^\n;={{}}()]*\b{function}\([^;{{}}]*\)\s*\{{"
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise ValueError(f"{function} is defined {len(found)} times, expected once")
    begin = found[0].end()
    return begin, _closing(text, begin - 1)


def _closing(text: str, at: int) -> int:
    """Where the bracket that opens at `at` is closed."""
    depth = 0
    for found in _TOKEN.finditer(text, at):
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}":
            depth -= 1
            if not depth:
                return found.start()
    raise ValueError("a bracket that is not closed")


def sites_of(text: str, functions: Sequence[str]) -> Iterator[Site]:
    """The sites in these functions."""
    plain = blanked(text)
    for function in functions:
        begin, end = body_of(plain, function)
        yield from _Block(plain, function).statements(begin, end)


class _Block:
    def __init__(self, text: str, function: str) -> None:
        self.text, self.function = text, function

    def statements(self, at: int, end: int) -> Iterator[Site]:
        while True:
            at = self._skip(at, end)
            if at >= end:
                return
            at = yield from self._statement(at, end)

    def _skip(self, at: int, end: int) -> int:
        while at < end:
            if self.text[at].isspace() or self.text[at] == ";":
                at += 1
            elif self.text[at] == "#":
                at = self.text.index("\n", at)
            else:
                return at
        return end

    def _statement(self, at: int, end: int) -> Iterator[Site]:  # returns where it ends
        text = self.text
        if text[at] == "{":
            close = _closing(text, at)
            yield from self.statements(at + 1, close)
            return close + 1
        if found := re.compile(r"(if|while|for|switch)\s*\(").match(text, at):
            close = _closing(text, found.end() - 1)
            inside = found.end(), close
            if found[1] == "for" and _prints(self._body(close + 1, end)):
                return (yield from self._passed(close + 1, end))
            if found[1] == "for":
                yield from self._for(*inside)
            elif found[1] == "switch":
                yield from self._switch(inside, close + 1)
                return _closing(text, text.index("{", close)) + 1
            else:
                yield from self._value(*inside, kind="condition")
            return (yield from self._branches(close + 1, end))
        if found := re.compile(r"else\b").match(text, at):
            return (yield from self._branches(found.end(), end))
        stop = at
        while text[stop] != ";":
            found = _TOKEN.match(text, stop)
            assert found
            stop = _closing(text, stop) + 1 if found[0] in "([{" else found.end()
        yield from self._simple(at, stop)
        return stop + 1

    def _branches(self, at: int, end: int) -> Iterator[Site]:
        return (yield from self._statement(self._skip(at, end), end))

    def _body(self, at: int, end: int) -> str:
        at = self._skip(at, end)
        return self.text[at : _closing(self.text, at)] if self.text[at] == "{" else ""

    def _passed(self, at: int, end: int) -> Iterator[Site]:
        yield from ()
        return _closing(self.text, self._skip(at, end)) + 1

    def _for(self, at: int, end: int) -> Iterator[Site]:
        first = self.text.find(";", at, end)
        if first < 0:  # over a range
            return
        second = self.text.index(";", first + 1, end)
        found = _DECLARED.match(self.text[at:first])
        if found:
            yield from self._value(at + found.end(), first, number=True)
        if self.text[first + 1 : second].strip():
            yield from self._value(first + 1, second, loop=True, kind="condition")

    def _switch(self, inside: tuple[int, int], after: int) -> Iterator[Site]:
        """Each case of a switch that only returns: as if it were not there."""
        text = self.text
        begin, end = inside
        close = _closing(text, text.index("{", after))
        value = text[begin:end].strip()
        cases = re.findall(r"\bcase\s+(\w+)\s*:", text[after:close])
        none = "GGML_OP_NONE"
        others = [(f"no case {c}", f"({value} == {c} ? {none} : {value})") for c in cases]
        yield Site(self.function, begin, end, "value", text[begin:end], tuple(others))

    def _value(
        self,
        begin: int,
        end: int,
        loop: bool = False,
        number: bool = False,
        kind: str = "value",
    ) -> Iterator[Site]:
        raw = self.text[begin:end]
        value = raw.strip()
        if not value or _ours(value):
            return
        others = list(_otherwise(value))
        compared = re.fullmatch(r"[^<>=!&|?]+ ([<>]) ([^<>=!&|?]+)", value)
        if loop and compared:
            other = f"{value} - 1" if compared[1] == "<" else f"{value} + 1"
            others = [("one less", other), *(o for o in others if " is " not in o[0])]
        elif not number:
            simple = re.fullmatch(r"[^<>=!&|?]+ [=!]= [^<>=!&|?]+", value)
            others = others if simple else [("negated", f"!({value})"), *others]
        if others:
            begin += len(raw) - len(raw.lstrip())
            if re.search(r"&&|\|\|", value) and "?" not in value:
                kind = "condition"
            yield Site(self.function, begin, begin + len(value), kind, value, _unique(others))

    def _simple(self, begin: int, end: int) -> Iterator[Site]:
        text = self.text[begin:end]
        if _NO_RULE.match(text) or _ours(text):
            return
        if found := _DECLARED.match(text):
            if "{" not in text[found.end() :] and "&" not in found[0]:
                yield from self._value(begin + found.end(), end, number=True)
            elif "](" in text:  # a lambda
                yield from self._lambdas(begin, end)
            return
        if "](" in text and "{" in text:
            yield from self._lambdas(begin, end)
            return
        if re.match(
            r"^[A-Za-z_][\w:<> ,*]*[\s*&]+[A-Za-z_]\w*(\[[^\]]*\])?$", text
        ) and not re.match(r"^(return|break|continue|goto)\b", text):
            return  # a declaration without a value
        if text.startswith("return"):
            value = text.removeprefix("return").strip()
            at = begin + text.index(value) if value else begin
            if value:
                yield from self._value(at, at + len(value), number=True)
            after = self.text[end + 1 :].lstrip()
            depth = self.text[:begin].rfind("\n")
            indent = begin - depth - 1
            if indent > 4 and not value and after:
                yield Site(self.function, begin, end, "statement", text, (("dropped", ""),))
            return
        others = [("dropped", ""), *_otherwise(text, statement=True)]
        yield Site(self.function, begin, end, "statement", text, _unique(others))

    def _lambdas(self, begin: int, end: int) -> Iterator[Site]:
        for found in re.finditer(r"\]\([^)]*\)\s*\{", self.text[begin:end]):
            at = begin + found.end()
            yield from self.statements(at, _closing(self.text, at - 1))


def _prints(body: str) -> bool:
    """Whether a loop does nothing but print."""
    said = re.sub(r"AT_PRINTF\([^;]*\);|struct ggml_tensor \* \w+ = [^;]*;|continue;", "", body)
    return "AT_PRINTF" in body and ";" not in said


def _ours(text: str) -> bool:
    return bool(re.search(r"\b(?:gp_|GP_|gp::)", text))


def _unique(others: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple({text: (how, text) for how, text in reversed(others)}.values())[::-1]


def _otherwise(text: str, statement: bool = False) -> Iterator[tuple[str, str]]:
    """The other texts of an expression, or of a statement."""
    tokens = list(_TOKEN.finditer(text))
    words = [t[0] for t in tokens]
    solid = [i for i, w in enumerate(words) if not w.isspace()]
    if not statement:
        for sign in ("&&", "||"):
            yield from _operands(text, tokens, sign)
    for place, i in enumerate(solid):
        word = words[i]
        before = words[solid[place - 1]] if place else ""
        after = words[solid[place + 1]] if place + 1 < len(solid) else ""
        begin, end = tokens[i].span()
        if word in ("==", "!=") and not statement and ("&&" in words or "||" in words):
            continue  # an operand of a sign, which is negated whole
        if word in _FLIPPED and not (
            word in "<>" and re.match(r"^(?:struct|void|char|ggml_\w+)$", after)
        ):
            yield f"{word} is {_FLIPPED[word]}", f"{text[:begin]}{_FLIPPED[word]}{text[end:]}"
        elif word.isdigit() and not (before == "-" and not _is_operand(words, solid, place - 2)):
            up = str(int(word) + 1)
            yield f"{word} is {up}", f"{text[:begin]}{up}{text[end:]}"
        elif word in ("+", "-") and _is_operand(words, solid, place - 1):
            other = "-" if word == "+" else "+"
            yield f"{word} is {other}", f"{text[:begin]}{other}{text[end:]}"
        elif word in ("+=", "-="):
            other = "-=" if word == "+=" else "+="
            yield f"{word} is {other}", f"{text[:begin]}{other}{text[end:]}"
        elif word in ("true", "false"):
            other = "false" if word == "true" else "true"
            yield f"{word} is {other}", f"{text[:begin]}{other}{text[end:]}"
        elif word in ("MAX", "MIN"):
            other = "MIN" if word == "MAX" else "MAX"
            yield f"{word} is {other}", f"{text[:begin]}{other}{text[end:]}"


def _is_operand(words: list[str], solid: list[int], place: int) -> bool:
    """Whether a value ends there, so that a sign behind it is not its own."""
    word = words[solid[place]] if place >= 0 else ""
    return word != "return" and (word[-1:].isalnum() or word in (")", "]"))


def _operands(text: str, tokens: list[re.Match[str]], sign: str) -> Iterator[tuple[str, str]]:
    """The expression without each operand of a sign, and with each negated, at any depth."""
    stack: list[tuple[int, list[int]]] = [(0, [])]  # where a bracket began, signs in it
    spans: list[tuple[int, int, list[int]]] = []
    for t in tokens:
        if t[0] in "([{":
            stack.append((t.end(), []))
        elif t[0] in ")]}":
            begin, signs = stack.pop()
            spans.append((begin, t.start(), signs))
        elif t[0] == "?" or (t[0] == "," and len(stack) > 1):
            begin, signs = stack.pop()
            spans.append((begin, t.start(), signs))
            stack.append((t.end(), []))
        elif t[0] in ("&&", "||"):
            stack[-1][1].append(t.start() if t[0] == sign else -t.start())
    begin, signs = stack.pop()
    spans.append((begin, len(text), signs))
    for begin, end, signs in spans:
        own = [s for s in signs if s > 0]
        if not own:
            continue
        cuts = [begin, *own, end]
        parts = [text[cuts[i] + (2 if i else 0) : cuts[i + 1]] for i in range(len(cuts) - 1)]
        mixed = any(s < 0 for s in signs)
        for i, part in enumerate(parts):
            if mixed and "||" in part + "" and sign == "&&":
                pass
            kept = f" {sign} ".join(p.strip() for k, p in enumerate(parts) if k != i)
            if mixed and sign == "&&":
                # a || b && c: dropping an operand of && must keep what || separates
                continue
            yield f"without {part.strip()[:40]}", f"{text[:begin]}{kept}{text[end:]}"
            new = list(parts)
            new[i] = f" !({part.strip()}) "
            yield f"negated {part.strip()[:40]}", f"{text[:begin]}{sign.join(new)}{text[end:]}"


def added_lines(text: str, original: str) -> set[int]:
    """Numbers of the lines that an instrumented copy has and upstream's file has not."""
    sides = original.splitlines(), text.splitlines()
    matcher = difflib.SequenceMatcher(None, *sides, autojunk=False)
    return {
        line + 1
        for what, _a, _b, begin, end in matcher.get_opcodes()
        if what in ("insert", "replace")
        for line in range(begin, end)
    }


def mutants_of(
    text: str, functions: Sequence[str], first: int = 1, skipped: Collection[int] = ()
) -> list[Mutant]:
    """All changes in these functions, numbered from `first`, except on skipped lines."""
    found: list[Mutant] = []
    lines = [line.strip() for line in text.splitlines()]
    for site in sites_of(text, functions):
        line = text.count("\n", 0, site.begin) + 1
        if line in skipped:
            continue
        near = " ".join([*lines[max(0, line - 2) : line - 1], "»", *lines[line - 1 : line + 2]])
        for how, other in site.others:
            found.append(Mutant(first + len(found), site, how, other, line, near))
    return found


def single(text: str, mutant: Mutant) -> str:
    """The source with one change."""
    return text[: mutant.site.begin] + mutant.text + text[mutant.site.end :]


def switched(text: str, mutants: Sequence[Mutant], c: bool = False) -> str:
    """The source with all changes; the variable `gp_mutant` says which one is made."""
    by_site: dict[int, list[Mutant]] = {}
    for mutant in mutants:
        by_site.setdefault(mutant.site.begin, []).append(mutant)
    for begin in sorted(by_site, reverse=True):
        group = by_site[begin]
        site = group[0].site
        original = text[site.begin : site.end]
        if site.kind != "statement":
            is_true = "!!" if site.kind == "condition" else ""
            made = f"{is_true}({original})"
            for mutant in group:
                made = f"(gp_mutant == {mutant.number} ? {is_true}({mutant.text}) : {made})"
        else:
            made = f"{{ {original}; }}"
            for mutant in group:
                made = f"if (gp_mutant == {mutant.number}) {{ {mutant.text}; }} else {made}"
            made = "{ " + made + " }"
        text = text[: site.begin] + made + text[site.end :]
    head = "extern int gp_mutant;\n" if c else 'extern "C" { int gp_mutant = 0; }\n'
    return head + text
