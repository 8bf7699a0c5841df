"""A scheduler of a small graph on two devices."""

import ggml_py as ggml

CPU = ggml.device("CPU")


class Small:
    """Two products on a GPU and the CPU, on a pipeline or not."""

    def __init__(self, parallel=False):
        self.gpu, self.cpu = ggml.sim_device("state0").init(), CPU.init(n_threads=1)
        self.weights, self.other, self.ctx = ggml.Context(), ggml.Context(), ggml.Context()
        wa = self.weights.new_tensor("f32", 32, 32, name="wa")
        self.weights.alloc(self.gpu, usage="weights").clear()
        wc = self.other.new_tensor("f32", 32, 32, name="wc")
        self.other.alloc(self.cpu, usage="weights").clear()
        self.x = self.ctx.new_tensor("f32", 32, 4, name="x")
        self.x.set_input()
        self.a = self.ctx.mul_mat(wa, self.x)
        self.b = self.ctx.relu(self.a)
        self.c = self.ctx.mul_mat(wc, self.b)
        self.a.name, self.b.name, self.c.name = "a", "b", "c"
        self.wa, self.wc = wa, wc
        self.graph = self.ctx.new_graph()
        self.graph.build_forward_expand(self.c)
        self.sched = ggml.Scheduler([self.gpu, self.cpu], graph_size=64, parallel=parallel)

    def close(self):
        for item in (self.sched, self.ctx, self.weights, self.other, self.gpu, self.cpu):
            item.close()
