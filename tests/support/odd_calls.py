"""Every public call × every parameter × values that do not fit, generated from the signatures.

`docs/api/` lists what is public. `run` makes the calls in child processes, which print a line
before each call: if a child dies or hangs, that call is a finding.

    python -m tests.support.odd_calls [WORD ..]     the calls whose names have one of the words
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

import ggml_py as ggml
from ggml_py import models
from ggml_py.boundary.handle import Handle
from ggml_py.cost.machine import Machine
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.trace.answers import decisions
from ggml_py.trace.answers.sweep import sweep

from . import drawn_plans

REPO = Path(__file__).resolve().parents[2]
HANG_S = 10.0
MOST_MEMORY = 16 << 30  # bytes of address space that the calls of a process may add
LEFT_OUT = {  # regular expressions of calls, and why
    r"Model|Planned|Recorded|ReadScheduler|SimDevice|BorrowedScheduler": "a base",
    r"(Device|Registry|Backend|Event|Buffer|BufferType|Gguf|Tensor|SchedState|Array|Pointer|HashSet"
    r"|Cgraph|SchedSplit|Galloc|BufferView|LlamaModel|Tokenizer|Decisions|Split|PlanTensor"
    r"|PlanMemory|ComputeBuffer|SelfRecord|Keys|LayerPlacement|CardProfile|Plan|Run|Record)":
        "its objects are made by other calls",
    r"\w*(Planned|Recorded|ReadScheduler|BorrowedScheduler|SimDevice)\..*": "as of its subclass",
    r".*\.(derived|compute_by|note|check_changes)": "called by this package",
    r"Capture\.(names|own_memory|is_weight|buft_of)|memory_of|added|limits|AnyProfile.*"
    r"|Observed.from_json|train_scale|check_dense|sliding_window|run_once|run_again|unplaced_lines"
    r"|median_seconds|op_test_lines|why_no_test|op_test|Plan.chosen|Refused.clause"
    r"|Comparison.text|Corpus.add|Keys\..*|Process.(add_rows|places)":
        "takes what only its own module makes",
    r"fit|epoch|progress_bar|isolate|rpc_devices": "calls its arguments, or a network",
    r"ggml_py\.(releases|calibrate|conformance)\..*": "starts programs and builds",
    r"op_program|diverge|run_side|check_ops|OpProgram\..*|corpus_plans|run_changes": "programs",
}  # fmt: skip
NUMPYS = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


_FUNCTIONS = "Callable|Sample|Function|PlanOf|Any$"


def _generator() -> Iterator[int]:
    yield 1


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None, "0": lambda: 0, "-1": lambda: -1, "2**63": lambda: 2**63,
    "-2**70": lambda: -(2**70), "1.5": lambda: 1.5, "nan": lambda: math.nan, "True": lambda: True,
    "''": lambda: "", "'x'": lambda: "x", "NUL": lambda: "x\0y", "surrogate": lambda: "\ud800",
    "bytes": lambda: b"x", "[]": lambda: [], "[None]": lambda: [None], "[1, 2]": lambda: [1, 2],
    "{}": lambda: {}, "{'x': None}": lambda: {"x": None}, "generator": _generator,
    "object": object, "class": lambda: int, "float32": lambda: np.float32(1),
    "int64": lambda: np.int64(-3), "0-d": lambda: np.array(3), "empty": lambda: np.zeros(0),
    "5-d": lambda: np.zeros((1, 2, 3, 1, 2)), "objects": lambda: np.array([None, {}]),
    "missing": lambda: Path("missing/file"), "device": lambda: ggml.device("CPU"),
    "context": lambda: ggml.Context(4096), "closed": lambda: _closed(ggml.Context(4096)),
}  # fmt: skip


def _closed(handle: Any) -> Any:
    handle.close()
    return handle


# --- what is public


def _resolve(name: str) -> Any:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(".".join(parts[:end]))
            for part in parts[end:]:
                found = getattr(found, part)
            return found
    raise LookupError(name)


@cache
def public() -> dict[str, Any]:
    """Functions and classes that docs/api lists, by name."""
    pages = "\n".join(page.read_text() for page in sorted((REPO / "docs" / "api").glob("*.md")))
    out = {}
    for name in re.findall(r"^::: (\S+)", pages, re.M):
        found = _resolve(name)
        if not inspect.ismodule(found):
            out[name.rpartition(".")[2] if inspect.isclass(found) else name] = found
            continue
        for key, value in vars(found).items():
            ours = getattr(value, "__module__", None) == found.__name__
            if ours and key[0] != "_" and (inspect.isclass(value) or inspect.isfunction(value)):
                out[key if inspect.isclass(value) else f"{found.__name__}.{key}"] = value
    return {k: v for k, v in out.items() if callable(v) and not _is_error(v)}


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _is_data(cls: type) -> bool:
    """A record keeps what it is given."""
    return hasattr(cls, "_fields") or (hasattr(cls, "__dataclass_fields__") and not (
        hasattr(cls, "__post_init__")))  # fmt: skip


@cache
def calls() -> dict[str, tuple[type | None, str]]:
    """Label -> the class whose instance has it, or None, and the name of the method."""
    out: dict[str, tuple[type | None, str]] = {}
    for name, value in public().items():
        if not inspect.isclass(value):
            out[name] = None, name
            continue
        if not (_is_data(value) or inspect.isabstract(value) or value.__name__.startswith("_")):
            out[name] = None, name
        for key in dir(value):
            kind = inspect.getattr_static(value, key)
            if key[0] == "_" or not _is_ours(value, key):
                continue
            if isinstance(kind, property):
                if kind.fset is not None:
                    out[f"{name}.{key}"] = value, key
            elif callable(getattr(value, key, None)) and not inspect.isclass(getattr(value, key)):
                out[f"{name}.{key}"] = value, key
    left = re.compile("|".join(f"(?:{pattern})" for pattern in LEFT_OUT))
    short = {name: name.rpartition(".")[2] if ok[0] is None else name for name, ok in out.items()}
    kept = {k: v for k, v in out.items() if not (left.fullmatch(k) or left.fullmatch(short[k]))}
    return {k: v for k, v in kept.items() if len(_parameters(*v)) > (v[0] is not None)}


def _parameters(cls: type | None, name: str) -> Mapping[str, inspect.Parameter]:
    found = public()[name] if cls is None else inspect.getattr_static(cls, name)
    found = getattr(found, "fset", None) or getattr(found, "__func__", found)
    with contextlib.suppress(ValueError):
        return inspect.signature(found).parameters
    return {}


def _is_ours(cls: type, key: str) -> bool:
    owner = next((base for base in cls.__mro__ if key in vars(base)), object)
    return owner.__module__.startswith("ggml_py")


# --- arguments that fit


class World:
    """Objects of each kind, made when they are needed, and again once they were closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self._n = 0

    def get(self, name: str) -> Any:
        """The object of a class of that name."""
        found = self.made.get(name)
        if found is None or getattr(found, "closed", False) is True:
            found = self.made[name] = MAKE[name](self) if name in MAKE else self.record(name)
        return found

    def record(self, name: str) -> Any:
        """Plain data: a part of a plan or of something that was asked of it."""
        if not self.data:
            plan, run = self.get("Plan"), self.get("Run")
            seeds = [plan, run, plan.explain(0), plan.why_not(0, "CPU"), plan.memory, run.summary()]
            seeds += [plan.diff(plan), self.get("Machine"), plan.cost(self.get("Machine"))]
            seeds += [ggml.device("CPU").props, *plan.splits, *plan.nodes[:3], self.get("Tensor")]
            seeds += [self.get("Scheduler").state, self.get("OwnModel"), *plan.advice(0)]
            for seed in seeds:
                self._harvest(seed, 3)
        if name not in self.data:
            raise LookupError(f"no {name} here")
        return self.data[name]

    def _harvest(self, value: Any, depth: int) -> None:
        if isinstance(value, list | tuple | frozenset) and not hasattr(value, "_fields"):
            for part in list(value)[:3]:
                self._harvest(part, depth)
            return
        if not type(value).__module__.startswith("ggml_py") or type(value).__name__ in self.data:
            return
        self.data[type(value).__name__] = value
        for key in dir(value) if depth else ():
            if key[0] != "_":
                with contextlib.suppress(Exception):
                    self._harvest(getattr(value, key), depth - 1)

    def argument(self, parameter: inspect.Parameter) -> Any:
        """A value that fits a parameter."""
        if parameter.name in BY_NAME:
            return BY_NAME[parameter.name](self)
        return self.of(_text(parameter.annotation))

    def of(self, annotation: str) -> Any:
        """A value that fits an annotation."""
        part = next(p for p in _union(annotation))
        head, _, rest = part.partition("[")
        inner = rest.rpartition("]")[0]
        head = head.rpartition(".")[2]
        if head == "Annotated":
            return self.of(_split(inner)[0])
        if head in ("Sequence", "Iterable", "list", "Collection", "frozenset", "tuple", "Iterator"):
            parts = [p for p in _split(inner) if p != "..."]
            values = [self.of(p) for p in parts]
            kind = {"list": list, "frozenset": frozenset}.get(head, tuple)
            return kind(values)
        if head in ("dict", "Mapping"):
            key, value = _split(inner)
            return {self.of(key): self.of(value)}
        if head == "Callable":
            return lambda *_a: True
        return self.get(head)

    def close(self) -> None:
        """Closes what is open."""
        for value in reversed(list(self.made.values())):
            if isinstance(value, Handle) or hasattr(value, "close"):
                with contextlib.suppress(Exception):
                    value.close()

    def fresh(self) -> int:
        """A number that no call had."""
        self._n += 1
        return self._n


