"""Looking at the nodes of an evaluation, with our own graphs and with libllama's: the same."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from ggml_py.errors import ArgumentError, ClosedError, ModelError
from ggml_py.llama.model import Model
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

SPEC = LlamaSpec(n_layer=2, n_embd=128, n_ff=64, n_vocab=512, type="f32")
PROMPT = [(i * 7919 + 11) % 500 for i in range(100)]
LIBLLAMAS = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
BOTH = ["ours", pytest.param("libllama", marks=LIBLLAMAS)]
SIZES = [(512, 512), (64, 32), (48, 32), (33, 7), (100, 1)]  # n_batch, n_ubatch


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("watching") / "m.gguf"
    write_llama(path, SPEC)
    return path


def loaded(path, graphs, **options):
    return load(path, n_threads=1, n_ctx=512, graphs=graphs, **options)


@pytest.mark.parametrize("n_batch, n_ubatch", SIZES)
@pytest.mark.parametrize("graphs", BOTH)
def test_watching_changes_no_logits_and_has_a_row_of_each_token(path, graphs, n_batch, n_ubatch):
    with loaded(path, graphs, n_batch=n_batch, n_ubatch=n_ubatch) as model:
        for all_logits in (False, True):
            expected = model.eval(PROMPT, all_logits)
            model.reset()
            logits, values = model.eval(PROMPT, all_logits, watch=["l_out-0", "norm"])
            model.reset()
            assert np.array_equal(logits, expected)
            found = values["l_out-0"]
            parts = found if isinstance(found, list) else [found]
            rows = np.concatenate([part.reshape(-1, SPEC.n_embd) for part in parts])
            assert len(rows) == len(PROMPT)
            assert len(np.unique(rows, axis=0)) > 90


@pytest.mark.needs(release="default")
@pytest.mark.thorough("programs")
@pytest.mark.parametrize("arch", ["gemma2", "mamba", "llama-moe"])
def test_batches_of_other_architectures(arch_file, arch):
    for n_batch, n_ubatch in SIZES[1:4]:
        options = {"n_batch": n_batch, "n_ubatch": n_ubatch}
        with loaded(arch_file(arch), "libllama", **options) as model:
            tokens = [token % model.n_vocab for token in PROMPT]
            expected = model.eval(tokens)
            model.reset()
            assert np.array_equal(model.eval(tokens, watch=["l_out-*"])[0], expected)


@pytest.mark.parametrize("type_", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("graphs", BOTH)
def test_views_of_a_cache_are_read_by_their_strides(path, graphs, type_):
    """The permuted view of cells has the rows of the view in its own order."""
    with loaded(path, graphs, type_k=type_, type_v=type_, flash_attn="on") as model:
        _logits, values = model.eval(PROMPT, watch=["cache_*"])
    for cache in ("cache_k_l1", "cache_v_l1"):
        whole, cells = values[f"{cache} (view) (1)"], values[f"{cache} (view)"]
        assert np.any(cells[:100]) and not np.any(cells[100:])
        assert np.array_equal(cells.reshape(256, -1), whole[:256])
        assert np.array_equal(values[f"{cache} (view) (permuted)"], cells.transpose(1, 0, 2))


@pytest.mark.parametrize("graphs", BOTH)
def test_all_computed_nodes_are_there_by_the_plans_names(path, graphs):
    with loaded(path, graphs) as model:
        _logits, values = model.eval(PROMPT[:3], watch=["*"])
        plan = model.plan(3)
        nodes = [node for node in plan.nodes if node.is_computed]
        assert {name.partition(" (1)")[0] for name in values} >= {n.name for n in nodes if n.name}
        for name in ("Kcur-0", "l_out-1", "result_norm"):
            assert values[name].size == np.prod(plan.node(name).ne)


@pytest.mark.parametrize("graphs", BOTH)
def test_several_look_at_once(path, graphs):
    seen = [], []
    with loaded(path, graphs) as model:
        expected = model.eval([1, 2])
        model.reset()
        with (
            model.look_at_nodes(lambda node, ask: seen[0].append(node.name)),
            model.look_at_nodes(lambda node, ask: seen[1].append(node.name)),
        ):
            logits, values = model.eval([1, 2], watch=["l_out-0"])
        assert np.array_equal(logits, expected) and list(values) == ["l_out-0"]
        assert seen[0] == seen[1] and "l_out-0" in seen[0]
        model.eval([1])
        assert seen[0] == seen[1] and seen[0].count("l_out-0") == 1


@pytest.mark.parametrize("graphs", BOTH)
def test_a_record_of_each_op_and_another_look_are_refused(path, graphs):
    """Both use the eval callback; the record lost its ops."""
    with loaded(path, graphs) as model:
        model.eval([1])
        with model.record(per_op=True) as recording:
            with pytest.raises(ArgumentError, match="per_op"):
                model.eval([1], watch=["l_out-0"])
            looking = model.look_at_nodes(lambda node, ask: False)
            with pytest.raises(ArgumentError, match="per_op"), looking:
                model.eval([1])
            model.eval([1])
        assert len([e for e in recording.run.events if e.kind == "nodes"]) > 30
        looking = model.look_at_nodes(lambda node, ask: False)
        with looking, pytest.raises(ArgumentError, match="per_op"), model.record(per_op=True):
            pass
        assert model.eval([1]).shape == (512,)


ARGUMENTS = {
    "eval": ([1],), "generate": ([1], 2), "stream": ([1], 2), "tokenize": ("a",),
    "detokenize": ([1],), "look_at_nodes": (lambda node, ask: False,),
}  # fmt: skip
OF_A_CLOSED_ONE = {  # what does not change, and is known without the model
    "arch", "close", "closed", "devices", "fit_arguments", "fits", "hparams", "left_out", "n_layer",
    "n_vocab", "rooms", "uncut_buffers", "vocab",
}  # fmt: skip


@pytest.mark.parametrize("graphs", BOTH)
def test_a_closed_one_raises(path, graphs):
    model = loaded(path, graphs)
    model.close()
    names = {name for name in dir(Model) if not name.startswith("_")} - OF_A_CLOSED_ONE
    assert len(names) > 25
    for name in sorted(names):
        with pytest.raises(ClosedError, match="is closed: make another"):
            found = getattr(model, name)
            if callable(inspect.getattr_static(Model, name)):
                found = found(*ARGUMENTS.get(name, ()))
                with found:
                    pass


WRONG_TOKENS = (
    None, 5, 1.5, "ab", b"ab", {}, [], [1.5], [None], ["a"], (i for i in [1]), object(),
    np.int64(3), np.array(3), np.zeros((2, 2), int), np.zeros(0), [[1, 2], [3]], [True], [-1],
    [10**30], np.array([1.0]), {1, 2}, "", [1, None], [512], [1, 512],
)  # fmt: skip


@pytest.mark.parametrize("graphs", BOTH)
def test_wrong_tokens_evaluate_nothing(path, graphs):
    with loaded(path, graphs) as model:
        for tokens in WRONG_TOKENS:
            for act in (
                lambda t: model.eval(t),
                lambda t: model.eval(t, watch=["l_out-0"]),
                lambda t: model.generate(t, 2),
                lambda t: next(model.stream(t, 2)),
            ):
                with pytest.raises(ModelError, match=r"a list of token ids|no tokens|is not in"):
                    act(tokens)
        assert model.n_past == 0
        for watch in (5, "ab", b"ab", [None], object(), np.array(3), True):
            with pytest.raises(TypeError, match=r"watch.*: expected"):
                model.eval([1], watch=watch)
        for names in (np.array(["l_out-0"]), {"l_out-0": 1}, (name for name in ["l_out-0"])):
            assert list(model.eval([1], watch=names)[1]) == ["l_out-0"]
        for look in (None, 5, "ab"):
            with pytest.raises(TypeError, match="look: expected a function"):
                model.look_at_nodes(look)
        for seq in (None, 0.0, np.float32(0), "0"):
            with pytest.raises(TypeError, match="seq: expected a whole number"):
                model.eval([1], seq=seq)
