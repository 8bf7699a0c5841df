"""Made, used and closed, every kind of handle, 200 times and 2,000: nothing is left, nothing grows.

And that these tests can fail: planted leaks and planted uses after free are noticed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import mmap
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary import handle as _handle
from ggml_py.boundary.handle import LIVE, Handle

from ..support import graphs, native_counts
from ..support.handle_kinds import KINDS, Stand

CYCLES = 2000
LONG = pytest.mark.thorough("long")


class Planned(Exception):
    """Raised in the middle of a use."""


def by_close(make, use):
    handle = make()
    use(handle)
    handle.close()


def by_with(make, use):
    with make() as handle:
        use(handle)


def by_exception(make, use):
    with contextlib.suppress(Planned), make() as handle:
        use(handle)
        raise Planned


def by_reference_count(make, use):
    handle = make()
    use(handle)


def in_a_cycle(make, use):
    held = [make()]
    held.append(held)  # only the collector ends this
    use(held[0])


def unused(make, use):
    make().close()


WAYS = (by_close, by_with, by_exception, by_reference_count, in_a_cycle, unused)


def cycle(kind, stand, n, seed=0):
    """`n` times made, used and ended in some way; every 100th collection is a whole one."""
    rng = random.Random(seed)
    row = KINDS[kind]
    for i in range(n):
        rng.choice(WAYS)(lambda: row.make(stand), lambda handle: row.use(stand, handle))
        if i % 100 == 99:
            gc.collect()


def growth(kind, stand, tries=4, n=CYCLES):
    """What `n` cycles leave behind, after some that fill the caches of Python and of malloc."""
    cycle(kind, stand, 200, seed=1)
    return native_counts.leaks(lambda: cycle(kind, stand, n), n, tries)


@pytest.fixture
def stand(tmp_path):
    made = Stand(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("n", [200, pytest.param(CYCLES, marks=LONG)])
@pytest.mark.parametrize("kind", KINDS)
def test_cycles_leave_nothing(kind, n, stand):
    """In 200 a leak of 82 bytes each time is noticed, in 2,000 one of eight."""
    assert growth(kind, stand, n=n) == []


# --- all kinds at once, in any order


class Order:
    """Stands in for `_handle._release`: frees, and notes every native that was free before one that
    needs it."""

    def __init__(self, monkeypatch):
        self.freed = set()
        self.wrong = []
        self._release = _handle._release
        monkeypatch.setattr(_handle, "_release", self)

    def __call__(self, token, free, ptr, needs):
        for native in needs:
            if native.token in self.freed:
                self.wrong.append(f"{native.token} was free before {token}")
        self._release(token, free, ptr, needs)
        self.freed.add(token)


def random_steps(stand, n, seed):
    """Makes, uses, drops and closes handles of all kinds: also parents first, in `with` blocks that
    fail, and in reference cycles."""
    rng = random.Random(seed)
    pool = []

    def family():
        case = graphs.CASES[rng.choice(sorted(graphs.CASES))](graph_size=64)
        return [case.scheduler, case.graph, case.context, case.weights, *case.backends,
                *case.weights._buffers]  # fmt: skip

    for _ in range(n):
        step = rng.random()
        if step < 0.35 or not pool:
            kind = rng.choice(sorted(KINDS))
            handle = KINDS[kind].make(stand)
            if rng.random() < 0.5:
                KINDS[kind].use(stand, handle)
            pool.append(handle)
        elif step < 0.40:
            members = family()
            if rng.random() < 0.5:
                members[0].alloc_graph(members[1])
            rng.shuffle(members)
            pool += members
        elif step < 0.60:
            pool.pop(rng.randrange(len(pool))).close()
        elif step < 0.80:
            pool.pop(rng.randrange(len(pool)))  # dropped
        elif step < 0.85:
            handle = pool.pop(rng.randrange(len(pool)))
            with contextlib.suppress(Planned, ggml.ClosedError), handle:
                raise Planned
        elif step < 0.90:
            held = [pool.pop(rng.randrange(len(pool)))]
            held.append(held)
        elif step < 0.92:
            gc.collect()
        else:
            rng.choice(pool).close()  # stays in the pool, closed
        if len(pool) > 60:
            del pool[: rng.randrange(60)]
    for handle in rng.sample(pool, len(pool)):
        handle.close()


@pytest.mark.parametrize(
    ("seed", "n"),
    [pytest.param(0, CYCLES, marks=LONG), pytest.param(1, 600, marks=LONG), (2, 600)],
)
def test_any_order_of_all_kinds_leaves_nothing(seed, n, stand, monkeypatch):
    random_steps(stand, n, seed)
    order = Order(monkeypatch)

    def steps():
        random_steps(stand, n, seed)
        gc.collect()
        assert len(order.freed) > n / 2
        assert order.wrong == []
        order.freed.clear()

    # Tables grow to what the worst mix of objects needs.
    assert native_counts.leaks(steps, n, tries=6) == []


@pytest.mark.thorough("long")
def test_any_order_while_freed_memory_is_overwritten():
    """glibc fills what is freed with a pattern: a use of it would be a wrong result or a crash."""
    program = (
        "import tempfile, pathlib\n"
        "from tests.support.handle_kinds import Stand\n"
        "from tests.boundary.test_cycles import random_steps, cycle, KINDS\n"
        "stand = Stand(pathlib.Path(tempfile.mkdtemp()))\n"
        "for kind in KINDS: cycle(kind, stand, 60)\n"
        "random_steps(stand, 1500, 7)\n"
        "stand.close()\n"
        "import gc; gc.collect()\n"
        "from ggml_py.boundary.handle import LIVE; print(dict(LIVE))"
    )
    done = in_another_process(program, MALLOC_PERTURB_="165")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "{}"


def in_another_process(program, **env):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )  # fmt: skip


# --- these tests can fail: leaks


class Leaky:
    """`lib` with a function that does nothing every tenth time."""

    def __init__(self, lib, name):
        self._lib, self._name, self._n = lib, name, 0
        self._real = getattr(lib, name)

    def __getattr__(self, name):
        return self._sometimes if name == self._name else getattr(self._lib, name)

    def _sometimes(self, *args):
        self._n += 1
        if self._n % 10:
            self._real(*args)


@pytest.mark.thorough("cases", quick=2)
@pytest.mark.skipif(native_counts._malloc() < 0, reason="this C library does not tell")
@pytest.mark.parametrize(
    ("kind", "module", "function"),
    [
        ("Backend", "backends.backend", "ggml_backend_free"),
        ("Buffer", "backends.buffer", "ggml_backend_buffer_free"),
        ("Graph", "graphs.graph", "ggml_free"),
        ("Scheduler", "scheduler.scheduler", "ggml_backend_sched_free"),
        ("GraphAllocator", "graphs.alloc", "ggml_gallocr_free"),
    ],
)
def test_a_tenth_that_is_not_freed_is_noticed(kind, module, function, stand, monkeypatch):
    module = importlib.import_module(f"ggml_py.{module}")
    monkeypatch.setattr(module, "lib", Leaky(module.lib, function))
    noticed = growth(kind, stand, tries=2)
    assert any(line.startswith("malloc: ") for line in noticed), noticed


def test_objects_that_somebody_holds_are_noticed(stand):
    held = []
    row = KINDS["Graph"]
    before = native_counts.count()
    for _ in range(10):
        held.append(row.make(stand))
    noticed = before.grown(native_counts.count(), 10)
    held.clear()
    assert noticed[0].startswith("Graph: ")
    assert before.grown(native_counts.count(), 10) == []


def test_small_objects_that_somebody_holds_are_noticed():
    held = []
    noticed = native_counts.leaks(lambda: held.extend(object() for _ in range(CYCLES)), CYCLES)
    assert [line.split(":")[0] for line in noticed if "malloc" not in line] == ["blocks"]


def test_a_table_that_grows_once_is_no_leak():
    held = []

    def once():
        held or held.append(bytes(1 << 20))

    assert native_counts.leaks(once, CYCLES, tries=1)[0].startswith("malloc: ")
    held.clear()
    assert native_counts.leaks(once, CYCLES, tries=2) == []


@pytest.mark.skipif(native_counts._resident() < 0, reason="this system does not tell")
def test_leaks_beside_malloc_are_noticed(tmp_path):
    before = native_counts.count()
    stop, (reader, writer) = threading.Event(), os.pipe()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    pages = mmap.mmap(-1, 8 << 20)
    pages[::4096] = b"x" * (8 << 8)
    noticed = before.grown(native_counts.count(), CYCLES)
    stop.set()
    thread.join()
    os.close(reader)
    os.close(writer)
    pages.close()
    assert {line.split(":")[0] for line in noticed} == {"resident", "threads", "files"}


def test_what_can_be_counted_is_never_let_pass(tmp_path):
    """A file that is opened once is one too many, whatever the next time does."""
    held = []
    noticed = native_counts.leaks(lambda: held or held.append((tmp_path / "x").open("w")), CYCLES)
    held[0].close()
    assert len(noticed) == 1 and noticed[0].startswith("files: ")


# --- these tests can fail: uses after free


def test_a_pointer_that_survives_close_is_noticed(stand, monkeypatch):
    from ..support.closed_handles import check_use_after_close

    monkeypatch.setattr(Handle, "_drop_ptr", lambda self: None)
    for kind in KINDS:
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            check_use_after_close(kind, stand)


def test_parents_that_go_before_their_children_are_noticed(stand, monkeypatch):
    def close(self):
        if not self._closed:
            self._closed = True
            children = list(self._children)
            self._finalizer()  # although the children's natives need it
            for child in children:
                child._close()

    monkeypatch.setattr(_handle.Handle, "_close", close)
    order = Order(monkeypatch)
    # No free of these looks at its parent: the order is wrong, and does no harm.
    parent = ggml.Context()
    graph = parent.new_graph(16)
    parent.close()
    assert graph.closed
    assert len(order.wrong) == 1
    assert "('Context', " in order.wrong[0]


def test_a_use_after_free_is_noticed_when_freed_memory_is_overwritten():
    """What the run with MALLOC_PERTURB_ relies on: raw memory of a freed buffer changes."""
    program = (
        "import ggml_py as ggml\n"
        "cpu = ggml.device('CPU').init(n_threads=1)\n"
        "buffer = cpu.buffer_type.alloc(1 << 12)\n"
        "raw = ggml.lib.ggml_backend_buffer_get_base(buffer.ptr)\n"
        "base = ggml.ffi.cast('unsigned char *', raw)\n"
        "buffer.clear(7)\n"
        "print(base[2000])\n"
        "buffer.close()\n"
        "print(base[2000])\n"
        "cpu.close()"
    )
    done = in_another_process(program, MALLOC_PERTURB_="165")
    assert done.stdout.split() == ["7", "165"], done.stderr


def test_numbers_are_right_after_all_this(stand):
    assert np.array_equal(stand.x.get(), [1, 2, 3, 4])
    assert LIVE["Backend"] == 1
