"""Graphs over chosen backends for tests of advice, with weights, names and pins as wanted."""

import ggml_py as ggml
from ggml_py.export import to_text


class World:
    """Backends, weights on them, and a graph of ops. The stack closes everything."""

    def __init__(self, stack, *devices):
        self.stack = stack
        self.backends = [stack.enter_context(self._device(d).init(n_threads=1)) for d in devices]
        self.context = stack.enter_context(ggml.Context())

    def _device(self, device):
        if isinstance(device, str):
            return ggml.device(device)
        if isinstance(device, ggml.Device):
            return device
        return self.stack.enter_context(ggml.sim_device(**device))

    def backend(self, name):
        return next(b for b in self.backends if name in (b.name, b.device.name))

    def tensor(self, name, *ne, on, type="f32", usage="weights"):
        context = self.stack.enter_context(ggml.Context())
        made = context.new_tensor(type, *ne, name=name)
        context.alloc(self.backend(on) if isinstance(on, str) else on, usage=usage)
        return made

    def input(self, name, *ne, type="f32"):
        made = self.context.new_tensor(type, *ne, name=name)
        made.set_input()
        return made

    def op(self, op, *args, name):
        made = getattr(self.context, op)(*args)
        made.name = name
        return made

    def scheduler(self, *outputs, graph_size=256, **options):
        self.graph = self.context.new_graph(graph_size)
        self.graph.build_forward_expand(*outputs)
        scheduler = ggml.Scheduler(self.backends, graph_size=graph_size, **options)
        return self.stack.enter_context(scheduler)

    def plan(self, *outputs, pins=(), **options):
        scheduler = self.scheduler(*outputs, **options)
        for tensor, backend in pins:
            scheduler.set_tensor_backend(tensor, self.backend(backend))
        return scheduler.plan(self.graph)


def gpu(name="gpu0", **settings):
    return {"name": name, **settings}


PLACES = {"GP119", "GP120", "GP121"}  # about where weights and caches are, whatever is copied


def findings(plan, min_bytes=1):
    """The findings about copies and splits, but no notes: small inputs of any graph have notes."""
    found = plan.advice(min_bytes=min_bytes)
    return [f for f in found if f.severity != "note" and f.id not in PLACES]


def ids(plan, min_bytes=1):
    return [f.id for f in findings(plan, min_bytes)]


def only(plan, id, min_bytes=1):
    (finding,) = findings(plan, min_bytes)
    assert finding.id == id
    return finding


def names(finding):
    return [t.name for t in finding.tensors]


def attention(w, type_k="f16", kv="gpu0", n_kv=256, rows=4):
    """A projection, attention over a cache on `kv`, and a projection: "q", "kqv", "out"."""
    q = w.op("mul_mat", w.tensor("wq", 64, 64, on="gpu0"), w.input("x", 64, rows), name="q")
    k, v = (w.tensor(n, 64, n_kv, on=kv, type=type_k, usage="any") for n in ("k", "v"))
    q = w.context.reshape_3d(q, 64, rows, 1)
    kqv = w.op("flash_attn_ext", q, k, v, None, 0.125, 0.0, 0.0, name="kqv")
    out = w.context.reshape_2d(kqv, 64, rows)
    return w.op("mul_mat", w.tensor("wo", 64, 64, on="gpu0"), out, name="out")


def no_quantised_cache(t):
    """The answers of a device whose flash attention accepts only an f16 cache."""
    return t.op.name != "FLASH_ATTN_EXT" or t.src[1].type.name == "F16"


def biased(w, bias_on, products_on="gpu0", rows=8, layers=3):
    """Products with biases that may be on another backend."""
    t = w.input("x", 64, rows)
    for i in range(layers):
        t = w.op("mul_mat", w.tensor(f"blk.{i}.w", 64, 64, on=products_on), t, name=f"h{i}")
        t = w.op("add", t, w.tensor(f"blk.{i}.bias", 64, on=bias_on), name=f"biased{i}")
    return w.op("mul_mat", w.tensor("out.w", 64, 64, on=products_on), t, name="out")


def net(w):
    h = w.op("mul_mat", w.tensor("a", 64, 64, on="gpu0"), w.input("x", 64, 8), name="h")
    r = w.op("relu", h, name="relu")
    return r, w.op("mul_mat", w.tensor("b", 64, 64, on="gpu0"), r, name="out")


def layers(w, places):
    t = w.input("x", 64, 8)
    for i, place in enumerate(places):
        t = w.op("mul_mat", w.tensor(f"blk.{i}.w", 64, 64, on=place), t, name=f"l{i}")
    return t


def embedded(w, places, on="CPU", type="f32"):
    rows = w.op("get_rows", w.tensor("token_embd", 64, 512, on=on, type=type),
                w.input("tokens", 8, type="i32"), name="embd")  # fmt: skip
    for i, place in enumerate(places):
        rows = w.op("mul_mat", w.tensor(f"blk.{i}.w", 64, 64, on=place), rows, name=f"l{i}")
    return rows


def residual(w, first, n_tokens=64):
    """The sum of two products, before a product on gpu0."""
    a = w.op("mul_mat", w.tensor("a", 64, 64, on=first), w.input("x", 64, n_tokens), name="a1")
    b = w.op("mul_mat", w.tensor("b", 64, 64, on="CPU"), a, name="b1")
    return w.op("mul_mat", w.tensor("c", 64, 64, on="gpu0"), w.op("add", a, b, name="sum"),
                name="out")  # fmt: skip


def logged(plan, causes=False):
    """The plan as read from its debug log. Stock ggml prints no causes."""
    return ggml.Plan.from_debug_log(to_text.render(plan, causes))
