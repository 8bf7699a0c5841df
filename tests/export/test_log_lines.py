"""Logs of loggers in the field: what they put around ggml's print, and what they take from it."""

import json
import re

import pytest

import ggml_py as ggml

from ..support.debug_logs import DUMP, MESSAGES, pieces_of, printed

LINES = DUMP.splitlines(keepends=True)
# What one message is: a piece of a line, a line, the print of a split, all of it.
PARTS = {
    "pieces": pieces_of(DUMP),
    "lines": LINES,
    "splits": [f"## SPLIT{part}" for part in DUMP.split("## SPLIT")[1:]],
    "whole": [DUMP],
}
ENDS = {
    "kept": lambda part: part,
    "taken away": lambda part: part.rstrip("\r\n"),
    "crlf": lambda part: part.replace("\n", "\r\n"),
    "stripped": lambda part: part.strip(),
}


def _jsonl(rows):
    return "\n".join(json.dumps(row) for row in rows)


def _logged(parts, key="msg", **fields):
    others = [{"level": "info", key: message} for message in MESSAGES[:3]]
    return [*others, *({"level": "debug", **fields, key: part} for part in parts), *others]


WRAPPED = {
    "llama.cpp": lambda ps: _jsonl(_logged(ps, type="log", time=12)),
    "docker": lambda ps: _jsonl(_logged(ps, "log", stream="stderr", time="2026-11-20T20:17:01Z")),
    "unknown key": lambda ps: _jsonl(_logged(ps, "what was said")),
    "nested key": lambda ps: _jsonl({"a": {"level": "d", "body": [p]}} for p in ps),
    "journald": lambda ps: _jsonl(_logged(ps, "MESSAGE", _PID="12", PRIORITY="7")),
    "journald, bytes": lambda ps: _jsonl({"MESSAGE": [*f"\x1b[33m{p}".encode()]} for p in ps),
    "loki": lambda ps: json.dumps({"streams": [{"values": [["1732133821", p] for p in ps]}]}),
    "array": lambda ps: json.dumps(list(ps)),
    "pretty": lambda ps: json.dumps(_logged(ps), indent=2),
    "no newline between": lambda ps: "".join(json.dumps(row) for row in _logged(ps)),
    "compose": lambda ps: "\n".join(f"llama-1  | {json.dumps({'msg': p})}" for p in ps),
    "behind brackets": lambda ps: "\n".join(
        f"[2026-11-20 20:17:01] host llama[123]: {json.dumps({'msg': p})}" for p in ps
    ),
    "in docker's": lambda ps: _jsonl({"log": json.dumps({"msg": p}) + "\n"} for p in ps),
    "logfmt": lambda ps: "\n".join(
        f'time="2026-11-20" level=debug msg={json.dumps(p)} source=ggml.go:1' for p in ps
    ),
    "colours": lambda ps: _jsonl({"msg": f"\x1b[34m{p}\x1b[0m"} for p in ps),
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("wrap", WRAPPED)
def test_wrapped(wrap, parts, ends):
    messages = [ENDS[ends](part) for part in PARTS[parts]]
    text = WRAPPED[wrap](messages)
    assert ggml.Plan.from_debug_log(text) == ggml.Plan.from_debug_log(DUMP)


@pytest.mark.parametrize("mark", ["#033[33m", "^[[33m", "\\x1b[33m", "\\u001b[33m", "\\033[0;33m"])
def test_colours_that_something_made_visible(mark):
    text = "".join(f"{mark}{line}" for line in LINES)
    assert ggml.Plan.from_debug_log(text) == ggml.Plan.from_debug_log(DUMP)


def test_escaped_by_repr():
    for text in (repr(DUMP), repr(DUMP.encode()), str(LINES), DUMP.replace("\n", "\\n")):
        try:
            plan = ggml.Plan.from_debug_log(text)
        except ValueError as error:
            assert "log" in str(error) or "print" in str(error)
        else:
            assert plan == ggml.Plan.from_debug_log(DUMP)


def test_a_byte_order_mark():
    assert ggml.Plan.from_debug_log("\ufeff" + DUMP) == ggml.Plan.from_debug_log(DUMP)


def test_a_source_whose_beginning_cannot_be_told_is_refused():
    """A logger took the blanks away and put a mark before what was left."""
    text = "\n".join(f"[debug] {piece.strip()}" for piece in pieces_of(DUMP))
    with pytest.raises(ValueError, match="the blanks before a source are lost"):
        ggml.Plan.from_debug_log(text)


def test_names_of_other_alphabets_in_pieces():
    name = "é" * 10
    text = DUMP.replace("          inp_tokens", name).replace("inp_tokens", name)
    pieces = "".join(f"D {piece}" for piece in pieces_of(DUMP)).replace(
        "          inp_tokens", name
    )
    assert ggml.Plan.from_debug_log(pieces) == ggml.Plan.from_debug_log(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 100_000,
        "[" * 200_000 + '"',
        '["' * 100_000,
        '"' * 200_001,
        ('{"msg": "## SPLIT #0: ' + "x" * 50 + "\n") * 5_000,
        json.dumps({"msg": "node #"}) * 20_000,
    ],
    ids=["objects", "arrays", "both", "quotes", "cut objects", "messages"],
)
def test_what_is_no_log_is_refused_soon(text):
    import time

    start = time.monotonic()
    with pytest.raises(ValueError, match=r"log|print"):
        ggml.Plan.from_debug_log(text)
    assert time.monotonic() - start < 5


def _cuts(text, begin):
    """The text without a part of its last line, once for each of its characters."""
    return [text[:at] for at in range(begin + 1, len(text))]


@pytest.mark.parametrize("causes", [False, True])
@pytest.mark.parametrize("wrap", ["plain", "mark", "piece", "json"])
def test_a_cut_of_the_last_line_is_refused_or_said(mlp, causes, wrap, tmp_path):
    """Found wrong: a source whose name was cut was left out without a word."""
    whole = printed(mlp, causes=causes)
    assert len(whole.splitlines()[-1]) > 100
    if wrap == "mark":
        whole = "".join(f"0.00.123.456 D {line}" for line in whole.splitlines(keepends=True))
    elif wrap == "piece":
        whole = re.sub(r"(?<=\])(?= +\S+ \( )", "\n", whole)
    elif wrap == "json":
        whole = _jsonl([{"msg": line} for line in whole.splitlines()])
    plan = ggml.Plan.from_debug_log(whole)
    said = 0
    for text in _cuts(whole, whole.rstrip("\n").rfind("\n") + 1):
        try:
            cut = ggml.Plan.from_debug_log(text)
        except ValueError:
            continue
        told = any("last line of the log may be cut off" in s for s in cut.unknown)
        said += told
        assert told or cut == plan, text[-100:]
        if told:
            assert ggml.Plan.from_json(_written(cut, tmp_path)).unknown == cut.unknown
    assert said


def _written(plan, folder):
    plan.to_json(folder / "p.json")
    return folder / "p.json"


def test_what_follows_shows_that_the_last_line_is_whole(mlp):
    text = printed(mlp)
    for end in ("", "\n", "\n  \n", "llama: done", "llama: done\n"):
        assert not ggml.Plan.from_debug_log(text + end).capture.may_be_cut or end == "llama: done"
    assert ggml.Plan.from_debug_log(text.rstrip()).capture.may_be_cut
    two = ggml.Plan.from_debug_log(text + text.rstrip(), 0)
    assert not two.capture.may_be_cut
