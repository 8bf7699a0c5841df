"""The mistakes of a new user's walk through the API, from devices to text."""

import numpy as np

import ggml_py as ggml
from ggml_py import llama, models
from ggml_py.cost.machine import Machine
from ggml_py.models.synthetic import LlamaSpec, write_llama

from .. import drawn_plans
from ..misuses import misuse

ARG, BAD = ggml.ArgumentError, ggml.ModelError
SPEC = LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=1, n_ff=32, n_vocab=300, type="f32")
HI = {"role": "user", "content": "hi"}


def _path(env):
    path = env.tmp_path / "walk.gguf"
    if not path.exists():
        write_llama(path, SPEC)
    return path


def _model(env, **options):
    return env.later(models.load(_path(env), n_threads=1, n_ctx=64, **options))


def _llama(env, **options):
    return _model(env, graphs="libllama", **options)


def _tokenizer(env):
    return _llama(env).tokenizer


def _closed(handle):
    handle.close()
    return handle


def _plan(_env):
    return drawn_plans.llama(4)


def _of_llama(id, act, error, given, expected):
    return misuse(id, act, error, given, expected, release="default")


MISUSES = [
    # devices and backends
    misuse("device-lower", lambda e: ggml.device("cuda0"), ggml.UnknownDeviceError, "cuda0", "CPU"),
    misuse("device-none", lambda e: ggml.device(None), TypeError, "NoneType", "str"),
    misuse("device-index", lambda e: ggml.device(0), TypeError, "int 0", "str"),
    misuse("init-threads", lambda e: ggml.device("CPU").init(n_threads=0), ARG, "n_threads=0",
           "1 to 512"),
    misuse("init-threads-str", lambda e: ggml.device("CPU").init("4"), TypeError, "'4'",
           "whole number"),
    misuse("init-params", lambda e: ggml.device("CPU").init(params=5), TypeError, "int 5", "a str"),
    misuse("buffer-size", lambda e: e.cpu.buffer_type.alloc(-1), ARG, "-1", "at least 0"),
    misuse("buffer-size-float", lambda e: e.cpu.buffer_type.alloc(1e6), TypeError, "float",
           "whole number"),
    misuse("use-ref", lambda e: e.cpu.set_use_ref("no"), TypeError, "'no'", "True or False"),
    misuse("pool", lambda e: ggml.ThreadPool(None), TypeError, "NoneType", "n_threads"),
    misuse("pool-strict", lambda e: ggml.ThreadPool(1, strict_cpu="yes"), TypeError, "'yes'",
           "True or False"),
    # tensors and ops
    misuse("type", lambda e: e.other.new_tensor("float32x", 4), ARG, "float32x", "expected one of"),
    misuse("type-surrogate", lambda e: e.other.new_tensor("\ud800", 4), ARG, r"\ud800",
           "expected one of"),
    misuse("no-shape", lambda e: e.other.new_tensor("f32"), ARG, "ne []", "one to four"),
    misuse("five-axes", lambda e: e.other.new_tensor("f32", 1, 1, 1, 1, 1), ARG, "[1, 1, 1, 1, 1]",
           "one to four"),
    misuse("negative", lambda e: e.other.new_tensor("f32", -4), ARG, "-4", "expected"),
    misuse("tuple", lambda e: e.other.new_tensor("f32", (4, 4)), TypeError, "tuple", "expected"),
    misuse("name-none", lambda e: setattr(e.x, "name", None), TypeError, "NoneType", "str"),
    misuse("name-nul", lambda e: setattr(e.x, "name", "a\0b"), ARG, r"a\x00b", "without NUL"),
    misuse("add-number", lambda e: e.context.add(e.x, 1), TypeError, "int 1", "Tensor"),
    misuse("add-array", lambda e: e.context.add(e.x, np.ones(8)), TypeError, "ndarray", "Tensor"),
    misuse("add-graph", lambda e: e.context.add(e.graph, e.x), TypeError, "Graph", "Tensor"),
    misuse("shapes", lambda e: e.context.mul_mat(e.x, e.context.new_tensor("f32", 3)),
           ggml.AbortError, "mul_mat", "ne", abort="upstream's assertion, with its rule"),
    misuse("no-such-op", lambda e: e.context.matmul(e.w, e.x), AttributeError, "matmul",
           "no attribute"),
    misuse("set-size", lambda e: e.w.set(np.ones(3)), ARG, "3", "64"),
    misuse("set-none", lambda e: e.w.set(None), ARG, "object", "expected numbers"),
    misuse("get-early", lambda e: e.y.get(), ggml.NoDataError, "'y'", "alloc"),
    misuse("numpy-early", lambda e: e.y.numpy(), ggml.NoDataError, "'y'", "alloc"),
    misuse("closed-context", lambda e: _closed(e.later(ggml.Context())).new_tensor("f32", 1),
           ggml.ClosedError, "Context", "closed"),
    # graphs
    misuse("graph-size", lambda e: e.context.new_graph(0), ARG, "size=0", "expected 1 to"),
    misuse("graph-grads", lambda e: e.context.new_graph(8, "yes"), TypeError, "'yes'",
           "True or False"),
    misuse("expand-none", lambda e: e.graph.build_forward_expand(None), TypeError, "NoneType",
           "Tensor"),
    misuse("expand-list", lambda e: e.graph.build_forward_expand([e.y]), TypeError, "list",
           "Tensor"),
    misuse("dot-folder", lambda e: e.graph.to_dot(""), ARG, "'.'", "file's name"),
    misuse("dot-number", lambda e: e.graph.to_dot(5), TypeError, "int 5", "a path"),
    misuse("dot-nul", lambda e: e.graph.to_dot("a\0b"), ARG, r"a\x00b", "without NUL"),
    misuse("graph-of", lambda e: ggml.Graph(e.cpu), TypeError, "Backend", "Context"),
    # schedulers and plans
    misuse("one-backend", lambda e: ggml.Scheduler(e.cpu), TypeError, "Backend",
           "a sequence of Backends"),
    misuse("no-backend", lambda e: ggml.Scheduler([]), ARG, "0 backends", "1 to 16"),
    misuse("a-device", lambda e: ggml.Scheduler([ggml.device("CPU")]), TypeError, "Device",
           "backends[0]: expected a Backend"),
    misuse("names", lambda e: ggml.Scheduler(["CPU"]), TypeError, "'CPU'", "expected a Backend"),
    misuse("parallel", lambda e: ggml.Scheduler([e.cpu], parallel="yes"), TypeError, "'yes'",
           "parallel: expected True or False"),
    misuse("plan-tensor", lambda e: e.scheduler.plan(e.y), TypeError, "Tensor", "Graph"),
    misuse("compute-early", lambda e: e.scheduler.compute(e.graph), ggml.NoDataError, "x", "alloc"),
    misuse("closed-backend", lambda e: ggml.Scheduler([_closed(ggml.device("CPU").init())]),
           ggml.ClosedError, "Backend", "closed"),
    misuse("pin-name", lambda e: e.scheduler.set_tensor_backend(e.y, "CPU"), TypeError, "'CPU'",
           "Backend"),
    misuse("pin-why", lambda e: e.scheduler.set_tensor_backend(e.y, e.cpu, why=None), TypeError,
           "NoneType", "why: expected a str"),
    misuse("record-flag", lambda e: e.scheduler.record("yes"), TypeError, "'yes'",
           "per_op: expected True or False"),
    misuse("callback", lambda e: e.scheduler.set_eval_callback(5), TypeError, "int 5", "function"),
    misuse("recording", lambda e: ggml.Recording(None), TypeError, "NoneType", "expected"),
    misuse("node-none", lambda e: _plan(e).node(None), TypeError, "NoneType", "name or the index"),
    misuse("node-float", lambda e: _plan(e).node(1.5), TypeError, "float 1.5", "name or the index"),
    misuse("node-many", lambda e: _plan(e).node(10**6), KeyError, "1000000", "nodes 0..39"),
    misuse("tensor-minus", lambda e: _plan(e).tensor(-1), KeyError, "-1", "0 to 44"),
    misuse("tensor-none", lambda e: _plan(e).tensor(None), KeyError, "None", "0 to 44"),
    misuse("find-none", lambda e: _plan(e).find(None), TypeError, "NoneType", "a str"),
    misuse("explain-list", lambda e: _plan(e).explain([1]), TypeError, "list", "name or the index"),
    misuse("why-not-device", lambda e: _plan(e).why_not(0, ggml.device("CPU")), TypeError, "Device",
           "expected its name"),
    misuse("drop-none", lambda e: _plan(e).what_if(drop=5), TypeError, "int 5",
           "drop: expected names"),
    misuse("diff-json", lambda e: _plan(e).diff({}), TypeError, "dict", "expected a Plan"),
    misuse("cost-path", lambda e: _plan(e).cost("machine.json"), TypeError, "'machine.json'",
           "machine: expected a Machine"),
    misuse("export-flag", lambda e: _plan(e).export(e.tmp_path / "p.html", force="no"), TypeError,
           "'no'", "force: expected True or False"),
    misuse("export-nul", lambda e: _plan(e).export("p\0.html"), ARG, r"p\x00.html", "without NUL"),
    misuse("json-none", lambda e: ggml.Plan.from_json(None), TypeError, "NoneType", "a path"),
    misuse("machine-dict", lambda e: Machine.load({}), TypeError, "dict", "a path"),
    misuse("cards-list", lambda e: Machine.of_sheets(["rtx4090"]), TypeError, "list ['rtx4090']",
           "cards: expected a dict"),
    misuse("strict-name", lambda e: ggml.strict(True, allow=5).__enter__(), TypeError, "1",
           "positional"),
    misuse("allow", lambda e: ggml.strict(no_fallback=True, allow=5).__enter__(), TypeError,
           "int 5", "allow: expected names"),
    misuse("record-none", lambda e: ggml.record(None), TypeError, "NoneType", "a path"),
    misuse("record-flag2", lambda e: ggml.record(e.tmp_path / "r", run="yes"), TypeError, "'yes'",
           "run: expected True or False"),
    # simulated devices
    misuse("sim-name", lambda e: ggml.sim_device(None), TypeError, "NoneType", "str"),
    misuse("sim-profile", lambda e: ggml.sim_device("walk0", profile="rtx9999"),
           ggml.UnknownDeviceError, "rtx9999",
           "rtx4090"),
    misuse("sim-memory", lambda e: ggml.sim_device("walk0", memory=-1), ARG, "memory=-1",
           "at least"),
    misuse("sim-host", lambda e: ggml.sim_device("walk0", host="yes"), TypeError, "'yes'",
           "True or False"),
    # training
    misuse("adamw", lambda e: ggml.AdamW(alpha="0.1"), TypeError, "'0.1'",
           "alpha: expected a number"),
    misuse("sgd", lambda e: ggml.SGD(wd=None), TypeError, "NoneType", "wd: expected a number"),
    misuse("dataset-type", lambda e: ggml.Dataset(np.ones((2, 2)), type_data="x"), ARG, "'x'",
           "expected one of"),
    # models
    misuse("load-bytes", lambda e: models.load(b"x.gguf"), TypeError, "bytes", "a path"),
    misuse("load-number", lambda e: models.load(5), TypeError, "int 5", "a path"),
    misuse("load-nul", lambda e: models.load("a\0b"), ARG, r"a\x00b", "without NUL"),
    misuse("load-header", lambda e: models.load(_path(e), header_only="yes"), TypeError, "'yes'",
           "header_only: expected True or False"),
    misuse("load-flash", lambda e: models.load(_path(e), flash_attn=["on"]), BAD, "['on']", "auto"),
    misuse("load-graphs", lambda e: models.load(_path(e), graphs=None), BAD, "graphs=None",
           "'libllama'"),
    misuse("load-type", lambda e: models.load(_path(e), type_k="\ud800"), ARG, r"\ud800",
           "expected one of"),
    misuse("spec-number", lambda e: LlamaSpec(n_layer="2"), TypeError, "'2'",
           "n_layer: expected a whole number"),
    misuse("eval-text", lambda e: _model(e).eval("hello"), BAD, "'hello'", "list of token ids"),
    misuse("eval-none", lambda e: _model(e).eval(None), BAD, "None", "list of token ids"),
    misuse("eval-iterator", lambda e: _model(e).eval(iter([1])), BAD, "list_iter",
           "list of token ids"),
    misuse("eval-seq", lambda e: _model(e).eval([1], seq=None), TypeError, "NoneType",
           "seq: expected a whole number"),
    misuse("eval-flag", lambda e: _model(e).eval([1], all_logits=np.ones(2)), TypeError, "ndarray",
           "all_logits: expected True or False"),
    misuse("eval-room", lambda e: _model(e).eval([1] * 300), BAD, "300", "256"),
    misuse("watch-text", lambda e: _model(e).eval([1], watch="l_out-0"), TypeError, "'l_out-0'",
           "a list of names"),
    misuse("watch-none", lambda e: _model(e).eval([1], watch=[None]), TypeError, "NoneType",
           "expected names"),
    misuse("watch-unknown", lambda e: _model(e).eval([1], watch=["l_aut-*"]), BAD, "'l_aut-*'",
           "similar: l_out-0"),
    misuse("look", lambda e: _model(e).look_at_nodes(None), TypeError, "NoneType",
           "look: expected a function"),
    misuse("generate-n", lambda e: _model(e).generate([1], "8"), TypeError, "'8'", "whole number"),
    misuse("generate-sampler", lambda e: _model(e).generate([1], 2, 0.8), TypeError, "float 0.8",
           "Sampler"),
    misuse("generate-stop", lambda e: _model(e).generate([1], 2, stop="</s>"), TypeError, "'<'",
           "whole number"),
    misuse("generate-shift", lambda e: _model(e).generate([1], 2, context_shift=True), BAD,
           "context_shift", "libllama"),
    misuse("model-plan", lambda e: _model(e).plan(0), BAD, "n_tokens=0", "1 to"),
    misuse("model-plan-str", lambda e: _model(e).plan("8"), TypeError, "'8'", "whole number"),
    misuse("reserve", lambda e: _model(e).shortfalls(None), TypeError, "NoneType",
           "reserve: expected a whole number or a dict"),
    misuse("after-close", lambda e: _closed(_model(e)).n_past, ggml.ClosedError, "Model",
           "is closed"),
    misuse("seq-rm", lambda e: _model(e).seq_rm(0), AttributeError, "seq_rm", 'graphs="libllama"'),
    misuse("sampler-temp", lambda e: models.Sampler(temperature="hot"), TypeError, "'hot'",
           "temperature"),
    misuse("sampler-top-p", lambda e: models.Sampler(top_p=2), ARG, "top_p=2", "0 to 1"),
    misuse("sampler-bias", lambda e: models.Sampler(logit_bias=[5]), TypeError, "list",
           "logit_bias: expected {token: bias}"),
    misuse("sampler-breakers", lambda e: models.Sampler(dry_sequence_breakers=5), TypeError, "5",
           "expected a list of texts"),
    misuse("batch-token", lambda e: models.Batch().add("a"), TypeError, "'a'", "whole number"),
    # text and libllama's models
    _of_llama("tokenize-none", lambda e: _tokenizer(e).tokenize(None), TypeError, "NoneType",
              "text: expected a str"),
    _of_llama("tokenize-bytes", lambda e: _tokenizer(e).tokenize(b"hi"), TypeError, "bytes",
              "text: expected a str"),
    _of_llama("tokenize-surrogate", lambda e: _tokenizer(e).tokenize("\ud800"), ARG, r"\ud800",
              "UTF-8 can encode"),
    _of_llama("tokenize-flag", lambda e: _tokenizer(e).tokenize("hi", "yes"), TypeError, "'yes'",
              "add_special: expected True or False"),
    _of_llama("detokenize-one", lambda e: _tokenizer(e).detokenize(5), TypeError, "int 5",
              "tokens: expected a sequence of whole numbers"),
    _of_llama("detokenize-text", lambda e: _tokenizer(e).detokenize("hi"), TypeError, "'hi'",
              "a sequence of whole numbers"),
    _of_llama("detokenize-far", lambda e: _tokenizer(e).detokenize([300]), ARG, "300", "0 to 299"),
    _of_llama("piece", lambda e: _tokenizer(e).piece(None), TypeError, "NoneType",
              "token: expected a whole number"),
    _of_llama("chat-text", lambda e: _tokenizer(e).chat("hi"), TypeError, "'hi'",
              "messages: expected a sequence"),
    _of_llama("chat-one", lambda e: _tokenizer(e).chat(HI), TypeError, "dict",
              "messages: expected a sequence"),
    _of_llama("chat-role", lambda e: _tokenizer(e).chat([{**HI, "role": None}]), TypeError,
              "NoneType", "messages[0]['role']: expected a str"),
    _of_llama("chat-content", lambda e: _tokenizer(e).chat([HI, {**HI, "content": None}]),
              TypeError, "NoneType", "messages[1]['content']: expected a str"),
    _of_llama("chat-keys", lambda e: _tokenizer(e).chat([{"text": "hi"}]), BAD, "'text'",
              '"content": ...'),
    _of_llama("chat-nul", lambda e: _tokenizer(e).chat([{**HI, "content": "a\0b"}]), ARG,
              r"a\x00b", "content of message 0"),
    _of_llama("chat-role-nul", lambda e: _tokenizer(e).chat([{**HI, "role": "us\0er"}]), ARG,
              r"us\x00er", "role of message 0"),
    _of_llama("chat-template", lambda e: _tokenizer(e).chat([HI], "a\0b"), ARG, r"a\x00b",
              "without NUL"),
    _of_llama("open-fit", lambda e: llama.open(_path(e), header_only=5), TypeError, "int 5",
              "header_only: expected True or False"),
    _of_llama("eval-number", lambda e: _llama(e).eval(5), BAD, "5", "list of token ids"),
    _of_llama("embed-none", lambda e: _llama(e).embed(None), BAD, "None", "list of token ids"),
    _of_llama("decode-list", lambda e: _llama(e).decode([1, 2]), TypeError, "list", "Batch"),
    _of_llama("seq-far", lambda e: _llama(e).seq_rm(3), BAD, "sequence 3", "0 to 0"),
    _of_llama("seq-state", lambda e: _llama(e).set_seq_state(0, "abc"), TypeError, "'abc'",
              "bytes"),
    _of_llama("save-none", lambda e: _llama(e).save_seq(None), TypeError, "NoneType", "a path"),
    _of_llama("record-flag3", lambda e: _llama(e).record(per_op=None), TypeError, "NoneType",
              "per_op: expected True or False"),
    _of_llama("closed-tokenizer", lambda e: _closed(_llama(e)).tokenizer.tokenize("hi"),
              ggml.ClosedError, "LlamaModel", "closed"),
]  # fmt: skip