def _text(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "Any"
    if not isinstance(annotation, str):
        name = getattr(annotation, "__name__", str(annotation))
        annotation = getattr(annotation, "__forward_arg__", name)
    return annotation.strip("'\"")


def _outer(text: str, at: str) -> Iterator[str]:
    depth, part = 0, ""
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == at and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += c
    yield part.strip()


def _union(text: str) -> list[str]:
    return list(_outer(text, "|"))


def _split(text: str) -> list[str]:
    return list(_outer(text, ","))


def _small(world: World) -> Path:
    path = world.folder / "small.gguf"
    if not path.exists():
        write_llama(path, LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=1, n_ff=32,
                                    n_vocab=300, type="f32"))  # fmt: skip
    return path


def _file(world: World, suffix: str, write: Callable[[Path], object]) -> Path:
    path = world.folder / f"good{suffix}"
    if not path.exists():
        write(path)
    return path


def _load(world: World, **options: Any) -> Any:
    return models.load(_small(world), n_threads=1, n_ctx=64, **options)


def _tensor(world: World) -> ggml.Tensor:
    tensor = world.get("Context").new_tensor("f32", 4, 4, name="t")
    world.get("Context").alloc(world.get("Backend"))
    tensor.set(np.zeros((4, 4), np.float32))
    return tensor


