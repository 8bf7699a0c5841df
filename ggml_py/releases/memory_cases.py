"""Small graphs for the rules by which the graph allocator gives memory, and takes it again."""

from __future__ import annotations

from collections.abc import Callable

from .. import enums
from ..graphs.node import N_SOURCES
from ..trace.record import VIEW_OPS
from .drawing import Drawing, Drawn
from .placing_cases import reordered

GPU, CPU = "gpu0", "CPU"
_F1 = 1065353216  # 1.0


def in_place() -> Drawing:
    """Nodes that may overwrite an operand, and some that may not: it is read again, an output, of
    another size, viewed, or in memory already."""
    g = Drawing("CPU")
    a = g.input("a")
    x = g.chain(a, "SQR", "SQRT")
    kept = g.node("SQR", x, name="read_again")
    x = g.node("ADD", kept, x)
    x = g.node("ADD", x, kept)
    out = g.node("SQR", x, flags=("output",), name="an_output")
    x = g.node("SQRT", out)
    row = g.node("SQR", g.input(ne=(64, 1, 1, 1)), name="row")
    x = g.node("ADD", x, row, ne=x.ne)
    x = g.node("MUL", g.node("CONT", x), x)
    cache = g.leaf("kept", memory=CPU, usage="any")
    x = g.node("ADD", cache, x)
    seen = g.view(out)
    x = g.node("ADD", g.node("SQRT", seen), x)
    view = g.view(g.node("CONT", x), "RESHAPE", (512, 1, 1, 1))
    y = g.node("SQR", view)
    y = g.view(y, "RESHAPE", (64, 8, 1, 1))
    x = g.node("ADD", y, x)
    base = g.node("CONT", x, name="viewed_twice")
    u, v = g.view(base), g.view(base)
    x = g.node("ADD", u, v)
    part = g.view(g.node("CONT", x), ne=(64, 4, 1, 1), offset=1024)
    z = g.node("SQR", part)
    first = g.view(g.node("CONT", x), ne=(64, 4, 1, 1))
    z = g.node("ADD", g.node("SQRT", first), z)
    g.node("SCALE", z, params=(_F1,))
    return g


def every_op() -> Drawing:
    """A node of each op behind a node that nothing else reads: which ops overwrite it?"""
    g = Drawing(GPU, CPU)
    a = g.input()
    kinds = {"UNARY": "SILU", "GLU": "SWIGLU"}
    for op in enums.Op:
        if op.name not in ("NONE", "COUNT", "CUSTOM", *VIEW_OPS) and not op.name.startswith("MAP_"):
            x = g.node("CONT", a, name=f"before-{op.name.lower()}", pin=GPU)
            src = [x, *[a] * max(1, N_SOURCES.get(op.name, 1) - 1)]
            kind = kinds.get(op.name, "")
            g.node(op.name, *src, kind=kind, flags=("output",), supports=(GPU,))
    larger = g.node("CONT", g.input(ne=(64, 16, 1, 1)), pin=GPU, name="larger")
    g.node("SQR", larger, ne=(64, 8, 1, 1), supports=(GPU,), name="smaller")
    return g


def sizes(*order: int, limit: int = 0, device: str = GPU) -> Drawing:
    """Results of several sizes. Their last reads come in a given order: places between others
    become free, grow together, and are taken by the result that fits best."""
    g = Drawing(GPU, CPU, limits={GPU: limit} if limit else None)
    w = g.weight(device)
    rows = (3, 8, 1, 5, 16, 2, 24, 7, 33, 4)
    made = [g.node("MUL_MAT", w, g.input(ne=(64, n, 1, 1)), ne=(64, n, 1, 1)) for n in rows]
    more = (6, 2, 9, 20, 1, 30, 4, 12, 40, 3)
    last: Drawn | None = None
    for place, i in enumerate(order):
        end = g.node("SUM", made[i], ne=(1, 1, 1, 1))
        last = end if last is None else g.node("ADD", last, end)
        n = more[place % len(more)]
        made.append(g.node("MUL_MAT", w, g.input(ne=(64, n, 1, 1)), ne=(64, n, 1, 1)))
    return g


def one_after_another() -> Drawing:
    """Places that are freed from the first to the last."""
    return sizes(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 10, 14)


def last_first() -> Drawing:
    """Places that are freed from the last to the first."""
    return sizes(9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 13, 12)


def every_other() -> Drawing:
    """Holes between places in use, which then grow together."""
    return sizes(1, 5, 3, 7, 9, 2, 4, 6, 0, 8, 15, 13, 11, 10)


def several_buffers() -> Drawing:
    """A largest buffer that is smaller than what is needed."""
    return sizes(1, 5, 3, 7, 9, 2, 4, 6, 0, 8, 15, 13, limit=20480)


