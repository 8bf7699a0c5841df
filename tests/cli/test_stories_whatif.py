"""What users of llama.cpp had to find out by hand, on simulated devices: issues by their number."""

from contextlib import ExitStack, contextmanager

import pytest

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.synthetic import write_llama
from ggml_py.trace import sweep

# --- 22926: the embedding of the input is on the CPU: a split more, in each evaluation


class TwoGpus:
    """Four layers over two GPUs as llama.cpp places them, `embedding` on a backend of choice."""

    n_embd, n_vocab, n_tokens = 64, 1000, 512

    def __init__(self, embedding: str = "CPU", pins: dict[str, str] | None = None) -> None:
        with ExitStack() as stack:
            devices = [ggml.sim_device(name) for name in ("gpu0", "gpu1")]
            for device in devices:
                stack.callback(device.close)
            backends = [stack.enter_context(d.init()) for d in (*devices, ggml.device("CPU"))]
            by_name = {b.name: b for b in backends}
            c = stack.enter_context(ggml.Context())

            def weight(backend, *ne, name):
                own = stack.enter_context(ggml.Context())
                tensor = own.new_tensor("f32", *ne, name=name)
                own.alloc(by_name[backend], usage="weights")
                return tensor

            table = weight(embedding, self.n_embd, self.n_vocab, name="token_embd.weight")
            tokens = c.new_tensor("i32", self.n_tokens, name="inp_tokens")
            tokens.set_input()
            x = c.get_rows(table, tokens)
            x.name = "inp_embd"
            for il in range(4):
                gpu = f"gpu{il // 2}"
                up = weight(gpu, self.n_embd, self.n_embd, name=f"blk.{il}.ffn_up.weight")
                x = c.add(x, c.silu(c.mul_mat(up, x)))
                x.name = f"l_out-{il}"
            graph = c.new_graph()
            graph.build_forward_expand(x)
            scheduler = stack.enter_context(ggml.Scheduler(backends))
            for name, backend in (pins or {}).items():
                scheduler.set_tensor_backend(graph[name], by_name[backend])
            self.plan = scheduler.plan(graph)


def edges(plan):
    return [
        (i.tensor.name, i.src_backend, i.dst_backend, i.nbytes)
        for split in plan.splits
        for i in split.inputs
    ]


def test_22926_three_splits_instead_of_two():
    plan = TwoGpus().plan
    assert [s.backend for s in plan.splits] == ["CPU", "gpu0", "gpu1"]
    activations = TwoGpus.n_tokens * TwoGpus.n_embd * 4
    assert edges(plan) == [
        ("inp_embd", "CPU", "gpu0", activations),
        ("l_out-1", "gpu0", "gpu1", activations),
    ]
    assert plan.node("inp_embd").cause.code == "1.wgt0"
    assert plan.node("inp_embd").cause.witness.name == "token_embd.weight"

    # A pin takes the split away, but then the whole table is copied, each time.
    pinned = plan.what_if(pins={"inp_embd": "gpu0"})
    assert [s.backend for s in pinned.splits] == ["gpu0", "gpu1"]
    assert edges(pinned) == [
        ("token_embd.weight", "CPU", "gpu0", TwoGpus.n_vocab * TwoGpus.n_embd * 4),
        ("inp_tokens", "CPU", "gpu0", TwoGpus.n_tokens * 4),
        ("l_out-1", "gpu0", "gpu1", activations),
    ]
    assert pinned.copy_bytes > plan.copy_bytes
    assert pinned.outcome == TwoGpus(pins={"inp_embd": "gpu0"}).plan.outcome

    # The table on the GPU does better: two splits, and of the input only the tokens are copied.
    moved = plan.what_if(move_weights={"token_embd.weight": "gpu0"})
    assert [s.backend for s in moved.splits] == ["gpu0", "gpu1"]
    assert edges(moved) == [
        ("inp_tokens", "CPU", "gpu0", TwoGpus.n_tokens * 4),
        ("l_out-1", "gpu0", "gpu1", activations),
    ]
    assert moved.outcome == TwoGpus(embedding="gpu0").plan.outcome


# --- 26399: TOP_K falls to the CPU above some context length


needs_top_k = pytest.mark.skipif(
    not hasattr(ggml.enums.Op, "TOP_K"), reason="in this release TOP_K is a view of ARGSORT"
)


@contextmanager
def indexer(supports):
    """A function of n_kv: the plan of a sparse attention's indexer on a GPU that supports some."""
    with ExitStack() as stack:
        device = ggml.sim_device("gpu0", supports=supports)
        stack.callback(device.close)
        backends = [stack.enter_context(d.init()) for d in (device, ggml.device("CPU"))]
        weights = stack.enter_context(ggml.Context())
        keys = weights.new_tensor("f32", 64, 16384, name="indexer_k")
        wq = weights.new_tensor("f32", 64, 64, name="indexer_q.weight")
        weights.alloc(backends[0], usage="weights")
        scheduler = stack.enter_context(ggml.Scheduler(backends))

        def build(n_kv, n_tokens=1):
            with ggml.Context() as c:
                x = c.new_tensor("f32", 64, n_tokens, name="inp")
                x.set_input()
                q = c.mul_mat(wq, x)
                scores = c.mul_mat(c.view_2d(keys, 64, n_kv, keys.nb[1], 0), q)
                scores.name = "indexer_score-0"
                top = c.top_k(scores, 256)
                top.name = "top_k-0"
                graph = c.new_graph()
                graph.build_forward_expand(c.get_rows(keys, c.view_1d(top, 256, 0)))
                return scheduler.plan(graph)

        yield build


