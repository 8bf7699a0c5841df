"""Models: loading, evaluating."""

import threading
from functools import cache

import numpy as np

import ggml_py as ggml
from ggml_py import models
from ggml_py.gguf.writer import write_gguf
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..misuses import misuse

BAD = ggml.ModelError
SPEC = LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=1, n_ff=32, n_vocab=64, type="f32")


@cache
def _small(folder):
    path = folder / "small.gguf"
    write_llama(path, SPEC)
    return path


def _load(env, **options):
    """Loads the small model; options are what is wrong."""
    return env.later(models.load(_small(env.tmp_path), n_threads=1, **options))


def _llama(env, **options):
    """The same with libllama's graphs."""
    return _load(env, graphs="libllama", **options)


def llamas(id, act, error, given, expected, **how):
    """A row of libllama, which is that of the default release."""
    return misuse(id, act, error, given, expected, release="default", **how)


def _changed(env, metadata=None, drop=None):
    """A file like the small one, with other metadata or without a tensor."""
    header = {k: v for k, v in {**SPEC.header(), **(metadata or {})}.items() if v is not None}
    path = env.tmp_path / "changed.gguf"
    write_gguf(path, header, [t for t in SPEC.tensors() if t[0] != drop])
    return path


def _closed(env, **options):
    model = _load(env, **options)
    model.close()
    return model


def _option(id, options, given, expected, error=BAD):
    return misuse(f"load/{id}", lambda e: models.load(
        _small(e.tmp_path), **{"n_threads": 1, **options}), error, given, expected)  # fmt: skip


def _file(id, act, given, expected, error=BAD):
    return misuse(f"file/{id}", act, error, given, expected)


def _tokens(id, tokens, given, expected):
    return misuse(f"eval/{id}", lambda e: _load(e).eval(tokens), BAD, given, expected)


