"""Drive upstream ggml from Python, and know why every op runs where it runs.

Names are loaded when they are first used: plans (`ggml_py.Plan`) can be read in a process where the
native library is missing.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import enums as enums
    from ._device import Device as Device
    from ._device import DeviceCaps as DeviceCaps
    from ._device import DeviceProps as DeviceProps
    from ._device import best_device as best_device
    from ._device import device as device
    from ._device import devices as devices
    from ._ffi import ffi as ffi
    from ._ffi import lib as lib
    from ._isolate import isolate as isolate
    from ._strict import strict as strict
    from .alloc import GraphAllocator as GraphAllocator
    from .alloc import TensorAllocator as TensorAllocator
    from .backend import Backend as Backend
    from .backend import Event as Event
    from .buffer import Buffer as Buffer
    from .buffer import BufferType as BufferType
    from .compare import compare_graph_backend as compare_graph_backend
    from .context import Context as Context
    from .convert import dequantize as dequantize
    from .convert import quantize as quantize
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
    from .gguf import Gguf as Gguf
    from .gguf_writer import write_gguf as write_gguf
    from .graph import Graph as Graph
    from .graph_plan import CpuNode as CpuNode
    from .graph_plan import CpuPlan as CpuPlan
    from .graph_plan import GraphPlan as GraphPlan
    from .opt import OptContext as OptContext
    from .opt_data import Dataset as Dataset
    from .opt_data import OptResult as OptResult
    from .opt_fit import Epoch as Epoch
    from .opt_fit import Progress as Progress
    from .opt_fit import epoch as epoch
    from .opt_fit import fit as fit
    from .opt_fit import progress_bar as progress_bar
    from .opt_params import SGD as SGD
    from .opt_params import AdamW as AdamW
    from .recording import Recording as Recording
    from .registry import Registry as Registry
    from .registry import load_backend as load_backend
    from .registry import registries as registries
    from .rpc import rpc_devices as rpc_devices
    from .sched_state import Reallocation as Reallocation
    from .sched_view import SchedState as SchedState
    from .scheduler import Scheduler as Scheduler
    from .sim import SimDevice as SimDevice
    from .sim import sim_device as sim_device
    from .sim_profile import load_profile as load_profile
    from .sim_profile import profiles as profiles
    from .tensor import Tensor as Tensor
    from .threadpool import ThreadPool as ThreadPool
    from .trace.nearest import nearest as nearest
    from .trace.plan import Plan as Plan
    from .trace.run import Run as Run
    from .trace.variant import Nearest as Nearest
    from .trace.variant import Variant as Variant

__version__ = "0.1.0"

# Public name -> module that has it. `enums` is a module itself.
_PUBLIC = {
    "ffi": "_ffi",
    "lib": "_ffi",
    "isolate": "_isolate",
    "GraphAllocator": "alloc",
    "TensorAllocator": "alloc",
    "Backend": "backend",
    "Event": "backend",
    "Buffer": "buffer",
    "BufferType": "buffer",
    "Context": "context",
    "compare_graph_backend": "compare",
    "Device": "_device",
    "DeviceCaps": "_device",
    "DeviceProps": "_device",
    "best_device": "_device",
    "device": "_device",
    "devices": "_device",
    "dequantize": "convert",
    "quantize": "convert",
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
    "Gguf": "gguf",
    "write_gguf": "gguf_writer",
    "Graph": "graph",
    "CpuNode": "graph_plan",
    "CpuPlan": "graph_plan",
    "GraphPlan": "graph_plan",
    "OptContext": "opt",
    "Dataset": "opt_data",
    "OptResult": "opt_data",
    "Epoch": "opt_fit",
    "Progress": "opt_fit",
    "epoch": "opt_fit",
    "fit": "opt_fit",
    "progress_bar": "opt_fit",
    "AdamW": "opt_params",
    "SGD": "opt_params",
    "Recording": "recording",
    "Registry": "registry",
    "load_backend": "registry",
    "registries": "registry",
    "rpc_devices": "rpc",
    "Reallocation": "sched_state",
    "SchedState": "sched_view",
    "Scheduler": "scheduler",
    "SimDevice": "sim",
    "sim_device": "sim",
    "load_profile": "sim_profile",
    "profiles": "sim_profile",
    "strict": "_strict",
    "Tensor": "tensor",
    "ThreadPool": "threadpool",
    "nearest": "trace.nearest",
    "Plan": "trace.plan",
    "Run": "trace.run",
    "Nearest": "trace.variant",
    "Variant": "trace.variant",
    "enums": "",
}
_PLAIN = ("errors", "trace.plan", "trace.run", "trace.variant", "_isolate", "sim_profile")
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC and name != "ops":
        raise AttributeError(f"module 'ggml_py' has no attribute '{name}'")
    if _PUBLIC.get(name) not in _PLAIN:
        # Before numpy: it says which Pythons cannot have us. And another release has its own
        # enums and ops.
        importlib.import_module("ggml_py._ffi")
    if name in ("enums", "ops"):
        value: Any = importlib.import_module(f"ggml_py.{name}")
    else:
        value = getattr(importlib.import_module(f"ggml_py.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


if not any(Path(__file__).parent.glob("native/lib/*/build.json")):
    import warnings

    warnings.warn(
        "ggml_py: the native library is not built, so plans can be read but nothing can be run. "
        "Build it with `python build_ggml.py` in the source tree, or `pip install .`. (An "
        "installed ggml_py is hidden by the source tree while Python runs in that folder.)",
        stacklevel=2,
    )