@needs_top_k
def test_26399_top_k_falls_to_the_cpu_above_some_context():
    calls = []
    with indexer(lambda t: t.op.name != "TOP_K" or t.src[0].ne[0] <= 4096) as build:
        found = sweep(lambda n_kv: calls.append(n_kv) or build(n_kv), n_kv=[256, 16384])
        at_the_edge = [build(4096), build(4097)]
    (threshold,) = found.thresholds
    assert (threshold.axis, threshold.before, threshold.after) == ("n_kv", 4096, 4097)
    (moved,) = threshold.moved
    assert (moved.name, moved.op, moved.before, moved.after) == (
        "top_k-0", "TOP_K", "gpu0", "CPU",
    )  # fmt: skip
    assert moved.decides
    assert threshold.reason == (
        "gpu0 does not support it with src[0] 'indexer_score-0' f32 [4097] instead of f32 [4096]"
    )
    splits = [threshold.totals_before.n_splits, threshold.totals_after.n_splits]
    assert splits == [p.n_splits for p in at_the_edge] == [1, 3]
    copied = [threshold.totals_before.copy_bytes, threshold.totals_after.copy_bytes]
    assert copied == [p.copy_bytes for p in at_the_edge]
    assert len(calls) <= 2 + 14 == len(set(calls)) == found.n_builds  # 2**14 = 16384
    assert "n_kv 4096 → 4097: 1 node moves, splits 1 → 3" in str(found)
    # And what a device that could do it would give:
    assert at_the_edge[1].what_if(supports={("gpu0", "top_k-0"): True}).n_splits == 1


@needs_top_k
@pytest.mark.parametrize("n", [1, 8])
def test_26399_the_threshold_holds_for_any_number_of_tokens(n):
    with indexer(lambda t: t.op.name != "TOP_K" or t.src[0].ne[0] <= 4096) as build:
        found = sweep(build, n_kv=[512, 8192], n_tokens=[n])
    assert [(t.before, t.after, t.at) for t in found.thresholds] == [(4096, 4097, {"n_tokens": n})]


# --- a model: what another -ngl, no BLAS, or another batch would give


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "llama.gguf"
    write_llama(path)
    return path


def planned(path, n_gpu_layers, devices=("sim:gpu0", "BLAS", "CPU"), n_tokens=64, **options):
    with load(path, devices, n_gpu_layers=n_gpu_layers, **options) as model:
        return model.plan(n_tokens=n_tokens)


def test_one_layer_more_on_the_gpu(model_file):
    two, three = planned(model_file, 2), planned(model_file, 3)
    moved = two.what_if(move_weights={"blk.2.*": "gpu0", "cache_?_l2": "gpu0"})
    assert moved.outcome == three.outcome
    assert moved.copy_bytes == three.copy_bytes < two.copy_bytes


@pytest.mark.parametrize("device", ["gpu0", "igpu0,type=igpu"])
def test_one_layer_less_where_the_cpu_takes_a_gpus_host_memory(model_file, device):
    """That is what the scheduler allocates from; weights are in the CPU's own, of an integrated
    GPU if the file is mapped."""
    devices = (f"sim:{device},host_buffer=1", "CPU")
    two, three = (planned(model_file, n, devices, load_mode="mmap") for n in (2, 3))
    moved = three.what_if(move_weights={"blk.2.*": "CPU", "cache_?_l2": "CPU"})
    assert moved.outcome == two.outcome
    moved = three.what_if(move_weights={"blk.2.*": "CPU_Mapped", "cache_?_l2": "CPU"})
    assert moved.outcome == two.outcome
    gpu = device.split(",")[0]
    alone = three.what_if(move_weights={"*": "CPU"}, drop=[gpu])
    assert alone.outcome == planned(model_file, 0, ("CPU",)).outcome


def test_12237_blas_keeps_prompts_from_the_gpu(model_file):
    """BLAS outranks the CPU, so weights in host memory are not the last backend's: no offload."""
    with_blas, without = planned(model_file, 2), planned(model_file, 2, ("sim:gpu0", "CPU"))
    dropped = with_blas.what_if(drop=["BLAS"])
    assert dropped.outcome == without.outcome
    on_gpu = [p.nodes_per_backend()["gpu0"] for p in (with_blas, dropped)]
    assert on_gpu[0] < on_gpu[1]
    assert {n.cause.code for n in dropped.find("ffn_up-0")} == {"1.off"}
    assert {n.cause.code for n in with_blas.find("ffn_up-0")} == {"1.wgt0"}


def test_a_sweep_over_a_models_batch_and_context(model_file):
    with load(model_file, ("sim:gpu0", "CPU"), n_gpu_layers=2, n_ctx=1024) as model:
        found = sweep(model.plan, n_tokens=[1, 512], n_past=[0, 512])
    ((threshold, places),) = found.grouped()
    assert (threshold.axis, threshold.before, threshold.after) == ("n_tokens", 31, 32)
    assert places == [{"n_past": 0}, {"n_past": 512}]
    assert {m.op for m in threshold.moved if m.decides} == {"MUL", "MUL_MAT"}
    assert threshold.reason == (
        "gpu0 wants it with 32 rows instead of 31; its weight is in host memory"
    )
    assert found.n_builds <= 4 + 9 + 2