def _graph(world: World) -> ggml.Graph:
    graph = world.get("Context").new_graph(16)
    graph.build_forward_expand(world.get("Context").sqr(world.get("Tensor")))
    return graph


def _plan(_world: World) -> ggml.Plan:
    return drawn_plans.llama(4)


def _run(world: World) -> ggml.Run:
    return drawn_plans.ran(world.get("Plan"))


def _machine(_world: World) -> Any:
    return Machine.of_sheets({"gpu0": "rtx4090"})


def _opt(world: World) -> ggml.OptContext:
    context = world.get("Context")
    x, p = context.new_tensor("f32", 4), context.new_tensor("f32", 4)
    p.set_param()
    context.alloc(world.get("Backend"))
    made = ggml.Scheduler([world.get("Backend")], graph_size=128)
    world.made["opt's scheduler"] = made
    return ggml.OptContext(made, "sum", ggml.SGD(), inputs=x, outputs=context.mul(p, x))


def _sim(world: World) -> ggml.SimDevice:
    return ggml.sim_device(f"odd{world.fresh()}", profile="rtx4090")


MAKE: dict[str, Callable[[World], Any]] = {
    "int": lambda w: 1, "float": lambda w: 1.0, "str": lambda w: "CPU", "bool": lambda w: True,
    "bytes": lambda w: b"x", "Any": lambda w: 1, "object": lambda w: 1, "None": lambda w: None,
    "Path": lambda w: _small(w), "PathLike": lambda w: _small(w), "type": lambda w: int,
    "Backend": lambda w: ggml.device("CPU").init(n_threads=1),
    "Device": lambda w: ggml.device("CPU"), "SimDevice": _sim,
    "Context": lambda w: ggml.Context(1 << 20),
    "Tensor": _tensor, "AnyTensor": lambda w: w.get("Tensor"), "Graph": _graph,
    "TensorInfo": lambda w: w.get("Tensor"), "TensorData": lambda w: w.get("Tensor"),
    "AnyGraph": lambda w: w.get("Graph"), "Plannable": lambda w: w.get("Graph"),
    "Scheduler": lambda w: ggml.Scheduler([w.get("Backend")], graph_size=64),
    "ReadScheduler": lambda w: w.get("Scheduler"), "Planner": lambda w: w.get("Scheduler"),
    "LiveScheduler": lambda w: w.get("Scheduler"), "Recorded": lambda w: w.get("Scheduler"),
    "SchedState": lambda w: w.get("Scheduler").state, "Model": lambda w: w.get("OwnModel"),
    "HashSet": lambda w: w.get("Scheduler").state.hash_set,
    "Buffer": lambda w: w.get("BufferType").alloc(256), "ThreadPool": lambda w: ggml.ThreadPool(1),
    "BufferType": lambda w: ggml.device("CPU").buffer_type, "Plan": _plan, "Run": _run,
    "Planned": lambda w: w.get("Plan"), "PlanT": lambda w: w.get("Plan"), "Machine": _machine,
    "GraphAllocator": lambda w: _allocator(w),
    "TensorAllocator": lambda w: ggml.TensorAllocator(w.get("Buffer")),
    "GraphPlan": lambda w: w.get("Backend").graph_plan(w.get("Graph")),
    "CpuPlan": lambda w: ggml.CpuPlan(w.get("Graph")),
    "Event": lambda w: w.get("SimDevice").event(),
    "Registry": lambda w: ggml.registries()[0], "Gguf": lambda w: ggml.Gguf.open(_small(w)),
    "Dataset": lambda w: ggml.Dataset(np.arange(8).reshape(4, 2)), "OptContext": _opt,
    "OptResult": lambda w: ggml.OptResult(), "OwnModel": lambda w: _load(w, graphs="ours"),
    "LlamaModel": lambda w: _load(w, graphs="libllama"), "AdamW": lambda w: ggml.AdamW(),
    "Tokenizer": lambda w: w.get("LlamaModel").tokenizer, "Batch": lambda w: _batch(),
    "Sampler": lambda w: models.Sampler(), "LlamaSpec": lambda w: LlamaSpec(),
    "Fit": lambda w: False, "Optimizer": lambda w: "ADAMW", "CompareFunction": lambda w: _true,
    "CustomFunction": lambda w: _true, "EvalFunction": lambda w: _true,
    "CopyFunction": lambda w: _true, "Sample": lambda w: None, "Progress": lambda w: None,
    "NDArray": lambda w: np.zeros((4, 4), np.float32), "TypeLike": lambda w: "f32",
    "ArrayLike": lambda w: np.zeros((4, 4), np.float32), "Logits": lambda w: np.zeros(300, "f4"),
    "memmap": lambda w: np.zeros(4, np.uint8), "Type": lambda w: ggml.enums.Type.F32,
    "Profile": lambda w: w.get("AnyProfile"), "AnyProfile": lambda w: ggml.load_profile("rtx4090"),
    "CardProfile": lambda w: ggml.load_profile("rtx4090"), "Interval": lambda w: (1.0, 2.0),
    "Time": lambda w: None, "Value": lambda w: 1, "Shape": lambda w: {"n": 1}, "P": _plan,
    "Supports": lambda w: None, "Pins": lambda w: {}, "Offload": lambda w: {},
    "Moves": lambda w: {},
    "Reserve": lambda w: 0, "Recording": lambda w: ggml.Recording(w.get("Scheduler")),
    "Overrides": lambda w: {}, "Predict": lambda w: None,
    "PlanOf": lambda w: lambda *a: w.get("Plan"),
    "NumaStrategy": lambda w: "disabled", "SchedPriority": lambda w: "normal", "Prec": lambda w: 0,
    "OpPool": lambda w: "avg", "GluOp": lambda w: "swiglu", "UnaryOp": lambda w: "relu",
    "ScaleMode": lambda w: 0, "SortOrder": lambda w: 0, "TriType": lambda w: 0,
    "OpHint": lambda w: 0,
    "OptLossType": lambda w: "sum", "OptBuildType": lambda w: "forward",
    "SGD": lambda w: ggml.SGD(),
    "BackendDevType": lambda w: "gpu", "Op": lambda w: "add", "TensorEntry": lambda w: (
        "t", np.ones(4), "f32", (4,)), "Names": lambda w: {}, "Count": lambda w: 1,
    "Record": lambda w: ggml.Record.read(_recorded(w)),
    "LayerPlacement": lambda w: w.get("OwnModel").placement,
    "SelfRecord": lambda w: ggml.record(w.folder / f"own{w.fresh()}.record"),
    "HParams": lambda w: w.get("OwnModel").hparams, "PlanTensor": lambda w: w.get("Plan").nodes[1],
    "AllocatorMemory": lambda w: ggml.allocator_memory(w.get("GraphAllocator"), w.get("Graph")),
    "BufferView": lambda w: w.get("Tensor").buffer, "TextIO": lambda w: sys.stdin,
    "TensorRecord": lambda w: w.get("Plan").capture.tensors[0],
    "Decisions": lambda w: decisions.Decisions(w.get("Plan")),
    "Capture": lambda w: w.get("Plan").capture, "Estimator": lambda w: None,
    "Threshold": lambda w: w.get("Sweep").thresholds[0], "Sweep": lambda w: _sweep(w),
}  # fmt: skip
BY_NAME: dict[str, Callable[[World], Any]] = {
    "backend": lambda w: w.get("Backend"), "tokens": lambda w: [1, 2], "op": lambda w: "MUL_MAT",
    "endpoint": lambda w: "127.0.0.1:1", "which": lambda w: 1, "graphs": lambda w: "auto",
    "seq": lambda w: 0, "dst": lambda w: 0, "ne": lambda w: (4, 4), "idx": lambda w: 1,
    "part": lambda w: 0, "axis": lambda w: "n", "batch": lambda w: _batch(),
    "words": lambda w: ["-m", str(_small(w))],
    "messages": lambda w: [{"role": "user", "content": "hi"}], "text": lambda w: "hello",
    "usage": lambda w: "weights", "axes": lambda w: [1], "splits": lambda w: 1,
    "metadata": lambda w: {"general.architecture": "llama"}, "look": lambda w: lambda *_: True,
    "cards": lambda w: {"gpu0": "rtx4090"}, "il": lambda w: 0, "arch": lambda w: "llama",
}  # fmt: skip
OF_CALL: dict[str, dict[str, Callable[[World], Any]]] = {
    "Plan": {"backend": lambda w: "CPU", "path": lambda w: w.folder / f"p{w.fresh()}.json"},
    "write": {"path": lambda w: w.folder / f"w{w.fresh()}.gguf"},
    "save_seq": {"path": lambda w: w.folder / f"s{w.fresh()}.seq"},
    "to_dot": {"path": lambda w: w.folder / "g.dot"},
    "record.record": {"path": lambda w: w.folder / f"r{w.fresh()}.record"},
    "Machine.save": {"path": lambda w: w.folder / f"m{w.fresh()}.json"},
    "Machine.load": {"path": lambda w: _file(w, "m.json", w.get("Machine").save)},
    "Plan.from_json": {"path": lambda w: _file(w, ".json", w.get("Plan").to_json)},
    "Plan.from_snapshot": {"text": lambda w: w.get("Plan").snapshot()},
    "Run.from_json": {"path": lambda w: _file(w, "r.json", w.get("Run").to_json)},
    "Run": {"path": lambda w: w.folder / f"p{w.fresh()}.json"},
    "from_numpy": {"array": lambda w: np.zeros((4, 4), np.float32)},
    "Record.read": {"path": lambda w: _recorded(w)},
    "sim_device": {"name": lambda w: f"odd{w.fresh()}"},
    "load_profile": {"name": lambda w: "rtx4090"},
    "dequantize": {"raw": lambda w: np.zeros(64, np.uint8)},
    "checks.": {"backend": lambda w: "CPU", "backends": lambda w: {}},
    "cost.": {"backend": lambda w: "CPU", "device": lambda w: "CPU"},
    "work.": {"backend": lambda w: 0}, "WhyNot": {"backend": lambda w: "CPU"},
    ".answers": {"plan": lambda w: w.get("Plan")},
    "Observed.from_json": {"text": lambda w: "{}"},
    "Gguf.data": {"name": lambda w: "output_norm.weight"}, "trace.": {"backend": lambda w: "CPU"},
}  # fmt: skip


