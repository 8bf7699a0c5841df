"""The lines of a log as people paste it, without what loggers put around the messages.

Messages come plain, in JSON objects (llama.cpp's --log-jsonl, docker, journald, Loki and most
structured loggers, even one inside another), or quoted after `msg=`. The key may have any name: it
is the one whose strings contain the lines that we look for.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..files import bounds
from ..files.reading import check_lines

BEGIN = ("## SPLIT #", "node #")
_OURS = re.compile(r"## SPLIT #\d+: |node #\s*\d+ \(")
# Colours, also as rsyslog, `cat -v` and repr() write them.
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|(?:#033|\^\[|\\x1b|\\u001b|\\033|\\e)\[[0-9;]*m")
# llama.cpp's own prefix. Other prefixes end before the first piece of a line.
_MARK = re.compile(r"\d+\.\d\d\.\d{3}\.\d{3} [DIWE] ")
# An object, an array that may hold strings, or a string that is not a logfmt value.
_START = re.compile(r'\{\s*"|\[\s*[{\["]|(?<![=\w"\\])"')
_PAIR = re.compile(r'(?<![\w.-])([\w.-]+)=("(?:[^"\\\n]|\\.)*")')  # of logfmt: msg="…"
_NEWLINE = re.compile(r"\r\n|[\r\n]")
_ESCAPED = re.compile(r"(?:\\r)?\\n(?=(?:\\n|\\r){0,32}(?:## SPLIT #|node #)|$)", re.MULTILINE)
_MOST_LAYERS = 4  # of JSON in JSON
# Attempts at text that only begins like JSON: on one line, and over several, which takes time.
_MOST_ON_A_LINE, _MOST_FAILURES = 50, 200
_decoder = json.JSONDecoder()


class _Message(NamedTuple):
    """A string that a logger wrapped, and where it is in the text, including its wrapping."""

    start: int
    end: int
    key: tuple[str, ...]
    text: str


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines, numbered from 1, without colours and llama.cpp's prefixes."""
    check_lines(text, "the log")
    text = _ANSI.sub("", text.removeprefix("\ufeff"))
    for _ in range(_MOST_LAYERS):
        unwrapped = _unwrapped(text)
        if unwrapped == text:
            break
        text = _ANSI.sub("", unwrapped)
    text = _ESCAPED.sub("\n", text) if "\\n" in text else text
    check_lines(text, "the log, unwrapped,")
    for number, line in enumerate(_NEWLINE.split(text), 1):
        yield number, _MARK.sub("", line[: bounds.LINE])  # longer ones are of something else


def _unwrapped(text: str) -> str:
    """The text with wrapped messages of a debug print replaced by the messages alone."""
    if '"' not in text:
        return text
    for find in (_in_json, _in_pairs):
        messages = list(find(text))
        keys = Counter(m.key for m in messages if _OURS.search(m.text))
        if keys:
            key, _n = keys.most_common(1)[0]
            return _joined(text, [m for m in messages if m.key == key])
    return text


def _joined(text: str, messages: list[_Message]) -> str:
    """Puts messages in place of their wrapping. Some loggers keep line ends in the messages, so a
    line may be in several of them. Others remove line ends, so each message is a line."""
    kept = any(m.text.endswith("\n") for m in messages)
    parts, at = [], 0
    for m in messages:
        # Of several messages in one object, the first takes its place.
        if m.start >= at and (between := text[at : m.start].strip(" \t\r\n,")):
            parts.append(f"\n{between}\n")
        parts.append(m.text if kept else f"{m.text}\n")
        at = m.end
    end = "\n" if text.endswith("\n") else ""
    return "".join([*parts, f"\n{rest}{end}" if (rest := text[at:].strip()) else ""])


def _in_json(text: str) -> Iterator[_Message]:
    """The strings of each JSON value: several on a line, after a prefix, or over several lines."""
    at, line, n_on_line, n_failures = 0, -1, 0, 0
    while n_failures < _MOST_FAILURES and (found := _START.search(text, at)):
        start = found.start()
        if start > line:
            line, n_on_line = _line_end(text, start), 0
        try:
            value, length = _decoder.raw_decode(text[start:line])
        except RecursionError:
            return
        except ValueError as error:
            n_on_line += 1
            at = start + 1 if n_on_line < _MOST_ON_A_LINE else line
            if text[start] == '"' or not _is_cut(error):
                continue
            try:
                value, end = _decoder.raw_decode(text, start)
            except (ValueError, RecursionError):
                n_failures += 1
                continue
            length = end - start
        at = start + length
        for key, string in _strings(value, ()):
            yield _Message(start, at, key, string)


def _is_cut(error: ValueError) -> bool:
    """Whether the JSON may continue after the end of the decoded text."""
    assert isinstance(error, json.JSONDecodeError)
    return error.pos >= len(error.doc.rstrip())


def _line_end(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return newline if newline >= 0 else len(text)


def _strings(value: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The strings in a JSON value, each with the keys that lead to it. The items of a pair (Loki's
    time and line) have different keys; the items of other lists share one."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, (*key, name))
    elif isinstance(value, list):
        if len(value) > 1 and all(type(n) is int and 0 <= n < 256 for n in value):
            yield (
                key,
                bytes(value).decode("utf-8", "replace"),
            )  # journald, for messages with colours
            return
        pair = len(value) == 2 and all(isinstance(item, str) for item in value)
        for i, item in enumerate(value):
            yield from _strings(item, (*key, str(i) if pair else "*"))


def _in_pairs(text: str) -> Iterator[_Message]:
    """The quoted values of logfmt; each takes its whole line."""
    for m in _PAIR.finditer(text):
        if _OURS.search(m[2]) or "\\" in m[2] or m[1] in ("msg", "message"):
            start = text.rfind("\n", 0, m.start()) + 1
            yield _Message(start, _line_end(text, m.end()), (m[1],), _unquoted(m[2]))


def _unquoted(quoted: str) -> str:
    try:
        return str(json.loads(quoted, strict=False))
    except ValueError:
        return quoted[1:-1].replace("\\n", "\n")
