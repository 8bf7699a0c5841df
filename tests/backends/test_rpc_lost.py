"""RPC servers that die, stall, come back or answer nonsense: an exception with the server's name,
from every call, and never the end of the client. Each client is a process: devices stay."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD

from ..support.rpc_net import server, wait_for

pytestmark = [
    pytest.mark.thorough("long", quick=3),
    pytest.mark.skipif("rpc" not in BUILD["backends"], reason="built without RPC"),
    pytest.mark.skipif(
        BUILD["pristine"] or not ggml.lib.gp_rpc_guarded(),
        reason="limits and lost servers need the dispatcher of 0.24.0, instrumented",
    ),
]

PRELUDE = """
    import contextlib, json, os, signal, sys, threading, time
    sys.path.append(os.environ["GP_TREE"])
    import numpy as np
    import ggml_py as ggml
    from tests.support import rpc_net

    X = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Work:
        "A backend, a context in its memory and a graph."
        def __init__(self, device):
            self.gpu, self.ctx = device.init(), ggml.Context()
            self.t = self.ctx.from_numpy(X)
            self.y = self.ctx.sqr(self.t)
            self.y.name = "y"
            self.buffer = self.ctx.alloc(self.gpu)
            self.graph = self.ctx.new_graph(8)
            self.graph.build_forward_expand(self.y)

        def run(self):
            self.gpu.compute(self.graph)
            return self.y.get().tolist() == (X * X).tolist()

        def close(self):
            self.ctx.close()
            self.gpu.close()

    def outcome(call):
        "What it raises, with the seconds it took."
        began = time.monotonic()
        try:
            result = call()
        except (ggml.GgmlError, KeyboardInterrupt) as error:
            result = f"{type(error).__name__}: {error}"
        return result if result is None else str(result), time.monotonic() - began

    def interrupt(after):
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()

    def say(found):
        print(json.dumps(found), flush=True)
