"""Weights are read with somebody told how far that is, who may end it."""

from __future__ import annotations

import gc
import re
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import ModelError, models
from ggml_py.boundary.ffi import ffi, lib
from ggml_py.boundary.handle import LIVE
from ggml_py.models.file import copying as reading
from ggml_py.models.synthetic import LlamaSpec, write_llama

load = partial(models.load, n_threads=1)  # see test_models.py
SIZE = {"n_layer": 2, "n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 256, "n_vocab": 1024}
PROMPT = [5, 6, 7, 8, 9]
SPECS = {
    "repacked": LlamaSpec(**SIZE),
    # Offsets that the CPU's tensors cannot have: they are copied instead of mapped.
    "misaligned": LlamaSpec(**SIZE, type="f16", metadata={"general.alignment": 8}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reading")
    for name, spec in SPECS.items():
        write_llama(folder / name, spec)
    return folder


@pytest.fixture
def pieces(monkeypatch):
    """Small ones, so that small tensors have several, and a call for each."""
    monkeypatch.setattr(reading, "PIECE", 10_000)
    monkeypatch.setattr(reading, "CALL", 1)


def shares(path, **options):
    """What the callback got, and what the model then computes."""
    told = []
    with load(path, progress=told.append, **options) as model:
        assert model.weights._unread == []
        return told, model.eval(PROMPT)


def check_told(told):
    assert told[0] == 0.0 and told[-1] == 1.0
    assert told.count(0.0) == told.count(1.0) == 1
    assert told == sorted(set(told))


@pytest.mark.parametrize("name", SPECS)
def test_shares_go_from_0_to_1_and_the_weights_are_the_files(files, pieces, name):
    told, logits = shares(files / name)
    check_told(told)
    with load(files / name) as model:
        np.testing.assert_array_equal(model.eval(PROMPT), logits)


def test_a_tensor_that_is_laid_out_anew_is_one_piece(files, pieces):
    with load(files / "repacked") as model:
        unread = [(buft, raw.nbytes) for _t, buft, raw in model.weights._unread]
    told, _logits = shares(files / "repacked")
    if not any(buft.name == "CPU_REPACK" for buft, _n in unread):
        pytest.skip("this CPU has no such layout")
    assert max(n for _buft, n in unread) > reading.PIECE
    assert len(told) == 1 + len(unread)


def test_a_large_tensor_is_many_pieces_in_plain_memory(files, pieces):
    with load(files / "misaligned") as model:
        sizes = [raw.nbytes for _t, _buft, raw in model.weights._unread]
    told, _logits = shares(files / "misaligned")
    assert len(told) == 1 + sum(-(-n // reading.PIECE) for n in sizes)
    assert np.diff(told).max() * sum(sizes) <= reading.PIECE * 1.001


@pytest.mark.parametrize("pinned", [True, False])
def test_a_device_gets_pieces_where_llama_cpps_loader_gives_it_pieces(
    files, pieces, pinned
):
    """Where it has pinned memory to upload from."""
    with ggml.sim_device(f"reading-{pinned}", host_buffer=pinned) as device:
        with load(files / "repacked") as model:
            expected = model.eval(PROMPT)
        options = {"devices": (device.name, "CPU"), "n_gpu_layers": 99}
        with load(files / "repacked", **options) as model:
            n = len(model.weights._unread)
        told, logits = shares(files / "repacked", **options)
    check_told(told)
    assert (len(told) > 1 + n) == pinned
    np.testing.assert_allclose(logits, expected, atol=1e-2 * np.abs(expected).max())


def test_nothing_to_read_is_done_at_once(files):
    assert shares(files / "repacked", repack=False)[0] == [0.0, 1.0]


@pytest.mark.parametrize("at", [0.0, 0.3, 1.0])
def test_false_ends_the_loading(files, pieces, at):
    gc.collect()
    before = dict(LIVE)
    with pytest.raises(ModelError, match=r"repacked: .*cancelled: progress\(.*\) returned False"):
        load(files / "repacked", progress=lambda share: share < at)
    gc.collect()
    assert before == dict(LIVE)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_it_raises_ends_the_loading(files, pieces, error):
    gc.collect()
    before = dict(LIVE)

    def progress(share):
        if share > 0.5:
            raise error

    with pytest.raises(error):
        load(files / "misaligned", progress=progress)
    gc.collect()
    assert before == dict(LIVE)


def test_none_and_what_is_not_false_go_on(files):
    for answer in (None, True, 0, ""):
        load(files / "misaligned", progress=lambda _share, a=answer: a).close()


@pytest.fixture
def calls(monkeypatch):
    """`n_threads` and the tensors of each call of gp_set_pieces."""
    made = []

    class Lib:
        def gp_set_pieces(self, pieces, n, n_threads):
            made.append((n_threads, [pieces[i].tensor for i in range(n)]))
            lib.gp_set_pieces(pieces, n, n_threads)

        def __getattr__(self, name):
            return getattr(lib, name)

    monkeypatch.setattr(reading, "lib", Lib())
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    return made


@pytest.mark.thorough("cases", quick=3)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(("n_threads", "expected"), [(1, 1), (2, 2), (5, 3)])
def test_as_many_threads_read_as_compute_and_there_are_cpus(
    files, calls, name, n_threads, expected
):
    with load(files / name, n_threads=n_threads) as model:
        n = len(model.weights._unread)
        logits = model.eval(PROMPT)
    assert [call[0] for call in calls] == [expected]
    assert len(calls[0][1]) == n
    np.testing.assert_array_equal(logits, shares(files / name)[1])


@pytest.mark.parametrize("name", SPECS)
def test_the_output_is_read_first_then_layer_after_layer(files, calls, name):
    """Last, a thread would be alone with the output; disks read ahead what comes next."""
    with load(files / name) as model:
        names = {t.ptr: t.name for t, _buft, _raw in model.weights._unread}
        model.eval(PROMPT)
    read = [names[tensor] for _n, tensors in calls for tensor in tensors]
    layers = [int(name.split(".")[1]) for name in read if name.startswith("blk.")]
    assert len(read) == len(names) and "output.weight" in read[:2]
    assert len(layers) >= len(read) - 3 and layers == sorted(layers)


def test_another_devices_tensors_are_set_one_by_one(files, calls, sims):
    sims("gpu0")
    options = {"devices": ("gpu0",), "n_gpu_layers": 99, "n_threads": 2}
    with load(files / "misaligned", **options) as model:
        on_cpu = {t.ptr: buft.is_host for t, buft, _raw in model.weights._unread}
        assert set(on_cpu.values()) == {True, False}
        model.eval(PROMPT)
        for n_threads, tensors in calls:
            assert {on_cpu[t] for t in tensors} == {n_threads == 2}
            assert n_threads == 2 or len(tensors) == 1


def test_what_was_not_read_for_an_error_is_read_later(files, pieces):
    expected = shares(files / "misaligned")[1]

    def interrupt(share):
        if share > 0.5:
            raise KeyboardInterrupt

    with load(files / "misaligned", n_threads=2) as model:
        n = len(model.weights._unread)
        with pytest.raises(KeyboardInterrupt):
            model.weights.read(interrupt)
        assert 0 < len(model.weights._unread) < n
        np.testing.assert_array_equal(model.eval(PROMPT), expected)
        assert model.weights._unread == []


class TestPieces:
    """gp_set_pieces."""

    N = 40
    KB = 100

    @pytest.fixture
    def tensors(self):
        with ggml.Context() as ctx:
            made = [ctx.new_tensor("f32", 256 * self.KB) for _ in range(self.N)]
            ctx.alloc("CPU")
            yield made

    @staticmethod
    def copy(tensors, data, n_threads, offset=lambda i: 0):
        pieces = [
            (t.ptr, ffi.from_buffer(data), offset(i), data.nbytes, False)
            for i, t in enumerate(tensors)
        ]
        lib.gp_set_pieces(ffi.new("struct gp_piece[]", pieces), len(pieces), n_threads)

    @pytest.mark.parametrize("n_threads", [0, 1, 2, 7, 99])
    def test_all_are_set(self, tensors, n_threads):
        data = np.random.default_rng(7).random(256 * self.KB, np.float32)
        self.copy(tensors, data, n_threads)
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.numpy(), data)

    def test_nothing_is_nothing(self):
        self.copy([], np.zeros(1), 2)

    @pytest.mark.parametrize("n_threads", [1, 2, 5])
    @pytest.mark.parametrize("bad", [0, 1, 20, 39])
    def test_an_assertion_on_any_thread_is_an_error_of_the_caller(
        self, tensors, bad, n_threads
    ):
        data = np.ones(256 * self.KB, np.float32)
        with pytest.raises(ggml.AbortError, match="out of bounds"):
            self.copy(tensors, data, n_threads, lambda i: 4 if i == bad else 0)
        self.copy(tensors, data, n_threads)
        assert all((tensor.numpy() == 1).all() for tensor in tensors)

    @pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
    def test_the_threads_are_there(self, tensors):
        data = np.ones(256 * self.KB, np.float32)
        stop, most = threading.Event(), [0]

        def count():
            return len(list(Path("/proc/self/task").iterdir()))

        def look():
            while not stop.is_set():
                most[0] = max(most[0], count())

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            before = count()
            for _ in range(500):
                self.copy(tensors, data, 3)
                if most[0] == before + 2:
                    break
        finally:
            stop.set()
            watcher.join()
        assert most[0] == before + 2


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
@pytest.mark.parametrize("gpu", [False, True], ids=["repacked", "gpu"])
def test_what_was_copied_is_not_kept_twice(sims, tmp_path, gpu):
    """Pages of the mapped file leave this process's memory; llama.cpp keeps them."""
    path = tmp_path / "large.gguf"
    spec = LlamaSpec(**{**SIZE, "n_embd": 512, "n_ff": 2048}, type="q4_0")
    write_llama(path, spec)
    if gpu:
        sims("gpu0")
    elif "AVX2" not in ggml.device("CPU").features:
        pytest.skip("this processor has no layouts of its own")
    options = {"devices": ("gpu0",), "n_gpu_layers": 99} if gpu else {}
    with load(path, repack=False) as model:
        expected = model.eval(PROMPT)
        whole = resident(path)
        assert whole > 0.8 * path.stat().st_size
    with load(path, **options) as model:
        for _ in range(2):  # what is still read from the file is read again
            np.testing.assert_allclose(model.eval(PROMPT), expected, atol=0.05)
            assert resident(path) < 0.15 * whole
            model.reset()


def resident(path):
    """Bytes of a mapped file that are in this process's memory."""
    maps = re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
    found = [re.search(r"^Rss: +(\d+) kB", m, re.M) for m in maps if str(path) in m]
    return sum(int(rss[1]) << 10 for rss in found)
