"""A GPU that this machine does not have: which ops it would compute, how much would be copied to
it, and that the results are right.

    python examples/sim_device.py

ggml's own scheduler plans and computes on simulated devices. This one only multiplies matrices, so
the activation goes to the CPU and back. If the weights are in host memory, it only takes batches of
32 tokens or more.
"""

import numpy as np

import ggml_py as ggml

N_EMBD, N_FF = 256, 512
rng = np.random.default_rng(0)
UP = rng.standard_normal((N_FF, N_EMBD), np.float32)
DOWN = rng.standard_normal((N_EMBD, N_FF), np.float32)


def run(devices, weights_on, n_tokens):
    """The plan and the result of down · silu(up · x)."""
    backends = [device.init(n_threads=1) for device in devices]
    weights, ctx = ggml.Context(), ggml.Context()
    up, down = weights.from_numpy(UP, "up"), weights.from_numpy(DOWN, "down")
    weights.alloc(weights_on.buffer_type, usage="weights")
    x = ctx.new_tensor("f32", N_EMBD, n_tokens, name="x")
    x.set_input()
    out = ctx.mul_mat(down, ctx.silu(ctx.mul_mat(up, x)))
    graph = ctx.new_graph()
    graph.build_forward_expand(out)
    with ggml.Scheduler(backends) as scheduler:
        plan = scheduler.alloc_graph(graph)
        x.set(np.linspace(-1, 1, n_tokens * N_EMBD).reshape(n_tokens, N_EMBD))
        scheduler.compute(graph)
        result = out.get()
    for handle in (ctx, weights, *backends):
        handle.close()
    return plan, result


cpu = ggml.device("CPU")
gpu = ggml.sim_device("gpu0", supports={"MUL_MAT": ["f32", "f16"]}, memory=8 << 20)
print(gpu, "with", f"{gpu.memory[0]:,} bytes free")
for title, weights_on, n_tokens in (
    ("weights on the GPU", gpu, 4),
    ("weights in host memory, 31 tokens", cpu, 31),
    ("weights in host memory, 32 tokens", cpu, 32),
):
    plan, result = run([gpu, cpu], weights_on, n_tokens)
    _plan, expected = run([cpu], cpu, n_tokens)
    print(f"{title}: {' '.join(n.backend for n in plan.nodes)}, {plan.copy_bytes:,} bytes copied,")
    print("  the CPU's result:", np.array_equal(result, expected))

gpu.configure(memory=600_000)  # two matrices of 512 KiB no longer fit
try:
    run([gpu, cpu], gpu, 4)
except ggml.AllocError as error:
    print(error)
