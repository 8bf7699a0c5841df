"""Small graphs for the rules by which the scheduler places nodes and cuts splits."""

from __future__ import annotations

from collections.abc import Callable

from .drawing import Drawing

_F1, _BASE = 1065353216, 1176256512  # 1.0 and 10000.0
_ROPE = (64, 64, 0, 0, 0, _BASE, _F1, 0, _F1, 0, 0)
GPU, CPU, BLAS = "gpu0", "CPU", "blas0"


def rope() -> Drawing:
    """ROPE whose frequencies are on the GPU, between nodes on the CPU."""
    g = Drawing()
    x = g.node("ADD", *[g.input(ne=(64, 1, 4, 1))] * 2, pin=CPU)
    freqs, places = (
        g.weight(GPU, "rope_freqs.weight", (32, 1, 1, 1)),
        g.input("pos", (4, 1, 1, 1), "i32"),
    )
    x = g.node("ROPE", x, places, freqs, ne=x.ne, params=_ROPE)
    g.node("SCALE", x, pin=CPU, params=(_F1,))
    return g


def allocated() -> Drawing:
    """Nodes in memory already: a cache on the GPU that is written and read through views."""
    g = Drawing("gpu0", "gpu1", "CPU")
    cache = g.leaf("cache", (64, 32, 1, 1), memory="gpu1", usage="any")
    x = g.node("MUL_MAT", g.weight(CPU), g.input())
    g.write(g.view(cache, ne=x.ne, offset=2048), x)
    seen = g.view(cache, ne=(64, 16, 1, 1))
    y = g.node("RMS_NORM", seen)
    g.node("MUL_MAT", g.weight(GPU), y, ne=y.ne)
    return g


def unable() -> Drawing:
    """Weights on a GPU that does not support their op, and a node in its memory."""
    g = Drawing("gpu0", "gpu1", "CPU")
    x = g.input()
    x = g.node("MUL_MAT", g.weight(GPU), x, supports=("gpu1", CPU))
    x = g.node("MUL_MAT", g.weight("gpu1"), x, supports=(CPU,))
    x = g.node("MUL_MAT", g.weight("gpu1"), x)
    x = g.node("SQR", x, supports=(GPU,))
    g.node("SQRT", x, supports=(GPU, CPU))
    return g


def offloaded() -> Drawing:
    """Weights in host memory, products that some GPUs want, and support."""
    g = Drawing("gpu0", "gpu1", "CPU")
    x = g.input()
    both = ("gpu0", "gpu1")
    for supports, offload in (
        (None, ("gpu1",)), (None, both), (("gpu1", CPU), both), ((CPU,), both), (None, ()),
    ):  # fmt: skip
        x = g.node("MUL_MAT", g.weight(CPU), x, supports=supports, offload=offload)
        x = g.node("RMS_NORM", x, supports=supports)
    y = g.node("ADD", x, g.weight(CPU, ne=(64, 1, 1, 1)), ne=x.ne, offload=("gpu1",))
    y = g.node("MUL", y, g.weight("gpu1", ne=(64, 1, 1, 1)), ne=x.ne, offload=("gpu0",))
    y = g.node(
        "ADD", g.node("SQR", y), g.weight(CPU, ne=(64, 1, 1, 1)), ne=x.ne, supports=(CPU, GPU)
    )
    return g


def not_offloaded() -> Drawing:
    """The same wish where op_offload is off."""
    g = Drawing(op_offload=False)
    x = g.node("MUL_MAT", g.weight(CPU), g.input(), offload=(GPU,))
    g.node("MUL_MAT", g.weight(CPU), x, offload=(GPU,))
    return g


def host_weights_before_others() -> Drawing:
    """BLAS before the CPU: host weights are on the first that reads them, and are not offloaded."""
    g = Drawing("gpu0", "blas0", "CPU")
    x = g.node("MUL_MAT", g.weight(CPU), g.input(), offload=(GPU,))
    x = g.node("RMS_NORM", x, supports=(GPU, CPU))
    x = g.node("MUL_MAT", g.weight(CPU), x, supports=(GPU, CPU), offload=(GPU,))
    g.node("MUL_MAT", g.weight(CPU), g.node("SQR", x), supports=("blas0", CPU), offload=(GPU,))
    return g


