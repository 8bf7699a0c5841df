"""A scheduler and a graph of two layers, and a check of nodes that fails."""

from contextlib import contextmanager

import ggml_py as ggml


@contextmanager
def two_layers(sims, **settings):
    """A scheduler of gpu0 and CPU and a graph: embd on the CPU, its square, two layers of product,
    relu and sum with weights on the GPU, `head` with its weight on the CPU."""
    gpu, cpu = sims("gpu0", **settings).init(), ggml.device("CPU").init(n_threads=1)
    on_gpu, on_cpu, c = ggml.Context(), ggml.Context(), ggml.Context()
    table = on_cpu.new_tensor("f32", 64, 128, name="table")
    head = on_cpu.new_tensor("f32", 64, 32, name="head.weight")
    weights = [on_gpu.new_tensor("f32", 64, 64, name=f"w{i}") for i in range(2)]
    on_gpu.alloc(gpu, usage="weights").clear()
    on_cpu.alloc(cpu, usage="weights").clear()
    ids = c.new_tensor("i32", 8, name="ids")
    ids.set_input()
    x = c.get_rows(table, ids)
    x.name = "embd"
    x = c.sqr(x)
    x.name = "square"
    for i, w in enumerate(weights):
        product = c.mul_mat(w, x)
        activated = c.relu(product)
        x = c.add(activated, x)
        product.name, activated.name, x.name = f"up-{i}", f"act-{i}", f"out-{i}"
    result = c.mul_mat(head, x)
    result.name = "head"
    graph = c.new_graph()
    graph.build_forward_expand(result)
    scheduler = ggml.Scheduler([gpu, cpu])
    try:
        yield scheduler, graph
    finally:
        for item in (scheduler, c, on_gpu, on_cpu, gpu, cpu):
            item.close()


def no_relu(tensor):
    return tensor.op != ggml.enums.Op.UNARY
