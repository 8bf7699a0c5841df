"""Text that somebody else chose, as each kind of output shows it."""

import time

import pytest

from ggml_py.files.foreign import cell, fenced, markdown, visible
from ggml_py.files.secrets import hidden
from ggml_py.trace.provenance import Provenance


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[1m\x9b\x7f\r\tb\n", "a␛[1m�␡␍\tb\n"),
        ("a\u202e\u2066\u061c\u200f\ud800", "a�����"),
        ("http://me:a@b@host/x:y@z", "http://me:***@host/x:y@z"),
        ("'me:a@host:80', a:b@c", "'me:***@host:80', a:b@c"),
        ("s3+x:///me:a?b", "s3+x:///me:a?b"),
        ("http://h/m?a=1&Token=x&b=2#t=1", "http://h/m?a=1&Token=***&b=2#t=1"),
        ("'http://h/m?key=a' b", "'http://h/m?key=***' b"),
    ],
)
def test_on_a_terminal(text, shown):
    assert visible(text) == shown
    assert visible(shown) == shown


def test_in_a_spreadsheet():
    for text in ("=1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1"):
        assert cell(text) == f"'{visible(text)}"
    assert [cell(value) for value in (-1, None, "a=1", "")] == [-1, None, "a=1", ""]
    assert cell("\x1b]0;t\x07") == "␛]0;t␇"  # a table may go to a terminal


def test_in_markdown():
    assert markdown(" a\n|b`") == "a \\|b\\`"
    assert markdown("http://x www.x @x") == "http://\u200bx www\u200b.x \\@\u200bx"
    assert markdown("http://me:a@h/") == "http://\u200bme:\\*\\*\\*\\@\u200bh/"
    assert fenced("a\n```\n", "sh") == ["````sh", "a\n```\n", "````"]


def test_of_a_command_line():
    words = ("p", "--api-key", "a", "--hf-token=b", "-hft", "c", "--tokens", "d", "http://u:e@h/")
    assert hidden(words) == (
        "p", "--api-key", "***", "--hf-token=***", "-hft", "***", "--tokens", "d", "http://u:***@h/"
    )  # fmt: skip


@pytest.mark.parametrize(
    "piece", ["?token", "&token=", "a-", "http://", "://:", "a:/", "x:@", "?a", "/", "a:"],
)
def test_no_text_takes_long(piece):
    began = time.process_time()
    visible(f"/{piece * (200_000 // len(piece))}")
    assert time.process_time() - began < 1


def test_flags_of_a_plan_have_no_secrets():
    made = Provenance(flags=("--api-key", "a", "-m", "http://u:e@h/m.gguf"))
    assert made.flags == ("--api-key", "***", "-m", "http://u:***@h/m.gguf")
    assert made.but(flags=("-hft", "x")).flags == ("-hft", "***")
