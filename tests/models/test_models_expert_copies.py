"""Experts that a GPU computes with although they are in the CPU's memory: only those that the
tokens chose are copied, and the results are the same."""

from __future__ import annotations

import numpy as np
import pytest

from ggml_py.models.build import expert_copies
from ggml_py.models.build.expert_copies import runs

from ..support.arch_files import deeper, load

PROMPT = [(i * 31 + 5) % 97 for i in range(64)]
pytestmark = pytest.mark.needs("ggml_backend_sched_set_copy_callback")


class Told:
    """The library, and what it was asked to copy: (name of the copy, first byte, bytes)."""

    def __init__(self, lib):
        self._lib = lib
        self.copies = []

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def ggml_backend_tensor_set_async(self, backend, tensor, data, offset, size):
        self.copies.append((tensor, offset, size))
        self._lib.ggml_backend_tensor_set_async(backend, tensor, data, offset, size)


@pytest.fixture
def told(monkeypatch):
    told = Told(expert_copies.lib)
    monkeypatch.setattr(expert_copies, "lib", told)
    return told


@pytest.mark.parametrize("name", ["llama-moe", "qwen3moe", "gpt-oss"])
@pytest.mark.parametrize("async_", [True, False])
def test_only_what_is_used(sims, arch_file, tmp_path, told, name, async_):
    path = tmp_path / "experts.gguf"
    deeper(arch_file(name), path, 3, "q8_0", n_expert=8, expert_used_count=2)
    with load(path) as model:
        rows = [model.eval(PROMPT, all_logits=True), model.eval([3]), model.eval([90])]
    assert not told.copies
    sims("gpu0", offload_min_batch=1, async_=async_)
    with load(path, devices=("gpu0",), n_gpu_layers=99, cpu_moe=True) as model:
        experts = [t for (_buft, name), t in model.weights._made.items() if "exps.weight" in name]
        assert len(experts) == 9
        np.testing.assert_array_equal(model.eval(PROMPT, all_logits=True), rows[0])
        whole = sum(t.nbytes for t in experts)
        for token, row in zip(([3], [90]), rows[1:], strict=True):
            told.copies.clear()
            np.testing.assert_array_equal(model.eval(token), row)
            n = sum(size for _tensor, _offset, size in told.copies)
            assert whole / 4 <= n <= whole / 4 + 9 * 2 * 512, "two of eight, and some padding"
        told.copies.clear()
        with load(path, devices=("gpu0",), n_gpu_layers=99) as other:
            np.testing.assert_array_equal(other.eval(PROMPT, all_logits=True), rows[0])
        assert not told.copies, "all are there"


def test_each_compute_asks_anew(sims, arch_file, tmp_path):
    """One graph and one layer, token by token: others are chosen each time."""
    path = tmp_path / "experts.gguf"
    deeper(arch_file("llama-moe"), path, 2, "q8_0", n_expert=8, expert_used_count=1)
    with load(path) as model:
        expected = [model.eval([token]) for token in range(12)]
    sims("gpu0", offload_min_batch=1)
    with load(path, devices=("gpu0",), n_gpu_layers=99, n_cpu_moe=1) as model:
        for token in range(12):
            np.testing.assert_array_equal(model.eval([token]), expected[token])


def test_runs():
    def of(text):
        return list(runs(np.array([c == "x" for c in text])))

    assert of("") == of("....") == []
    assert of("xxxx") == [(0, 4)]
    assert of("x..xx.x") == [(0, 1), (3, 5), (6, 7)]
    assert of(".x.") == [(1, 2)]
