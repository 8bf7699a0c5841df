"""Computes relu(w @ x + b) with libggml-python, which has ggml's libraries and no program.

    python use_libggml_python.py

ctypes opens libggml.so; the loader brings libggml-base and libggml-cpu. Prints the first result,
the bytes of the compute buffer and the number of splits.
"""

import ctypes as c
from importlib.util import find_spec
from pathlib import Path

(package,) = find_spec("libggml").submodule_search_locations
path = next(Path(package).glob("lib*/libggml.so"))
ggml = c.CDLL(str(path), mode=c.RTLD_GLOBAL)
P, SIZE, INT, I64 = c.c_void_p, c.c_size_t, c.c_int, c.c_int64


class Init(c.Structure):
    """struct ggml_init_params"""

    _fields_ = [("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", c.c_bool)]


def function(name, result, *arguments):
    """The C function."""
    found = getattr(ggml, name)
    found.restype, found.argtypes = result, arguments
    return found


new = function("ggml_new_tensor_2d", P, P, INT, I64, I64)
ctx = function("ggml_init", P, Init)(Init(1 << 20, None, True))
w, x, b = new(ctx, 0, 32, 16), new(ctx, 0, 32, 8), new(ctx, 0, 16, 1)
for tensor, text in ((w, b"w"), (x, b"x"), (b, b"b")):
    function("ggml_set_name", P, P, c.c_char_p)(tensor, text)
    function("ggml_set_input", None, P)(tensor)
product = function("ggml_mul_mat", P, P, P, P)(ctx, w, x)
y = function("ggml_relu", P, P, P)(ctx, function("ggml_add", P, P, P, P)(ctx, product, b))
function("ggml_set_output", None, P)(y)
graph = function("ggml_new_graph", P, P)(ctx)
function("ggml_build_forward_expand", None, P, P)(graph, y)
backend = function("ggml_backend_cpu_init", P)()
sched = function("ggml_backend_sched_new", P, P, P, INT, SIZE, c.c_bool, c.c_bool)(
    (P * 1)(backend), None, 1, 2048, False, True
)
assert function("ggml_backend_sched_alloc_graph", c.c_bool, P, P)(sched, graph)
put = function("ggml_backend_tensor_set", None, P, P, SIZE, SIZE)
for tensor, n, value in ((w, 512, 0.5), (x, 256, 2.0), (b, 16, 1.0)):
    put(tensor, (c.c_float * n)(*[value] * n), 0, 4 * n)
assert function("ggml_backend_sched_graph_compute", INT, P, P)(sched, graph) == 0
out = (c.c_float * 128)()
function("ggml_backend_tensor_get", None, P, P, SIZE, SIZE)(y, out, 0, 512)
assert set(out) == {33.0}
size = function("ggml_backend_sched_get_buffer_size", SIZE, P, P)(sched, backend)
print(out[0], size, function("ggml_backend_sched_get_n_splits", INT, P)(sched))
function("ggml_backend_sched_free", None, P)(sched)
