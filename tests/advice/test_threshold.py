"""From how many tokens on op offload pays on a machine, and the finding where a plan does not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggml_py as ggml
from ggml_py.advice.threshold import crossover

from ..support.measured import device, machine, sample

K, M = 512, 256
KEY = "MUL_MAT q4_0"


def product(n_tokens, min_batch=32, op_offload=True):
    """The plan of one product whose weight is in host memory."""
    card = ggml.sim_device("gpu0", offload_min_batch=min_batch).init()
    cpu = ggml.device("CPU").init(n_threads=1)
    weights, context = ggml.Context(), ggml.Context()
    w = weights.new_tensor("q4_0", K, M, name="w")
    weights.alloc(cpu, usage="weights")
    x = context.new_tensor("f32", K, n_tokens, name="x")
    x.set_input()
    graph = context.new_graph()
    graph.build_forward_expand(context.mul_mat(w, x))
    return ggml.Scheduler([card, cpu], op_offload=op_offload).plan(graph)


def two(cpu, card, copy, *, noise=0.0):
    """A machine by (seconds, seconds a token) of the product on both, and (seconds, seconds a byte)
    of copies. `noise` is how far repetitions are apart."""

    def times(line, n):
        t = line[0] + line[1] * n
        return (t * (1 - noise), t, t * (1 + noise))

    def products(line):
        return [sample(KEY, (n, K * M), *times(line, n)) for n in (1, 4096)]

    copies = [
        sample(f"copy {way} CPU", (n,), *times(copy, n)) for way in ("from", "to")
        for n in (1, 1 << 26)
    ]  # fmt: skip
    return machine(*products(cpu), more=(device("gpu0", *products(card), *copies),))


def slower(found_machine, n):
    """How much longer the device takes with n tokens, by hand."""
    weight = K * M // 32 * 18  # bytes of q4_0
    by = {s.key: s for s in found_machine.devices[1].samples}

    def line(samples, at):
        (a, b) = samples
        return a.usual + (b.usual - a.usual) * (at - a.at[0]) / (b.at[0] - a.at[0])

    card = [s for s in found_machine.devices[1].samples if s.key == KEY]
    cpu = [s for s in found_machine.devices[0].samples if s.key == KEY]
    copies = [s for s in found_machine.devices[1].samples if s.key == "copy from CPU"]
    assert "copy to CPU" in by
    moved = sum(line(copies, x) for x in (weight, 4 * K * n, 4 * M * n))
    return line(card, n) + moved - line(cpu, n)


@pytest.fixture(scope="module")
def of_64():
    return product(64)


@settings(max_examples=40, deadline=None)
@given(
    cpu=st.floats(1e-6, 1e-4), card=st.floats(1e-8, 1e-5), start=st.floats(1e-6, 1e-2),
    byte=st.floats(1e-11, 1e-8),
)  # fmt: skip
def test_the_crossover_is_the_first_number_of_tokens_that_pays(of_64, cpu, card, start, byte):
    here = two((1e-5, cpu), (1e-5, card), (start, byte))
    found = crossover(of_64.cost(here))
    assert found.is_offloaded and found.batch == 64
    n = found.n_tokens
    if n is None:
        assert slower(here, 1 << 14) >= 0
        return
    assert slower(here, n) < 1e-12
    assert n == 1 or slower(here, n - 1) > -1e-12
    assert found.lost == pytest.approx(slower(here, 64), rel=1e-6, abs=1e-12)


def finding(plan, here):
    return next((f for f in plan.advice(0, machine=here) if f.id == "GP118"), None)


SLOW_LINK = two((1e-3, 1e-5), (1e-5, 1e-7), (2e-3, 1e-9))


def test_too_early_is_a_finding():
    found = finding(product(32), SLOW_LINK)
    assert "gpu0 copies its weight" in found.text and "this graph has 32 tokens" in found.text
    n = crossover(product(32).cost(SLOW_LINK)).n_tokens
    assert f"pays from {n} tokens on" in found.text
    assert found.suggestion.startswith(f"GGML_OP_OFFLOAD_MIN_BATCH={n} ")
    assert "--no-op-offload" in found.suggestion and found.seconds > 0
    assert finding(product(4 * n), SLOW_LINK) is None


def test_too_late_is_a_finding():
    quick = two((1e-2, 1e-4), (1e-5, 1e-7), (1e-5, 1e-10))
    found = finding(product(16), quick)
    assert "gpu0 could copy its weight" in found.text and "--no-op-offload" not in found.suggestion
    assert crossover(product(16).cost(quick)).n_tokens == 1


def test_less_than_the_error_is_none():
    noisy = two((1e-3, 1e-5), (1e-5, 1e-7), (2e-3, 1e-9), noise=0.9)
    assert finding(product(64), noisy) is None
    found = crossover(product(64).cost(noisy))
    assert found.lowest < found.n_tokens < (found.highest or 1 << 14)


def test_never_is_said():
    never = two((1e-6, 1e-9), (1e-3, 1e-6), (1e-3, 1e-9))
    assert "pays from more than 16384 tokens on" in finding(product(32), never).text


@pytest.mark.parametrize("plan", [product(32, op_offload=False)])
def test_without_op_offload_there_is_none(plan):
    assert crossover(plan.cost(SLOW_LINK)) is None


def test_times_that_are_not_known_make_no_finding():
    assert crossover(product(32).cost(machine())) is None
    half = machine(*SLOW_LINK.devices[0].samples, more=(device("gpu0"),))
    assert crossover(product(32).cost(half)) is None