def spread() -> Drawing:
    """What nodes between others get: down and up from GPUs, then from the CPU."""
    g = Drawing("gpu0", "gpu1", "CPU")
    x = g.input()
    x = g.chain(x, "SQR", "SQRT")  # before: up from gpu1
    x = g.node("MUL_MAT", g.weight("gpu1"), x)
    x = g.chain(x, "RMS_NORM", "ADD")  # between: down from gpu1
    x = g.node("SQR", x, supports=(CPU,))
    x = g.chain(x, "RMS_NORM")
    x = g.node("MUL_MAT", g.weight(CPU), x)  # stops gpu1
    x = g.chain(x, "SQR", "ADD")
    x = g.node("MUL_MAT", g.weight(GPU), x, name="on_gpu0")
    x = g.node("SQR", x, supports=("gpu1", CPU))
    x = g.chain(x, "SQRT")
    x = g.view(x, "RESHAPE", (x.ne[0] * x.ne[1], 1, 1, 1))
    x = g.chain(x, "SQR")
    x = g.node("SQRT", x, pin=CPU)
    g.chain(x, "SQR", "ADD")
    return g


def only_the_cpu() -> Drawing:
    """The CPU in the middle: the last two sweeps spread it."""
    g = Drawing("gpu0", "gpu1", "CPU")
    x = g.chain(g.input(), "SQR", "RMS_NORM")
    x = g.node("MUL_MAT", g.weight(CPU), x)
    x = g.chain(x, "SQR", "RMS_NORM")
    x = g.view(x, "RESHAPE", (512, 1, 1, 1))
    g.chain(x, "SQR", "SQRT")
    return g


def nothing_known() -> Drawing:
    """No weight, no pin: nodes are where the most inputs are. If backends tie, the first counts."""
    g = Drawing("gpu0", "gpu1", "CPU")
    a, b = g.leaf("plain-a"), g.leaf("plain-b")
    x = g.node("ADD", a, b)
    cache = g.leaf("kept", memory="gpu1", usage="any")
    y = g.node("ADD", cache, x, supports=("gpu0", "gpu1"))
    z = g.node("ADD", g.view(y), g.view(cache))
    g.node("ADD", z, g.input())
    return g


def most_inputs() -> Drawing:
    """Nodes that no neighbour can take: the one that reads the most inputs gets them."""
    g = Drawing("gpu0", "gpu1", "gpu2", "CPU")
    x = g.node("MUL_MAT", g.weight("gpu2"), g.input())
    w = [g.leaf(f"kept-{i}", memory="gpu1", usage="any") for i in range(2)]
    k = g.leaf("kept-0", memory="gpu0", usage="any")
    x = g.node("ADD", w[0], x, supports=("gpu0", "gpu1", CPU), ne=x.ne)
    x = g.node("ADD", g.view(w[1]), x, supports=("gpu0", "gpu1"), ne=x.ne)
    y = g.node("MUL_MAT", g.weight("gpu2"), x, ne=x.ne)
    y = g.node("ADD", k, w[0], supports=("gpu0", "gpu1"))
    y = g.node("ADD", y, x, supports=("gpu0", CPU))
    g.node("ADD", g.leaf("unplaced"), y, supports=("gpu1", CPU))
    return g


def upgraded() -> Drawing:
    """Devices that share the CPU's memory: nodes move up if they can, and their sources can be
    read there."""
    g = Drawing("gpu0", "blas0", "blas1", "CPU")
    x = g.input()
    x = g.node("MUL_MAT", g.weight(CPU), x, supports=(CPU,))
    x = g.node("SQR", x, supports=("blas0", "blas1", CPU))
    x = g.node("SQRT", x, supports=("blas1", CPU))
    x = g.node("RMS_NORM", x, supports=(GPU, CPU))
    y = g.node("MUL_MAT", g.weight(GPU), g.input())
    y = g.node("SQR", y, pin=GPU)
    x = g.node("ADD", x, y, pin=CPU)
    x = g.node("ADD", g.view(x), x, pin=CPU)
    g.node("MUL", x, g.weight(GPU, ne=(64, 1, 1, 1)), ne=x.ne, pin="blas1")
    return g


