"""The decode flow: which graph a ubatch took and why, and what was set."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.flow import Differs
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.cli_runs import ok, run
from ..support.sequence_scripts import _line, t
from ..support.sequence_scripts import run as tokens_of

SPEC = LlamaSpec(n_layer=2, n_vocab=512, n_ctx=2048, type="f32")
OPTIONS = {"n_threads": 1, "n_ctx": 1024, "flash_attn": "on"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("flow") / "m.gguf"
    write_llama(path, SPEC)
    return path


@pytest.fixture
def model(path):
    with load(path, **OPTIONS) as loaded:
        yield loaded


def test_the_first_then_reused_then_what_differs(model):
    assert model.last_decode is None and model.n_reused == 0 and model.graphs == ()
    model.eval(list(range(250)))
    (first,) = model.last_decode.ubatches
    assert (first.reused, first.built, first.differs) == (False, True, ())
    assert first.why == "the first graph"
    assert (first.n_tokens, first.n_outputs, first.native) == (250, 1, False)
    model.eval([1])
    (token,) = model.last_decode.ubatches
    assert token.differs == (Differs("n_tokens", 250, 1),) and not token.reused and token.built
    for pos in range(251, 256):
        model.eval([1])
        (token,) = model.last_decode.ubatches
        assert (token.reused, token.native, token.differs, token.why) == (True, True, (), ""), pos
    model.eval([1])  # cell 256: attention reads more of the cache
    (token,) = model.last_decode.ubatches
    assert token.differs == (Differs("n_kv", 256, 512),)
    assert str(model.last_decode) == "1 token: graph built: n_kv 256 -> 512"
    assert model.n_reused == 5


def test_a_kept_graph_is_no_reused_one(model):
    for tokens in ([1, 2], [1, 2, 3], [1, 2]):
        model.eval(tokens)
    (last,) = model.last_decode.ubatches
    assert (last.reused, last.built) == (False, False)
    assert last.differs == (Differs("n_tokens", 3, 2),)
    assert str(last) == "2 tokens: kept graph allocated again: n_tokens 3 -> 2"


def test_ubatches_of_one_evaluation(path):
    with load(path, **OPTIONS, n_ubatch=64, n_batch=128) as loaded:
        loaded.eval(list(range(150)))
        decode = loaded.last_decode
    assert decode.n_ubatches == 3 and not decode.reused
    assert [u.reused for u in decode.ubatches] == [False, True, False]
    assert decode.ubatches[2].differs == (Differs("n_tokens", 64, 22), Differs("n_outputs", 0, 1))


@pytest.mark.parametrize("how", ["eval", "native"])
def test_inputs_are_what_was_written(model, how):
    """All that the last compute read and no op made; every input of the graph that has memory."""
    model.eval([1, 2, 3])
    for _ in range(1 if how == "eval" else 3):
        model.eval([4])
    (token,) = model.last_decode.ubatches
    assert token.native == (how == "native")
    (graph,) = (g for g in model.graphs if g.allocated)
    assert token.inputs == graph.inputs
    sizes = {i.name: i.nbytes for i in token.inputs}
    assert sizes == {
        "inp_tokens": 4, "inp_pos": 4, "attn_inp_k_idxs": 8, "attn_inp_v_idxs": 8,
        "attn_inp_kq_mask": 512, "out_ids": 4,
    }  # fmt: skip
    computed = model.scheduler.plan(graph.graph)
    read = {leaf.name for leaf in computed.leafs if "input" in leaf.flags}
    unset = read - sizes.keys()  # of choices that are never computed: see build_inp_embd
    assert all(name.startswith(("inp_mixed", "inp_embd")) for name in unset)


def test_a_quantised_cache_sets_its_rotations(path):
    with load(path, **OPTIONS, type_k="q8_0", type_v="q8_0") as loaded:
        loaded.eval([1, 2])
        names = [i.name for i in loaded.last_decode.ubatches[0].inputs]
    rotates = hasattr(ggml.lib, "ggml_mul_mat_set_hint") and SPEC.n_embd // SPEC.n_head % 64 == 0
    assert ("attn_inp_k_rot" in names) == rotates


def test_after_a_failure(model, monkeypatch):
    model.eval(list(range(40)))
    model.eval([1])

    def fails(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model.scheduler), "compute_by", fails)
        with pytest.raises(KeyboardInterrupt):
            model.eval([1])
    model.eval([1])
    assert model.last_decode.ubatches[0].why == "the previous compute failed"


def test_watching(model):
    with model.watch() as seen:
        tokens = model.generate([1, 2, 3], 6)
        assert len(seen) == len(tokens)
    assert [d.reused for d in seen] == [False, False, True, True, True, True]
    assert seen[-1] == model.last_decode
    model.eval([1])
    assert len(seen) == 6


# --- the scheduler and the graphs


def test_whoever_resets_the_scheduler_makes_it_allocate_again(path, model):
    """The inputs' memory may be elsewhere then; the logits are right."""
    with load(path, **OPTIONS) as other:
        for tokens in ([1, 2, 3], [4], [5], [6], [7]):
            expected = other.eval(tokens)
            found = model.eval(tokens)
            np.testing.assert_array_equal(found, expected)
            scheduler = model.scheduler
            scheduler.reset()
            if tokens == [5]:  # and computes on it
                with ggml.Context() as ctx:
                    graph = ctx.new_graph()
                    x = ctx.from_numpy(np.ones((256, 256), np.float32))
                    graph.build_forward_expand(ctx.sqr(x))
                    ctx.alloc(scheduler.backends[-1])
                    scheduler.compute(graph)
                    scheduler.reset()
        (token,) = model.last_decode.ubatches
    assert token.why == "other code has reset the scheduler, or given it a graph"


