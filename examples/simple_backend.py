"""A matrix product on the best device: ggml's `simple-backend` example in Python.

    python examples/simple_backend.py

The scheduler allocates the graph and its inputs. Then the inputs are set and the graph is computed.
"""

import numpy as np

import ggml_py as ggml

A = np.array([[2, 8], [5, 1], [4, 2], [8, 6]], np.float32)  # 4 rows of 2: ne = [2, 4]
B = np.array([[10, 5], [9, 9], [5, 4]], np.float32)  # 3 rows of 2: ne = [2, 3]


def main() -> None:
    """Prints A · Bᵀ, transposed as in ggml."""
    cpu = ggml.device("CPU")
    best = next((d for d in ggml.devices() if d.type.name in ("GPU", "IGPU")), cpu)
    backends = [device.init() for device in dict.fromkeys((best, cpu))]  # the CPU must be last

    with ggml.Scheduler(backends) as sched, ggml.Context() as ctx:
        a = ctx.new_tensor("f32", 2, 4, name="a")
        b = ctx.new_tensor("f32", 2, 3, name="b")
        result = ctx.mul_mat(a, b)  # ne = [4, 3]: a is transposed
        graph = ctx.new_graph()
        graph.build_forward_expand(result)

        sched.alloc_graph(graph)
        a.set(A)
        b.set(B)
        sched.compute(graph)

        rows = [" ".join(f"{value:.2f}" for value in row) for row in result.get()]
        print(f"mul mat ({result.ne[0]} x {result.ne[1]}) (transposed result):")
        print("[ " + "\n ".join(rows) + " ]")


if __name__ == "__main__":
    main()