def views() -> Drawing:
    """Views of nodes, leafs and weights, which run nowhere but are placed."""
    g = Drawing("gpu0", "gpu1", "CPU")
    w = g.weight(GPU, ne=(64, 16, 1, 1))
    part = g.view(w, ne=(64, 8, 1, 1), offset=64)
    x = g.node("ADD", part, g.input(ne=(64, 8, 1, 1)))
    plain = g.leaf("plain")
    x = g.node("ADD", x, plain)
    y = g.view(plain, "RESHAPE", (64, 8, 1, 1))
    z = g.view(y, ne=(64, 4, 1, 1), offset=1024)
    z = g.node("SQR", z, pin="gpu1")
    x = g.node("ADD", x, y)
    v = g.view(x, ne=(64, 4, 1, 1))
    g.node("ADD", v, z, pin=CPU)
    g.view(g.node("SQRT", v, supports=("gpu1", CPU)), "RESHAPE")
    return g


def begins_with_views() -> Drawing:
    """A graph whose first nodes are views, so that the first split begins before its first op."""
    g = Drawing("gpu0", "gpu1", "CPU")
    x = g.input()
    a = g.view(x, "RESHAPE")
    b = g.view(a, "PERMUTE")
    c = g.view(b, "TRANSPOSE")
    x = g.node("SQR", c, pin="gpu1")
    g.view(x)
    return g


def weights_of_a_split() -> Drawing:
    """Host weights that are copied: each begins a split, unless it is the first input."""
    g = Drawing("gpu0", "CPU")
    x = g.input()
    for i in range(3):
        x = g.node("MUL_MAT", g.weight(CPU), x, offload=(GPU,), name=f"up-{i}")
        x = g.node("RMS_NORM", x)
    x = g.node("MUL_MAT", g.weight(GPU), x)
    x = g.node("MUL", x, g.leaf("scale", (64, 1, 1, 1), memory=CPU, usage="any"), ne=x.ne, pin=GPU)
    twice = g.weight(CPU)
    x = g.node("MUL_MAT", twice, x, offload=(GPU,))
    x = g.node("ADD", x, g.input())
    g.node("MUL_MAT", twice, x, offload=(GPU,))
    return g


def many_splits() -> Drawing:
    """Forty splits: the table of splits grows twice."""
    g = Drawing("gpu0", "gpu1", "CPU")
    x = g.input()
    for i in range(40):
        x = g.node("SQR" if i % 2 else "RMS_NORM", x, pin=("gpu0", "CPU", "gpu1")[i % 3])
    return g


def copied_once() -> Drawing:
    """Inputs that several splits of several devices read, some of them twice."""
    g = Drawing("gpu0", "gpu1", "CPU")
    a, b = g.input("a"), g.input("b")
    x = g.node("ADD", a, a, pin=GPU)
    y = g.node("ADD", a, b, pin="gpu1")
    z = g.node("ADD", x, b, pin=GPU)
    u = g.node("ADD", y, z, pin=CPU)
    v = g.node("ADD", u, y, pin="gpu1")
    w = g.node("ADD", x, u, pin=CPU)
    g.node("ADD", v, w, pin=GPU)
    return g


def pinned_leafs() -> Drawing:
    """Pins of leafs, of inputs and of nodes with weights."""
    g = Drawing("gpu0", "gpu1", "CPU")
    a = g.leaf("a", flags=("input",), pin="gpu0")
    b = g.leaf("b", pin="gpu1")
    x = g.node("ADD", a, b)
    x = g.node("MUL_MAT", g.weight(GPU), x, pin="gpu1")
    g.node("SQR", x, flags=("output",))
    return g


