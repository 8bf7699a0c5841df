"""Tensors: names, memory, data past the end, shapes, types, views."""

import ctypes

import numpy as np

import ggml_py as ggml
from ggml_py.tensors import dlpack

from ..misuses import misuse

BAD, NO_DATA = ggml.ArgumentError, ggml.NoDataError


def _data(id, act, given, expected, error=BAD):
    return misuse(f"data/{id}", act, error, given, expected)


def _name(id, value, given, expected, error=BAD):
    return misuse(f"name/{id}", lambda e: setattr(e.x, "name", value), error, given, expected)


def _place(id, act, given, expected, error=BAD):
    return misuse(f"alloc/{id}", act, error, given, expected)


def _copy(id, act, given, expected, error=BAD):
    return misuse(f"copy/{id}", act, error, given, expected)


def _quantised(env, name="q"):
    tensor = env.other.new_tensor("q8_0", 32, 2, name=name)
    env.other.alloc(env.cpu)
    return tensor


def _of(env, type):
    tensor = env.other.new_tensor(type, 4)
    env.other.alloc(env.cpu)
    return tensor


def _after_reset(env, use):
    """The scheduler lent `y` memory, and took it back."""
    env.allocated().x.set(np.ones((3, 8)))
    env.scheduler.compute(env.graph)
    env.scheduler.reset()
    return use(env)


def _after_close(env):
    env.allocated().scheduler.close()
    env.y.get()


def _transposed(env):
    return env.weights.transpose(env.w)


def _not_host(env):
    """A weight laid out for the CPU's own kernels: no host memory, as on a GPU."""
    tensor = env.other.new_tensor("q4_0", 256, 8, name="laid-out")
    env.other.alloc(_EXTRA[-1])
    return tensor


_EXTRA = [t for t in ggml.device("CPU").extra_buffer_types if not t.is_host]

