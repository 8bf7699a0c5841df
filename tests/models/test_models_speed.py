"""What makes models fast, seen from outside: where weights are, when they are read, which threads
compute, and what a token costs beside its graph."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import Gguf, ModelError, enums
from ggml_py.models import graphs, load
from ggml_py.models.file import placement, weight_ops
from ggml_py.models.file.hparams import Experts, HParams
from ggml_py.models.synthetic import LlamaSpec, write_llama

SIZE = {"n_layer": 2, "n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 256, "n_vocab": 32768}
PROMPT = [5, 6, 7, 8, 9]
CPU = ggml.device("CPU")


def names(loaded):
    """Of the buffer types that its weights are in."""
    return {buft.name for buft in loaded.weights.nbytes_by_buffer_type()}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("speed") / "q4_0.gguf"
    write_llama(path, LlamaSpec(**SIZE))
    return path


# --- weights


def test_norms_and_the_embedding_stay_in_the_file(path):
    with load(path, n_threads=1) as loaded:
        plan = loaded.plan()
        buft = {leaf.name: leaf.buft.name for leaf in plan.leafs if leaf.buft is not None}
        extra = {t.name for t in CPU.extra_buffer_types}
    plain = {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight"}
    assert {buft[name] for name in plain} == {"CPU_Mapped"}
    if "AVX2" in CPU.features:
        assert buft["output.weight"] in extra and buft["blk.1.ffn_down.weight"] in extra


def test_a_tied_output_is_there_twice(tmp_path):
    """The output's product reads the laid out one, the embedding's rows are in the file."""
    write_llama(tmp_path / "tied.gguf", LlamaSpec(**SIZE, tied=True))
    with load(tmp_path / "tied.gguf", n_threads=1) as loaded:
        plan = loaded.plan()
        product, rows = plan.node("result_output").srcs[0], plan.node("embd").srcs[0]
    assert product.name == rows.name == "token_embd.weight"
    assert rows.buft.name == "CPU_Mapped"
    if "AVX2" in CPU.features:
        assert product.buft.name == "CPU_REPACK"


def test_without_repacking_everything_stays_in_the_file(path):
    with load(path, n_threads=1, repack=False) as loaded:
        assert names(loaded) == {"CPU_Mapped"}
        plain = loaded.generate(PROMPT, 8)
    with load(path, n_threads=1) as loaded:
        assert loaded.generate(PROMPT, 8) == plain


def test_planning_reads_no_weights(path, tmp_path):
    """Other weights are written into the file after its plan was made: those are what counts.

    Its time is set back, for else it is known to be another one."""
    mine = tmp_path / "mine.gguf"
    write_llama(mine, LlamaSpec(**SIZE, seed=1))
    with load(path, n_threads=1) as other, load(mine, n_threads=1) as loaded:
        before, times = loaded.plan(), mine.stat()
        with Gguf.open(path) as gguf, mine.open("r+b") as file:
            file.seek(gguf.data_offset)
            file.write(path.read_bytes()[gguf.data_offset :])
        os.utime(mine, ns=(times.st_atime_ns, times.st_mtime_ns))
        np.testing.assert_array_equal(loaded.eval(PROMPT), other.eval(PROMPT))
        assert loaded.plan() == before


HP = HParams("llama", 0, 0, 64, n_layer=2, experts=Experts(8, 2))


class TestChoice:
    """What llama.cpp's loader tries, in its order; a device that has the op takes the weight."""

    Q4 = ("blk.0.ffn_up.weight", enums.Type.Q4_0, (256, 256))

    @pytest.fixture
    def supported(self, monkeypatch):
        """What `supports` says yes to, as (device, buffer type); and what it was asked."""
        yes, asked = set(), []

        def supports(device, buft, op, name, type_, ne, hp):
            asked.append((device.name, buft.name, op.name))
            return (device.name, buft.name) in yes

        monkeypatch.setattr(placement, "supports", supports)
        return yes, asked

    def place(self, *devices, n_gpu_layers=0, repack=True):
        backends = tuple(d.init(n_threads=1) for d in devices)
        return placement.place(backends, HP, n_gpu_layers, repack=repack)

    def test_order(self, supported):
        yes, asked = supported
        yes.add(("CPU", "CPU"))
        found = self.place(CPU).weight_buffer_type(0, *self.Q4)
        extra = [t.name for t in CPU.extra_buffer_types]
        assert found == CPU.buffer_type
        assert asked == [("CPU", name, "MUL_MAT") for name in (*extra, "CPU")]

    def test_an_accelerator_with_the_cpus_memory_is_not_asked(self, supported):
        yes, asked = supported
        yes.add(("CPU", "CPU"))
        self.place(ggml.device("BLAS"), CPU, repack=False).weight_buffer_type(0, *self.Q4)
        assert asked == [("CPU", "CPU", "MUL_MAT")]

    def test_a_gpu_comes_first_where_the_layer_is_its_own(self, supported):
        yes, asked = supported
        gpu = ggml.sim_device("choice0")
        yes.update({(gpu.name, gpu.buffer_type.name), ("CPU", "CPU")})
        on_gpu = self.place(gpu, CPU, n_gpu_layers=1)
        assert on_gpu.weight_buffer_type(2, "output.weight", *self.Q4[1:]) == gpu.buffer_type
        assert on_gpu.weight_buffer_type(0, *self.Q4) == CPU.buffer_type
        assert asked[0] == (gpu.name, gpu.buffer_type.name, "MUL_MAT")
        assert asked[-1] == ("CPU", "CPU", "MUL_MAT")

    def test_a_device_sees_the_weights_name_and_llama_cpps_shapes(self):
        """Upstream's OpenCL looks for "ffn" and "exps" in the name."""
        seen = []

        def supports(op):
            seen.append((op.op.name, op.src[0].name, op.src[0].ne, op.src[1].ne))
            return "exps" not in op.src[0].name

        with ggml.sim_device("names0", supports=supports) as gpu:
            backends = [d.init(n_threads=1) for d in (gpu, CPU)]
            placed = placement.place(tuple(backends), HP, 3, repack=False)
            where, f32 = placed.weight_buffer_type, enums.Type.F32
            assert where(0, "blk.0.ffn_up_exps.weight", f32, (64, 32, 8)) == CPU.buffer_type
            assert where(0, "blk.0.ffn_up.weight", f32, (64, 32)) == gpu.buffer_type
            backends[0].close()
        assert seen == [
            ("MUL_MAT_ID", "blk.0.ffn_up_exps.weight", (64, 32, 8, 1), (64, 2, 512, 1)),
            ("MUL_MAT", "blk.0.ffn_up.weight", (64, 32, 1, 1), (64, 512, 1, 1)),
        ]

    def test_nobody(self, supported):
        with pytest.raises(ModelError, match=r"'blk.0.ffn_up.weight' \(q4_0, .* supports MUL_MAT"):
            self.place(CPU).weight_buffer_type(0, *self.Q4)

    @pytest.mark.parametrize(
        ("il", "name", "op"),
        [
            (weight_ops.INPUT, "token_embd.weight", "GET_ROWS"),
            (2, "token_embd.weight", "MUL_MAT"),
            (2, "output.weight", "MUL_MAT"),
            (2, "output_norm.weight", "MUL"),
            (0, "blk.0.attn_q.bias", "ADD"),
            (0, "rope_freqs.weight", "ROPE"),
            (0, "blk.0.attn_sinks.weight", "SCALE"),
            (0, "blk.0.ffn_up_exps.weight", "MUL_MAT_ID"),
            (0, "blk.0.ffn_up_exps.bias", "ADD_ID"),
        ],
    )
    def test_the_op_of_a_weight(self, supported, il, name, op):
        assert weight_ops.op_of(il, name).name == op
        ne = {"MUL_MAT_ID": (64, 64, 4), "ADD_ID": (64, 4)}.get(op, (64,))
        with ggml.Context() as context:
            weight = context.new_tensor("f32", *ne)
            hp = replace(HP, n_embd_head=128, n_head=4)
            user = weight_ops.user_of(context, enums.Op[op], weight, hp)
            assert user.op == enums.Op[op] and CPU.supports_op(user)


