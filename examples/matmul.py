"""A matrix product on the first device there is: ggml's `simple` example in Python."""

import numpy as np

import ggml_py as ggml

A = np.array([[2, 8], [5, 1], [4, 2], [8, 6]], np.float32)  # 4 rows of 2: ne = [2, 4]
B = np.array([[10, 5], [9, 9], [5, 4]], np.float32)  # 3 rows of 2: ne = [2, 3]

with ggml.devices()[-1].init() as backend, ggml.Context() as ctx:
    a, b = ctx.from_numpy(A, "a"), ctx.from_numpy(B, "b")
    ctx.alloc(backend)
    with ggml.Context() as ops:
        product = ops.mul_mat(a, b)  # ne = [4, 3]: a is transposed
        graph = ops.new_graph()
        graph.build_forward_expand(product)
        with ggml.Scheduler([backend]) as sched:
            sched.compute(graph)
            for row in product.get().T:
                print(" ".join(f"{value:.2f}" for value in row))
