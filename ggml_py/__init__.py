"""Drive upstream ggml from Python, and know why every op runs where it runs.

Names are loaded on first use, so plans (`ggml_py.Plan`) can be read without the native library.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import enums as enums
    from .backends.backend import Backend as Backend
    from .backends.backend import Event as Event
    from .backends.buffer import Buffer as Buffer
    from .backends.buffer import BufferType as BufferType
    from .backends.device import Device as Device
    from .backends.device import DeviceCaps as DeviceCaps
    from .backends.device import DeviceProps as DeviceProps
    from .backends.device import best_device as best_device
    from .backends.device import device as device
    from .backends.device import devices as devices
    from .backends.registry import Registry as Registry
    from .backends.registry import load_backend as load_backend
    from .backends.registry import registries as registries
    from .backends.rpc import rpc_devices as rpc_devices
    from .backends.threadpool import ThreadPool as ThreadPool
    from .boundary.ffi import ffi as ffi
    from .boundary.ffi import lib as lib
    from .boundary.isolate import isolate as isolate
    from .errors import AbortError as AbortError
    from .errors import AllocError as AllocError
    from .errors import ArgumentError as ArgumentError
    from .errors import BusyError as BusyError
    from .errors import ClosedError as ClosedError
    from .errors import ComputeError as ComputeError
    from .errors import DamagedFileError as DamagedFileError
    from .errors import GgmlError as GgmlError
    from .errors import GgufError as GgufError
    from .errors import IsolatedDeath as IsolatedDeath
    from .errors import IsolatedTimeout as IsolatedTimeout
    from .errors import LoadError as LoadError
    from .errors import MissingFunctionError as MissingFunctionError
    from .errors import ModelError as ModelError
    from .errors import NoDataError as NoDataError
    from .errors import NotBuiltError as NotBuiltError
    from .errors import PlacementError as PlacementError
    from .errors import RpcError as RpcError
    from .errors import ServerLostError as ServerLostError
    from .errors import SpoiledError as SpoiledError
    from .errors import UnknownDeviceError as UnknownDeviceError
    from .gguf.reader import Gguf as Gguf
    from .gguf.writer import write_gguf as write_gguf
    from .graphs.alloc import GraphAllocator as GraphAllocator
    from .graphs.alloc import TensorAllocator as TensorAllocator
    from .graphs.context import Context as Context
    from .graphs.graph import Graph as Graph
    from .graphs.graph_plan import CpuNode as CpuNode
    from .graphs.graph_plan import CpuPlan as CpuPlan
    from .graphs.graph_plan import GraphPlan as GraphPlan
    from .graphs.reallocation import Reallocation as Reallocation
    from .graphs.two_backends import compare_graph_backend as compare_graph_backend
    from .llama.model import Model as Model
    from .plan import Plan as Plan
    from .record import record as record
    from .record.session import Record as Record
    from .run import Run as Run
    from .scheduler.allocator_memory import allocator_memory as allocator_memory
    from .scheduler.recording import Recording as Recording
    from .scheduler.scheduler import Scheduler as Scheduler
    from .scheduler.strict import strict as strict
    from .scheduler.view import SchedState as SchedState
    from .sim.named import load_profile as load_profile
    from .sim.named import profiles as profiles
    from .sim.sim_device import SimDevice as SimDevice
    from .sim.sim_device import sim_device as sim_device
    from .tensors.convert import dequantize as dequantize
    from .tensors.convert import quantize as quantize
    from .tensors.tensor import Tensor as Tensor
    from .trace.answers.variant import Nearest as Nearest
    from .trace.answers.variant import Variant as Variant
    from .train.datasets import Dataset as Dataset
    from .train.datasets import OptResult as OptResult
    from .train.fit import Epoch as Epoch
    from .train.fit import Progress as Progress
    from .train.fit import epoch as epoch
    from .train.fit import fit as fit
    from .train.fit import progress_bar as progress_bar
    from .train.opt_context import OptContext as OptContext
    from .train.optimizers import SGD as SGD
    from .train.optimizers import AdamW as AdamW
    from .variants.nearest import nearest as nearest

__version__ = "0.2.0"

# Public name -> the module that defines it. `enums` is itself a module.
_PUBLIC = {
    "ffi": "boundary.ffi",
    "lib": "boundary.ffi",
    "isolate": "boundary.isolate",
    "GraphAllocator": "graphs.alloc",
    "TensorAllocator": "graphs.alloc",
    "Backend": "backends.backend",
    "Event": "backends.backend",
    "Buffer": "backends.buffer",
    "BufferType": "backends.buffer",
    "Context": "graphs.context",
    "compare_graph_backend": "graphs.two_backends",
    "Device": "backends.device",
    "DeviceCaps": "backends.device",
    "DeviceProps": "backends.device",
    "best_device": "backends.device",
    "device": "backends.device",
    "devices": "backends.device",
    "dequantize": "tensors.convert",
    "quantize": "tensors.convert",
    "AbortError": "errors",
    "AllocError": "errors",
    "ArgumentError": "errors",
    "BusyError": "errors",
    "ClosedError": "errors",
    "ComputeError": "errors",
    "DamagedFileError": "errors",
    "GgmlError": "errors",
    "GgufError": "errors",
    "IsolatedDeath": "errors",
    "IsolatedTimeout": "errors",
    "LoadError": "errors",
    "MissingFunctionError": "errors",
    "ModelError": "errors",
    "NoDataError": "errors",
    "NotBuiltError": "errors",
    "PlacementError": "errors",
    "RpcError": "errors",
    "ServerLostError": "errors",
    "SpoiledError": "errors",
    "UnknownDeviceError": "errors",
    "Gguf": "gguf.reader",
    "Model": "llama.model",
    "write_gguf": "gguf.writer",
    "Graph": "graphs.graph",
    "CpuNode": "graphs.graph_plan",
    "CpuPlan": "graphs.graph_plan",
    "GraphPlan": "graphs.graph_plan",
    "OptContext": "train.opt_context",
    "Dataset": "train.datasets",
    "OptResult": "train.datasets",
    "Epoch": "train.fit",
    "Progress": "train.fit",
    "epoch": "train.fit",
    "fit": "train.fit",
    "progress_bar": "train.fit",
    "AdamW": "train.optimizers",
    "SGD": "train.optimizers",
    "Recording": "scheduler.recording",
    "Registry": "backends.registry",
    "load_backend": "backends.registry",
    "registries": "backends.registry",
    "rpc_devices": "backends.rpc",
    "Reallocation": "graphs.reallocation",
    "SchedState": "scheduler.view",
    "Scheduler": "scheduler.scheduler",
    "SimDevice": "sim.sim_device",
    "sim_device": "sim.sim_device",
    "load_profile": "sim.named",
    "profiles": "sim.named",
    "allocator_memory": "scheduler.allocator_memory",
    "strict": "scheduler.strict",
    "Tensor": "tensors.tensor",
    "ThreadPool": "backends.threadpool",
    "nearest": "variants.nearest",
    "Plan": "plan",
    "Record": "record.session",
    "record": "record",
    "Run": "run",
    "Nearest": "trace.answers.variant",
    "Variant": "trace.answers.variant",
    "enums": "",
}
_PLAIN = (
    "errors",
    "plan",
    "record",
    "record.session",
    "run",
    "trace.answers.variant",
    "boundary.isolate",
    "sim.named",
)
_FOLDERS = ("llama", "models")  # modules that an attribute imports, too
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC and name not in _FOLDERS and name != "ops":
        raise AttributeError(f"module 'ggml_py' has no attribute '{name}'")
    if _PUBLIC.get(name) not in _PLAIN:
        # Before numpy: it says which Pythons are not supported.
        importlib.import_module("ggml_py.boundary.ffi")
    if name in _FOLDERS:
        return importlib.import_module(f"ggml_py.{name}")
    if name in ("enums", "ops"):
        value: Any = importlib.import_module(
            "ggml_py.enums" if name == "enums" else "ggml_py.graphs.ops"
        )
    else:
        value = getattr(importlib.import_module(f"ggml_py.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


_IMPORTED_IN_CALLS = (
    "graphs.graph_plan", "backends.registry", "backends.rpc", "gguf.writer", "graphs.alloc",
    "graphs.two_backends", "scheduler.capture", "scheduler.scheduler", "scheduler.view",
    "sim.sim_device", "tensors.dlpack", "train.fit", "variants.nearest",
)  # fmt: skip


def import_before_fork() -> None:
    """Imports whatever calls import, if there are several threads. One of them may be importing a
    module, and its lock would stay locked in the child. boundary/handle.py registers it."""
    if len(sys._current_frames()) > 1:
        for name in _IMPORTED_IN_CALLS:
            importlib.import_module(f"ggml_py.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


if not any(Path(__file__).parent.glob("native/lib/*/build.json")):
    from .builds import is_pure, why_none

    if (_why := why_none()) and not is_pure():
        import warnings

        warnings.warn(f"{_why}. Until then plans can be read, but nothing can run", stacklevel=2)
