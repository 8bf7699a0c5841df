"""Contexts: sizes, types, names, allocation."""

import numpy as np

import ggml_py as ggml

from ..misuses import misuse

BAD = ggml.ArgumentError
HUGE = 1 << 62


def _new(id, act, given, expected, error=BAD):
    return misuse(f"new_tensor/{id}", act, error, given, expected)


def _from_numpy(id, act, given, expected, error=BAD):
    return misuse(f"from_numpy/{id}", act, error, given, expected)


def _alloc(id, act, given, expected, error=BAD):
    return misuse(f"alloc/{id}", act, error, given, expected)


def _exhausted(env):
    small = env.later(ggml.Context(reserve=4096))
    for _ in range(100):
        small.new_tensor("f32", 1)


def _exhausted_by_ops(env):
    small = env.later(ggml.Context(reserve=2048))
    x = env.w
    for _ in range(100):
        x = small.sqr(x)


def _twice_in_a_buffer(env):
    tensor = env.other.new_tensor("f32", 8, name="t")
    tensor.alloc(env.buffer)
    tensor.alloc(env.buffer)


def _too_large_for_the_machine(env):
    env.other.new_tensor("f32", 1 << 50)
    env.other.alloc(env.cpu)


MISUSES = [
    misuse("reserve/huge", lambda e: ggml.Context(reserve=HUGE), ggml.AllocError,
           "reserve=4,611,686,018,427,387,904", "expected fewer"),
    misuse("reserve/beyond-int64", lambda e: ggml.Context(reserve=1 << 70), BAD,
           "reserve=1180591620717411303424", "expected 1 to 9,223"),
    misuse("reserve/negative", lambda e: ggml.Context(reserve=-1), BAD, "reserve=-1", "at least 1"),
    misuse("reserve/str", lambda e: ggml.Context(reserve="1G"), TypeError, "str '1G'",
           "reserve: expected a whole number"),
    misuse("reserve/float", lambda e: ggml.Context(reserve=1e9), TypeError, "float 1000000000.0",
           "reserve: expected a whole number"),
    misuse("reserve/exhausted", _exhausted, ggml.AbortError, "context is full",
           "larger reserve", abort="ggml counts the room; the message has the advice"),
    misuse("reserve/exhausted-by-ops", _exhausted_by_ops, ggml.AbortError, "context is full",
           "larger reserve", abort="as above"),
    _new("no-ne", lambda e: e.other.new_tensor("f32"), "ne []", "one to four numbers"),
    _new("five-ne", lambda e: e.other.new_tensor("f32", 1, 2, 3, 4, 5), "[1, 2, 3, 4, 5]",
         "one to four numbers"),
    _new("negative", lambda e: e.other.new_tensor("f32", 4, -1), "ne1=-1", "at least 0"),
    _new("float", lambda e: e.other.new_tensor("f32", 4.0), "float 4.0",
         "ne0: expected a whole number", TypeError),
    _new("numpy-float", lambda e: e.other.new_tensor("f32", np.float32(4)), "float32",
         "ne0: expected a whole number", TypeError),
    _new("bool", lambda e: e.other.new_tensor("f32", True), "bool True",
         "ne0: expected a whole number", TypeError),
    _new("tuple", lambda e: e.other.new_tensor("f32", (8, 3)), "tuple",
         "ne0: expected a whole number", TypeError),
    _new("shape-array", lambda e: e.other.new_tensor("f32", np.array([8, 3])), "ndarray",
         "ne0: expected a whole number", TypeError),
    _new("str", lambda e: e.other.new_tensor("f32", "8"), "str '8'",
         "ne0: expected a whole number", TypeError),
    _new("none", lambda e: e.other.new_tensor("f32", 8, None), "got NoneType",
         "ne1: expected a whole number", TypeError),
    _new("huge", lambda e: e.other.new_tensor("f32", HUGE), f"ne [{HUGE}]", "no machine"),
    _new("overflowing-product", lambda e: e.other.new_tensor("f32", 1 << 40, 1 << 40),
         "ne [1099511627776, 1099511627776]", "no machine"),
    _new("beyond-int64", lambda e: e.other.new_tensor("f32", 1 << 64), f"ne0={1 << 64}",
         "expected 0 to 9,223"),
    _new("half-a-block", lambda e: e.other.new_tensor("q4_0", 33), "ne0 33",
         "q4_0 has blocks of 32 elements"),
    _new("type-name", lambda e: e.other.new_tensor("fp33", 4), "type 'fp33'", "expected one of"),
    _new("type-number", lambda e: e.other.new_tensor(999, 4), "type 999", "expected one of"),
    _new("type-removed", lambda e: e.other.new_tensor(4, 32), "type 4", "expected one of"),
    _new("type-count", lambda e: e.other.new_tensor(ggml.enums.Type.COUNT, 4), "Type.COUNT",
         "expected one of"),
    _new("type-negative", lambda e: e.other.new_tensor(-1, 4), "type -1", "expected one of"),
    _new("type-none", lambda e: e.other.new_tensor(None, 4), "type None", "expected one of"),
    _new("type-complex", lambda e: e.other.new_tensor(np.complex64, 4), "complex64",
         "expected one of"),
    _new("type-swapped", lambda e: e.other.new_tensor(8, "f32"), "str 'f32'",
         "ne0: expected a whole number", TypeError),
    _new("name-int", lambda e: e.other.new_tensor("f32", 4, name=5), "int 5",
         "name: expected a str", TypeError),
    _new("name-nul", lambda e: e.other.new_tensor("f32", 4, name="a\0b"), r"name 'a\x00b'",
         "without NUL"),
    _new("name-surrogate", lambda e: e.other.new_tensor("f32", 4, name="\ud800"), r"'\ud800'",
         "expected text that UTF-8 can encode"),
    _from_numpy("complex", lambda e: e.other.from_numpy(np.ones(3, np.complex64)), "complex64",
                "expected numbers"),
    _from_numpy("strings", lambda e: e.other.from_numpy(["a", "b"]), "<U1", "expected numbers"),
    _from_numpy("objects", lambda e: e.other.from_numpy([None]), "object", "expected numbers"),
    _from_numpy("ragged", lambda e: e.other.from_numpy([[1, 2], [3]]), "inhomogeneous", "shape",
                ValueError),
    _from_numpy("five-dims", lambda e: e.other.from_numpy(np.ones((1, 1, 1, 1, 2))),
                "ne [2, 1, 1, 1, 1]", "one to four numbers"),
    _from_numpy("bools", lambda e: e.other.from_numpy(np.array([True])), "bool",
                "expected one of"),
    _from_numpy("text-to-f32", lambda e: e.other.from_numpy(["a"], type="f32"), "<U1",
                "expected numbers"),
    _from_numpy("none-to-f32", lambda e: e.other.from_numpy(None, type="f32"), "object",
                "expected numbers"),
    _from_numpy("complex-to-f32", lambda e: e.other.from_numpy([1j], type="f32"), "complex128",
                "expected numbers"),
    _from_numpy("half-a-block", lambda e: e.other.from_numpy(np.ones(31), type="q8_0"),
                "31 elements",
                "blocks of q8_0 (32"),
    _from_numpy("needs-imatrix",
                lambda e: e.other.from_numpy(np.ones(256), type="iq2_xxs"), "iq2_xxs",
                "importance matrix"),
    _from_numpy("no-quantiser",
                lambda e: e.other.from_numpy(np.ones(256), type="q8_1"),
                "q8_1", "cannot quantise to q8_1: use another type, such as q8_0"),
    misuse("name/unknown", lambda e: e.context["nosuch"], KeyError, "'nosuch'", "no tensor named"),
    misuse("name/int", lambda e: e.context[3], TypeError, "int 3", "name: expected a str"),
    misuse("name/none", lambda e: e.context[None], TypeError, "got NoneType", "expected a str"),
    misuse("name/nul", lambda e: e.context["x\0"], BAD, r"'x\x00'", "without NUL"),
    misuse("dup/none", lambda e: e.other.dup_tensor(None), TypeError, "got NoneType",
           "expected a Tensor"),
    misuse("dup/array", lambda e: e.other.dup_tensor(np.ones(3)), TypeError, "got ndarray",
           "expected a Tensor"),
    misuse("view/str", lambda e: e.other.view_tensor("x"), TypeError, "str 'x'",
           "expected a Tensor"),
    _alloc("none", lambda e: e.other.alloc(None), "got NoneType", "expected a Backend", TypeError),
    _alloc("device", lambda e: e.other.alloc(e.cpu.device), "got Device",
           "expected a Backend, a BufferType or a device's name", TypeError),
    _alloc("buffer", lambda e: e.other.alloc(e.buffer), "got Buffer", "expected a Backend",
           TypeError),
    _alloc("unknown-device", lambda e: e.other.alloc("TPU9"), "'TPU9'", "there are:",
           ggml.UnknownDeviceError),
    _alloc("usage", lambda e: e.other.alloc(e.cpu, usage="weight"), "usage 'weight'",
           "any, weights, compute"),
    _alloc("usage-none", lambda e: e.other.alloc(e.cpu, usage=None), "got NoneType",
           "any, weights, compute", TypeError),
    _alloc("usage-list", lambda e: e.other.alloc(e.cpu, usage=[]), "got list",
           "any, weights, compute", TypeError),
    misuse("keep_buffer/none", lambda e: e.other.keep_buffer(None), TypeError, "got NoneType",
           "expected a Buffer"),
    _alloc("too-large", _too_large_for_the_machine, "CPU", "bytes could not be allocated",
           ggml.AllocError),
    _alloc("twice-in-a-buffer", _twice_in_a_buffer, "already has memory", "expected one without"),
]  # fmt: skip
