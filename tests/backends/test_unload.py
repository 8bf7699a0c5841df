"""Unloading a backend: refused while anything of it is open, and nothing touches its code after."""

from __future__ import annotations

import ast
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.boundary.handle import LIVE

pytestmark = [
    pytest.mark.skipif(BUILD["portable"], reason="copies the library that others link"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

SHIM = """
void * ggml_backend_cpu_reg(void);
void * ggml_backend_init(void) { return ggml_backend_cpu_reg(); }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> Path:
    """A second CPU backend: a copy of the first under another name, behind a module's entry."""
    folder = tmp_path_factory.mktemp("second")
    original = next(BUILD["folder"].glob("libggml-cpu.so*"))  # before 0.9.5 without a number
    name, other = original.name, original.name.replace("cpu", "cpx")
    library, soname = original.read_bytes(), f"\0{name}\0".encode()
    assert soname in library
    (folder / other).write_bytes(library.replace(soname, f"\0{other}\0".encode()))
    options = ["-shared", "-fPIC", "-xc", "-", "-o", "libggml-second.so", "-L.", "-Wl,-z,now"]
    links = [f"-l:{other}", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["cc", *options, *links], input=SHIM, text=True, check=True, cwd=folder)
    return folder / "libggml-second.so"


@pytest.fixture
def second(module):
    """It, loaded, and unloaded when the test ends."""
    registry = ggml.load_backend(module)
    yield registry
    gc.collect()
    if registry in ggml.registries():
        registry.unload()


def mapped() -> bool:
    return "libggml-cpx" in Path("/proc/self/maps").read_text()


def computes(device: ggml.Device) -> bool:
    with device.init(n_threads=2) as backend, ggml.Context() as context:
        y = context.sqr(context.from_numpy(np.full(4, 3, np.float32)))
        context.alloc(backend)
        graph = context.new_graph(8)
        graph.build_forward_expand(y)
        backend.compute(graph)
        return set(y.get()) == {9}


def test_it_comes_and_goes(module):
    first, before = ggml.device("CPU"), ggml.registries()
    for _ in range(3):
        registry = ggml.load_backend(module)
        (device,) = registry.devices
        assert mapped() and device != first and device in ggml.devices()
        assert computes(device)
        registry.unload()
        assert not mapped()
        assert ggml.registries() == before and ggml.devices()[-1] == first
    assert computes(first)


def test_what_was_in_it_is_closed(module):
    registry = ggml.load_backend(module)
    (device,) = registry.devices
    extra = device.extra_buffer_types
    registry.unload()
    uses = [registry.unload, device.init, lambda: device.name, lambda: registry.devices]
    uses += [lambda b=b: b.alloc(64) for b in extra]
    uses += [lambda: ggml.ThreadPool(2, device=device), lambda: device.buffer_type]
    for use in uses:
        with pytest.raises(ggml.ClosedError, match=r"its backend CPU \(.*second.so\) was unloaded"):
            use()
    assert repr(device) == "<Device of an unloaded backend>"
    assert repr(registry) == "<Registry of an unloaded backend>"
    again = ggml.load_backend(module)  # perhaps at the same address
    assert again != registry and again.devices[0] != device
    with pytest.raises(ggml.ClosedError):
        _ = device.name
    again.unload()


def opened(device):
    """One of each kind that keeps a backend from being unloaded."""
    backend = device.init(n_threads=1)
    yield backend, "<Backend CPU>"
    backend.close()
    pool = ggml.ThreadPool(2, device=device)
    yield pool, "<ThreadPool 2 threads>"
    pool.close()
    for buft in device.extra_buffer_types[:1]:
        buffer = buft.alloc(64)
        yield buffer, "<Buffer CPU_"
        buffer.close()
        allocator = ggml.GraphAllocator(buft)
        yield allocator, "<GraphAllocator CPU_"
        allocator.close()


def test_not_while_anything_is_open(second):
    (device,) = second.devices
    n = 0
    for handle, shown in opened(device):
        with pytest.raises(ggml.ArgumentError, match="close them before you unload it") as caught:
            second.unload()
        assert shown in str(caught.value) and not handle.closed
        assert device.name == "CPU"
        n += 1
    assert n >= 2
    second.unload()


def test_what_came_with_the_build_stays():
    (cpu,) = [r for r in ggml.registries() if r.name == "CPU"]
    with pytest.raises(ggml.ArgumentError, match="CPU cannot be unloaded: it was not loaded with"):
        cpu.unload()
    assert computes(ggml.device("CPU"))


def test_pools_are_for_backends_of_their_own_module(second):
    (device,) = second.devices
    with device.init() as backend, ggml.ThreadPool(2) as foreign:
        with pytest.raises(ggml.ArgumentError, match=r"another backend .*device=backend"):
            backend.set_threadpool(foreign)
        with ggml.ThreadPool(2, device=device) as own:
            backend.set_threadpool(own)
            assert computes(device)
            with pytest.raises(ggml.MissingFunctionError, match=r"threadpool_pause: .* module"):
                own.pause()


RACE = """
import sys, threading, time
import ggml_py as ggml
from tests.backends.test_unload import computes
sys.setswitchinterval(1e-6)
module, end, did = sys.argv[1], time.monotonic() + 4, []
REFUSED = (ggml.ArgumentError, ggml.ClosedError, ggml.BusyError)

def load():
    return ggml.load_backend(module)

def unload():
    for registry in ggml.registries():
        if "CPU" == registry.name and registry != first:
            registry.unload()
            did.append("unloaded")

def use():
    for device in ggml.devices():
        if device.name == "CPU" and device != cpu:
            assert computes(device)
            did.append("used")

def asked(what):
    for name in dir(type(what)):
        if name[0] != "_":
            getattr(what, name)
    repr(what)
    did.append("asked")

def ask():
    for registry in ggml.registries():
        if "CPU" == registry.name and registry != first:
            asked(registry)
            for device in registry.devices:
                asked(device)
                for buft in (device.buffer_type, *device.extra_buffer_types):
                    asked(buft)
                    with buft.alloc(64) as buffer:
                        asked(buffer)
                with device.init(n_threads=1) as backend, ggml.ThreadPool(1, device=device) as pool:
                    asked(backend), asked(pool)

def work(act):
    while time.monotonic() < end:
        try:
            act()
        except REFUSED:
            did.append("refused")
        except BaseException as error:
            did.append(repr(error))
            raise

cpu = ggml.device("CPU")
(first,) = [r for r in ggml.registries() if r.name == "CPU"]
threads = [threading.Thread(target=work, args=(act,)) for act in (load, unload, use, ask, ask)]
[t.start() for t in threads]
[t.join() for t in threads]
print({name: did.count(name) for name in sorted(set(did))})
"""


@pytest.mark.thorough("long")
def test_unloading_beside_loading_and_use_on_other_threads(module):
    child = subprocess.run(
        [sys.executable, "-c", RACE, module], timeout=60, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (child.returncode, child.stderr) == (0, ""), child.stdout
    did = ast.literal_eval(child.stdout)
    assert set(did) <= {"unloaded", "used", "asked", "refused"}
    assert min(did["unloaded"], did["used"], did["asked"]) > 10


def test_what_is_being_freed_is_waited_for(second):
    """Whenever it begins to be: it counts as open or as being freed, not as gone."""
    (device,) = second.devices
    may_free, freeing = threading.Event(), threading.Event()

    class Slow:
        """A handle that another thread is freeing."""

        def __init__(self):
            self._token = LIVE.add("Slow")
            self._finalizer = weakref.finalize(self, lambda: None)

        def free(self):
            self._finalizer()
            freeing.set()
            may_free.wait(10)
            LIVE.remove(self._token)

    slow = Slow()
    device._module.open.add(slow)
    with pytest.raises(ggml.ArgumentError, match=r"close them before you unload it.*Slow"):
        second.unload()
    thread = threading.Thread(target=slow.free)
    thread.start()
    assert freeing.wait(10)
    threading.Timer(0.3, may_free.set).start()
    start = time.monotonic()
    second.unload()
    thread.join()
    assert time.monotonic() - start > 0.2
