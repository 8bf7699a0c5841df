"""RPC servers for tests, and a proxy in front of them that fails on request."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time

HOST = "127.0.0.1"

# Commands of upstream's protocol that are answered, by number.
DATA = (8, 19)  # commands that are answered with a tensor's data
ANSWERED = {0: "alloc_buffer", 1: "get_alignment", 2: "get_max_size", 3: "get_base",
            7: "set_tensor_hash", 8: "get_tensor", 9: "copy_tensor", 11: "device_memory",
            13: "alloc_size", 14: "hello", 15: "device_count", 19: "get_tensor_2d"}  # fmt: skip

SERVER = """
    import signal, sys
    import ggml_py as ggml

    signal.alarm(120)  # ends the server if nothing else does
    n = int(sys.argv[2])
    devices = ggml.ffi.new("ggml_backend_dev_t[]", [ggml.device("CPU").ptr] * n)
    ggml.lib.ggml_backend_rpc_start_server(sys.argv[1].encode(), ggml.ffi.NULL, 1, n, devices)
"""


def free_port():
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def server(n_devices=2, port=None):
    """A server process that listens at `.endpoint`."""
    endpoint = f"{HOST}:{port or free_port()}"
    command = [sys.executable, "-c", textwrap.dedent(SERVER), endpoint, str(n_devices)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        process.endpoint = endpoint
        try:
            wait_for(endpoint)
            yield process
        finally:
            process.kill()


def wait_for(endpoint):
    """Until somebody listens."""
    host, port = endpoint.split(":")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            return
        time.sleep(0.02)
    raise TimeoutError(endpoint)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault at request number `at` of a connection, where HELLO is 0, or at the first request
    with the command `cmd`.

    cut: the request is not passed on, and both ends are closed. cut_after: it is passed on, then
    both are closed. half_request, half_answer: half of it is passed on, then both are closed.
    stall: from there on, nothing is passed on either way. unasked: unrequested bytes go to the
    client before it. Faults of the answer: dribble: sent byte by byte; size: longer than it says;
    huge: says 2**62 bytes; zeros, ones: all its bytes are that.
    """

    kind: str
    at: int = -1
    cmd: int = -1


KINDS = ("cut", "cut_after", "half_request", "half_answer", "stall", "unasked", "dribble", "size",
         "huge", "zeros", "ones")  # fmt: skip


class _Closed(Exception):
    pass


class Proxy:
    """A proxy between a client and a server. `fault` applies to connections that begin later."""

    def __init__(self, endpoint, fault=None):
        self.target = (HOST, int(endpoint.split(":")[1]))
        self.fault = fault
        self.open = []  # sockets
        self.listener = socket.create_server((HOST, 0))
        self.endpoint = f"{HOST}:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self):
        for one in (self.listener, *self.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _listen(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        fault, seen = self.fault, []
        first = client.recv(1, socket.MSG_PEEK)
        if not first:  # the client only checked for a listener
            client.close()
            return
        with client, socket.create_connection(self.target) as target:
            self.open += [client, target]
            for one in (client, target):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError, _Closed):
                while True:
                    head = read(client, 9)
                    cmd, size = struct.unpack("<BQ", head)
                    request = head + read(client, size)
                    hit = fault is not None and (fault.at == len(seen) or fault.cmd == cmd)
                    seen.append(cmd)
                    kind = fault.kind if hit else ""
                    self._one(client, target, cmd, request, kind)

    def _one(self, client, target, cmd, request, kind):
        if kind == "cut":
            raise _Closed
        if kind == "stall":
            while client.recv(1 << 16):
                pass
            raise _Closed
        if kind == "unasked":
            client.sendall(b"unasked")
        target.sendall(request[: len(request) // 2] if kind == "half_request" else request)
        if kind in ("cut_after", "half_request"):
            raise _Closed
        if cmd not in ANSWERED:
            return
        head = read(target, 8)
        answer = read(target, struct.unpack("<Q", head)[0])
        if kind in ("size", "huge"):
            head = struct.pack("<Q", len(answer) + 1 if kind == "size" else 1 << 62)
        elif kind in ("zeros", "ones"):
            answer = (b"\0" if kind == "zeros" else b"\xff") * len(answer)
        data = head + answer
        if kind == "half_answer":
            client.sendall(data[: len(data) // 2])
            raise _Closed
        if kind == "dribble":
            for i in range(len(data)):
                client.sendall(data[i : i + 1])
                time.sleep(0.002)
        else:
            client.sendall(data)


def read(sock, n):
    """n bytes."""
    parts = []
    while n:
        part = sock.recv(min(n, 1 << 20))
        if not part:
            raise _Closed
        parts.append(part)
        n -= len(part)
    return b"".join(parts)
