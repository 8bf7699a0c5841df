"""The decode flow: which graph a ubatch took and why, and what was set."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.llama.decodes import Differs
from ggml_py.models import load
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


BOTH = [
    "ours",
    pytest.param(
        "libllama",
        marks=[pytest.mark.needs(release="default"), pytest.mark.thorough("programs")],
    ),
]  # fmt: skip


def watched(model, *evaluations):
    """What each ubatch of some evaluations did."""
    with model.watch() as seen:
        for tokens in evaluations:
            model.eval(tokens)
    assert len(seen) == len(evaluations)
    return [ubatch for decode in seen for ubatch in decode.ubatches]


@pytest.mark.parametrize("graphs", BOTH)
def test_the_first_then_reused_then_what_differs(path, graphs):
    with load(path, **OPTIONS, graphs=graphs) as model:
        assert model.n_reused == 0
        (first,) = watched(model, list(range(250)))
        assert (first.reused, first.built, first.differs) == (False, True, ())
        assert first.why == "the first graph"
        assert (first.n_tokens, first.n_outputs) == (250, 1)
        (token,) = watched(model, [1])
        assert token.differs == (Differs("n_tokens", 250, 1),) and not token.reused and token.built
        for pos, token in enumerate(watched(model, *[[1]] * 5)):
            assert (token.reused, token.native, token.differs, token.why) == (True, True, (), ""), (
                pos
            )
        (token,) = watched(model, [1])  # cell 256: attention reads more of the cache
        assert token.differs == (Differs("n_kv", 256, 512),)
        assert str(token) == "1 token: graph built: n_kv 256 -> 512"
        assert model.n_reused == 5


def test_a_kept_graph_is_no_reused_one(model):
    *_before, last = watched(model, [1, 2], [1, 2, 3], [1, 2])
    assert (last.reused, last.built) == (False, False)
    assert last.differs == (Differs("n_tokens", 3, 2),)
    assert str(last) == "2 tokens: kept graph allocated again: n_tokens 3 -> 2"


@pytest.mark.parametrize("graphs", BOTH)
def test_a_name_that_no_node_has_is_an_error_and_nothing_is_evaluated(path, graphs):
    options = OPTIONS | {"n_ubatch": 4, "n_batch": 8}
    with load(path, **options, graphs=graphs) as model:
        expected = model.eval([1, 2])
        for names in (["ffn_uot-0"], ["Qcur-0", "ffn_uot-*"]):
            with pytest.raises(ggml.ModelError, match="no node of the graph is named 'ffn_uot-"):
                model.eval(list(range(10)), watch=names)
            assert model.n_past == 2
        with pytest.raises(ggml.ModelError, match="; similar: ffn_out-0"):
            model.eval([1], watch=["ffn_uot-0"])
        model.reset()
        assert np.array_equal(model.eval([1, 2]), expected)


@pytest.mark.parametrize("graphs", BOTH)
def test_ubatches_of_one_evaluation(path, graphs):
    options = OPTIONS | {"n_ubatch": 64, "n_batch": 128}
    with load(path, **options, graphs=graphs) as loaded, loaded.watch() as seen:
        loaded.eval(list(range(150)))
    (decode,) = seen
    assert decode.n_ubatches == 3 and not decode.reused
    assert [u.reused for u in decode.ubatches] == [False, True, False]
    assert decode.ubatches[2].differs == (Differs("n_tokens", 64, 22), Differs("n_outputs", 0, 1))


@pytest.mark.parametrize("graphs", BOTH)
def test_inputs_are_what_was_written(path, graphs):
    """All that the last compute read and no op made."""
    with load(path, **OPTIONS, graphs=graphs) as model:
        *_before, token = watched(model, [1, 2, 3], [4], [4])
    assert token.native
    sizes = {i.name: i.nbytes for i in token.inputs}
    assert sizes == {
        "inp_tokens": 4, "inp_pos": 4, "attn_inp_k_idxs": 8, "attn_inp_v_idxs": 8,
        "attn_inp_kq_mask": 512, "out_ids": 4,
    }  # fmt: skip


def test_every_input_of_the_graph_is_set(model):
    token = watched(model, [1, 2, 3], [4])[-1]
    with model.graph(1) as graph:
        read = {leaf.name for leaf in graph.leafs if leaf.flags & ggml.enums.TensorFlag.INPUT}
    unset = read - {i.name for i in token.inputs}  # of choices that are never computed
    assert all(name.startswith(("inp_mixed", "inp_embd")) for name in unset)


def test_after_a_failure(model, monkeypatch):
    model.eval(list(range(40)))
    model.eval([1])

    def fails(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model.scheduler), "compute_by", fails)
        with pytest.raises(KeyboardInterrupt):
            model.eval([1])
    assert watched(model, [1])[0].why == "the previous compute failed"


@pytest.mark.parametrize("graphs", BOTH)
def test_watching(path, graphs):
    with load(path, **OPTIONS, graphs=graphs) as model:
        with model.watch() as seen, model.watch() as also:
            tokens = model.generate([1, 2, 3], 6)
            assert len(seen) == len(tokens)
        assert [d.reused for d in seen] == [False, False, True, True, True, True]
        assert also == seen
        model.eval([1])
        assert len(seen) == 6


@pytest.mark.parametrize("graphs", BOTH)
def test_watching_does_not_change_tokens(path, graphs):
    with load(path, **OPTIONS, n_ubatch=16, graphs=graphs) as model:
        expected = model.generate(list(range(40)), 8)
        model.reset()
        with model.watch(), model.record():
            assert model.generate(list(range(40)), 8) == expected


@pytest.mark.needs(release="default")
@pytest.mark.thorough("programs")
def test_both_do_the_same(path):
    """Graphs, what differs, which were used again: on one file, token by token."""
    found = {}
    for graphs in ("ours", "libllama"):
        options = OPTIONS | {"n_ubatch": 64, "n_batch": 128, "repack": False}
        with load(path, **options, graphs=graphs) as model, model.watch() as seen:
            model.eval(list(range(150)))
            model.generate([5], 120)
        found[graphs] = [
            [u._replace(native=True, inputs=frozenset(u.inputs)) for u in d.ubatches] for d in seen
        ]
    assert found["ours"] == found["libllama"]


@pytest.mark.needs(release="default")
@pytest.mark.thorough("programs")
@pytest.mark.parametrize("per_op", [False, True])
def test_both_record_the_same(path, per_op):
    """Each ubatch has its plan; computes and nodes are in the same order."""
    runs = []
    for graphs in ("ours", "libllama"):
        options = OPTIONS | {"n_ubatch": 64, "n_batch": 128, "repack": False}
        with load(path, **options, graphs=graphs) as model:
            with model.record(per_op) as recording:
                model.eval(list(range(150)))
                model.generate([5], 4)
            runs.append(recording.run)
            model.eval([1])  # nothing of the recording is left
    ours, theirs = runs
    assert ours.schedulers[0].plans == theirs.schedulers[0].plans == (0, 0, 1, 2, 2, 2, 2)
    assert [p.text() for p in ours.plans] == [p.text() for p in theirs.plans]
    for a, b in zip(ours.plans, theirs.plans, strict=True):
        assert [str(n.cause) for n in a.nodes] == [str(n.cause) for n in b.nodes]
    computed = [
        [(e.kind, e.compute, e.split, e.first, e.last) for e in run.events if e.kind == "nodes"]
        for run in runs
    ]
    assert computed[0] == computed[1]
    assert (len(computed[0]) > 100) == per_op


@pytest.mark.needs(release="default")
@pytest.mark.thorough("programs")
def test_a_record_of_libllama_during_other_callbacks(path):
    with load(path, **OPTIONS, graphs="libllama") as model:
        with model.record(per_op=True), pytest.raises(ggml.ArgumentError, match="per_op"):
            model.eval([1], watch=["l_out-0"])
        looking = model.look_at_nodes(lambda _node, ask: not ask)
        with looking, pytest.raises(ggml.ArgumentError, match="per_op"):
            model.record(per_op=True)
        with model.record(), pytest.raises(ggml.ArgumentError, match="recorded already"):
            model.record().__enter__()
        assert model.eval([1]).ndim == 1


# --- values of nodes


@pytest.mark.parametrize("graphs", BOTH)
def test_values_of_nodes_of_one_name(path, graphs):
    """As in a plan, a name means its last node; the others are numbered."""
    with load(path, **OPTIONS, graphs=graphs) as model:
        _logits, seen = model.eval([1, 2, 3], watch=["Qcur-0"])
        plan = model.plan(3)
    assert list(seen) == ["Qcur-0 (1)", "Qcur-0 (2)", "Qcur-0"]
    assert len(plan.find("Qcur-0")) == 3
    assert seen["Qcur-0 (1)"].shape == (3, 256) and seen["Qcur-0"].shape == (3, 4, 64)
    np.testing.assert_array_equal(seen["Qcur-0 (1)"].reshape(3, 4, 64), seen["Qcur-0 (2)"])
    assert (seen["Qcur-0"] != seen["Qcur-0 (2)"]).any()  # rotated


@pytest.mark.parametrize("graphs", BOTH)
def test_values_of_several_ubatches(path, graphs):
    """Each ubatch gives its value, and together they are those of one ubatch."""
    prompt = list(range(40))
    with load(path, **OPTIONS, graphs=graphs) as model:
        logits, whole = model.eval(prompt, watch=["l_out-0", "Kcur-1"])
    with load(path, **OPTIONS, n_ubatch=16, graphs=graphs) as model:
        in_parts, parts = model.eval(prompt, watch=["l_out-0", "Kcur-1"])
    np.testing.assert_allclose(in_parts, logits, atol=1e-4)
    assert [len(value) for value in parts["l_out-0"]] == [16, 16, 8]
    for name, value in whole.items():
        np.testing.assert_allclose(np.concatenate(parts[name]), value, atol=1e-4)


@pytest.mark.needs(release="default")
@pytest.mark.thorough("programs")
def test_both_see_the_same_values(path):
    """Every node of two ubatches and of a token, bit for bit."""
    found = []
    for graphs in ("ours", "libllama"):
        options = OPTIONS | {"n_ubatch": 16, "repack": False}
        with load(path, **options, graphs=graphs) as model:
            found.append([model.eval(tokens, watch=["*"]) for tokens in (list(range(30)), [7])])
    for (logits, ours), (expected, theirs) in zip(*found, strict=True):
        np.testing.assert_array_equal(logits, expected)
        assert ours.keys() == theirs.keys() and len(ours) > 50
        for name, value in ours.items():
            pairs = zip(value, theirs[name], strict=True) if isinstance(value, list) else (
                (value, theirs[name]),
            )  # fmt: skip
            for a, b in pairs:
                np.testing.assert_array_equal(a, b, err_msg=name)


_PRINTED = re.compile(
    r"common_debug_cb_eval: +(.+?) = \(.*\) = \{([\d, ]+)\}\n((?:.*\n)*?) +sum = (\S+)"
)  # name, ne, rows, sum
_FIRST_ROW = re.compile(
    r"[\s\[]+" + r"(\S+), +" * 3 + r"\.\.\., +" + r"(\S+), +" * 2 + r"(\S+) +\],?\n"
)


@pytest.mark.needs(release="default")
@pytest.mark.thorough("programs")
@pytest.mark.parametrize("graphs", ["ours", "libllama"])
def test_values_are_those_of_upstreams_eval_callback(oracle, path, graphs):
    """Each node that llama-eval-callback prints: its shape, first numbers and sum."""
    options = ("-t", 1, "-dev", "none", "-c", 1024, "--no-repack", "-fa", "on", "-n", 1)
    done = oracle.run("llama-eval-callback", "-m", path, "-p", "abc", *options)
    with load(path, **OPTIONS, repack=False, graphs=graphs) as model:
        _logits, seen = model.eval(model.tokenize("abc"), watch=["*"])
    printed: dict[str, list[tuple[str, str, str]]] = {}
    for name, ne, rows, total in _PRINTED.findall(done.stdout + done.stderr):
        printed.setdefault(name, []).append((ne, rows, total))
    compared = 0
    for name, nodes in printed.items():
        values = [seen[n] for n in seen if re.fullmatch(rf"{re.escape(name)}( \(\d+\))?", n)]
        if len(values) != len(nodes):
            continue  # a choice that is not computed; or upstream's logger has lost lines
        for value, (ne, rows, total) in zip(values, nodes, strict=True):
            if value.dtype.kind != "f":
                continue
            shape = [int(n) for n in ne.split(",")][::-1]
            value = value.reshape(shape).astype(np.float64)
            if row := _FIRST_ROW.match(rows):
                first, *_others, last = map(float, row.groups())
                np.testing.assert_allclose(value[0, 0, 0, [0, -1]], [first, last], atol=6e-5)
            assert value.sum() == pytest.approx(float(total), rel=1e-3, abs=1e-2), name
            compared += 1
    assert compared > 25  # of 60


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
            if tokens == [6]:
                (token,) = watched(model, [9])
                other.eval([9])
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
        assert model.scheduler.state.is_alloc


def test_the_state_of_a_models_scheduler(model):
    model.eval([1, 2, 3])
    state = model.scheduler.state
    names = [n.name for s in state.splits for n in s.graph.nodes]
    assert state.is_alloc and names[-1] == "result_output"
    with model.graph(3) as graph:
        assert names == [n.name for n in graph.nodes]


def test_a_closed_model(path):
    with load(path, **OPTIONS) as loaded:
        loaded.eval([1])
    with pytest.raises(ggml.ClosedError, match="Model is closed"):
        loaded.scheduler  # noqa: B018
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
