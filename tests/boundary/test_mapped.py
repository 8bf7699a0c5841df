"""Files that are cut, deleted or written to while they are mapped."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.synthetic import write_llama

PAGE = os.sysconf("SC_PAGESIZE")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends the process"),
    pytest.mark.thorough("cases", quick=16),
]


@pytest.fixture
def path(tmp_path):
    write_llama(tmp_path / "m.gguf")
    return tmp_path / "m.gguf"


def cut(path, nbytes):
    """A file of so many bytes, in place; returns what it had."""
    whole = path.read_bytes()
    os.truncate(path, nbytes)
    return whole


def refused(*words):
    return pytest.raises(ggml.DamagedFileError, match=".*".join(words))


@pytest.mark.parametrize(
    "n_threads", [1, pytest.param(4, marks=pytest.mark.thorough("long"))]
)
@pytest.mark.parametrize("left", [0, 300_001])
def test_a_model_that_is_cut_is_an_error_each_time(path, left, n_threads):
    with load(path, n_threads=n_threads) as model:
        expected = model.generate([1, 2, 3], 4)
        model.reset()
        whole = cut(path, left)
        for ask in (
            lambda: model.generate([1, 2, 3], 4),
            lambda: model.eval([1, 2]),
            lambda: list(model.stream([1, 2, 3], 2)),
        ):
            with refused("m.gguf was truncated while it", f"now {left:,}", "load it again"):
                ask()
        path.write_bytes(whole)  # the same inode
        model.reset()
        assert model.generate([1, 2, 3], 4) == expected


def test_in_the_middle_of_a_generation(path):
    """The kernels meet it, on their threads."""
    with load(path, n_threads=2) as model:
        made = model.stream([1, 2, 3], 40)
        for _ in range(3):
            next(made)
        cut(path, 100_000)
        with refused("m.gguf was truncated"):
            list(made)


def test_in_a_compute_of_a_callers_own_thread(path):
    found = []

    def run():
        try:
            model.generate([1, 2, 3], 8)
        except BaseException as error:
            found.append(error)

    with load(path) as model:
        model.generate([1], 1)
        lost = path.stat().st_size // 2
        gguf = ggml.Gguf.open(path)
        cut(path, lost)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        gguf.close()
    assert [type(error) for error in found] == [ggml.DamagedFileError]


def test_weights_that_a_device_reads_while_it_loads(path):
    """Half of it is gone when the first pieces are copied, by several threads."""
    gpu = ggml.sim_device("gpu0")

    def progress(share):
        if share == 0:
            cut(path, path.stat().st_size // 2)
        return True

    for devices, options in (((gpu, "CPU"), {"n_gpu_layers": 99}), (("CPU",), {})):
        write_llama(path.with_name("n.gguf"))
        path = path.with_name("n.gguf")
        with refused("n.gguf"):
            load(path, devices=devices, load_mode="none", progress=progress, **options)


def test_what_is_written_to_while_it_loads_is_refused(path):
    def progress(share):
        if share == 1:
            path.write_bytes(path.read_bytes()[:-8] + b"changed!")
        return True

    with refused("has changed since it was opened", "written to"):
        load(path, load_mode="none", progress=progress)


def test_what_is_missing_of_a_last_page_is_told_at_the_next_call(path):
    """There the system gives zeroes, and no signal. (Decoding one token does not look.)"""
    with load(path) as model:
        model.eval([1])
        cut(path, path.stat().st_size - 1)
        with refused("m.gguf was truncated"):
            model.eval([2, 3])


@pytest.mark.parametrize("read", [np.sum, bytes, lambda a: a.copy(), lambda a: a[-1] + a[0]])
def test_numpy_that_reads_what_is_gone(path, read):
    """No call of ours is there to raise; Python does, before the next line is through."""
    with ggml.Gguf.open(path) as gguf:
        last = max(gguf.tensors.values(), key=lambda t: t.offset)
        data, mapped = gguf.data(last.name), gguf.mmap()
        before = bytes(data)
        whole = cut(path, PAGE)
        for array in (data, mapped, data):
            with refused("m.gguf was truncated"):
                read(array)
                len([])  # between two instructions
        path.write_bytes(whole)
        assert bytes(data) == before
        with refused("has changed since it was opened"):
            gguf.data(last.name)


def test_a_tensor_over_what_is_gone(path):
    with load(path, repack=False) as model:
        name = "blk.3.ffn_down.weight"
        tensor = next(t for c in model.weights._contexts.values() for t in c if t.name == name)
        cut(path, PAGE)
        with refused("m.gguf was truncated"):
            tensor.get()


def test_a_tensor_that_was_laid_out_anew_cannot_be_read(path):
    """Its buffer has no function for it: that was a call of NULL."""
    with load(path) as model:
        model.eval([1])
        tensors = [t for b, c in model.weights._contexts.items() for t in c if "REPACK" in b.name]
        if not tensors:
            pytest.skip("the CPU lays nothing out anew here")
        with pytest.raises(ggml.AbortError, match="lays tensors out anew"):
            tensors[0].get()


@pytest.mark.parametrize("type_, ne", (("q5_0", (64, 8)), ("f32", (64, 8)), ("q4_0", (64, 3))))
def test_a_tensor_that_its_memory_has_no_layout_for_cannot_be_written(type_, ne):
    """Upstream calls a function of the layout, which is NULL."""
    for buft in ggml.device("CPU").extra_buffer_types:
        with ggml.Context() as ctx:
            tensor = ctx.new_tensor(type_, *ne)
            ctx.alloc(buft, usage="weights")
            if "REPACK" in buft.name:
                with pytest.raises(ggml.AbortError, match="no layout for tensors of this type"):
                    tensor.set(np.zeros(ne[::-1], np.float32))


def test_a_callers_own_mapping(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(8 * PAGE))
    array = np.memmap(tmp_path / "a.bin", np.float32, "c")
    with ggml.Context() as ctx, ggml.device("CPU").buffer_from(array[: 4 * PAGE // 4]) as buffer:
        t = ctx.new_tensor("f32", PAGE)
        t.alloc(buffer, 0)
        assert not t.get().any()
        cut(tmp_path / "a.bin", PAGE // 2)
        with refused("a.bin was truncated"):
            t.get()


def test_a_file_that_is_deleted_or_replaced_stays_whole(path):
    with load(path) as model, ggml.Gguf.open(path) as gguf:
        mapped = gguf.mmap()
        expected, content = model.generate([1, 2], 3), bytes(mapped)
        model.reset()
        path.unlink()
        write_llama(path)  # another file
        assert model.generate([1, 2], 3) == expected
        assert bytes(mapped) == content


def test_ranges_are_forgotten_with_their_arrays(path):
    def open_files():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    with ggml.Gguf.open(path) as gguf:
        before = open_files()
        arrays = [gguf.data(name) for name in gguf.tensors]
        assert open_files() > before
        del arrays
        assert open_files() == before


def run(code, **options):
    return subprocess.run(
        [sys.executable, *options.pop("arguments", ()), "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


OURS = """
    import os, sys
    import ggml_py as ggml
    from ggml_py.models.synthetic import write_llama
    write_llama(sys.argv[1] if len(sys.argv) > 1 else "m.gguf")
    gguf = ggml.Gguf.open("m.gguf")
    data = gguf.mmap()
    os.truncate("m.gguf", 4096)
    {after}
    try:
        print(data.sum())
        print("not told")
    except ggml.DamagedFileError as error:
        print("told")
"""


def test_with_a_fault_handler_before(tmp_path):
    done = run(OURS.format(after=""), cwd=tmp_path, arguments=["-X", "faulthandler"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")


def test_with_a_fault_handler_after(tmp_path):
    """It says that it ends, and then we go on: nobody asks us before."""
    after = "import faulthandler; faulthandler.enable()"
    done = run(OURS.format(after=after), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr


@pytest.mark.parametrize(
    "how",
    [
        "os.kill(os.getpid(), 7)",
        "a = np.memmap('x', 'u1', 'w+', shape=9999); os.truncate('x', 0); a.sum()",
    ],
)
def test_a_signal_that_is_not_ours_ends_the_process_as_before(tmp_path, how):
    code = f"import os, numpy as np, ggml_py as ggml; ggml.devices(); {how}"
    assert run(code, cwd=tmp_path).returncode == -signal.SIGBUS