MISUSES = [
    _name("int", 5, "int 5", "name: expected a str", TypeError),
    _name("none", None, "got NoneType", "name: expected a str", TypeError),
    _name("bytes", b"x", "got bytes", "name: expected a str", TypeError),
    _name("nul", "a\0b", r"'a\x00b'", "without NUL"),
    _name("surrogate", "\udcff", r"'\udcff'", "expected text that UTF-8 can encode"),
    _data("set-before-alloc", lambda e: e.x.set(np.ones((3, 8))), "'x' has no memory",
          "Scheduler.alloc_graph", NO_DATA),
    _data("get-before-alloc", lambda e: e.y.get(), "'y' has no memory", "Scheduler.alloc_graph",
          NO_DATA),
    _data("numpy-before-alloc", lambda e: e.x.numpy(), "'x' has no memory", "Context.alloc",
          NO_DATA),
    _data("copy-before-alloc", lambda e: e.w.copy_to(e.x), "'x' has no memory", "Context.alloc",
          NO_DATA),
    _data("get-after-reset", lambda e: _after_reset(e, lambda e: 0) or e.y.get(),
          "'y' has no memory", "reset() takes memory back", NO_DATA),
    _data("set-after-reset", lambda e: _after_reset(e, lambda e: 0) or e.x.set(np.ones((3, 8))),
          "'x' has no memory", "reset() takes memory back", NO_DATA),
    _data("numpy-after-reset", lambda e: _after_reset(e, lambda e: 0) or e.y.numpy(),
          "'y' has no memory", "reset() takes memory back", NO_DATA),
    _data("get-never-set", lambda e: e.allocated().x.get(), "input 'x'", "was never set", NO_DATA),
    _data("get-before-compute", lambda e: e.allocated().y.get(), "'y'", "was not computed",
          NO_DATA),
    _data("get-after-scheduler-closed", _after_close, "'y' has no memory", "alloc_graph", NO_DATA),
    _data("set-too-few", lambda e: e.w.set(np.ones((7, 8))), "shape (7, 8) = 56",
          "ne [8, 8, 1, 1] = 64 elements"),
    _data("set-flat", lambda e: e.w.set(np.ones(64)), "shape (64,) = 64",
          "array.reshape(8, 8)"),
    _data("set-transposed", lambda e: e.allocated().x.set(np.ones((8, 3))), "shape (8, 3) = 24",
          "array.T"),
    _data("set-part", lambda e: e.w.set(np.ones((4, 2)), offset=8), "the part has shape (4, 2)",
          "whole rows, shape (n, 8)"),
    _data("set-too-many", lambda e: e.w.set(np.ones(65)), "shape (65,) = 65", "64 elements"),
    _data("set-empty", lambda e: e.w.set([]), "shape (0,) = 0", "64 elements"),
    _data("set-none", lambda e: e.w.set(None), "object", "expected numbers"),
    _data("set-past-the-end", lambda e: e.w.set(np.ones(8), offset=60),
          "64 elements: 8 at offset 60", "do not fit"),
    _data("set-offset-negative", lambda e: e.w.set(np.ones(8), offset=-8), "offset=-8",
          "at least 0"),
    _data("set-offset-float", lambda e: e.w.set(np.ones(8), offset=8.0), "float 8.0",
          "offset: expected a whole number", TypeError),
    _data("set-offset-huge", lambda e: e.w.set(np.ones(8), offset=1 << 62), str(1 << 62),
          "do not fit"),
    _data("set-offset-none", lambda e: e.w.set(np.ones(8), offset=None), "shape (8,) = 8",
          "64 elements"),
    _data("set-offset-text", lambda e: e.w.set(np.ones(8), offset="0"), "str '0'",
          "offset: expected a whole number", TypeError),
    _data("set-rows-within-a-row", lambda e: e.w.set(np.ones((2, 8)), offset=4),
          "shape (2, 8) at offset 4", "where a row starts: expected a multiple of 8"),
    _data("set-text", lambda e: e.w.set(["a"] * 64), "<U1", "expected numbers"),
    _data("set-objects", lambda e: e.w.set([None] * 64), "object", "expected numbers"),
    _data("set-complex", lambda e: e.w.set(np.ones(64, np.complex64)), "complex64",
          "expected numbers"),
    _data("set-masked", lambda e: e.w.set(np.ma.masked_array(np.ones((8, 8)), np.eye(8))),
          "masked elements", "filled"),
    _data("set-beyond-i32", lambda e: _of(e, "i32").set(np.full(4, 1 << 40)), str(1 << 40),
          "number that i32 can hold"),
    _data("set-unsigned", lambda e: _of(e, "i64").set(np.full(4, 1 << 63, np.uint64)),
          str(1 << 63), "number that i64 can hold"),
    _data("set-fraction", lambda e: _of(e, "i32").set(np.full(4, 1.5)), "1.5",
          "number that i32 can hold"),
    _data("set-nan", lambda e: _of(e, "i8").set(np.full(4, np.nan)), "nan",
          "number that i8 can hold"),
    _data("set-beyond-f32", lambda e: _of(e, "f32").set(np.full(4, 1e300)), "1e+300",
          "number that f32 can hold"),
    _data("from_numpy-beyond-f16", lambda e: e.other.from_numpy(np.full(4, 7e4), type="f16"),
          "70000.0", "number that f16 can hold"),
    _data("set-ragged", lambda e: e.w.set([[1, 2], [3]]), "inhomogeneous", "shape", ValueError),
    _data("set-tensor", lambda e: e.w.set(e.w), "Tensor", "copy_to", TypeError),
    _data("set-not-contiguous", lambda e: _transposed(e).set(np.ones((8, 8))),
          "is not contiguous", "set its source instead"),
    _data("set-quantised-half-block", lambda e: _quantised(e).set(np.ones(16), offset=32),
          "16 elements in rows of 32", "blocks of q8_0 (32 elements per block)"),
    _data("set-quantised-offset", lambda e: _quantised(e).set(np.ones(32), offset=16), "offset 16",
          "multiple of 32"),
    _data("set_2d-one-dim", lambda e: e.w.set_2d(np.ones(8)), "shape (8,)", "two dimensions"),
    _data("set_2d-past-the-end", lambda e: e.w.set_2d(np.ones((9, 8))), "9 rows of 8",
          "64 elements"),
    _data("set_2d-stride-past-the-end", lambda e: e.w.set_2d(np.ones((2, 8)), stride=60),
          "60 apart", "64 elements"),
    _data("set_2d-stride-negative", lambda e: e.w.set_2d(np.ones((2, 8)), stride=-8),
          "stride=-8", "at least 0"),
    _data("set_2d-offset-str", lambda e: e.w.set_2d(np.ones((2, 8)), offset="0"), "str '0'",
          "offset: expected a whole number", TypeError),
    _data("get_2d-past-the-end", lambda e: e.w.get_2d(9, 8), "9 rows of 8", "64 elements"),
    _data("get_2d-negative", lambda e: e.w.get_2d(-1, 8), "n=-1", "at least 0"),
    _data("get_2d-huge", lambda e: e.w.get_2d(1 << 40, 1 << 40), "rows of", "64 elements"),
    _data("get_2d-float", lambda e: e.w.get_2d(2.0, 8), "float 2.0",
          "n: expected a whole number", TypeError),
    _data("get_2d-half-block", lambda e: _quantised(e).get_2d(1, 16), "rows of 16",
          "multiples of 32"),
    _data("get-not-contiguous-quantised",
          lambda e: e.other.transpose(_quantised(e)).get(), "(q8_0) is not contiguous",
          "get its source"),
    _data("numpy-quantised", lambda e: _quantised(e).numpy(), "numpy has no q8_0", "use get()"),
    _place("none", lambda e: e.x.alloc(None), "got NoneType", "expected a Buffer", TypeError),
    _place("backend", lambda e: e.x.alloc(e.cpu), "got Backend", "expected a Buffer", TypeError),
    _place("buffer-type", lambda e: e.x.alloc(e.cpu.buffer_type), "got BufferType",
           "expected a Buffer", TypeError),
    _place("buffer-view", lambda e: e.x.alloc(e.w.buffer), "got BufferView", "expected a Buffer",
           TypeError),
    _place("twice", lambda e: e.w.alloc(e.buffer), "'w' already has memory",
           "expected one without"),
    _place("view", lambda e: e.weights.view_1d(e.w, 8, 0).alloc(e.buffer), "is a view",
           "expected one without"),
    _place("unaligned", lambda e: e.x.alloc(e.buffer, 3), "offset 3", "expected a multiple of"),
    _place("negative", lambda e: e.x.alloc(e.buffer, -64), "offset=-64", "at least 0"),
    _place("past-the-end", lambda e: e.x.alloc(e.buffer, 256), "takes 96 bytes: at offset 256",
           "do not fit in"),
    _place("too-large", lambda e: e.other.new_tensor("f32", 1000).alloc(e.buffer),
           "takes 4,000 bytes", "do not fit in"),
    _place("float", lambda e: e.x.alloc(e.buffer, 0.0), "float 0.0",
           "offset: expected a whole number", TypeError),
    _place("huge", lambda e: e.x.alloc(e.buffer, 1 << 62), "at offset 4,611,686,018,427,387,904",
           "do not fit in"),
    _copy("none", lambda e: e.w.copy_to(None), "got NoneType", "expected a Tensor", TypeError),
    _copy("array", lambda e: e.w.copy_to(np.ones((8, 8))), "got ndarray", "expected a Tensor",
          TypeError),
    _copy("other-ne", lambda e: e.allocated().w.copy_to(e.x), "'x' (f32 ne (8, 3, 1, 1)",
          "expected the same type, ne and nb"),
    _copy("other-type", lambda e: _quantised(e).copy_to(e.w), "'q' (q8_0",
          "expected the same type, ne and nb"),
    _copy("gaps", lambda e: (lambda v: v.copy_to(v))(e.weights.view_2d(e.w, 4, 8, 32, 0)),
          "have gaps", "ctx.cpy"),
    misuse("attribute", lambda e: setattr(e.x, "ne", (1, 1, 1, 1)), AttributeError, "ne", "setter"),
    misuse("attribute-unknown", lambda e: e.x.size, AttributeError, "'Tensor'", "'size'"),
]  # fmt: skip