def several_weights() -> Drawing:
    """Nodes with several weights: the first weight counts. Also a missing source, and a node that
    is an input although it has weights."""
    g = Drawing("gpu0", "gpu1", "CPU")
    small = (64, 8, 1, 1)
    x = g.node("ADD", g.weight("gpu1", ne=small), g.weight(GPU, ne=small))
    x = g.node("SOFT_MAX", x, None, g.weight(GPU, "sinks", (1, 1, 1, 1)), ne=x.ne, params=(_F1,))
    y = g.node("MUL_MAT", g.weight(GPU), g.input(), flags=("input",))
    x = g.node("ADD", x, y)
    g.node("SOFT_MAX", x, None, g.weight("gpu1", "last", (1, 1, 1, 1)), ne=x.ne, params=(_F1,))
    return g


def repacked() -> Drawing:
    """Weights that the CPU holds in a layout of its own: they are not host memory."""
    g = Drawing()
    x = g.node("MUL_MAT", g.weight("CPU_REPACK"), g.input(), offload=(GPU,))
    x = g.node("MUL_MAT", g.weight(CPU), x, offload=(GPU,))
    g.node("SQR", x, supports=(GPU,))
    return g


def viewed_before_read() -> Drawing:
    """A leaf in no memory that a view comes before: the view goes where it can run."""
    g = Drawing("gpu0", "gpu1", "CPU")
    plain = g.leaf("plain")
    v = g.view(plain, ne=(64, 4, 1, 1))
    w = g.view(plain, ne=(64, 4, 1, 1), offset=1024, supports=("gpu1", CPU))
    x = g.node("ADD", plain, g.input(), pin="gpu1")
    v = g.node("ADD", g.node("SQR", v, pin=CPU), g.node("SQR", w, pin=CPU))
    g.node("ADD", v, g.view(x, ne=v.ne))
    return g


def pinned_view() -> Drawing:
    """A view that is pinned elsewhere than its base, read by a device that shares its memory."""
    g = Drawing("gpu0", "blas0", "CPU")
    x = g.node("MUL_MAT", g.weight(GPU), g.input(), pin=GPU)
    v = g.view(x, pin=CPU)
    x = g.node("ADD", v, g.input(), pin=BLAS)
    g.node("SQR", x, supports=(GPU,))
    return g


def full_split() -> Drawing:
    """A split with thirty inputs. The next nodes read one of them again, a tensor that needs no
    copy, and one more input."""
    g = Drawing("gpu0", "blas0", "CPU")
    start = g.input()
    made = [g.node("SQR", start, pin=GPU, name=f"made-{i}") for i in range(30)]
    here = g.node("SQRT", start, pin=BLAS)
    more = g.node("SQR", start, pin=GPU, name="more")
    x = start
    for one in (*made, made[3], here, more):
        x = g.node("ADD", x, one, supports=(CPU,))
    return g


def placed_weight() -> Drawing:
    """A split that has inputs reads a weight that another device is given, in place."""
    g = Drawing("gpu0", "blas0", "CPU")
    x = g.node("SQR", g.input(), pin=GPU)
    x = g.node("ADD", x, g.input(), supports=(CPU,))
    g.node("MUL_MAT", g.weight(CPU), x, supports=(CPU,))
    return g


def cpu_last() -> Drawing:
    """A node above the CPU's, which is the last: only the last sweep, up, reaches it."""
    g = Drawing()
    g.node("MUL_MAT", g.weight(CPU), g.node("SQR", g.input()))
    return g


def cpu_above() -> Drawing:
    """The CPU between a node without a place and a GPU: the GPU stops there on its way up."""
    g = Drawing()
    x = g.node("MUL_MAT", g.weight(CPU), g.node("SQR", g.input()))
    g.node("MUL_MAT", g.weight(GPU), x, ne=x.ne)
    return g