def _half(env):
    model = _llama(env)
    model.eval([1, 2])
    state = model.seq_state()
    model.set_seq_state(0, state[: len(state) // 2])


def _sampler(id, options, given, expected, error=ggml.ArgumentError):
    return misuse(f"sampler/{id}", lambda e: models.Sampler(**options), error, given, expected)


def _meanwhile(env, use):
    """`use` of a model while another thread evaluates on it."""
    model = _load(env)
    started, done = threading.Event(), threading.Event()
    model.scheduler.set_eval_callback(lambda tensor, ask: started.set() or done.wait(10))
    thread = threading.Thread(target=model.eval, args=([1, 2],))
    thread.start()
    started.wait(10)
    try:
        use(model)
    finally:
        done.set()
        thread.join()


def _inside(env, use):
    """`use` of a model in a callback of its evaluation."""
    model = _load(env)
    model.scheduler.set_eval_callback(lambda tensor, ask: use(model) is None)
    model.eval([1, 2])


def _busy(id, use, how=_meanwhile, where="on another thread"):
    return misuse(f"busy/{how.__name__[1:]}/{id}", lambda e: how(e, use), ggml.BusyError,
                  f"this Model is computing {where}", "load one for each thread", at=use)


MISUSES = [
    _busy("eval", lambda m: m.eval([3])),
    _busy("reset", lambda m: m.reset()),
    _busy("close", lambda m: m.close()),
    _busy("eval", lambda m: m.eval([3, 4]), _inside, "further up on this thread"),
    _busy("close", lambda m: m.close(), _inside, "further up on this thread"),
    _file("missing", lambda e: models.load(e.tmp_path / "none.gguf"), "none.gguf", "no such file",
          ggml.GgufError),
    _file("folder", lambda e: models.load(e.tmp_path), "test_misuse", "is a folder",
          ggml.GgufError),
    _file("none", lambda e: models.load(None), "NoneType", "expected a path",
          TypeError),
    _file("no-architecture",
          lambda e: models.load(_changed(e, {"general.architecture": None})),
          "names no architecture", "supported: "),
    _file("unknown-architecture",
          lambda e: models.load(_changed(e, {"general.architecture": "mamba9"})), "mamba9",
          "llama"),
    _file("missing-tensor",
          lambda e: models.load(_changed(e, drop="blk.0.attn_q.weight")), "blk.0.attn_q.weight",
          "changed.gguf"),
    _file("missing-key", lambda e: models.load(_changed(e, {"llama.block_count": None})),
          "'llama.block_count' is missing", "is not complete"),
    _file("no-layers", lambda e: models.load(_changed(e, {"llama.block_count": 0})),
          "'llama.block_count' is 0", "expected at least 1"),
    _file("experts-uncounted", lambda e: models.load(_changed(e, {"llama.expert_count": 8})),
          "'llama.expert_used_count' is missing", "is not complete"),
    _file("experts-too-many",
          lambda e: models.load(_changed(e, {
              "llama.expert_count": 2, "llama.expert_used_count": 3})),
          "'llama.expert_used_count' is 3", "expected at most 2 experts"),
    _file("experts-missing",
          lambda e: models.load(_changed(e, {
              "llama.expert_count": 2, "llama.expert_used_count": 1})),
          "blk.0.ffn_gate_inp.weight", "is not among the file's"),
    _file("another-architectures-tensors",
          lambda e: models.load(_changed(e, {"general.architecture": "qwen2"})),
          "'qwen2.embedding_length' is missing", "is not complete"),
    _file("rope-scaling",
          lambda e: models.load(_changed(e, {"llama.rope.scaling.type": "su"}), graphs="ours"),
          "rope scaling 'su'", "expected none, linear, yarn"),
    _option("n_ctx-negative", {"n_ctx": -1}, "n_ctx=-1", "expected at least 0"),
    _option("n_batch-zero", {"n_batch": 0}, "n_batch=0", "expected at least 1"),
    _option("n_ubatch-zero", {"n_ubatch": 0}, "n_ubatch=0", "expected at least 1"),
    _option("n_threads-zero", {"n_threads": 0}, "n_threads=0", "expected"),
    _option("n_ctx-str", {"n_ctx": "256"}, "str '256'", "n_ctx: expected a whole number",
            TypeError),
    _option("n_threads-str", {"n_threads": "2"}, "str '2'", "n_threads: expected a whole number",
            TypeError),
    _option("n_gpu_layers-str", {"n_gpu_layers": "all"}, "n_gpu_layers='all'",
            "expected a number of layers; -1 means all", TypeError),
    _option("devices-str", {"devices": "CPU"}, "devices='CPU'", "expected a sequence of devices",
            TypeError),
    _option("devices-alone", {"devices": ggml.device("CPU")}, "CPU", "expected a sequence of",
            TypeError),
    _option("n_cpu_moe-negative", {"n_cpu_moe": -1}, "n_cpu_moe=-1", "expected at least 0"),
    _option("n_cpu_ffn-float", {"n_cpu_ffn": 1.5}, "float 1.5", "expected a whole number",
            TypeError),
    _option("cpu_moe", {"cpu_moe": 3}, "cpu_moe=3", "expected True or False", TypeError),
    _option("offload_kqv", {"offload_kqv": "no"}, "offload_kqv='no'", "expected True or False",
            TypeError),
    _option("op_offload", {"op_offload": None}, "op_offload=None", "expected True or False",
            TypeError),
    _option("no_host", {"no_host": 1}, "no_host=1", "expected True or False", TypeError),
    _option("split_mode", {"split_mode": "rows"}, "split_mode='rows'",
            "expected one of layer, none"),
    _option("load_mode", {"load_mode": "mlock"}, "load_mode='mlock'",
            "expected one of auto, mmap, none"),
    _option("main_gpu", {"main_gpu": "0"}, "str '0'", "main_gpu: expected a whole number",
            TypeError),
    _option("tensor_split-many", {"tensor_split": (1, 2, 3)}, "3 parts",
            "expected at most one per GPU (GPUs: none)"),
    _option("tensor_split-negative", {"tensor_split": (1, -1)}, "tensor_split=(1, -1)",
            "expected numbers >= 0"),
    _option("tensor_split-text", {"tensor_split": "3,1"}, "tensor_split='3,1'",
            "expected numbers >= 0"),
    _option("tensor_split-infinite", {"tensor_split": (float("inf"),)}, "inf",
            "expected numbers >= 0"),
    _option("overrides-str", {"tensor_overrides": "ffn=CPU"}, "str 'ffn=CPU'",
            "expected {regex: device}", TypeError),
    _option("overrides-number", {"tensor_overrides": 7}, "int 7", "expected {regex: device}",
            TypeError),
    _option("overrides-not-pairs", {"tensor_overrides": ["ffn=CPU"]}, "'ffn=CPU'",
            "expected pairs (regex, device)", TypeError),
    _option("overrides-regex", {"tensor_overrides": {"ffn(": "CPU"}}, "'ffn(' is not a regular",
            "missing )", ggml.ArgumentError),
    _option("overrides-place", {"tensor_overrides": {"ffn": 0}}, "int 0",
            "expected a device, a buffer type", TypeError),
    _option("overrides-unknown", {"tensor_overrides": {"ffn": "CUDA7"}}, "'CUDA7'",
            "buffer types are CPU", ggml.UnknownDeviceError),
    _option("flash_attn", {"flash_attn": "maybe"}, "flash_attn='maybe'",
            "expected one of auto, on, off"),
    _option("type_k", {"type_k": "i32"}, "type_k=i32", "a cache can have"),
    _option("type_k-unknown", {"type_k": "q9"}, "type 'q9'", "expected one of",
            ggml.ArgumentError),
    _option("repack", {"repack": "no"}, "repack='no'", "expected True or False", TypeError),
    _option("swa_full", {"swa_full": 1}, "swa_full=1", "expected True or False", TypeError),
    _option("progress", {"progress": True}, "bool True", "expected a function", TypeError),
    _option("progress-arguments", {"progress": lambda: None}, "1 was given", "0 positional",
            TypeError),
    _option("progress-false", {"progress": lambda share: False}, "returned False",
            "must be loaded again"),
    _option("n_threads-too-many", {"n_threads": 513}, "n_threads=513", "expected",
            ggml.ArgumentError),
    _option("device", {"devices": ("CUDA7",)}, "'CUDA7'", "there are:", ggml.UnknownDeviceError),
    _option("device-none", {"devices": (None,)}, "NoneType", "expected", TypeError),
    _tokens("empty", [], "no tokens", "tokens"),
    _tokens("outside", [64], "token 64", "ids are 0 to 63"),
    _tokens("negative", [1, -1], "token -1", "ids are 0 to 63"),
    _tokens("floats", [1.5], "[1.5]", "expected a list of token ids"),
    _tokens("text", "hello", "'hello'", "expected a list of token ids"),
    _tokens("none", None, "None", "expected a list of token ids"),
    _tokens("number", 7, "tokens 7", "expected a list of token ids"),
    _tokens("two-dims", np.ones((2, 2), np.int32), "array", "expected a list of token ids"),
    misuse("eval/closed", lambda e: _closed(e).eval([1]), ggml.ClosedError, "closed",
           "make another"),
    misuse("reset/closed", lambda e: _closed(e).reset(), ggml.ClosedError, "closed",
           "make another"),
    _sampler("top_k", {"top_k": -1}, "top_k=-1", "expected at least 0"),
    _sampler("top_p", {"top_p": 95}, "top_p=95", "expected 0 to 1"),
    _sampler("temperature", {"temperature": "0.8"}, "str '0.8'", "expected a number", TypeError),
    _sampler("seed", {"seed": -1}, "seed=-1", "expected 0 to 4,294,967,295"),
    _sampler("repeat", {"repeat_penalty": 0.0}, "repeat_penalty=0.0", "1 is no penalty"),
    misuse("sampler/rows", lambda e: models.Sampler()(np.zeros((2, 4), np.float32)), BAD,
           "logits [2, 4]", "those of one token"),
    misuse("sampler/nan", lambda e: models.Sampler()(np.full(4, np.nan, np.float32)), BAD,
           "token 0 is nan", "weights are damaged"),
    misuse("sampler/accept", lambda e: models.Sampler().accept(["the"]), TypeError, "str 'the'",
           "tokens[0]: expected a whole number"),
    misuse("generate/n", lambda e: _load(e).generate([1], -1), BAD, "n=-1",
           "the number of tokens to generate"),
    misuse("generate/sampler", lambda e: _load(e).generate([1], 3, 0.8), TypeError, "float 0.8",
           "expected a Sampler"),
    misuse("generate/full", lambda e: _load(e, n_ctx=256).generate([1], 300), BAD, "300 more",
           "0 of 256 tokens (n_ctx) are used"),
    misuse("generate/token", lambda e: _load(e).generate([1], 3, lambda logits: 64), BAD,
           "token 64", "ids are 0 to 63"),
    misuse("stream/option", lambda e: _load(e).stream([1], 3, until=2), TypeError, "'until'",
           "unexpected keyword"),
    misuse("stream/stop", lambda e: _load(e).stream([1], 3, stop=["</s>"]), TypeError,
           "str '</s>'", "stop: token: expected a whole number"),
    llamas("stream/keep", lambda e: _llama(e, n_ctx=256).stream(
        [1] * 254, 3, context_shift=True, n_keep=-1), BAD, "n_keep=254", "can keep at most 252"),
    misuse("stream/closed", lambda e: _closed(e).stream([1], 3), ggml.ClosedError, "closed",
           "make another"),
    llamas("state/text", lambda e: _llama(e).set_seq_state(0, "state"), TypeError, "str 'state'",
           "data: expected bytes"),
    llamas("state/other-bytes", lambda e: _llama(e).set_seq_state(0, bytes(64)), BAD,
           "is not a sequence of this model", "wrong sequence state magic"),
    llamas("state/part", lambda e: _half(e), BAD, "is not a sequence", "error loading state",
           at=_half),
    llamas("state/seq", lambda e: _llama(e).seq_state(1), BAD, "sequence 1", "larger n_seq_max"),
    llamas("state/closed", lambda e: _closed(e, graphs="libllama").seq_state(), ggml.ClosedError,
           "closed", "make another"),
    llamas("state/tokens", lambda e: _llama(e).save_seq(e.tmp_path / "s", tokens=[64]),
           ggml.ArgumentError, "tokens=64", "expected 0 to 63"),
    llamas("state/model-file", lambda e: _llama(e).load_seq(_small(e.tmp_path)), BAD,
           "small.gguf is not a sequence of this model", "unknown (magic, version)"),
    llamas("state/none", lambda e: _llama(e).load_seq(None), TypeError, "NoneType", "a path"),
    misuse("eval/full", lambda e: _load(e, n_ctx=256).eval([1] * 300), BAD, "300", "256"),
]  # fmt: skip