def all_buffers(n: int = 15) -> Drawing:
    """All buffers that the allocator can have, each of the largest size."""
    g = Drawing(GPU, CPU, limits={GPU: 1024})
    x = g.input(ne=(64, 3, 1, 1))
    for i in range(n):
        g.node("CONT", x, name=f"kept-{i}", pin=GPU, flags=("output",))
    return g


def full_buffer() -> Drawing:
    """A buffer that is full to the last byte. Then every other result of it becomes free, from the
    first to the last, and more is needed."""
    g = Drawing(GPU, CPU, limits={GPU: 2048})
    x = g.leaf("kept", (64, 1, 1, 1), memory=GPU, usage="any")
    made = [g.node("CONT", x, name=f"made-{i}", pin=GPU) for i in range(8)]
    more = g.node("CONT", x, name="more", pin=GPU)
    ends = [g.node("SUM", made[i], ne=(1, 1, 1, 1), pin=CPU) for i in (0, 2, 4, 6)]
    more = g.node("ADD", more, g.node("CONT", x, pin=GPU), pin=GPU)
    for one in made[1::2]:
        more = g.node("ADD", one, more, pin=GPU)
    for end in ends:
        g.node("SQR", end, pin=CPU)
    return g


def emptied_buffer() -> Drawing:
    """A full buffer whose last result becomes free after the one before it."""
    g = Drawing(GPU, CPU, limits={GPU: 2048})
    x = g.leaf("kept", (64, 4, 1, 1), memory=GPU, usage="any")
    rows = [g.view(x, ne=(64, n, 1, 1)) for n in (4, 1, 1, 2)]
    g.node("CONT", rows[0], pin=GPU, flags=("output",))
    one, two = (g.node("CONT", rows[1], pin=GPU, name=f"small-{i}") for i in range(2))
    g.node("SUM", one, ne=(1, 1, 1, 1), pin=CPU)
    large = g.node("CONT", rows[3], pin=GPU)
    g.node("SUM", two, ne=(1, 1, 1, 1), pin=CPU)
    g.node("SUM", large, ne=(1, 1, 1, 1), pin=CPU)
    g.node("SQRT", g.node("CONT", rows[3], pin=GPU, name="in_its_place"), pin=CPU)
    return g


def odd_sizes() -> Drawing:
    """Results whose sizes are no multiple of the alignment."""
    g = Drawing(GPU, CPU)
    a = g.input(ne=(5, 3, 1, 1))
    w = g.weight(GPU, ne=(5, 7, 1, 1))
    x = g.node("MUL_MAT", w, a, ne=(7, 3, 1, 1))
    y = g.node("SQR", x)
    z = g.node("CONT", x, pin=CPU)
    u = g.node("CONT", g.view(y, ne=(3, 1, 1, 1)))
    g.node("ADD", g.node("MUL", y, x), z)
    g.node("SQRT", u)
    return g


def inputs_and_outputs() -> Drawing:
    """Inputs that are nodes, that nothing reads, that a GPU reads late; outputs in the middle."""
    g = Drawing(GPU, "gpu1", CPU)
    late, unread = g.input("late"), g.input("unread")
    assert unread
    plain = g.leaf("plain")
    x = g.node("MUL_MAT", g.weight(GPU), g.input())
    mid = g.node("SQR", x, flags=("output",))
    y = g.node("ADD", plain, g.node("SQRT", mid))
    z = g.node("CONT", y, flags=("input",), name="an_input")
    z = g.node("ADD", z, late, pin="gpu1")
    z = g.node("SQR", g.view(z), pin="gpu1")
    g.node("ADD", z, late, pin=GPU)
    return g


def unread_inputs() -> Drawing:
    """A node that is marked as an input and that nothing reads: it gets its place first."""
    g = Drawing(CPU)
    x = g.node("SQR", g.node("SQR", g.input()))
    g.node("CONT", x, flags=("input",), name="unread")
    g.node("SQRT", x)
    return g


def shared_memory() -> Drawing:
    """Devices with one memory between them: one buffer serves both."""
    g = Drawing(GPU, "blas0", CPU)
    x = g.node("MUL_MAT", g.weight(CPU), g.input(), pin="blas0")
    y = g.node("SQR", x, pin=CPU)
    z = g.node("CONT", y, pin="blas0")
    u = g.node("ADD", z, x, pin=CPU)
    g.node("ADD", u, g.node("SQRT", z, pin=GPU), pin=GPU)
    return g