def moved_up() -> Drawing:
    """Nodes that move to the first of three devices with one memory, if it reads all sources."""
    g = Drawing("blas0", "blas1", "CPU")
    x = g.node("SQR", g.input(), pin="blas1")
    g.node("SQRT", x, pin=CPU)
    return g


def not_moved_up() -> Drawing:
    """The same where the first source alone, or the second, is in memory that it does not read."""
    g = Drawing("gpu0", "blas0", "CPU")
    a, b = g.node("SQR", g.input(), pin=GPU), g.node("SQR", g.input(), pin=BLAS)
    x = g.node("ADD", a, b, pin=CPU)
    g.node("ADD", g.node("SQR", x, supports=(CPU,)), g.node("SQRT", a, pin=GPU), pin=CPU)
    return g


def without_place() -> Drawing:
    """A node that cannot move up, because one of its sources has no place yet."""
    g = Drawing("blas0", "CPU")
    g.node("ADD", g.input(), g.leaf("plain"), pin=CPU)
    return g


def written_in_place() -> Drawing:
    """A node that is a view of its operand and follows a weight; a view that is an input."""
    g = Drawing("gpu0", "gpu1", "CPU")
    x = g.node("MUL_MAT", g.weight(GPU), g.input())
    x = g.node("SQR", x)
    row = g.weight("gpu1", ne=(64, 1, 1, 1))
    y = g.node("ADD", x, row, ne=x.ne, view_of=x, name="in_place")
    z = g.node("SQRT", y, pin=GPU)
    v = g.view(z, flags=("input",), name="an_input")
    g.node("ADD", z, v, pin=GPU)
    return g


def leaf_that_views() -> Drawing:
    """A leaf that is a view of another, which has no memory either: both are in one place."""
    g = Drawing("gpu0", "gpu1", "CPU")
    plain = g.leaf("plain")
    seen = g.leaf("seen", view_of=plain)
    x = g.node("ADD", plain, plain, pin="gpu1")
    g.node("ADD", g.node("SQR", seen, pin=GPU), x, pin=GPU)
    return g


def nothing_but_views() -> Drawing:
    """A graph without a node that computes."""
    g = Drawing("gpu0", "CPU")
    g.view(g.view(g.leaf("plain", memory=GPU, usage="any")), "RESHAPE")
    return g


def ten_sources() -> Drawing:
    """Nodes with as many sources as there can be, of which the last decides."""
    g = Drawing("gpu0", "gpu1", "blas0", "CPU")
    x = g.input()
    here = [g.node("SQR", x, pin=CPU, name=f"here-{i}") for i in range(9)]
    only = (GPU, "gpu1")
    far = g.leaf("far", memory="gpu1", usage="any")
    g.node("SQRT", g.node("ADD", *here, far, supports=only, name="best"), pin=CPU)
    last = g.node("ADD", *here, g.weight("gpu1"), supports=only, ne=x.ne)
    kept = g.leaf("kept", memory=GPU, usage="any")
    y = g.node("ADD", *here, kept, supports=("gpu0", "gpu1"))
    plain = g.leaf("plain")
    z = g.node("ADD", *here, plain, pin="gpu1")
    u = g.node("ADD", *here, y, pin=CPU)
    v = g.node("ADD", last, z, pin=GPU)
    v = g.node("ADD", *[v] * 9, g.weight(CPU, ne=v.ne), pin=GPU)
    g.node("ADD", u, v, pin=CPU)
    return g


def pipeline() -> Drawing:
    """Four copies of the graph, on two GPUs, with weights, and leafs that are no inputs."""
    g = Drawing("gpu0", "gpu1", "CPU", n_copies=4)
    a, b = g.input("a"), g.input("b")
    kept, plain = g.leaf("kept", memory=CPU, usage="any"), g.leaf("plain")
    x = g.node("MUL_MAT", g.weight(GPU), a)
    x = g.node("ADD", x, kept)
    x = g.node("MUL_MAT", g.weight("gpu1"), x)
    x = g.node("ADD", x, b)
    x = g.node("MUL_MAT", g.weight(CPU), x, offload=(GPU,))
    x = g.node("ADD", plain, x)
    g.input("unread")
    g.node("MUL_MAT", g.weight(CPU), x)
    return g