def _allocator(world: World) -> ggml.GraphAllocator:
    found = ggml.GraphAllocator(world.get("BufferType"))
    found.reserve(world.get("Graph"))
    return found


def _true(*_args: Any) -> bool:
    return True


def _sweep(world: World) -> Any:
    return sweep(lambda n: drawn_plans.llama(4, refused=("ROPE",) if n > 1 else ()), n=[1, 2])


def _batch() -> Any:
    batch = models.Batch()
    batch.add(1)
    return batch


def _recorded(world: World) -> Path:
    path = world.folder / "good.record"
    if not path.exists():
        with ggml.record(path):
            world.get("Scheduler").alloc_graph(world.get("Graph"))
            world.get("Scheduler").reset()
    return path


# --- one call


@cache
def _raises(file: str) -> frozenset[int]:
    """The lines of a file's raise statements."""
    tree = ast.parse(Path(file).read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Raise)]
    return frozenset(i for n in found for i in range(n.lineno, (n.end_lineno or n.lineno) + 1))


def flaw(error: Exception) -> str:
    """What is wrong with an error; "" if somebody wrote it for whoever made the mistake."""
    told = str(error)
    said = f"{type(error).__name__}: {told[:150]}"
    if not told or " " not in told:
        return f"says nothing: {error!r}"
    try:
        told.encode()
    except UnicodeEncodeError:
        return f"cannot be printed: {error!r}"
    if isinstance(error, ggml.GgmlError):
        return "" if not isinstance(error, ggml.AbortError) or error.rule or ":" in told else said
    if isinstance(error, OSError) and error.filename is not None:
        return ""
    if isinstance(error, BufferError):  # numpy's, of DLPack
        return ""
    frame = inspect.getinnerframes(error.__traceback__)[-1]
    if "ggml_py" in frame.filename:
        return "" if frame.lineno in _raises(frame.filename) else f"{said} ({_at(frame)})"
    if frame.filename == __file__:  # Python's: a missing argument
        return "" if "argument" in told else said
    return f"{said} ({_at(frame)})"


