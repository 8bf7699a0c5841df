"""Too little memory: what part of a model lacks how much, where, and that all goes on."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import textwrap
from functools import partial

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import AllocError, cli
from ggml_py.boundary.handle import LIVE
from ggml_py.models.file import free_memory
from ggml_py.models.synthetic import LlamaSpec

from ..support.arch_files import load
from ..support.cli_runs import fails
from ..support.large_model import write
from ..support.placements import Theirs, blank, sims_text

SPEC = LlamaSpec(n_layer=2, n_embd=128, n_head=4, n_head_kv=2, n_ff=192, n_vocab=512, type="f16")
GPU = partial(load, n_gpu_layers=99, devices=("gpu0",))
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def path(model_file):
    return model_file(SPEC)


@pytest.fixture(scope="module")
def sizes(path):
    """Bytes on a GPU: of weights, of the cache of 512 tokens, of compute buffers for 512."""
    with ggml.sim_device("gpu0") as sim, GPU(path) as model:
        total = sim.memory[1]
        in_use = total - sim.memory[0]
        weights = model.weights.nbytes_by_buffer_type()[sim.buffer_type]
        model.eval(PROMPT)
        compute = total - sim.memory[0] - in_use
        model.close()
    return weights, in_use - weights, compute


@pytest.fixture
def nothing_left():
    gc.collect()
    before = dict(LIVE)
    yield
    gc.collect()
    assert before == dict(LIVE)


@pytest.mark.parametrize(
    ("part", "has", "advice"),
    [
        ("the weights of {path}", 0.5, "(n_gpu_layers, -ngl)"),
        (r"the KV cache of 512 tokens \(n_ctx\)", 1.05, "n_ctx (-c)"),
    ],
)
def test_what_does_not_fit_is_named_and_freed(sims, path, sizes, nothing_left, part, has, advice):
    part, (weights, cache, _compute) = part.format(path=re.escape(str(path))), sizes
    need = weights if "weights" in part else cache
    sim = sims("gpu0", memory=int(weights * has))
    with pytest.raises(AllocError, match=f"no memory for {part}: gpu0: ") as error:
        GPU(path)
    assert error.value.sizes == {"gpu0": pytest.approx(need, rel=0.05)}
    message = str(error.value)
    assert f"{error.value.sizes['gpu0']:,} bytes could not be allocated" in message
    assert f"of {sim.memory[1]:,} bytes of gpu0 are free" in message and advice in message
    del error
    gc.collect()
    assert sim._in_use() == "" and sim.memory[0] == sim.memory[1]
    with GPU(path, n_gpu_layers=0) as model:
        assert model.eval(PROMPT).shape == (SPEC.n_vocab,)


def test_the_second_of_two_caches(sims, arch_file, nothing_left):
    """Of layers with a sliding window: the first is freed, too."""
    path = arch_file("gpt-oss")
    sim = sims("gpu0")
    with GPU(path) as model:
        tensors = [(*c.k.values(), *c.v.values()) for c in model._memory.caches]
        caches = [sum(t.nbytes for t in some) for some in tensors]
        others = sim.memory[1] - sim.memory[0] - sum(caches)
    sim = sims("gpu0", memory=others + caches[0] + caches[1] // 2)
    with pytest.raises(AllocError, match="no memory for the KV cache of 512 tokens"):
        GPU(path)
    gc.collect()
    assert sim._in_use() == ""


def test_smaller_graphs_go_on(sims, path, sizes, nothing_left, caplog):
    weights, cache, compute = sizes
    rows = {}
    with GPU(path, devices=("CPU",)) as model:
        for n in (1, 100, 400):
            rows[n] = model.eval([7] * n)
            model.reset()
    sims("gpu0", memory=int(weights + cache + 0.4 * compute))
    with GPU(path) as model:
        np.testing.assert_array_equal(model.eval([7]), rows[1])
        assert "no compute buffers for graphs of n_ubatch=512: gpu0" in caplog.text
        model.reset()
        for _ in range(2):
            with pytest.raises(AllocError) as error:
                model.eval([7] * 400)
            message = str(error.value)
            assert "no memory for the compute buffers of 400 tokens (n_ubatch=512): gpu0" in message
            assert "bytes of gpu0 are free" in message and "-ub" in message
            assert error.value.sizes.keys() == {"gpu0", "CPU"} and model.n_past == 0
            for n in (100, 1):
                np.testing.assert_array_equal(model.eval([7] * n), rows[n])
                model.reset()
        assert len(model.generate(PROMPT, 8)) == 8
    caplog.clear()
    with GPU(path, n_ubatch=64) as model:  # what the message says
        model.eval([7] * 400)
    assert not caplog.text


def test_without_pipeline_parallelism(oracle, sims, path, sizes, nothing_left, caplog):
    """Its copies of the inputs do not fit: libllama and we do without."""
    weights, cache, compute = sizes
    memory = int(weights + cache + 1.6 * compute)
    devices = {name: {"memory": memory} for name in ("gpu0", "gpu1")}
    options = {"n_gpu_layers": 99, "tensor_split": (1, 0)}
    theirs = Theirs(oracle, path, (1, 64), sims=sims_text(devices), **options)
    assert "retrying without pipeline parallelism" in theirs.log
    for name in devices:
        sims(name, memory=memory)
    with load(path, devices=tuple(devices), **options) as model, load(path) as cpu:
        with model.record() as recording:
            np.testing.assert_array_equal(model.eval(PROMPT), cpu.eval(PROMPT))
        assert "trying again without pipeline parallelism" in caplog.text
        assert len(recording.run.computes) == 1
        for n_tokens, plan in theirs.plans.items():
            assert blank(model.plan(n_tokens).text()) == blank(plan)
        np.testing.assert_array_equal(model.eval([1] * 200), cpu.eval([1] * 200))


def test_the_machines_memory(path, nothing_left, monkeypatch, caplog):
    """Linux gives more than there is, and ends a process that uses it: asked before."""
    with pytest.raises(AllocError, match=r"cache of 2,147,483,648 .* its cells: 68,719,476,736"):
        load(path, n_ctx=2**31 - 1)
    expected = load(path).eval(PROMPT)
    with load(path, n_ubatch=256) as model:
        monkeypatch.setattr(free_memory, "available", lambda: 300_000)
        with pytest.raises(AllocError, match=r"of 256 tokens \(n_ubatch=256\): CPU: [\d,]+ bytes"):
            model.eval([7] * 256)
        assert "n_ubatch=256: CPU" in caplog.text and model.n_past == 0
        monkeypatch.setattr(free_memory, "available", lambda: None)
        np.testing.assert_array_equal(model.eval(PROMPT), expected)
    monkeypatch.setattr(free_memory, "available", lambda: 20_000)
    no_weights = r"the weights .*: (CPU|gpu0): [\d,]+ bytes .*\(20,000 by"
    with load(path, load_mode="none") as model:  # it plans
        assert model.plan(8).n_splits == 1
        with pytest.raises(AllocError, match=no_weights):
            model.eval(PROMPT)
    with ggml.sim_device("gpu0"), GPU(path) as model, pytest.raises(AllocError, match=no_weights):
        model.eval(PROMPT)
    no_cache = r"the KV cache of 512 tokens \(n_ctx\): CPU: 262,144 by"
    with load(path) as model, pytest.raises(AllocError, match=no_cache):
        model.eval(PROMPT)
    with pytest.raises(AllocError, match=no_weights):
        load(path, load_mode="none", progress=lambda _part: None)


@pytest.mark.parametrize("where", ["sim:gpu0,memory=4T", "CPU"])
def test_planning_takes_no_memory(tmp_path, where):
    """A model of more than a terabyte is planned, with a cache of 16 GiB."""
    script = """
        import re, sys
        from ggml_py.models import load
        options = {"n_gpu_layers": -1, "n_ctx": 1 << 15, "graphs": "ours", "header_only": True}
        with load(sys.argv[1], devices=(sys.argv[2],), **options) as model:
            assert len(model.plan(512).nodes) > 500
            assert sum(row.cache for row in model.memory) == 1 << 32
        # ru_maxrss begins with the peak of the process that forked this one.
        print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(write(tmp_path)), where]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 400_000  # KiB


