"""Headers at addresses: servers that never end, send too much, or have secrets in their address."""

import contextlib
import socket
import threading
import time

import pytest

from ggml_py import Gguf, GgufError
from ggml_py.files import bounds
from ggml_py.gguf import remote
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import run
from ..support.served import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    write_llama(folder / "model.gguf", LlamaSpec(n_layer=1, n_embd=32, n_ff=32, n_vocab=300))
    return folder


def refused(address, match):
    with pytest.raises(GgufError, match=match), remote.header_of(address):
        pass


def test_a_server_that_is_too_slow(folder, monkeypatch):
    monkeypatch.setattr(bounds, "SECONDS", 0.5)
    with serving(folder, "slow") as (address, _server):
        refused(address, r"model.gguf: [1-9] bytes came in [01] s, expected at least 4,096 in")


def test_a_server_that_compresses_what_it_sends(folder):
    with serving(folder, "compressed") as (address, _server):
        refused(address, "asked for plain bytes and sends them as 'gzip'")


def test_a_header_that_never_ends(folder, monkeypatch):
    monkeypatch.setattr(remote, "PIECE", 1000)
    monkeypatch.setattr(bounds, "HEADER", 2000)
    with serving(folder) as (address, _server):
        refused(address, "model.gguf: its header does not end within 0 MiB")


def test_a_name_with_more_parts_than_any_model_has(folder):
    (folder / "m-00001-of-99999.gguf").write_bytes((folder / "model.gguf").read_bytes())
    with serving(folder) as (address, server):
        many = address.replace("model.gguf", "m-00001-of-99999.gguf")
        refused(many, "its name says 99,999 parts, expected at most 1,000")
        assert len(server.asked) < 5


def test_many_parts_with_headers_that_do_not_end(folder, monkeypatch, tmp_path):
    """The parts of a model are read up to the bound of one header, all together."""
    whole = (folder / "model.gguf").read_bytes()
    name = "m-{:05}-of-00900.gguf"
    (tmp_path / name.format(1)).write_bytes(whole)
    for i in range(2, 20):
        (tmp_path / name.format(i)).write_bytes(whole)
    with serving(tmp_path) as (address, server):
        monkeypatch.setattr(bounds, "HEADER", 6 * len(whole))
        first = address.replace("model.gguf", name.format(1))
        refused(first, r"-0000[67]-of-00900.gguf: its header does not .*, with those of the ")
        assert server.sent < 8 * len(whole)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:secret@host:1/m.gguf", "https://me:***@host:1/m.gguf"),
        ("https://me@host/m.gguf?download=true", "https://me@host/m.gguf?download=true"),
        ("http://host/m.gguf?a=1&access_token=x&b=2", "http://host/m.gguf?a=1&access_token=***&b=2"),
        ("http://host/m.gguf?X-Amz-Signature=x", "http://host/m.gguf?X-Amz-Signature=***"),
    ],
)
def test_secrets_of_an_address_are_not_shown(address, shown):
    assert remote.shown(address) == shown


def test_no_message_has_the_password(folder):
    with serving(folder) as (address, _server):
        given = address.replace("://", "://me:secret@")
        with remote.header_of(given) as path:
            assert remote.as_given(str(path)) == address.replace("://", "://me:***@")
        with pytest.raises(GgufError) as failed, remote.header_of(given + "x"):
            pass
    assert "secret" not in str(failed.value) and "me:***@" in str(failed.value)


def test_no_verb_prints_the_password(folder):
    with serving(folder) as (address, _server):
        given = address.replace("://", "://me:secret@")
        for words in (["plan", given], ["plan", given, "--json"], ["plan", given + "x"],
                      ["compare", given, given], ["diff", given, given]):  # fmt: skip
            done = run(*words)
            printed = done.stdout + done.stderr
            assert printed and "secret" not in printed, (words, printed[:500])


HEAD = b"HTTP/1.1 206 P\r\nContent-Range: bytes 0-1048575/1099511627776\r\n"
ANSWERS = {  # what a server sends first, what it then repeats, and our error
    "silent": (b"", b"", "its server has not answered within 1 s"),
    "headers that drip": (b"HTTP/1.1 206 P\r\n", b"X", "its server has not answered within 1 s"),
    "headers without an end": (b"HTTP/1.1 206 P\r\n", b"X: a\r\n", "more than 100 headers"),
    "a line without an end": (b"", b"a" * 999, "more than 65536 bytes"),
    "redirects": (b"HTTP/1.1 302 F\r\nLocation: /\r\n\r\n", b"a" * 9999, "more than 10 times"),
    "an error without an end": (b"HTTP/1.1 500 F\r\n\r\n", b"a" * 9999, "the server answers 500"),
    "a body of letters": (HEAD + b"\r\n", b"a" * 9999, "invalid magic"),
    "a header of zeros": (
        HEAD + b"\r\nGGUF\3\0\0\0" + bytes(8) + b"\1" + bytes(7), bytes(9999),
        "asked for bytes from 1,048,576"),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_a_server_that_goes_on_for_ever(what, monkeypatch):
    begin, again, said = ANSWERS[what]
    monkeypatch.setattr(bounds, "SECONDS", 1)
    slow = len(again) < 2

    def serve():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

    def answer(connection):
        with contextlib.suppress(OSError), connection:
            connection.recv(1 << 16)
            connection.sendall(begin)
            while True:
                connection.sendall(again)
                time.sleep(0.2 * slow)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/m.gguf"
        began = time.monotonic()
        with (
            pytest.raises(GgufError, match=said) as failed,
            remote.header_of(address) as path,
        ):
            Gguf.open(path)
        assert time.monotonic() - began < 5 and str(failed.value).startswith(address), failed.value