def _at(frame: inspect.FrameInfo) -> str:
    return f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"


def _outcome(call: Callable[[], Any]) -> str:
    try:
        result = call()
        if hasattr(result, "__enter__") and not isinstance(result, Handle):
            with result:
                pass
        elif inspect.isgenerator(result):
            for _ in range(3):
                next(result, None)
    except Exception as error:
        return flaw(error)
    return ""


def _bound(world: World, label: str) -> tuple[Callable[..., Any], list[inspect.Parameter]]:
    cls, name = calls()[label]
    if cls is None:
        function = public()[name]
    elif isinstance(kind := inspect.getattr_static(cls, name), property):
        owner = world.get(cls.__name__)
        parameter = list(inspect.signature(kind.fset).parameters.values())[1]
        return lambda **given: setattr(owner, name, *given.values()), [parameter]
    else:
        class_level = isinstance(kind, classmethod | staticmethod)
        function = getattr(cls if class_level else world.get(cls.__name__), name)
    try:
        return function, list(inspect.signature(function).parameters.values())
    except ValueError:
        return function, []


def _good(world: World, label: str, parameter: inspect.Parameter) -> Any:
    for part, names in OF_CALL.items():
        if part in label and parameter.name in names:
            return names[parameter.name](world)
    return world.argument(parameter)


