"""What is given as a file and is none, or never ends, is refused soon and with little memory."""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from click.testing import CliRunner

import ggml_py as ggml
from ggml_py.cli import cli
from ggml_py.cli.shared.source import Source
from ggml_py.files import bounds
from ggml_py.files import reading as _read_file
from ggml_py.sim.profile import Profile

from ..support.debug_logs import DUMP

linux = pytest.mark.skipif(sys.platform != "linux", reason="the paths are Linux's")


@pytest.fixture
def odd(tmp_path):
    """What is no file, by its kind."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    yield {
        "/dev/zero": "is a device", "/dev/urandom": "is a device", "/dev/null": "is a device",
        tmp_path / "pipe": "is a pipe", tmp_path / "folder": "folder|directory",
        tmp_path / "socket": "socket|No such device", tmp_path / "huge": "has more than",
        "/proc/self/pagemap": "has more than|not permitted|JSON|CSV|plan",
        tmp_path / "missing": "No such file|no such file",
    }  # fmt: skip
    server.close()


READERS = {
    "plan": ggml.Plan.from_json,
    "run": ggml.Run.from_json,
    "profile": Profile,
    "model": ggml.Gguf.open,
}


@linux
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused(reader, odd):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path, words in odd.items():
        start = time.monotonic()
        model = "" if reader != "model" else "|not a regular|cannot be read|folder|no such|GGUF"
        with pytest.raises((ValueError, OSError), match=words + model) as caught:
            READERS[reader](path)
        assert str(path) in str(caught.value)
        assert time.monotonic() - start < 5, path
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB


@linux
@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="only root reads the log")
@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("reader", ["plan", "run", "profile"])
def test_a_file_that_waits_for_what_is_to_come_is_refused(reader):
    code = f"""
        import sys; sys.path[:] = {sys.path!r}
        from tests.files.test_read_file import READERS
        READERS[{reader!r}]("/proc/kmsg")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert "Error" in done.stderr and "/proc/kmsg" in done.stderr  # or it may not be read at all


@linux
@pytest.mark.parametrize("verb", ["plan", "explain", "view", "diff", "why-not"])
def test_the_commands_say_so_too(verb, odd):
    more = {"explain": ["x"], "why-not": ["x", "CPU"], "diff": ["/dev/zero"]}.get(verb, [])
    for path in odd:
        done = CliRunner().invoke(cli, [verb, str(path), *more])
        assert done.exit_code != 0, (verb, path)
        assert done.exit_code == 2 or isinstance(done.exception, ValueError | OSError), path


@linux
def test_a_pipe_that_the_shell_opened_is_read(tmp_path):
    (tmp_path / "a.log").write_text(DUMP)
    command = [sys.executable, "-m", "ggml_py", "plan", "--text"]
    for shell in ('"$@" <(cat a.log)', 'cat a.log | "$@" /dev/stdin', 'cat a.log | "$@" -'):
        done = subprocess.run(
            ["bash", "-c", shell, "bash", *command],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout == DUMP, (shell, done.stderr)


def test_what_grows_while_it_is_read_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_bytes(bytes(3 << 20))
    assert len(_read_file.read_file(path, 3 << 20)) == 3 << 20
    with pytest.raises(ValueError, match="has more than 2 MiB"):
        _read_file.read_file(path, 2 << 20)


def test_a_bomb(tmp_path, monkeypatch):
    """A megabyte that asks for a gigabyte."""
    monkeypatch.setattr(bounds, "TEXT", 1 << 24)
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(bytes(1 << 25)))
    with pytest.raises(ValueError, match=r"p.json.gz .*more than 16 MiB when decompressed"):
        ggml.Plan.from_json(tmp_path / "p.json.gz")
    with pytest.raises(ValueError, match=r"p.json.gz .*more than 16 MiB when decompressed"):
        _ = Source(str(tmp_path / "p.json.gz"), "view").kind


PAGE = ggml.Plan.from_debug_log(DUMP).snapshot()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.replace("  split on CUDA0\n", "", 1), "line .*, but no split that"),
        (lambda t: t.replace("  split on CPU\n", '  split on "CPU\n', 1), "line .* is damaged"),
        (lambda t: "\n".join(t.split("\n")[:3]), "no nodes"),
    ],
)
def test_damaged_pages_name_the_line(damage, message):
    text = damage(PAGE)
    assert text != PAGE
    with pytest.raises(ValueError, match=message):
        ggml.Plan.from_snapshot(text)


def test_views_only_are_the_same_as_themselves(tmp_path):
    from ..support.drawn_plans import smallest

    page = ggml.Plan.from_snapshot(smallest().snapshot())
    assert not page.diff(page)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("node #  5", "node #99999999999", "its number is damaged"),
        ("3M) [CUDA0         ] use", "3M) [CUDA0 1.wgtx  ] use", "a cause like"),
        ("( 512M)", "(512000000000M)", "ggml prints 5 characters"),
    ],
)
def test_damaged_numbers_of_a_log_are_refused(before, after, message):
    """The first of these took all memory."""
    assert before in DUMP
    with pytest.raises(ValueError, match=message):
        ggml.Plan.from_debug_log(DUMP.replace(before, after))


ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-be-sig", "utf-32"]


def encoded(text, encoding):
    """Bytes with a byte order mark."""
    if encoding == "utf-16-be-sig":
        return ("\ufeff" + text).encode("utf-16-be")
    return text.encode(encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_byte_order_mark_says_the_encoding(encoding, tmp_path, plans):
    """Found wrong: a plan with one was taken for a model, and a table was no CSV. Windows' programs
    write them."""
    path = tmp_path / "x"
    for text in (json.dumps(plans["mlp"].to_json()), plans["mlp"].text()):
        path.write_bytes(encoded(text, encoding))
        done = CliRunner().invoke(cli, ["plan", str(path)])
        assert (done.exit_code, done.exception) == (0, None) and "splits" in done.output
    rows = "op_name,op_params,supported\nADD,\"type=f32,ne=[1],op_params=[],sources=f32[1]\",1\n"
    path.write_bytes(encoded(rows, encoding))
    assert Profile(path).name == "x"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}".encode("utf-16-le"), " looks like UTF-16 without a byte order mark. Save it"),
        ("op_name,é\n".encode("utf-16-be"), " looks like UTF-16 without a byte order mark. Save"),
        ("op_name,é\n".encode("latin-1"), "it is not UTF-8: byte 8 is 0xe9. Save it as UTF-8, "),
        (b"\xff\xfea\0b", "it is not UTF-16-LE: byte 4 is 0x62. Save it as UTF-8, or"),
    ],
)
def test_other_encodings_are_named(content, said, tmp_path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ggml.ArgumentError, match=f"cannot be read as CSV: .*{re.escape(said)}"):
        Profile(tmp_path / "x")
    if "looks like" in said:
        done = CliRunner().invoke(cli, ["plan", str(tmp_path / "x")])
        assert re.search(re.escape(said), str(done.exception))
