"""A matrix product on one backend, without a scheduler: ggml's `simple-ctx` example in Python.

    python examples/simple_ctx.py

One context has everything: the operands, the result and their data, which is allocated in one go.
"""

import numpy as np

import ggml_py as ggml

A = np.array([[2, 8], [5, 1], [4, 2], [8, 6]], np.float32)  # 4 rows of 2: ne = [2, 4]
B = np.array([[10, 5], [9, 9], [5, 4]], np.float32)  # 3 rows of 2: ne = [2, 3]


def main() -> None:
    """Prints A · Bᵀ, transposed as in ggml."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as ctx:
        a, b = ctx.from_numpy(A, "a"), ctx.from_numpy(B, "b")
        result = ctx.mul_mat(a, b)  # ne = [4, 3]: a is transposed
        ctx.alloc(cpu)

        graph = ctx.new_graph()
        graph.build_forward_expand(result)
        cpu.compute(graph)

        rows = [" ".join(f"{value:.2f}" for value in row) for row in result.numpy()]
        print(f"mul mat ({result.ne[0]} x {result.ne[1]}) (transposed result):")
        print("[ " + "\n ".join(rows) + " ]")


if __name__ == "__main__":
    main()