def test_experts_can_be_laid_out():
    """[n_embd, n_ff, n_expert], as mixtures of experts have them."""
    found = placement.place((CPU.init(n_threads=1),), HP, 0).weight_buffer_type(
        0, "blk.0.ffn_up_exps.weight", enums.Type.Q4_0, (256, 256, 4)
    )
    assert found.name == ("CPU_REPACK" if "AVX2" in CPU.features else found.name)


# --- threads


@pytest.mark.thorough("long")
@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of /proc")
def test_threads_last_from_token_to_token(path):
    def threads():
        return {task.name for task in Path("/proc/self/task").iterdir()}

    before = threads()
    with load(path, n_threads=3) as loaded:
        pool = loaded.placement.backends[-1].threadpool
        assert pool is not None and pool.n_threads == 3
        loaded.eval(PROMPT)
        mine = threads() - before
        assert len(mine) == 2
        for token in PROMPT:
            loaded.eval([token])
            assert threads() - before == mine
    assert pool.closed
    assert not mine & threads()


def test_a_device_without_thread_pools(path):
    with load(path, devices=("BLAS", "CPU"), n_threads=2) as loaded:
        assert [b.threadpool is not None for b in loaded.placement.backends] == [False, True]


@pytest.mark.thorough("long")
def test_threads_do_not_spin_beside_those_of_blas(tmp_path):
    """They would have half of a CPU each: a prompt took 2.3 times as long."""
    path = tmp_path / "f16.gguf"
    write_llama(path, LlamaSpec(type="f16"))
    with load(path, devices=("BLAS", "CPU"), n_threads=2) as loaded:
        cpu, polls = loaded.placement.backends[-1], []
        for tokens in ([1] * 64, [1], [1] * 64, [1]):
            loaded.eval(tokens)
            nodes = loaded.plan(len(tokens)).nodes
            used = {node.backend for node in nodes if node.op == "MUL_MAT"}
            assert ("BLAS" in used) == (len(tokens) > 1)
            polls.append(cpu.threadpool.poll)
        pool = cpu.threadpool
    assert polls == [0, 50, 0, 50]
    assert pool.closed


