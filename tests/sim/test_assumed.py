"""Devices that answer as assumed, on the thread that assumes it and for its time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import ggml_py as ggml
from ggml_py.sim.assumed import assuming, means

CPU = ggml.device("CPU")


@pytest.fixture
def product():
    with ggml.Context() as ctx:
        yield ctx.mul_mat(ctx.new_tensor("f32", 64, 64), ctx.new_tensor("f32", 64, 8))


def never(_tensor):
    return False


@pytest.mark.parametrize("name", ["CPU", "gpu0"])
def test_any_device_can_be_assumed_to_lack_an_op(sims, product, name):
    device = CPU if name == "CPU" else sims(name)
    with assuming({device: lambda t: False if means("mul_mat", t) else None}, {}):
        assert not device.supports_op(product)
        assert device.supports_op(product.src[1])  # None: as the device says
    assert device.supports_op(product)


def test_what_it_wants(sims, product):
    gpu = sims("gpu0", offload_min_batch=64)
    assert not gpu.offload_op(product)
    with assuming({}, {gpu: lambda _t: True}):
        assert gpu.offload_op(product) and gpu.supports_op(product)
    assert not gpu.offload_op(product)


def test_other_threads_and_devices_are_asked_as_ever(sims, product):
    one, other = sims("gpu0"), sims("gpu1")
    with assuming({one: never}, {}), ThreadPoolExecutor(1) as pool:
        assert pool.submit(one.supports_op, product).result()
        assert other.supports_op(product) and not one.supports_op(product)


def test_an_exception_is_raised_by_the_call_that_asked(sims, product):
    gpu = sims("gpu0")

    def fails(_tensor):
        raise LookupError("asked")

    with assuming({gpu: fails}, {}), pytest.raises(LookupError, match="asked"):
        gpu.supports_op(product)
    assert gpu.supports_op(product)


def test_what_a_word_means(product):
    product.name = "ffn_up-3"
    assert all(means(word, product) for word in ("MUL_MAT", "mul_mat", "ffn_up-3", "ffn_*", "MUL*"))
    assert not any(means(word, product) for word in ("MUL", "ffn_up", "FFN_*"))
    assert not any(means(word, product.src[0]) for word in ("*", "NONE"))