def test_what_linux_says(tmp_path, monkeypatch):
    info, own, groups = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups"
    for name, file in (("_MEMINFO", info), ("_OWN_CGROUP", own), ("_CGROUPS", groups)):
        monkeypatch.setattr(free_memory, name, file)
    assert free_memory.available() is None  # another system
    info.write_text("MemTotal:   99 kB\nMemAvailable:   50 kB\nSwapFree:        10 kB\n")
    assert free_memory.available() == 60 << 10
    own.write_text("0::/a/b\n")
    for folder, most in (("a/b", "max"), ("a", "40000")):
        (groups / folder).mkdir(parents=True, exist_ok=True)
        (groups / folder / "memory.max").write_text(most)
        (groups / folder / "memory.current").write_text("30000\n")
    assert free_memory.available() == 10_000
    (groups / "a" / "memory.stat").write_text("anon 5\ninactive_file 2000\n")
    assert free_memory.available() == 12_000
    (groups / "a" / "memory.max").write_text("20000")
    assert free_memory.available() == 0


def test_a_process_with_a_limit(path):
    """malloc says no; the process goes on."""
    script = """
        import resource, sys
        from ggml_py import AllocError
        from ggml_py.models import load
        path = sys.argv[1]
        with load(path, n_threads=1) as model:
            expected = model.eval([5, 6, 7])
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), -1))
        for options in ({"n_ctx": 1 << 23}, {"n_ctx": 1 << 24}, {"n_ctx": 1 << 23}):
            try:
                load(path, n_threads=1, type_k="f32", type_v="f32", **options)
                print("loaded")
            except AllocError as error:
                print(error)
        with load(path, n_threads=1, n_ctx=1 << 16, n_batch=1 << 14, n_ubatch=1 << 14,
                  flash_attn=False) as model:
            try:
                model.eval([5] * (1 << 14))
                print("evaluated")
            except AllocError as error:
                print(error)
            assert (abs(model.eval([5, 6, 7]) - expected) < 1e-2).all()
        print("done")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    *lines, last = done.stdout.splitlines()
    assert last == "done", done.stderr
    for line in lines[:3]:
        assert line.startswith("no memory for the KV cache of "), done.stdout
    assert lines[3].startswith("no memory for the compute buffers of 16,384 tokens"), lines[3]


@pytest.mark.thorough("long")
def test_on_the_command_line(path):
    small = ("-d", "sim:gpu0,memory=100K", "-ngl", "all")
    for verb in (("generate", path, "--tokens", "1"), ("plan", path)):
        error = fails(*verb, *small)
        assert error.startswith("error: no memory for the weights of")
        assert "102,400 bytes of gpu0 are free" in error and error.splitlines()[1:] == [cli.NEXT]
    error = fails("generate", path, "--tokens", "1", "-d", "CPU", "-c", 2**31 - 1)
    assert error.startswith("error: no memory for the KV cache of 2,147,483,648 tokens (-c): ")
    assert "-ctk" in error and error.splitlines()[1:] == [cli.NEXT]


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
def test_a_plan_under_ulimit_v(graphs, tmp_path):
    """A model of more than a terabyte needs address space to be planned. The error has the bytes
    that are missing and what to do, whichever part comes first."""
    limit = 8_000_000
    words = [sys.executable, "-m", "ggml_py", "plan", str(write(tmp_path)), "--graphs", graphs]
    words += ["-d", "sim:gpu0,memory=4T", "-d", "CPU", "-ngl", "99", "-c", "512"]
    done = subprocess.run(
        ["bash", "-c", f'ulimit -v {limit}; exec "$@"', "bash", *words],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    left, missing = (
        int(n.replace(",", ""))
        for n in re.search(
            r"`ulimit -v` leaves this process ([\d,]+) bytes of address space, ([\d,]+) too few",
            done.stderr,
        ).groups()
    )
    assert 0 < left < limit * 1024 and missing > 900 * 10**9
    assert "`ulimit -v unlimited` ends the limit" in done.stderr


def test_a_device_with_room_is_not_blamed():
    """Its memory is address space of this process, which a limit may refuse."""
    script = """
        import resource, sys
        import ggml_py as ggml
        buft = ggml.sim_device("gpu0", memory=1 << 40).buffer_type
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        for more in (1 << 30, None):
            limit = resource.RLIM_INFINITY if more is None else used + more
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            try:
                buft.alloc(1 << 33).close()
                print("allocated")
            except ggml.AllocError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert first.startswith("gpu0: 8,589,934,592 bytes could not be allocated"), done.stderr
    assert "`ulimit -v` leaves this process" in first and second == "allocated"
