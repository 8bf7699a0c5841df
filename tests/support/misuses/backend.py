"""Devices, backends, buffers and events."""

import numpy as np

import ggml_py as ggml

from ..misuses import misuse

BAD = ggml.ArgumentError


def _row(id, act, given, expected, error=BAD):
    return misuse(id, act, error, given, expected)


def _threads(id, value, given, expected, error=BAD):
    return misuse(f"n_threads/{id}", lambda e: setattr(e.cpu, "n_threads", value), error, given,
                  expected)  # fmt: skip


def _bytes(n=256, shift=0):
    """An array over memory that starts `shift` bytes after a multiple of 64."""
    raw = np.zeros(n + 128, np.uint8)
    start = -raw.ctypes.data % 64 + shift
    return raw[start : start + n]


def _read_only():
    array = _bytes()
    array.flags.writeable = False
    return array


def _loop(env):
    """A link to itself."""
    (env.tmp_path / "loop").symlink_to(env.tmp_path / "loop")
    return env.tmp_path / "loop"


MISUSES = [
    _row("device/unknown", lambda e: ggml.device("TPU9"), "'TPU9'", "there are:",
         ggml.UnknownDeviceError),
    _row("device/int", lambda e: ggml.device(0), "int 0", "expected a str", TypeError),
    _row("device/none", lambda e: ggml.device(None), "got NoneType", "expected a str", TypeError),
    _row("device/empty", lambda e: ggml.device(""), "''", "there are:", ggml.UnknownDeviceError),
    _row("device/nul", lambda e: ggml.device("CPU\0"), r"'CPU\x00'", "without NUL"),
    _row("init/n_threads-zero", lambda e: e.cpu.device.init(n_threads=0), "n_threads=0",
         "expected 1 to 512"),
    _row("init/n_threads-str", lambda e: e.cpu.device.init(n_threads="2"), "str '2'",
         "n_threads: expected a whole number", TypeError),
    _row("init/n_threads-huge", lambda e: e.cpu.device.init(n_threads=1 << 40),
         "n_threads=1099511627776", "expected 1 to 512"),
    _row("init/params-int", lambda e: e.cpu.device.init(params=5), "int 5",
         "params: expected a str", TypeError),
    _row("device/supports_op-none", lambda e: e.cpu.device.supports_op(None), "got NoneType",
         "expected a Tensor", TypeError),
    _row("device/supports_buft-buffer", lambda e: e.cpu.device.supports_buft(e.buffer),
         "got Buffer", "expected a BufferType", TypeError),
    _row("device/offload_op-str", lambda e: e.cpu.device.offload_op("y"), "str 'y'",
         "expected a Tensor", TypeError),
    _row("device/proc_address-unknown", lambda e: e.cpu.device.proc_address("nosuch"),
         "has no 'nosuch'", "device CPU", ggml.MissingFunctionError),
    _row("device/proc_address-int", lambda e: e.cpu.device.proc_address(5), "int 5",
         "name: expected a str", TypeError),
    _row("device/event", lambda e: e.cpu.device.event(), "device CPU has no events",
         "Backend.synchronize"),
    _row("buffer_from/list", lambda e: e.cpu.device.buffer_from([1.0]), "got list",
         "expected a numpy array", TypeError),
    _row("buffer_from/empty", lambda e: e.cpu.device.buffer_from(np.zeros(0)), "shape (0,)",
         "at least one byte"),
    _row("buffer_from/strided", lambda e: e.cpu.device.buffer_from(_bytes()[::2]),
         "not C-contiguous", "np.ascontiguousarray"),
    _row("buffer_from/read-only", lambda e: e.cpu.device.buffer_from(_read_only()), "read-only",
         "mode='c'"),
    _row("buffer_from/unaligned", lambda e: e.cpu.device.buffer_from(_bytes(shift=4)),
         "4 bytes after a multiple of", "expected an aligned array"),
    _threads("zero", 0, "n_threads=0", "expected 1 to 512"),
    _threads("negative", -4, "n_threads=-4", "expected 1 to 512"),
    _threads("too-many", 513, "n_threads=513", "expected 1 to 512"),
    _threads("str", "2", "str '2'", "n_threads: expected a whole number", TypeError),
    _threads("float", 2.0, "float 2.0", "n_threads: expected a whole number", TypeError),
    _threads("none", None, "got NoneType", "n_threads: expected a whole number", TypeError),
    _threads("bool", True, "bool True", "n_threads: expected a whole number", TypeError),
    _row("compute/none", lambda e: e.cpu.compute(None), "got NoneType", "expected a Graph",
         TypeError),
    _row("compute/tensor", lambda e: e.cpu.compute(e.y), "got Tensor", "expected a Graph",
         TypeError),
    _row("supports_op/none", lambda e: e.cpu.supports_op(None), "got NoneType",
         "expected a Tensor", TypeError),
    _row("supports_op/str", lambda e: e.cpu.supports_op("MUL_MAT"), "str 'MUL_MAT'",
         "expected a Tensor", TypeError),
    _row("supports_buft/none", lambda e: e.cpu.supports_buft(None), "got NoneType",
         "expected a BufferType", TypeError),
    _row("offload_op/graph", lambda e: e.cpu.offload_op(e.graph), "got Graph",
         "expected a Tensor", TypeError),
    _row("copy_async/no-backend", lambda e: e.cpu.copy_async(None, e.w, e.w), "got NoneType",
         "expected a Backend", TypeError),
    _row("copy_async/no-source", lambda e: e.cpu.copy_async(e.cpu, None, e.w), "got NoneType",
         "expected a Tensor", TypeError),
    _row("copy_async/no-target", lambda e: e.cpu.copy_async(e.cpu, e.w, "w"), "str 'w'",
         "expected a Tensor", TypeError),
    _row("copy_async/other-layout",
         lambda e: e.cpu.copy_async(e.cpu, e.w, e.allocated().x), "different layouts",
         "expected the same type, ne and nb"),
    _row("copy_async/no-memory", lambda e: e.cpu.copy_async(e.cpu, e.x, e.w),
         "'x' has no memory", "Context.alloc", ggml.NoDataError),
    _row("buffer/negative", lambda e: e.cpu.buffer_type.alloc(-1), "size=-1", "at least 0"),
    _row("buffer/huge", lambda e: e.cpu.buffer_type.alloc(1 << 62),
         "4,611,686,018,427,387,904 bytes", "could not be allocated", ggml.AllocError),
    _row("buffer/float", lambda e: e.cpu.buffer_type.alloc(1e3), "float 1000.0",
         "size: expected a whole number", TypeError),
    _row("buffer/beyond-size_t", lambda e: e.cpu.buffer_type.alloc(1 << 64), f"size={1 << 64}",
         "expected 0 to"),
    _row("buffer/clear-range", lambda e: e.buffer.clear(256), "value=256", "expected 0 to 255"),
    _row("buffer/clear-negative", lambda e: e.buffer.clear(-1), "value=-1", "expected 0 to 255"),
    _row("buffer/clear-float", lambda e: e.buffer.clear(0.5), "float 0.5",
         "value: expected a whole number", TypeError),
    _row("buffer/usage", lambda e: setattr(e.buffer, "usage", "weight"), "usage 'weight'",
         "any, weights, compute"),
    _row("buffer/usage-none", lambda e: setattr(e.buffer, "usage", None), "got NoneType",
         "any, weights, compute", TypeError),
    _row("buffer/alloc_size-none", lambda e: e.buffer.alloc_size(None), "got NoneType",
         "expected a Tensor", TypeError),
    _row("load_backend/missing", lambda e: ggml.load_backend(str(e.tmp_path / "libx.so")),
         "libx.so", "no such file", ggml.LoadError),
    _row("load_backend/links", lambda e: ggml.load_backend(_loop(e)), "loop", "backend module",
         ggml.LoadError),
    _row("load_backend/nul", lambda e: ggml.load_backend("a\0b"), "a\\x00b",
         "without NUL", ggml.ArgumentError),
    _row("rpc/nobody", lambda e: ggml.rpc_devices("127.0.0.1:1"), "127.0.0.1:1", "nobody answers",
         ggml.RpcError),
    _row("rpc/none", lambda e: ggml.rpc_devices(None), "got NoneType", "expected a str", TypeError),
    _row("rpc/timeout", lambda e: ggml.rpc_devices("127.0.0.1:1", timeout=0), "timeout=int 0",
         "expected seconds, a number above 0"),
]  # fmt: skip
