"""A GPU computes what the CPU computes, tensors travel both ways, plans show the copies.

`gpu` runs each test twice: over RPC anywhere, and on the machine's own GPU where there is one.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ..support.gpu_device import gpu_or_skip, run

OPS = """
def filled(c, kind, *ne, scale=1.0):
    rng = np.random.default_rng(sum(ne))
    return c.from_numpy(scale * rng.uniform(-1, 1, ne[::-1]), type=kind)

def rows(c, *indices):
    return c.from_numpy(np.array(indices, np.int32))

CASES = {
    "add": lambda c: c.add(filled(c, "f32", 64, 5), filled(c, "f32", 64)),
    "mul": lambda c: c.mul(filled(c, "f32", 64, 5, 2), filled(c, "f32", 64, 5, 2)),
    "scale": lambda c: c.scale(filled(c, "f32", 77, 3), 1.5),
    "silu": lambda c: c.silu(filled(c, "f32", 64, 5)),
    "gelu": lambda c: c.gelu(filled(c, "f32", 64, 5)),
    "rms_norm": lambda c: c.rms_norm(filled(c, "f32", 256, 3), 1e-5),
    "norm": lambda c: c.norm(filled(c, "f32", 256, 3), 1e-5),
    "soft_max": lambda c: c.soft_max(filled(c, "f32", 100, 7)),
    "get_rows": lambda c: c.get_rows(filled(c, "f16", 64, 9), rows(c, 8, 0, 3)),
    "rope": lambda c: c.rope(filled(c, "f32", 64, 4, 3), rows(c, 0, 5, 9), 64, 0),
    "concat": lambda c: c.concat(filled(c, "f32", 64, 3), filled(c, "f32", 64, 2), 1),
    "cpy": lambda c: c.cpy(filled(c, "f32", 64, 3), c.new_tensor("f16", 64, 3)),
    "transposed": lambda c: c.cont(c.transpose(filled(c, "f32", 33, 65))),
    "sum_rows": lambda c: c.sum_rows(filled(c, "f32", 256, 9)),
    "flash_attn": lambda c: c.flash_attn_ext(
        filled(c, "f32", 64, 5, 4), filled(c, "f16", 64, 256, 2), filled(c, "f16", 64, 256, 2),
        None, 0.125, 0.0, 0.0),
}
for kind in ("f32", "f16", "bf16", "q4_0", "q8_0", "q4_K", "q6_K"):
    for n_tokens in (1, 33):
        CASES[f"mul_mat {kind} {n_tokens}"] = lambda c, kind=kind, n=n_tokens: c.mul_mat(
            filled(c, kind, 512, 48), filled(c, "f32", 512, n))

def computed(device, build):
    with device.init() as backend, ggml.Context() as c:
        out = build(c)
        if not backend.supports_op(out):
            return None
        graph = c.new_graph()
        graph.build_forward_expand(out)
        c.alloc(backend)
        backend.compute(graph)
        return out.get().astype(np.float64)

answers = {}
for name, build in CASES.items():
    expected, got = computed(ggml.device("CPU"), build), computed(GPU, build)
    answers[name] = None if got is None else float(
        ((got - expected) ** 2).mean() / (expected ** 2).mean())
print(json.dumps(answers))
"""


def test_ops_are_what_the_cpu_computes(gpu):
    errors = run(OPS, gpu)
    assert errors["add"] is not None and errors["mul_mat f32 33"] is not None
    for name, error in errors.items():
        # test-backend-ops' limits of the normalised mean squared error
        limit = 5e-4 if name.startswith(("mul_mat", "flash_attn")) else 1e-6
        assert error is None or error < limit, (name, error)
    assert sum(error is None for error in errors.values()) <= 4  # not supported


COPIES = """
gpu, cpu = GPU.init(), ggml.device("CPU").init(n_threads=1)
there, here = ggml.Context(), ggml.Context()
values = np.random.default_rng(0).standard_normal((40, 96), np.float32)
a, back = there.new_tensor("f32", 96, 40, name="a"), here.new_tensor("f32", 96, 40, name="back")
q = there.new_tensor("q8_0", 96, 40, name="q")
buffer = there.alloc(gpu)
here.alloc(cpu)
buffer.clear(0)
assert not buffer.is_host and not a.get().any()