def test_threads_do_not_spin_beside_those_of_a_simulated_device(path, sims):
    """Generation was eight times as slow with two of each on two cores."""
    sims("gpu0")
    with load(path, devices=("gpu0", "CPU"), n_gpu_layers=1, n_threads=2) as loaded:
        for tokens in (PROMPT, [1]):
            loaded.eval(tokens)
            assert loaded.placement.backends[-1].threadpool.poll == 0


# --- a token


@pytest.mark.parametrize("how", ["plain", "recorded", "beside another"])
def test_a_token_is_one_native_call(path, monkeypatch, how):
    """Nothing else sets inputs or computes, whatever else is done with the library between."""
    with load(path, n_threads=1) as loaded:
        for tokens in (PROMPT, [1]):
            loaded.eval(tokens)
        expected = loaded.eval([2])
        loaded.reset()
        for tokens in (PROMPT, [1]):
            loaded.eval(tokens)
        with monkeypatch.context() as patch:
            patch.setattr(graphs.Graphs, "compute", None)
            if how == "recorded":
                with loaded.record() as recording:
                    found = loaded.eval([2])
                assert len(recording.run.computes) == 1
            elif how == "beside another":
                with ggml.Context() as context:
                    context.new_tensor(enums.Type.F32, 4)
                    found = loaded.eval([2])
            else:
                found = loaded.eval([2])
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_graph_that_lost_its_memory_is_not_computed(path):
    """Somebody has closed a buffer behind the model's back."""
    with load(path, n_threads=1) as loaded:
        loaded.eval(PROMPT)
        loaded.eval([1])
        for buffer in loaded._memory.base.buffers:
            buffer.close()
        with pytest.raises(ggml.NoDataError, match=r"has no memory|closed"):
            loaded.eval([2])
        assert loaded.n_past == len(PROMPT) + 1


def test_logits_without_a_copy(path):
    """Read-only, and the next evaluation's when that was made."""
    with load(path, n_threads=1) as loaded:
        first = loaded.eval(PROMPT, all_logits=True)
        loaded.reset()
        shown = loaded.eval(PROMPT, all_logits=True, copy=False)
        np.testing.assert_array_equal(shown, first)
        with pytest.raises(ValueError, match="read-only"):
            shown[0, 0] = 1.0
        loaded.eval([1])
        last = loaded.eval([2], copy=False)
        kept = last.copy()
        following = loaded.eval([3])
        np.testing.assert_array_equal(last, following)
        assert (kept != following).any()
        assert np.shares_memory(last, loaded.eval([4], copy=False))


def test_logits_outlive_their_model(path):
    with load(path, n_threads=1) as loaded:
        logits = loaded.eval(PROMPT, copy=False)
        kept = logits.copy()
    np.testing.assert_array_equal(logits, kept)


def test_logits_of_several_ubatches(path):
    with load(path, n_threads=1, n_ubatch=2) as loaded:
        copied = loaded.eval(PROMPT, all_logits=True)
        loaded.reset()
        np.testing.assert_array_equal(loaded.eval(PROMPT, all_logits=True, copy=False), copied)


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_a_token_allocates_nothing(path, flash_attn):
    """Python's blocks before and after, and what numpy allocates for arrays."""
    import tracemalloc

    with load(path, n_threads=1, flash_attn=flash_attn) as loaded:
        token = np.ones(1, np.int32)

        def step():
            loaded._eval(token, all_logits=False, copy=False)

        for _ in range(3):
            step()
        tracemalloc.start()
        try:
            step()
            before, _peak = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            for _ in range(20):
                step()
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 512  # of 20 tokens: n_past and the like
    assert peak - before < 16 * 1024  # a row of logits would be 128 KB


def test_graphs_are_built_once_for_a_shape(path, monkeypatch):
    built = []
    build = graphs.Graphs._build
    monkeypatch.setattr(
        graphs.Graphs, "_build", lambda self, *a: built.append(a[0]) or build(self, *a)
    )
    with load(path, n_threads=1, flash_attn="on") as loaded:
        loaded.generate(PROMPT, 30)
    assert [shape.n_tokens for shape in built] == [512, 5, 1]
