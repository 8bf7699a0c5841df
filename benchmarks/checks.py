"""The cost of the checks of ops: building one op, and computing, with and without the checks.

    python benchmarks/checks.py --before FOLDER [--launches 7]

FOLDER has the package ggml_py as it was before, with its build: `git archive COMMIT ggml_py`, plus
the build that `build_ggml.py` made of that commit, in ggml_py/native/lib. Each launch is one
process of each kind; they take turns round by round. Ratios are now/before, with 95 % confidence
(rounds.py).
"""

from __future__ import annotations

from pathlib import Path

from rounds import Measured, child, measured, parser, show

REPO = Path(__file__).resolve().parent.parent

ADD = """
import gc
import ggml_py as ggml
gc.disable()

def run():
    with ggml.Context() as ctx:
        a = ctx.new_tensor("f32", 8)
        start = clock()
        for _ in range(2000):
            ctx.add(a, a)
        return (clock() - start) / 2000

for _ in range(20):
    run()
rounds(run)
"""

# Layers like those of a small model, for one token. `N` is the length of a row.
COMPUTE = """
import numpy as np
import ggml_py as ggml
N, LAYERS, CALLS = {n}, {layers}, {calls}
cpu = ggml.device("CPU").init(n_threads=1)
params, ctx = ggml.Context(), ggml.Context()  # the scheduler allocates the tensors of ctx
x = params.new_tensor("f32", N)
pos = params.new_tensor("i32", 1)
y, weights = x, []
for _ in range(LAYERS):
    norm, *w = [params.new_tensor("f32", N)] + [params.new_tensor("f32", N, N) for _ in range(3)]
    weights += [norm, *w]
    h = ctx.mul(ctx.rms_norm(y, 1e-5), norm)
    q = ctx.rope(ctx.reshape_3d(ctx.mul_mat(w[0], h), N, 1, 1), pos, N, 0)
    h = ctx.soft_max(ctx.reshape_2d(q, N, 1))
    h = ctx.mul_mat(w[1], ctx.silu(ctx.mul_mat(w[2], h)))
    y = ctx.add(y, h)
graph = ctx.new_graph()
graph.build_forward_expand(y)
params.alloc(cpu)
for t in (x, *weights):
    t.set(np.ones(t.ne[::-1], "f4") / N)
pos.set(np.zeros(pos.ne[::-1], "i4"))
sched = ggml.Scheduler([cpu])
sched.alloc_graph(graph)

def run():
    start = clock()
    for _ in range(CALLS):
        sched.compute(graph)
    return (clock() - start) / CALLS

for _ in range(5):
    run()
rounds(run)
"""

BAR = 1.05


def paired(what: str, code: str, unit: str, folder: Path, launches: int, rounds: int) -> Measured:
    """The row for one piece of code."""
    found = []
    for i in range(launches):
        # In front of sys.path, before the folder that this is run in.
        codes = [f"import sys; sys.path.insert(0, {str(p)!r})\n{code}" for p in (REPO, folder)]
        with child(codes[i % 2]) as one, child(codes[1 - i % 2]) as other:
            assert one and other, "the code did not start, see above"
            runs = (one, other) if i % 2 == 0 else (other, one)
            took: tuple[list[float], list[float]] = ([], [])
            for n in range(rounds):
                for k in (0, 1) if n % 2 else (1, 0):
                    took[k].append(runs[k]())
            found.append(took)
    return measured(what, "before", unit, found, BAR)


def main() -> None:
    """Measures the rows and shows the table."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, required=True, metavar="FOLDER")
    options.add_argument("--launches", type=int, default=7)
    args = options.parse_args()
    graphs = {
        "a graph of 8 tiny nodes": COMPUTE.format(n=8, layers=1, calls=400),
        "a graph of 800 tiny nodes": COMPUTE.format(n=8, layers=89, calls=20),
        "a graph of 800 nodes, rows of 256": COMPUTE.format(n=256, layers=89, calls=2),
    }
    rows = [paired("ctx.add(a, b)", ADD, "ns", args.before, args.launches, args.rounds)]
    for what, code in graphs.items():
        rows.append(paired(what, code, "µs", args.before, args.launches, args.rounds))
    show(rows, args.form)


if __name__ == "__main__":
    main()
