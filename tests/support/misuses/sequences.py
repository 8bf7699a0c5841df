"""Models: several sequences, batches."""

import ggml_py as ggml
from ggml_py import models

from ..misuses import misuse
from .models import BAD, _closed, _llama, _option, llamas


def _batch(*tokens):
    """Of what `Batch.add` takes."""
    batch = models.Batch()
    for token in tokens:
        batch.add(*token)
    return batch


def _decode(id, tokens, given, expected, error=BAD, **options):
    return llamas(f"decode/{id}", lambda e: _llama(e, n_seq_max=2, **options).decode(
        _batch(*tokens)), error, given, expected)  # fmt: skip


def _add(id, token, given, expected, error=TypeError):
    return misuse(f"add/{id}", lambda e: models.Batch().add(*token), error, given, expected)


def _two(env):
    """A model of two sequences, one with tokens."""
    model = _llama(env, n_seq_max=2, n_ctx=512)
    model.eval([1, 2, 3])
    return model


def _seq(id, act, given, expected, error=BAD):
    return llamas(f"seq/{id}", act, error, given, expected)


def _recorded(env):
    """Nodes one by one, while another function looks at them."""
    model = _llama(env)
    with model.look_at_nodes(lambda _node, ask: not ask):
        model.record(per_op=True)


def _watched(env):
    model = _llama(env)
    with model.record(per_op=True):
        model.eval([1], watch=["l_out-0"])


MISUSES = [
    _option("n_seq_max-zero", {"n_seq_max": 0}, "n_seq_max=0", "expected at least 1"),
    _option("n_seq_max-many", {"n_seq_max": 257}, "n_seq_max=257", "at most 256 sequences"),
    _option("kv_unified", {"kv_unified": 1}, "kv_unified=1", "expected True or False", TypeError),
    _add("float", (1.5,), "token: expected a whole number", "float 1.5"),
    _add("text", ("the",), "token: expected a whole number", "str 'the'"),
    _add("pos", (1, -1), "pos=-1", "expected 0 to 2,147", ggml.ArgumentError),
    _add("seq-text", (1, None, "0"), "seq: expected a whole number", "str '0'"),
    _add("seq-none", (1, None, ()), "seq=()", "at least one sequence", BAD),
    _add("logits", (1, None, 0, 1), "logits: expected True or False", "int 1"),
    _decode("empty", [], "an empty batch", "add at least one token"),
    _decode("outside", [(64,)], "token 64", "ids are 0 to 63"),
    _decode("seq", [(1, None, 2)], "sequence 2", "expected 0 to 1"),
    _decode("gap", [(1, 0), (1, 2)], "position 2", "must be at 1"),
    _decode("shared", [(1, 0, (0, 1))], "several sequences", "kv_unified=True"),
    _decode("large", [(1,)] * 9, "9 tokens", "at most 8 (n_batch)", n_batch=8),
    _decode("full", [(1,)] * 257, "257", "no room for 257 more", n_ctx=512),
    llamas("decode/list", lambda e: _llama(e).decode([1, 2]), TypeError, "list",
           "expected a Batch"),
    llamas("record/looked-at", _recorded, ggml.ArgumentError, "per_op", "look_at_nodes"),
    llamas("watch/recorded", _watched, ggml.ArgumentError, "per_op", "end it first"),
    llamas("decode/closed", lambda e: _closed(e, graphs="libllama").decode(models.Batch()),
           ggml.ClosedError, "closed", "make another"),
    llamas("seq/closed", lambda e: _closed(e, graphs="libllama").seq_rm(0), ggml.ClosedError,
           "closed", "make another"),
    _seq("eval", lambda e: _two(e).eval([1], seq=2), "sequence 2", "expected 0 to 1"),
    _seq("rm", lambda e: _two(e).seq_rm(-1), "sequence -1", "expected 0 to 1"),
    _seq("rm-text", lambda e: _two(e).seq_rm("0"), "seq: expected a whole number", "str '0'",
         TypeError),
    _seq("rm-range", lambda e: _two(e).seq_rm(0, -1), "p0=-1", "expected 0 to 2,147",
         ggml.ArgumentError),
    _seq("cp-part", lambda e: _two(e).seq_cp(0, 1, 1), "copied as a whole", "kv_unified=True"),
    _seq("add", lambda e: _two(e).seq_add(0, 0, None, 0.5), "delta: expected", "float 0.5",
         TypeError),
    _seq("div", lambda e: _two(e).seq_div(0, 0, None, 0), "d=0", "expected 1 to 2,147",
         ggml.ArgumentError),
    _seq("pos", lambda e: _two(e).seq_pos_max(2), "sequence 2", "expected 0 to 1"),
    _seq("plan", lambda e: _two(e).plan(1, 0, 3), "n_seqs=3", "1 to 2 sequences"),
]  # fmt: skip
