"""A small network that the tests of simulated devices place and run."""

import numpy as np

import ggml_py as ggml


class Net:
    """out = b·relu(a·x) on some devices and the CPU, with the weights in memory of `weights`."""

    def __init__(self, *devices, weights=0, n_tokens=48, **options):
        self.backends = [d.init(n_threads=1) for d in (*devices, ggml.device("CPU"))]
        self.weights, self.context = ggml.Context(), ggml.Context()
        self._more = []
        rng = np.random.default_rng(0)
        self.a = self.weights.from_numpy(rng.standard_normal((96, 64), np.float32), "a")
        self.b = self.weights.from_numpy(rng.standard_normal((32, 96), np.float32), "b")
        self.weights.alloc(self.backends[weights], usage="weights")
        self.x, self.out = self.build(self.context, n_tokens)
        self.graph = self.context.new_graph()
        self.graph.build_forward_expand(self.out)
        self.h = self.graph["h"]
        self.scheduler = ggml.Scheduler(self.backends, **options)

    def build(self, c, n_tokens=48):
        """The input and the output, in a context of their own."""
        x = c.new_tensor("f32", 64, n_tokens, name="x")
        x.set_input()
        h = c.mul_mat(self.a, x)
        h.name = "h"
        out = c.mul_mat(self.b, c.relu(h))
        out.name = "out"
        return x, out

    def weights_on(self, backend, *shapes):
        """More f32 tensors in a backend's memory."""
        self._more.append(ggml.Context())
        tensors = [self._more[-1].new_tensor("f32", *ne) for ne in shapes]
        self._more[-1].alloc(backend)
        return tensors

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in (self.scheduler, self.context, *self._more, self.weights, *self.backends):
            handle.close()

    def set_input(self, values=None):
        if values is None:
            values = np.random.default_rng(1).standard_normal((self.x.ne[1], 64), np.float32)
        self.x.set(values)

    def run(self, values=None):
        self.scheduler.alloc_graph(self.graph)
        self.set_input(values)
        self.scheduler.compute(self.graph)
        result = self.out.get()
        self.scheduler.reset()
        return result

    def where(self):
        return [node.backend for node in self.scheduler.plan(self.graph).nodes]


def cpu_result(values=None, **options):
    """The result of the CPU alone."""
    with Net(weights=-1, **options) as net:
        return net.run(values)