def views_on_devices() -> Drawing:
    """Views of copies and of memory, in the middle of a graph."""
    g = Drawing(GPU, CPU)
    cache = g.leaf("cache", (64, 32, 1, 1), memory=GPU, usage="any")
    x = g.node("MUL_MAT", g.weight(GPU), g.input())
    w = g.write(g.view(cache, ne=x.ne, offset=512), x)
    part = g.view(x, ne=(64, 4, 1, 1), offset=1024)
    y = g.node("SQR", part, pin=CPU)
    z = g.node("ADD", g.view(w, ne=(64, 4, 1, 1)), y, pin=GPU)
    v = g.view(z, "RESHAPE", (256, 1, 1, 1))
    u = g.node("SQRT", g.view(v, "RESHAPE", (64, 4, 1, 1)), pin=CPU)
    g.node("ADD", u, z, pin=CPU)
    return g


CASES: dict[str, Callable[[], Drawing]] = {
    "overwritten operands": in_place,
    "ops that overwrite": every_op,
    "places freed in order": one_after_another,
    "places freed backwards": last_first,
    "holes between places": every_other,
    "several buffers": several_buffers,
    "all buffers": all_buffers,
    "more than all buffers": lambda: all_buffers(20),
    "a full buffer": full_buffer,
    "a full buffer, emptied": emptied_buffer,
    "odd sizes": odd_sizes,
    "an input that is a node": unread_inputs,
    "inputs and outputs": inputs_and_outputs,
    "shared memory": shared_memory,
    "views on devices": views_on_devices,
}


def _growing(rows: int, *, more: bool = False, leaf: bool = False, wide: bool = False) -> Drawing:
    g = Drawing(GPU, CPU)
    x = g.node("MUL_MAT", g.weight(GPU), g.input("x", (64, rows, 1, 1)), ne=(64, rows, 1, 1))
    x = g.node("CONT", x)
    if more:
        x = g.node("CONT", x)
    y = g.input("y", (64, 16 if wide else 8, 1, 1))
    if leaf:
        g.input("another")
    g.node("SQR", x)
    g.node("SUM", y, ne=(1, 1, 1, 1), pin=GPU)
    return g


def _on_cpu(rows: int) -> Drawing:
    g = Drawing("CPU")
    x = g.node("MUL_MAT", g.weight(CPU), g.input("x", (64, rows, 1, 1)), ne=(64, rows, 1, 1))
    g.node("CONT", g.node("SQR", x))
    return g


def _moved(pin: str) -> Drawing:
    g = Drawing(GPU, "gpu1", CPU)
    x = g.node("MUL_MAT", g.weight(GPU), g.input("x"))
    g.node("CONT", g.node("SQR", x, pin=pin), pin="gpu1")
    return g


def _swapped(pin: str) -> Drawing:
    g = Drawing(GPU, "gpu1", CPU)
    g.node("SQRT", g.node("SQR", g.input(), pin=pin), pin=CPU)
    return g


def _swapped_away() -> Drawing:
    g = Drawing(GPU, CPU)
    x = g.node("SQR", g.leaf("kept", memory=GPU, usage="any"), pin=GPU)
    g.node("SQRT", x, pin=CPU)
    return g


def _same_memory(pin: str) -> Drawing:
    g = Drawing(GPU, "blas0", CPU)
    x = g.node("SQR", g.leaf("plain"), supports=("blas0", CPU) if pin == "blas0" else (CPU,))
    g.node("SQRT", x, pin=GPU)
    return g


def _leaf(pin: str) -> Drawing:
    g = Drawing(GPU, "gpu1", CPU)
    g.leaf("unread", flags=("input",), pin=pin)
    g.node("SQR", g.input(), pin=GPU)
    return g


def _limited(rows: int) -> Drawing:
    g = Drawing(GPU, CPU, limits={GPU: 8192})
    x = g.input("x", (64, rows, 1, 1))
    g.node("SQR", g.node("CONT", x, pin=GPU), pin=GPU)
    return g


def _cpu_chain() -> Drawing:
    g = Drawing(GPU, CPU)
    x = g.input()
    for _ in range(90):
        x = g.node("SQR", x, pin=CPU)
    return g


def _splits(n: int, n_copies: int = 1) -> Drawing:
    g = Drawing(GPU, CPU, n_copies=n_copies)
    a, x = g.input("a"), g.input("x")
    for i in range(12):
        x = g.node("ADD", a, x, pin=CPU if i % 2 and i < n else GPU)
    g.order = list(range(12))
    return g


def _first(pin: str) -> Drawing:
    g = Drawing(GPU, "gpu1", CPU)
    g.node("ARANGE", ne=(512, 1, 1, 1), params=(0, 1140850688, _F1), pin=pin, flags=("output",))
    g.node("SQR", g.input(), pin=CPU)
    return g