"""


def run(program, *args, timeout=60, words=False):
    """What the client says, the last line; it ends with 0 and no word on stderr (unless `words`: of
    the servers that it starts)."""
    text = textwrap.dedent(PRELUDE) + textwrap.dedent(program)
    environment = {**os.environ, "GP_TREE": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, args)],
        capture_output=True, text=True, check=False, timeout=timeout, env=environment,
    )  # fmt: skip
    assert done.returncode == 0 and (words or not done.stderr), done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_call_to_a_server_that_was_killed_says_so_and_closing_says_nothing():
    found = run("""
        with rpc_net.server(1) as server:
            device, = ggml.rpc_devices(server.endpoint)
            work, idle = Work(device), ggml.Context()
            events = device.event(), device.event()
            events[0].record(work.gpu)
            scheduler = ggml.Scheduler([work.gpu, ggml.device("CPU").init()], graph_size=8)
            right = work.run()
            server.kill(); server.wait()
            more = ggml.Context()
            more.new_tensor("f32", 4)
            calls = {
                "get": work.y.get, "set": lambda: work.t.set(X), "clear": work.buffer.clear,
                "compute": work.run, "synchronize": work.gpu.synchronize,
                "set_2d": lambda: work.t.set_2d(X), "get_2d": lambda: work.t.get_2d(2, 3),
                "memory": lambda: device.memory, "props": lambda: device.props,
                "init": device.init, "alloc": lambda: more.alloc(work.gpu),
                "copy": lambda: work.t.copy_to(work.y), "event": device.event,
                "record": lambda: events[0].record(work.gpu), "wait": events[0].synchronize,
                "alloc_graph": lambda: scheduler.alloc_graph(work.graph),
                "again": lambda: ggml.rpc_devices(server.endpoint),
            }
            said = {name: outcome(call) for name, call in calls.items()}
            closed = [outcome(h.close) for h in (events[0], scheduler, work.ctx, work.gpu)]
        say([right, server.endpoint, said, closed])
    """)
    right, endpoint, said, closed = found
    assert right
    for name, (text, seconds) in said.items():
        if name == "wait":  # the mark was set while the server was there
            continue
        assert text is not None and text.startswith(("ServerLostError", "RpcError")), (name, text)
        assert endpoint in text and seconds < 2, (name, text, seconds)
    assert "closed the connection, while it was asked for the data of tensor 'y'" in said["get"][0]
    assert all(text is None and seconds < 1 for text, seconds in closed), closed


def test_a_process_that_ends_with_handles_open_on_a_dead_server_ends_well():
    assert run("""
        with rpc_net.server(1) as server:
            work = Work(ggml.rpc_devices(server.endpoint)[0])
            scheduler = ggml.Scheduler([work.gpu, ggml.device("CPU").init()], graph_size=8)
            event = work.gpu.device.event()
            scheduler.alloc_graph(work.graph)
            scheduler.compute(work.graph)
            server.kill(); server.wait()
        say(True)
    """)


def test_a_process_that_ends_while_a_server_stalls_ends_at_once():
    began = time.monotonic()
    assert run("""
        with rpc_net.server(1) as server:
            work = Work(ggml.rpc_devices(server.endpoint)[0])
            threading.Thread(target=outcome, args=(work.y.get,), daemon=True).start()
            os.kill(server.pid, signal.SIGSTOP)
            outcome(lambda: ggml.rpc_devices(server.endpoint, timeout=0.3))
            threading.Thread(target=outcome, args=(work.y.get,), daemon=True).start()
            time.sleep(0.1)
        say(True)
    """)
    assert time.monotonic() - began < 20


def test_a_silent_server_is_lost_after_its_limit():
    (text, seconds), again, closed, connecting = run("""
        with rpc_net.server(1) as server:
            device, = ggml.rpc_devices(server.endpoint, timeout=0.5)
            work = Work(device)
            work.run(), work.y.get()
            os.kill(server.pid, signal.SIGSTOP)
            first, again = outcome(work.y.get), outcome(lambda: work.t.set(X))
            closed, connecting = outcome(work.close), outcome(device.init)
        say([first, again, closed, connecting])
    """)
    assert "was silent for 0.5 s, its limit, while it was asked for the data of tensor 'y'" in text
    assert 0.4 < seconds < 2
    assert again[0] == text and again[1] < 0.2
    assert closed[0] is None and closed[1] < 0.5
    assert "was silent for 0.5 s, its limit while connecting" in connecting[0]
    assert "no other client" in connecting[0] and 0.4 < connecting[1] < 2


def test_ctrl_c_leaves_a_stalled_server_at_once_and_the_connection_goes_on():
    stopped, closed, right, late = run("""
        with rpc_net.server(1) as server:
            device, = ggml.rpc_devices(server.endpoint)
            work, other = Work(device), Work(device)
            work.run()
            os.kill(server.pid, signal.SIGSTOP)
            stopped = []
            for call in (work.y.get, lambda: work.t.set(X), work.run, work.gpu.synchronize,
                         lambda: device.memory):
                interrupt(0.2)
                stopped.append(outcome(call))
            closed = outcome(other.close)
            os.kill(server.pid, signal.SIGCONT)
            work.t.set(X)
            right = [work.run() for _ in range(3)]
            os.kill(server.pid, signal.SIGSTOP)
            interrupt(0.2)
            late = outcome(work.y.get)
        say([stopped, closed, right, late])
    """)
    for text, seconds in [*stopped, late]:
        assert text == "KeyboardInterrupt: " and 0.1 < seconds < 1, stopped
    assert closed[0] is None and closed[1] < 0.5
    assert right == [True] * 3


def test_a_scheduler_that_ctrl_c_left_halfway_can_only_be_closed():
    left, then, closed = run("""
        with rpc_net.server(1) as server:
            device, = ggml.rpc_devices(server.endpoint)
            work = Work(device)
            cpu = ggml.device("CPU").init()
            with ggml.Context() as ctx:
                x = ctx.new_tensor("f32", 3, 2)
                x.set_input()
                graph = ctx.new_graph(8)
                y = ctx.sqr(x)
                graph.build_forward_expand(y)
                scheduler = ggml.Scheduler([work.gpu, cpu], graph_size=8)
                scheduler.set_tensor_backend(y, work.gpu)
                os.kill(server.pid, signal.SIGSTOP)
                interrupt(0.2)
                left = outcome(lambda: scheduler.alloc_graph(graph))
                then = outcome(lambda: scheduler.alloc_graph(graph))
                closed = outcome(scheduler.close)
        say([left, then, closed])
    """)
    assert left[0] == "KeyboardInterrupt: " and left[1] < 1
    assert "SpoiledError" in then[0] and "Ctrl-C" in then[0]
    assert closed[0] is None and closed[1] < 0.5


@pytest.mark.thorough("long")
def test_a_long_compute_is_no_silence_unless_it_has_a_limit_of_its_own():
    seconds, limited = run("""
        with rpc_net.server(1) as server:
            device, = ggml.rpc_devices(server.endpoint, timeout=0.3)
            gpu, ctx = device.init(), ggml.Context()
            a = ctx.new_tensor("f32", 1024, 1024)
            b = a
            for _ in range(6):
                b = ctx.mul_mat(a, b)
            ctx.alloc(gpu)
            a.set(np.zeros((1024, 1024), np.float32))
            graph = ctx.new_graph(64)
            graph.build_forward_expand(b)

            def compute():
                began = time.monotonic()
                for _ in range(n):
                    gpu.compute(graph)
                b.get()
                return time.monotonic() - began

            n = 1
            n = int(1.5 / compute()) + 1
            seconds = compute()
            ggml.rpc_devices(server.endpoint, compute_timeout=0.3)
            limited = outcome(compute)
        say([seconds, limited])
    """)
    assert seconds > 0.6
    assert "was silent for 0.3 s, its limit for a compute" in limited[0] and limited[1] < 3


def test_a_server_that_comes_back_serves_the_same_devices():
    found = run("""
        port = rpc_net.free_port()
        with rpc_net.server(1, port) as server:
            endpoint = server.endpoint
            device, = ggml.rpc_devices(endpoint)
            old = Work(device)
            server.kill(); server.wait()
            lost = outcome(old.run)
        nobody = outcome(lambda: ggml.rpc_devices(endpoint))
        with rpc_net.server(1, port) as server:
            same = ggml.rpc_devices(endpoint) == (device,)
            new = Work(device)
            right = new.run()
            still = outcome(old.y.get), outcome(lambda: new.gpu.compute(old.graph))
            mixed = new.ctx.new_graph(8)
            with ggml.Context() as ctx:
                y = ctx.sqr(old.t)
                ctx.alloc(new.gpu)
                graph = ctx.new_graph(8)
                graph.build_forward_expand(y)
                still += outcome(lambda: new.gpu.compute(graph)),
            closed = outcome(old.close)
            right = right and new.run()
            new.close()
        with rpc_net.server(2, port) as server:
            other = outcome(device.init)
        say([lost, nobody, same, right, still, closed, other])
    """)
    lost, nobody, same, right, still, closed, other = found
    assert lost[0].startswith("ServerLostError") and nobody[0].startswith("RpcError")
    assert same and right
    assert all(text.startswith("ServerLostError") for text, _ in still), still
    assert closed[0] is None
    assert "another number of devices" in other[0] and "start a new process" in other[0]


# What is wrong with the answer to which command, and what the client says of it.
NONSENSE = [
    ("size", "hello", "answered with 29 bytes where 28 were expected"),
    ("huge", "device_count", "answered with 4611686018427387904 bytes where 4 were expected"),
    ("ones", "hello", "speaks version 255.255.255 of the protocol"),
    ("ones", "device_count", "more than 1024 devices"),
    ("ones", "get_alignment", "an alignment"),
    ("zeros", "get_alignment", "an alignment"),
    ("zeros", "get_max_size", "buffers of no size"),
    ("ones", "alloc_buffer", "a buffer of another size"),
    ("zeros", "get_base", "an address where no buffer is"),
    ("ones", "get_base", "an address where no buffer is"),
    ("ones", "alloc_size", "the size of a tensor"),
    ("size", "get_tensor", "answered with 25 bytes where 24 were expected"),
    ("half_answer", "get_tensor", "closed the connection, while it was asked for the data"),
    ("unasked", "get_tensor", "RPC server"),
]


def test_answers_that_cannot_be_are_refused():
    said = run(
        """
        import logging
        logging.getLogger("ggml").setLevel(logging.CRITICAL)  # upstream's word on the version
        cases = json.loads(sys.argv[1])
        number = {name: cmd for cmd, name in rpc_net.ANSWERED.items()}

        def work(device):
            work = Work(device)
            with ggml.Context() as ctx:
                ctx.new_tensor("q4_0", 32)
                ctx.alloc(work.gpu).close()
            return work.run() and work.run() and work.close()

        said = []
        with rpc_net.server(1) as server:
            for kind, name in cases:
                fault = rpc_net.Fault(kind, cmd=number[name])
                proxy = rpc_net.Proxy(server.endpoint, fault)
                said.append([proxy.endpoint, *outcome(
                    lambda: work(ggml.rpc_devices(proxy.endpoint, timeout=2)[0]))])
                proxy.close()
        say(said)
        """,
        json.dumps([(kind, name) for kind, name, _ in NONSENSE]),
    )
    for (kind, name, expected), (endpoint, text, seconds) in zip(NONSENSE, said, strict=True):
        assert text is not None and text.startswith(("ServerLostError", "RpcError")), (kind, name)
        assert expected in text and endpoint in text, (kind, name, text)
        assert seconds < 4


@pytest.mark.thorough("sample")
def test_random_programs_on_a_server_that_fails():
    """A fixed part of benchmarks/rpc_faults.py."""
    program = """
        import logging
        logging.getLogger("ggml").setLevel(logging.CRITICAL)
        from tests.support import rpc_programs
        say([rpc_programs.check(seed) for seed in range(40)])
    """
    ends = run(program, timeout=120, words=True)
    assert {"killed", "stall", "cut", "none"} <= {how.partition(":")[0] for how in ends}


@pytest.mark.thorough("sample")
def test_a_server_survives_clients_that_die_and_clients_that_send_nonsense():
    import random
    import socket
    import struct

    draw = random.Random(5)
    with server(1) as process:
        host, port = process.endpoint.split(":")
        hello = struct.pack("<BQ", 14, 24) + bytes(24)
        garbage = [b"", b"\0", b"\xff" * 64, hello[:10], hello, hello + hello]
        garbage += [hello + struct.pack("<BQ", cmd, 1 << 62) for cmd in (6, 10, 18)]
        for cmd in range(24):
            for size in (0, 4, 8, 16, 24, 296, 305, 600):
                body = bytes(size) if size % 3 else draw.randbytes(size)
                garbage.append(hello + struct.pack("<BQ", cmd, size) + body)
        for data in garbage:
            with socket.create_connection((host, int(port)), 5) as client:
                client.settimeout(5)
                with contextlib.suppress(ConnectionError, OSError):
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(4096):
                        pass
        assert process.poll() is None
        assert run(
            "say(Work(ggml.rpc_devices(sys.argv[1])[0]).run())", process.endpoint
        )


@pytest.mark.thorough("sample")
def test_ctrl_c_ends_a_server_whether_it_serves_or_not():
    for serving in (False, True):
        with server(1) as process:
            wait_for(process.endpoint)
            client = None
            if serving:
                code = textwrap.dedent(PRELUDE) + textwrap.dedent("""
                    work = Work(ggml.rpc_devices(sys.argv[1])[0])
                    say(work.run())
                    time.sleep(30)
                """)
                client = subprocess.Popen(
                    [sys.executable, "-c", code, process.endpoint], stdout=subprocess.PIPE,
                    env={**os.environ, "GP_TREE": str(Path(__file__).parents[2])},
                )  # fmt: skip
                assert client.stdout.readline() == b"true\n"
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.wait(5)
            assert time.monotonic() - began < 1.5
            if client is not None:
                client.kill()
                client.communicate()


@pytest.mark.parametrize("limit", [0, -1, "1", float("nan"), True])
def test_a_limit_is_a_number_of_seconds(limit):
    with pytest.raises(ggml.ArgumentError, match="expected seconds, a number above 0"):
        ggml.rpc_devices("127.0.0.1:1", timeout=limit)


def test_a_buffer_that_is_freed_takes_no_graph_from_the_server():
    """A server forgets its graphs then; upstream's client asked for them, and lost the server."""
    right, ended = run("""
        with rpc_net.server(1) as server:
            remote, cpu = ggml.rpc_devices(server.endpoint)[0].init(), ggml.device("CPU").init()
            ctx = ggml.Context()
            y = ctx.sqr(ctx.from_numpy(X))
            graph = ctx.new_graph(8)
            graph.build_forward_expand(y)
            with ggml.Scheduler([remote, cpu]) as scheduler:
                for _ in range(3):
                    other = remote.buffer_type.alloc(1000)
                    scheduler.compute(graph)
                    scheduler.compute(graph)
                    other.close()
                scheduler.compute(graph)
                right = y.get().tolist() == (X * X).tolist()
            say([right, server.poll()])
    """)
    assert right and ended is None