def _given(world: World, label: str, parameters: list[inspect.Parameter]) -> dict[str, Any]:
    needed = [p for p in parameters if p.kind in (*NAMED, inspect.Parameter.POSITIONAL_ONLY)]
    return {p.name: _good(world, label, p) for p in needed if p.default is p.empty}


def _call(function: Any, parameters: list[inspect.Parameter], given: Mapping[str, Any]) -> Any:
    kinds = {p.name: p.kind for p in parameters}
    first, rest = [], {}
    for name, value in given.items():
        positional = kinds.get(name) in (
            inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)  # fmt: skip
        if positional:
            first.append(value)
        elif kinds.get(name) is not inspect.Parameter.VAR_KEYWORD:
            rest[name] = value
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):  # what comes before it, in order
        order = [p.name for p in parameters if p.name in given and p.kind is not p.KEYWORD_ONLY]
        first = [given[name] for name in order]
        rest = {k: v for k, v in rest.items() if k not in order}
    return function(*first, **rest)


def tried(folder: Path, label: str) -> Iterator[tuple[str, str]]:
    """The odd calls of one label: each one's text, before it is made, and then its flaw."""
    if label.startswith("test: "):  # what the tests of this file do
        yield label[6:], ""
        os.kill(os.getpid(), signal.SIGKILL if "dies" in label else signal.SIGSTOP)
    world = World(folder)
    try:
        function, parameters = _bound(world, label)
        yield f"{label}()", ""
        good = _outcome(lambda: _call(function, parameters, _given(world, label, parameters)))
        if good:
            yield f"{label}()", f"GOOD: {good}"
        for asked in parameters:
            if asked.kind is asked.VAR_KEYWORD:
                continue
            for kind, make in ODD.items():
                if kind == "class" and re.search(_FUNCTIONS, _text(asked.annotation)):
                    continue  # it is one, and its own errors are the caller's
                text = f"{label}({asked.name}={kind})"
                yield text, ""
                function, parameters = _bound(world, label)
                given = {**_given(world, label, parameters), asked.name: make()}
                given = {p.name: given[p.name] for p in parameters if p.name in given}
                wrong = _outcome(lambda f=function, p=parameters, g=given: _call(f, p, g))
                if kind == "None" and not wrong and _text(asked.annotation) == "str":
                    wrong = "takes None for a text" if _returns(function, parameters, given) else ""
                yield text, wrong
            yield from _numpys(world, label, asked)
    except LookupError as error:
        yield f"{label}()", f"WORLD: {error}"
    finally:
        world.close()


