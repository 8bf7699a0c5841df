"""Where each op of a small network runs, why, and what a pin changes.

    python examples/why.py

The pin does not hold: BLAS shares the CPU's buffer type, and pass 3 moves nodes up to a backend
with the same buffer type, pinned or not.
"""

import numpy as np

import ggml_py as ggml

blas, cpu = ggml.device("BLAS").init(), ggml.device("CPU").init()
weights, ctx = ggml.Context(), ggml.Context()
rng = np.random.default_rng(0)
up = weights.from_numpy(rng.standard_normal((128, 64), np.float32), "up")
down = weights.from_numpy(rng.standard_normal((64, 128), np.float32), "down")
weights.alloc(cpu, usage="weights")

x = ctx.new_tensor("f32", 64, 48, name="x")
x.set_input()
hidden = ctx.mul_mat(up, x)
hidden.name = "hidden"
out = ctx.mul_mat(down, ctx.silu(hidden))
out.name = "out"
graph = ctx.new_graph()
graph.build_forward_expand(out)

with ggml.Scheduler([blas, cpu]) as sched:
    for title in ("as the scheduler decides", "with 'hidden' pinned to the CPU"):
        plan = sched.plan(graph)
        print(f"{title}: {plan.headline()}")
        for node in plan.nodes:
            print(f"  {node.name:8} {node.op:8} {node.backend:5} {node.cause}")
        print(plan.passes(), "\n")
        sched.set_tensor_backend(hidden, cpu)
