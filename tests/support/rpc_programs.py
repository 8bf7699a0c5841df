"""Random programs on an RPC server, each with one fault. `benchmarks/rpc_faults.py` runs them.

A program makes, uses and closes backends, buffers, graphs, events and schedulers, in any order, on
a server behind `rpc_net.Proxy`, which fails at a random message; or the server process itself is
killed or stopped. Each call must return the same as without the fault, or raise one of our errors
with the server's name, within the time limit. A case is a function of its number.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import random
import signal
import threading
import time

import numpy as np

import ggml_py as ggml

from . import rpc_net

TIMEOUT = 0.5  # seconds that the server may be silent
SLACK = 8.0  # seconds that a call may take, as other processes use the cores too
ROWS, COLS = 3, 4
ASKED = [cmd for cmd in rpc_net.ANSWERED if cmd not in rpc_net.DATA]


class Wrong(Exception):
    """A finding."""


class _Server:
    """The server for this process, for faults made by a proxy. A new one if the last has ended."""

    def __init__(self):
        self.stack = contextlib.ExitStack()
        self.process = None

    def endpoint(self):
        if self.process is None or self.process.poll() is not None:
            self.process = self.stack.enter_context(rpc_net.server(2))
        return self.process.endpoint


_server = _Server()
atexit.register(_server.stack.close)


def check(seed):
    """Runs the case and returns its outcome."""
    draw = random.Random(seed)
    kind = draw.choice([*rpc_net.KINDS, *rpc_net.KINDS, "none", "killed", "stopped"])
    if kind in ("killed", "stopped"):
        with rpc_net.server(1) as process:
            sign = signal.SIGKILL if kind == "killed" else signal.SIGSTOP
            timer = threading.Timer(draw.uniform(0, 0.05), process.send_signal, (sign,))
            try:
                return f"{kind}: {Program(draw, process.endpoint, timer).run()}"
            finally:
                timer.cancel()
                if timer.ident is not None:
                    timer.join()
    # If all bytes of an answer change, changed tensor data cannot be recognized as wrong.
    changed = kind in ("zeros", "ones")
    if changed or draw.random() < 0.3:
        fault = rpc_net.Fault(kind, cmd=draw.choice(ASKED if changed else [*range(12), 14, 15]))
    else:
        fault = rpc_net.Fault(kind, at=draw.randrange(60))
    proxy = rpc_net.Proxy(_server.endpoint(), None if kind == "none" else fault)
    try:
        return f"{kind}: {Program(draw, proxy.endpoint, whole=kind == 'none').run()}"
    finally:
        proxy.close()
        gc.collect()  # closes what was left open: the server serves only one client at a time


class Work:
    """A context in the server's memory, and the expected data of its tensors."""

    def __init__(self, backend):
        self.backend = backend
        self.ctx = ggml.Context()
        self.x = self.ctx.new_tensor("f32", COLS, ROWS)
        self.y = self.ctx.sqr(self.x)
        self.graph = self.ctx.new_graph(8)
        self.graph.build_forward_expand(self.y)
        self.values = self.result = None  # None: unknown
        self.written = self.computed = False  # whether anything tried to
        self.buffer = None