def pipeline_of_pinned_input() -> Drawing:
    """An input of a pipeline that is pinned to one GPU, and read by the other."""
    g = Drawing("gpu0", "gpu1", "CPU", n_copies=4)
    a = g.leaf("a", flags=("input",), pin=GPU)
    x = g.node("SQR", a, pin=GPU)
    y = g.node("SQRT", a, pin="gpu1")
    g.node("ADD", g.node("CONT", x, pin="gpu1"), y, pin="gpu1")
    return g


def pipeline_without_inputs() -> Drawing:
    """A split of a pipeline without inputs, behind splits of both GPUs: it waits for them."""
    g = Drawing("gpu0", "gpu1", "CPU", n_copies=4)
    a, b = g.input("a"), g.input("b")
    x = g.node("SQR", a, pin=GPU)
    y = g.node("SQRT", b, pin=CPU)
    z = g.node("ADD", x, y, pin="gpu1")
    u = g.node("CONT", b, pin=CPU)
    g.node("ADD", z, u, pin=GPU)
    return g


def many_pipeline_inputs() -> Drawing:
    """Forty inputs of a graph with four copies: the table of inputs grows."""
    g = Drawing("gpu0", "CPU", n_copies=4)
    x = g.input()
    for _ in range(40):
        x = g.node("ADD", x, g.input(), pin=GPU)
    return g


def reordered() -> Drawing:
    """A GPU that computes nodes in another order, and keeps tensors longer for it."""
    g = Drawing("gpu0", "CPU")
    x = g.node("MUL_MAT", g.weight(GPU), g.input())
    ends = [g.node("SQR", x, name=f"side-{i}") for i in range(14)]
    y = g.node("CONT", x)
    for one in ends:
        y = g.node("ADD", one, y)
    z = g.node("CONT", y)
    z = g.node("CONT", z)
    last = [g.node("SQR", z, name=f"last-{i}") for i in range(3)]
    g.order = [0, 15, *range(14, 0, -1), *range(16, len(g.nodes))]
    g.keep = [(one, y) for one in ends[:13]] + [(x, z), (x, z), (ends[0], z)]
    for n, until in zip((1, 10, 11), last, strict=True):  # a node has room for ten
        g.keep += [(one, until) for one in ends[:n]]
    return g


CASES: dict[str, Callable[[], Drawing]] = {
    "rope frequencies on the GPU": rope,
    "a cache in memory": allocated,
    "weights where their op cannot run": unable,
    "weights in host memory": offloaded,
    "weights in host memory without offload": not_offloaded,
    "BLAS before the CPU": host_weights_before_others,
    "nodes between others": spread,
    "the CPU between": only_the_cpu,
    "nothing in memory": nothing_known,
    "the most inputs": most_inputs,
    "devices that share memory": upgraded,
    "views": views,
    "views first": begins_with_views,
    "weights of a split": weights_of_a_split,
    "many splits": many_splits,
    "copied once": copied_once,
    "pinned leafs": pinned_leafs,
    "several weights": several_weights,
    "repacked weights": repacked,
    "a view before its leaf": viewed_before_read,
    "a pinned view": pinned_view,
    "a split with 30 inputs, read again": full_split,
    "a weight read in place": placed_weight,
    "the CPU last": cpu_last,
    "the CPU above a GPU": cpu_above,
    "nodes that move up": moved_up,
    "nodes that do not": not_moved_up,
    "a source without a place": without_place,
    "written in place": written_in_place,
    "a leaf that views another": leaf_that_views,
    "nothing but views": nothing_but_views,
    "ten sources": ten_sources,
    "a pipeline of two GPUs": pipeline,
    "a pinned input of a pipeline": pipeline_of_pinned_input,
    "a split of a pipeline without inputs": pipeline_without_inputs,
    "a pipeline with 41 inputs": many_pipeline_inputs,
    "nodes in another order": reordered,
}