def _between(op: str, **fields: str) -> Drawing:
    """A node that has memory of its own, is a view of the one before, or neither."""
    g = Drawing(GPU, CPU)
    x = g.node("SQR", g.input(), pin=GPU)
    y = g.view(x) if op == "VIEW" else g.node(op, x, pin=GPU, **fields)
    g.node("SQRT", y, pin=GPU)
    return g


def _empty(view: bool = False, memory: str = "") -> Drawing:
    """A node and a leaf without elements, whose size is that of a tensor with its own memory: 0."""
    g = Drawing(GPU, CPU)
    x = g.node("SQR", g.input(ne=(64, 0, 1, 1)), pin=GPU)
    g.node("SQRT", g.view(x) if view else g.node("CONT", x, pin=GPU), pin=GPU)
    g.node("CONT", g.leaf("empty", (64, 0, 1, 1), memory=memory, usage="any", pin=GPU), pin=GPU)
    g.node("SQR", g.input(), pin=GPU)
    return g


def _reading(**fields: str) -> Drawing:
    """A node of ten sources, of which the first or the last may have memory of its own."""
    g = Drawing(GPU, CPU)
    x = g.node("SQR", g.input(), pin=GPU)
    base = g.leaf("base", (64, 8, 1, 1), pin=GPU)
    first, last = (
        g.leaf(
            name,
            pin=GPU,
            memory=GPU if fields.get(name) == "memory" else "",
            usage="any",
            view_of=base if fields.get(name) == "view" else None,
        )
        for name in ("first", "last")
    )
    y = g.node("ADD", first, *[x] * 8, last, pin=GPU)
    g.node("ADD", y, base, pin=GPU)
    return g


# A graph that gets memory after another was reserved.
RESERVED: dict[str, tuple[Callable[[], Drawing], Callable[[], Drawing]]] = {
    "smaller than reserved": (lambda: _growing(16), lambda: _growing(8)),
    "larger than reserved": (lambda: _growing(8), lambda: _growing(16)),
    "more nodes than reserved": (lambda: _growing(8), lambda: _growing(8, more=True)),
    "more leafs than reserved": (lambda: _growing(8), lambda: _growing(8, leaf=True)),
    "a larger input than reserved": (lambda: _growing(8), lambda: _growing(8, wide=True)),
    "the CPU alone, larger than reserved": (lambda: _on_cpu(8), lambda: _on_cpu(64)),
    "the CPU alone, smaller than reserved": (lambda: _on_cpu(64), lambda: _on_cpu(8)),
    "the CPU alone, more than there is": (lambda: _on_cpu(8), lambda: _on_cpu(1 << 42)),
    "fewer buffers than reserved": (lambda: all_buffers(9), lambda: all_buffers(1)),
    "on the other GPU than reserved": (lambda: _swapped(GPU), lambda: _swapped("gpu1")),
    "on another device of one memory": (
        lambda: _same_memory("blas0"),
        lambda: _same_memory(CPU),
    ),
    "a leaf elsewhere than reserved": (lambda: _leaf(GPU), lambda: _leaf("gpu1")),
    "more than there is, reserved less": (lambda: _limited(4), lambda: _limited(64)),
    "on the GPU, not on the CPU as reserved": (_cpu_chain, lambda: _swapped_away()),
    "fewer nodes than reserved": (_cpu_chain, lambda: _growing(8)),
    "nodes in another order, reserved on the CPU": (_cpu_chain, reordered),
    "fewer leafs than reserved": (lambda: _growing(8, leaf=True), lambda: _growing(8)),
    "fewer splits than reserved": (lambda: _splits(12), lambda: _splits(2)),
    "fewer splits of a pipeline than reserved": (lambda: _splits(12, 4), lambda: _splits(2, 4)),
    "the first node elsewhere than reserved": (lambda: _first(GPU), lambda: _first("gpu1")),
    "no view, reserved as one": (lambda: _between("VIEW"), lambda: _between("CONT")),
    "no memory, reserved in some": (
        lambda: _between("CONT", memory=GPU, usage="any"),
        lambda: _between("CONT"),
    ),
    "an empty node, reserved as a view": (lambda: _empty(view=True), lambda: _empty()),
    "an empty leaf, reserved in memory": (lambda: _empty(memory=GPU), lambda: _empty()),
    "a source without memory, reserved in some": (
        lambda: _reading(first="memory"),
        lambda: _reading(),
    ),
    "the last source without memory, reserved in some": (
        lambda: _reading(last="memory"),
        lambda: _reading(),
    ),
    "a source that is no view, reserved as one": (
        lambda: _reading(first="view"),
        lambda: _reading(),
    ),
    "elsewhere than reserved": (lambda: _moved("gpu1"), lambda: _moved(GPU)),
    "on the CPU, not on the GPU as reserved": (lambda: _moved(GPU), lambda: _moved(CPU)),
}