class Program:
    """One program."""

    def __init__(self, draw, endpoint, timer=None, whole=False):
        self.whole = whole  # the server has no fault
        self.draw, self.endpoint, self.timer = draw, endpoint, timer
        self.devices, self.backends, self.works = (), [], []
        self.lost, self.error = 0, None

    def run(self):
        self.call(lambda: self._devices(TIMEOUT))
        if self.timer is not None:
            self.timer.start()
        steps = [
            self.init, self.work, self.set, self.set, self.get, self.get, self.compute,
            self.compute, self.copy, self.rows, self.clear, self.event, self.schedule,
            self.memory, self.synchronize, self.close_work, self.close_backend, self.again,
        ]  # fmt: skip
        for _ in range(self.draw.randrange(4, 30)):
            self.call(self.draw.choice(steps))
        if self.draw.random() < 0.9:  # otherwise left to the garbage collector, or to the end
            for handle in [*(w.ctx for w in self.works), *self.backends]:
                self.call(handle.close, raises=False)
        if self.lost and self.whole:
            raise Wrong(f"there was no fault, but: {self.error!r}")
        return "lost" if self.lost else "right"

    def call(self, step, raises=True):
        began = time.monotonic()
        try:
            step()
        except (ggml.RpcError, ggml.SpoiledError) as error:
            self.lost += 1
            self.error = error
            if not raises or (self.endpoint not in str(error) and "RPC server" not in str(error)):
                raise Wrong(f"{step}: {error!r}") from error
        except ggml.AllocError:
            self.lost += 1  # "no memory" is a possible answer
        took = time.monotonic() - began
        if took > SLACK or (not raises and took > SLACK / 2):
            raise Wrong(f"{step} took {took:.1f} s")

    # --- steps

    def _devices(self, timeout=None):
        self.devices = ggml.rpc_devices(self.endpoint, timeout, compute_timeout=timeout)

    def again(self):
        self._devices()

    def init(self):
        if self.devices and len(self.backends) < 3:
            self.backends.append(self.draw.choice(self.devices).init())

    def work(self):
        if not self.backends:
            self.init()
        if self.backends and len(self.works) < 4:
            work = Work(self.draw.choice(self.backends))
            self.works.append(work)
            work.buffer = work.ctx.alloc(work.backend)

    def _one(self):
        works = [w for w in self.works if w.buffer is not None]
        if not works:
            self.work()
            works = [w for w in self.works if w.buffer is not None]
        return self.draw.choice(works) if works else None

    def set(self):
        if work := self._one():
            values = np.arange(ROWS * COLS, dtype=np.float32).reshape(ROWS, COLS)
            values += self.draw.randrange(99)
            work.values, work.written = None, True
            work.x.set(values)
            work.values = values

    def rows(self):
        if work := self._one():
            if work.values is not None:
                self._same(work.x.get_2d(ROWS, COLS), work.values)
            values = np.float32(np.ones((ROWS, COLS)) * self.draw.randrange(99))
            work.values, work.written = None, True
            work.x.set_2d(values)
            work.values = values

    def get(self):
        if work := self._one():
            for tensor, there, expected in (
                (work.x, work.written, work.values), (work.y, work.computed, work.result)
            ):  # fmt: skip
                if not there:
                    self._blank(tensor.get)
                    continue
                got = tensor.get()
                if expected is not None:
                    self._same(got, expected)

    def _blank(self, call):
        try:
            call()
        except ggml.NoDataError:
            return
        raise Wrong(f"{call} uses what was never set")

    def _same(self, got, expected):
        if not np.array_equal(got, expected):
            raise Wrong(f"got {got}, expected {expected}")

    def compute(self):
        if work := self._one():
            if not work.written:
                self._blank(lambda: work.backend.compute(work.graph))
                return
            work.result, work.computed = None, True
            work.backend.compute(work.graph)
            work.result = None if work.values is None else work.values * work.values

    def copy(self):
        a, b = self._one(), self._one()
        if a and b and a is not b:
            if not a.written:
                self._blank(lambda: a.x.copy_to(b.x))
                return
            b.values, b.written = None, True
            a.x.copy_to(b.x)
            b.values = a.values

    def clear(self):
        if work := self._one():
            work.values = work.result = None
            work.written = work.computed = True
            work.buffer.clear()
            work.values = work.result = np.zeros((ROWS, COLS), np.float32)

    def event(self):
        if self.backends and self.devices:
            backend = self.draw.choice(self.backends)
            with backend.device.event() as event:
                event.record(backend)
                event.synchronize()

    def schedule(self):
        if not self.backends:
            return
        backend, cpu = self.draw.choice(self.backends), ggml.device("CPU").init(n_threads=1)
        with cpu, ggml.Context() as ctx, ggml.Scheduler([backend, cpu], graph_size=16) as sched:
            x = ctx.new_tensor("f32", COLS, ROWS)
            x.set_input()
            y = ctx.sqr(x)
            z = ctx.neg(y)
            z.set_output()
            graph = ctx.new_graph(16)
            graph.build_forward_expand(z)
            sched.set_tensor_backend(y, backend)
            sched.set_tensor_backend(z, cpu)
            sched.alloc_graph(graph)
            values = np.float32(np.full((ROWS, COLS), self.draw.randrange(9)))
            for _ in range(self.draw.randrange(1, 3)):
                x.set(values)  # its memory was reused
                sched.compute(graph)
            self._same(z.get(), -values * values)

    def memory(self):
        if self.devices:
            free, total = self.draw.choice(self.devices).memory
            if min(free, total) < 0:
                raise Wrong(f"memory {free}, {total}")

    def synchronize(self):
        if self.backends:
            self.draw.choice(self.backends).synchronize()

    def close_work(self):
        if self.works:
            work = self.works.pop(self.draw.randrange(len(self.works)))
            self.call(work.ctx.close, raises=False)

    def close_backend(self):
        if self.backends:
            backend = self.backends.pop(self.draw.randrange(len(self.backends)))
            mine = [w for w in self.works if w.backend is backend]
            self.works = [w for w in self.works if w.backend is not backend]
            for handle in [backend, *(w.ctx for w in mine)]:
                self.call(handle.close, raises=False)