def test_somebody_elses_graph_is_reset(path, model):
    with load(path, **OPTIONS) as other, ggml.Context() as ctx:
        for tokens in ([1, 2], [3], [4]):
            np.testing.assert_array_equal(model.eval(tokens), other.eval(tokens))
        graph = ctx.new_graph()
        x = ctx.new_tensor("f32", 4)
        x.set_input()
        graph.build_forward_expand(ctx.sqr(x))
        model.scheduler.reset()
        model.scheduler.alloc_graph(graph)
        np.testing.assert_array_equal(model.eval([5]), other.eval([5]))
        assert model.scheduler._graph is model.graphs[-1].graph


def test_a_graph_that_was_closed_is_built_again(path, model):
    with load(path, **OPTIONS) as other:
        for tokens in ([1, 2], [3], [4]):
            model.eval(tokens), other.eval(tokens)
        model.graphs[-1].graph.close()
        for token in (5, 6):
            expected = other.eval([token])
            try:
                found = model.eval([token])
            except ggml.ClosedError:  # the one that was allocated; nothing was evaluated
                found = model.eval([token])
            np.testing.assert_array_equal(found, expected)


def test_the_state_of_a_models_scheduler(model):
    model.eval([1, 2, 3])
    state, graph = model.scheduler.state, model.graphs[-1]
    assert graph.allocated and graph.params == {"n_tokens": 3, "n_outputs": 1, "n_kv": 256}
    assert state.is_alloc and graph.logits in state.hash_set
    assert graph.logits.name == "result_output"
    assert [n for s in state.splits for n in s.graph.nodes] == list(graph.graph.nodes)


def test_a_closed_model(path):
    with load(path, **OPTIONS) as loaded:
        loaded.eval([1])
    for read in ("scheduler", "graphs"):
        with pytest.raises(ggml.ClosedError, match="Model is closed"):
            getattr(loaded, read)
    with pytest.raises(ggml.ClosedError, match="Model is closed"), loaded.watch():
        pass


# --- as libllama


def same_reuses(oracle, path, commands, scratch, **options):
    """In each decode as many graphs are used again; how many."""
    ours = []
    with load(path, **options) as model:
        for _decode, *tokens in commands:
            with model.watch() as seen:
                model.eval([token[0] for token in tokens], all_logits=all(t[3] for t in tokens))
            ours.append(sum(u.reused for d in seen for u in d.ubatches))
    theirs = oracle.reuses(path, "\n".join(map(_line, commands)), scratch, **options)
    assert ours == [sum(asked) for asked in theirs]
    return sum(ours)


LONG = [
    ("decode", *tokens_of(1, 250, last=True)),
    *[("decode", t(i)) for i in range(12)],
    *[("decode", *tokens_of(i, 3)) for i in (1, 4)],
    *[("decode", *tokens_of(4, 3, last=True)) for _ in range(2)],
    ("decode", *tokens_of(4, 100, last=True)),
]


def test_libllama_uses_the_same_graphs_again(oracle, path, tmp_path):
    """n_kv, n_tokens and n_outputs change; ubatches."""
    many = same_reuses(oracle, path, LONG, tmp_path, n_ctx=1024, flash_attn="on", n_ubatch=16)
    assert many > 20


@pytest.mark.thorough("sample")
def test_libllama_uses_the_same_graphs_again_of_whole_prompts(oracle, path, tmp_path):
    same_reuses(oracle, path, LONG, tmp_path, n_ctx=1024, flash_attn="on")


# --- on the command line


@pytest.mark.thorough("long")
def test_generate_says_it(path):
    done = run("generate", path, "-d", "CPU", "-t", 1, "--tokens", "1,2,3", "-n", 5, "-v")
    said = done.stderr.splitlines()
    first = "evaluation 0: 3 tokens: graph built: the first graph; inputs set: inp_tokens 12 B, "
    assert said[0].startswith(first)
    assert said[1].startswith("evaluation 1: 1 token: graph built: n_tokens 3 -> 1; inputs set: ")
    assert said[2] == "graphs reused: 3 of 5" and len(done.stdout.split(",")) == 5
    command = ("generate", path, "-d", "CPU", "--tokens", "1,2,3", "-n", 5, "--json")
    data = json.loads(ok(*command, "-v"))
    assert [d["reused"] for d in data["decodes"]] == [False, False, True, True, True]
    assert data["decodes"][1]["differs"] == [{"name": "n_tokens", "old": 3, "new": 1}]


def test_trace_says_it(path):
    said = ok("trace", path, "-d", "CPU", "-t", 1, "-p", 4, "-n", 5).splitlines()
    assert said[-1] == "graphs reused: 5 of 6"
    assert said[-2].startswith("evaluation 1: 1 token: graph")
