"""Plans of graphs in layers, to compare."""

import ggml_py as ggml


class Layers:
    """A net on a simulated GPU, with the weights of its layers there, and its tables on the CPU."""

    def __init__(self, gpu, n_layers=2, **options):
        self.backends = [gpu.init(n_threads=1), ggml.device("CPU").init(n_threads=1)]
        self.on_gpu, self.on_cpu, self.c = ggml.Context(), ggml.Context(), ggml.Context()
        self.w = [self.on_gpu.new_tensor("f32", 64, 64, name=f"w{i}") for i in range(n_layers)]
        self.on_gpu.alloc(self.backends[0], usage="weights")
        self.tables = [self.on_cpu.new_tensor("f32", 64, 100, name=n) for n in ("embd", "ple")]
        self.on_cpu.alloc(self.backends[1], usage="weights")
        self.options = options

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in (self.c, self.on_gpu, self.on_cpu, *self.backends):
            handle.close()

    def input(self, name, n, type="i32"):
        tensor = self.c.new_tensor(type, n, name=name)
        tensor.set_input()
        return tensor

    def plan(self, *roots):
        graph = self.c.new_graph()
        graph.build_forward_expand(*roots)
        with ggml.Scheduler(self.backends, **self.options) as scheduler:
            return scheduler.plan(graph)


def named(tensor, name):
    tensor.name = name
    return tensor