def _read_only():
    array = np.zeros(8, np.float32)
    array.flags.writeable = False
    return array


def _share(id, act, given, expected, error=BAD):
    return misuse(f"share/{id}", act, error, given, expected)


class _Producer:
    """Four floats, and what the DLPack of another library says wrongly of them."""

    def __init__(self, device=(1, 0), **wrong):
        self.array, self.device = np.zeros(4, np.float32), device
        self.shape, self.strides = (ctypes.c_int64 * 1)(4), (ctypes.c_int64 * 1)(1)
        self.managed = dlpack._Managed()
        tensor = self.managed.tensor
        tensor.data, tensor.ndim = self.array.ctypes.data, 1
        tensor.device = dlpack._Device(1, 0)
        tensor.dtype = dlpack._DataType(2, 32, 1)
        pointer = ctypes.POINTER(ctypes.c_int64)
        for name, value in {"shape": self.shape, "strides": self.strides, **wrong}.items():
            if isinstance(value, int | None) and name in ("shape", "strides"):
                value = value and (ctypes.c_int64 * 1)(value)
            setattr(tensor, name, ctypes.cast(value, pointer) if name[0] == "s" else value)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_options):
        return dlpack._new(ctypes.addressof(self.managed), dlpack._name(b"dltensor"), None)


def _lie(id, wrong, given, expected):
    return _share(f"lie-{id}", lambda e: e.other.from_dlpack(_Producer(**wrong)), given, expected)


def _version(id, version, given):
    return _share(f"max-version-{id}", lambda e: e.w.__dlpack__(max_version=version), given,
                  "max_version: expected None or two whole numbers (major, minor)", TypeError)