a.set(values)
assert (a.get() == values).all()
a.set(-values[3:5], offset=3 * 96)
values[3:5] *= -1
assert (a.get() == values).all()

a.copy_to(back)
assert (back.numpy() == values).all()
back.set(values * 2)
back.copy_to(a)
assert (a.get() == values * 2).all()
gpu.copy_async(cpu, back, a)
gpu.synchronize()
assert (a.get() == values * 2).all()
q.set(values)
assert abs(q.get() - values).max() < abs(values).max() / 100
try:
    a.numpy()
except ggml.ArgumentError as error:
    assert "cannot read" in str(error)
else:
    raise AssertionError("numpy() of device memory")

if GPU.props.caps.events:
    event = GPU.event()
    event.record(gpu)
    event.wait(gpu)
    event.synchronize()
free, total = GPU.memory
print(json.dumps([free, total]))
"""


def test_copies_there_and_back(gpu):
    free, total = run(COPIES, gpu)
    assert 0 < free <= total


@pytest.mark.needs("ggml_backend_tensor_set_2d")
def test_rows_are_written_and_read(gpu):
    program = """
        with GPU.init() as backend, ggml.Context() as c:
            a = c.from_numpy(np.arange(3840.0).reshape(40, 96), "a", "f32")
            c.alloc(backend)
            expected = a.get()
            a.set_2d(np.full((4, 8), -7.0), offset=2 * 96 + 5)
            expected[2:6, 5:13] = -7
            assert (a.get() == expected).all()
            print(json.dumps(a.get_2d(2, 3, offset=5 * 96 + 12).tolist()))
    """
    assert run(program, gpu) == [[-7, 5 * 96 + 13, 5 * 96 + 14], [588, 589, 590]]


PLAN = """
gpu, cpu = GPU.init(), ggml.device("CPU").init(n_threads=1)
on_gpu, on_cpu, ctx = ggml.Context(), ggml.Context(), ggml.Context()
rng = np.random.default_rng(0)
A, B, X = (rng.standard_normal(shape, np.float32) for shape in ((32, 64), (16, 32), (8, 64)))
a, b = on_gpu.from_numpy(A, "a"), on_cpu.from_numpy(B, "b")
on_gpu.alloc(gpu, usage="weights")
on_cpu.alloc(cpu, usage="weights")
x = ctx.new_tensor("f32", 64, 8, name="x")
x.set_input()
h = ctx.mul_mat(a, x)
y = ctx.mul_mat(b, h)
h.name, y.name = "h", "y"
y.set_output()
graph = ctx.new_graph()
graph.build_forward_expand(y)
sched = ggml.Scheduler([gpu, cpu], op_offload=False)
plan = sched.alloc_graph(graph)
errors = []
for sign in (1, -1):
    x.set(sign * X)
    sched.compute(graph)
    expected = sign * X @ A.T @ B.T
    errors.append(float(abs(y.get() - expected).max() / abs(expected).max()))
print(json.dumps({
    "backends": [[n.name, n.backend == gpu.name, n.cause.code] for n in plan.nodes],
    "moves": [[i.tensor.name, i.dst_backend == gpu.name, i.nbytes]
              for split in plan.splits for i in split.inputs],
    "errors": errors,
}))
"""


def test_a_plan_over_gpu_and_cpu_and_its_result(gpu):
    seen = run(PLAN, gpu)
    assert seen["backends"] == [["h", True, "1.wgt0"], ["y", False, "1.wgt0"]]
    assert seen["moves"] == [["x", True, 64 * 8 * 4], ["h", False, 32 * 8 * 4]]
    assert max(seen["errors"]) < 5e-3  # tensor cores round inputs to 10 bits


@pytest.mark.gpu
def test_the_demo_uses_the_gpu():
    name = gpu_or_skip()
    done = subprocess.run([sys.executable, "-m", "ggml_py", "demo", "--json"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert name in answer["devices"]
    assert answer["nodes_per_backend"][name] > 0 and len(answer["tokens"]) == 16


@pytest.mark.gpu
def test_the_devices_command_knows_the_gpus_memory():
    name = gpu_or_skip()
    done = subprocess.run([sys.executable, "-m", "ggml_py", "devices", "--json"],
                          capture_output=True, text=True, check=False)
    row = next(row for row in json.loads(done.stdout)["devices"] if row["name"] == name)
    assert row["memory_total"] > 0 and row["type"] in ("GPU", "IGPU")