def _numpys(world: World, label: str, asked: inspect.Parameter) -> Iterator[tuple[str, str]]:
    """The call with a number or text as numpy has it: the same."""
    function, parameters = _bound(world, label)
    given = _given(world, label, parameters)
    value = given.get(asked.name, asked.default)
    if type(value) in NUMPYS and asked.kind in NAMED:
        text = f"{label}({asked.name}={NUMPYS[type(value)].__name__})"
        yield text, ""
        given[asked.name] = NUMPYS[type(value)](value)
        yield text, _outcome(lambda: _call(function, parameters, given))


def _returns(function: Any, parameters: list[inspect.Parameter], given: dict[str, Any]) -> bool:
    with contextlib.suppress(Exception):
        _call(function, parameters, given)
        return True
    return False


# --- processes


def child(labels: list[str]) -> None:
    """Makes the calls of these labels, and prints a line before and after each."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_MEMORY, hard))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for label in labels:
            try:
                for text, wrong in tried(Path(folder), label):
                    print(json.dumps([label, text, wrong]), file=out)
            except Exception:
                print(json.dumps([label, label, traceback.format_exc()]), file=out)
            print(json.dumps([label, "", ""]), file=out)
        os.chdir(REPO)


def run(labels: list[str]) -> tuple[list[str], int]:
    """The flaws of the calls of these labels, and the number of calls."""
    wrong, n, left = [], 0, list(labels)
    while left:
        lines: SimpleQueue[str | None] = SimpleQueue()
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
             "from tests.support import odd_calls; odd_calls.child(sys.argv[2:])",
             json.dumps(sys.path), *left],
            stdout=subprocess.PIPE, text=True, cwd=REPO,
        )  # fmt: skip
        Thread(target=lambda p=process, q=lines: [*map(q.put, p.stdout), q.put(None)]).start()
        begun, end = (left[0], "import"), ""
        while True:
            try:
                line = lines.get(timeout=HANG_S if begun[1] != "import" else 120)
            except Empty:
                end = f"hangs for more than {HANG_S:g} s"
                process.kill()
                break
            if line is None:
                break
            label, text, flaw_ = json.loads(line)
            if not text:
                left.remove(label)
                continue
            begun = label, text
            n += not flaw_ and 1
            if flaw_:
                wrong.append(f"{text}: {flaw_}")
        code = process.wait()
        if end or (code and left):
            wrong.append(f"{begun[1]}: {end or f'ends the process ({code})'}")
            left = [label for label in left if label != begun[0]]
        elif code:
            wrong.append(f"{begun[1]}: the process ends with {code}")
    return wrong, n


if __name__ == "__main__":
    sys.path.append(str(REPO))
    chosen = [c for c in calls() if not sys.argv[1:] or any(w in c for w in sys.argv[1:])]
    found, count = run(chosen)
    print(*found, f"{len(chosen)} functions, {count} calls, {len(found)} findings", sep="\n")