_DEVICE = "expected two whole numbers (device type, device id)"
MISUSES += [
    _lie("byte_offset", {"byte_offset": 1 << 63}, "byte_offset=9,223,372,036,854,775,808",
         "the offset of the elements in its memory"),
    _lie("ndim", {"ndim": -1}, "ndim=-1", "expected one to four dimensions"),
    _lie("ndim-huge", {"ndim": 0x7FFFFFFF}, "ndim=2147483647", "expected one to four dimensions"),
    _lie("shape", {"shape": None}, "ndim=1 and a NULL shape", "one to four dimensions"),
    _lie("data", {"data": None}, "data is NULL for shape (4,)", "expected memory"),
    _lie("strides", {"strides": 1 << 61}, f"strides of ({1 << 63},) bytes", "no machine addresses"),
    _lie("device-empty", {"device": ()}, "__dlpack_device__ returned tuple ()", _DEVICE),
    _lie("device-none", {"device": None}, "__dlpack_device__ returned NoneType", _DEVICE),
    _lie("device-text", {"device": "ab"}, "__dlpack_device__ returned str 'ab'", _DEVICE),
    _lie("device-digits", {"device": "10"}, "__dlpack_device__ returned str '10'", _DEVICE),
    _version("empty", (), "got tuple ()"),
    _version("number", 1, "got int 1"),
    _version("text", "x", "got str 'x'"),
    _version("texts", ("1", "0"), "got tuple ('1', '0')"),
    _share("list", lambda e: e.other.from_dlpack([1.0]), "got list", "__dlpack__", TypeError),
    _share("bytes", lambda e: e.other.from_dlpack(np.zeros(4, np.uint8)), "8 bits", "expected f32"),
    _share("read-only", lambda e: e.other.from_dlpack(_read_only()), "only be read",
           "from_numpy()"),
    _share("reversed", lambda e: e.other.from_dlpack(np.zeros(8)[::-1]), "strides of (-8,)",
           "copy"),
    _share("five-dims", lambda e: e.other.from_dlpack(np.zeros((1, 1, 1, 1, 2))), "(1, 1, 1, 1, 2)",
           "one to four"),
    _share("empty", lambda e: e.other.from_dlpack(np.zeros((0, 2))), "(0, 2)", "none empty"),
    _share("lent", lambda e: e.allocated().y.__array__(copy=False), "'y'", "a copy of tensor",
           ValueError),
    _share("quantised", lambda e: _quantised(e).numpy(), "no q8_0", "get()"),
    _share("unallocated", lambda e: np.from_dlpack(e.y), "'y' has no memory", "Scheduler", NO_DATA),
    _share("get-into-wrong-shape", lambda e: e.w.get(out=np.zeros(3, np.float32)), "shape (3,)",
           "expected shape (8, 8)"),
    _share("get-into-wrong-type", lambda e: e.w.get(out=np.zeros((8, 8))), "out is float64",
           "expected float32"),
    _share("get-into-list", lambda e: e.w.get(out=[0.0] * 64), "list", "numpy array", TypeError),
    misuse("quantise/nan", lambda e: ggml.quantize([[np.nan] * 32], "q4_0"), BAD,
           "element 0 is nan", "finite"),
    misuse("quantise/no-imatrix", lambda e: ggml.quantize(np.zeros((1, 256)), "iq2_xs"), BAD,
           "iq2_xs needs", "imatrix="),
    misuse("quantise/imatrix-length",
           lambda e: ggml.quantize(np.ones((2, 32)), "q4_0", imatrix=np.ones(16)), BAD,
           "16 weights", "expected 32"),
    misuse("quantise/half-blocks", lambda e: ggml.quantize(np.ones((2, 16)), "q4_0"), BAD,
           "rows of 16", "blocks of 32"),
    misuse("dequantise/short", lambda e: ggml.dequantize(np.zeros(17, np.uint8), "q4_0", (32,)),
           BAD, "17 bytes", "takes 18"),
    misuse("view/past-the-end", lambda e: e.weights.view_2d(e.w, 8, 8, 64, 0), BAD,
           "ends at byte 480", "its 256 bytes"),
    misuse("view/of-a-view", lambda e: e.other.view_1d(e.other.view_1d(e.w, 8, 32), 65, 0), BAD,
           "ends at byte 292 of 'w (view)'", "the 256 bytes that it views"),
]  # fmt: skip

if _EXTRA:
    MISUSES += [
        _data("numpy-not-host", lambda e: _not_host(e).numpy(), "'laid-out' is in",
              "which the CPU cannot read"),
    ]  # fmt: skip
