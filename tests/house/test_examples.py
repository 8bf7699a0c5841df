"""The examples are short and run as they say, from outside the tree. Their results equal those
of the upstream programs that they follow, or of the same network in numpy."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml

pytestmark = pytest.mark.thorough("long", quick=10)

REPO = Path(__file__).parents[2]
EXAMPLES = sorted((REPO / "examples").glob("*.py"))


def example(name, *arguments, cwd):
    command = [sys.executable, str(REPO / "examples" / name), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def module(name):
    """The example as a module, for its weights."""
    spec = importlib.util.spec_from_file_location(name, REPO / "examples" / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_is_short_and_says_how_to_run_it(path):
    text = path.read_text()
    assert len(text.splitlines()) < 80
    assert f"    python examples/{path.name}" in text.split('"""')[1]


def test_every_example_has_a_test_and_is_listed():
    tests = "".join(path.read_text() for path in (REPO / "tests").rglob("test_*.py"))
    listed = (REPO / "docs" / "PYTHON.md").read_text()
    for path in EXAMPLES:
        assert f'"{path.name}"' in tests, path.name
        assert f"examples/{path.name}" in listed, path.name


def test_make_model(tmp_path):
    path = tmp_path / "m.gguf"
    example("make_model.py", path, "--n-layer", 1, "--type", "q8_0", cwd=tmp_path)
    with ggml.Gguf.open(path) as file:
        assert file.metadata["llama.block_count"] == 1
        assert file.tensors["blk.0.attn_q.weight"].type == ggml.enums.Type.Q8_0


def test_why(tmp_path):
    out = example("why.py", cwd=tmp_path)
    assert "1.wgt0" in out
    assert "3.upg: moved up to BLAS" in out  # pass 3 moves even pinned nodes


def test_sim_device(tmp_path):
    lines = example("sim_device.py", cwd=tmp_path).splitlines()
    assert [line for line in lines if "CPU's result" in line] == ["  the CPU's result: True"] * 3
    where = [line.split(": ")[1].split(",")[0] for line in lines if "copied" in line]
    assert where == ["gpu0 CPU gpu0", "CPU CPU CPU", "gpu0 CPU gpu0"]
    assert "(600,000 of 600,000 bytes of gpu0 are free)" in lines[-1]


@pytest.mark.parametrize("name", ["simple_backend.py", "simple_ctx.py"])
def test_simple_prints_what_upstreams_prints(name, tmp_path):
    assert example(name, cwd=tmp_path) == (
        "mul mat (4 x 3) (transposed result):\n"
        "[ 60.00 55.00 50.00 110.00\n"
        " 90.00 54.00 54.00 126.00\n"
        " 42.00 29.00 28.00 64.00 ]\n"
    )


# --- the same networks in numpy


def norm(x, eps, axis=-1):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gpt2(weights, tokens, n_head):
    """Logits of the last token, computed without a cache."""
    *layers, outer = weights
    n, n_embd = len(tokens), outer["wte"].shape[1]

    def apply(w, name, x):
        weight, bias = w[f"{name}_w"], w[f"{name}_b"]
        return (norm(x, 1e-5) * weight if weight.ndim == 1 else x @ weight.T) + bias

    cur = outer["wte"][tokens] + outer["wpe"][:n]
    for w in layers:
        qkv = apply(w, "attn", apply(w, "ln1", cur))
        q, k, v = (part.reshape(n, n_head, -1).swapaxes(0, 1) for part in np.split(qkv, 3, 1))
        kq = q @ k.swapaxes(1, 2) / np.sqrt(n_embd / n_head)
        kq = softmax(np.where(np.tri(n, dtype=bool), kq, -np.inf))
        cur = cur + apply(w, "proj", (kq @ v).swapaxes(0, 1).reshape(n, n_embd))
        cur = cur + apply(w, "out", gelu(apply(w, "fc", apply(w, "ln2", cur))))
    return (apply(outer, "lnf", cur) @ outer["wte"].T)[-1]


def test_gpt2_with_its_cache_and_a_scheduler_is_gpt2(tmp_path):
    gpt2_sched = module("gpt2_sched")
    weights = gpt2_sched.random_weights(np.random.default_rng(0))
    out = example("gpt2_sched.py", cwd=tmp_path)
    tokens = list(map(int, re.search(r"^tokens: (.*)$", out, re.M)[1].split()))
    assert len(tokens) == 4 + 16 and len(set(tokens)) > 8
    assert re.search(r"^\d+ splits?, ", out)
    for n in range(4, len(tokens)):
        logits = gpt2(weights, tokens[:n], gpt2_sched.N_HEAD)
        # The chosen token is the best. Rounding (gelu's table is f16) may decide between equals.
        assert logits[tokens[n]] > logits.max() - 0.02
    sched, layers = gpt2_sched.load(weights, 0)
    logits, _plan = gpt2_sched.evaluate(sched, layers, tokens[:-1], 0)
    expected = gpt2(weights, tokens[:-1], gpt2_sched.N_HEAD)
    np.testing.assert_allclose(logits, expected, atol=0.02)
    assert expected.std() > 1
    for backend in sched.backends:
        backend.close()
    assert sched.closed


def test_gpt2_takes_a_number_of_tokens_and_of_layers(tmp_path):
    out = example("gpt2_sched.py", 3, 2, cwd=tmp_path)
    assert len(re.search(r"^tokens: (.*)$", out, re.M)[1].split()) == 4 + 3


def magika(w, content):
    """Probabilities of the labels of one file."""
    def dense(name, x):
        return x @ w[f"{name}/kernel:0"].T + w[f"{name}/bias:0"]

    mid = max(0, (len(content) - 512) // 2)
    first, middle, last = content[:512], content[mid : mid + 512], content[-512:]
    lead = 256 - len(middle) // 2
    codes = [*first, *[256] * (512 - len(first)),
             *[256] * lead, *middle, *[256] * (512 - lead - len(middle)),
             *[256] * (512 - len(last)), *last]  # fmt: skip
    x = gelu(w["dense/kernel:0"].T[codes] + w["dense/bias:0"])  # [1536, 128]
    x = norm(x.reshape(384, 512), 1e-3, axis=0).T
    x = (x * w["layer_normalization/gamma:0"] + w["layer_normalization/beta:0"]).T
    x = gelu(dense("dense_2", gelu(dense("dense_1", x)))).max(0)
    x = norm(x, 1e-3) * w["layer_normalization_1/gamma:0"] + w["layer_normalization_1/beta:0"]
    return softmax(dense("target_label", x))


@pytest.mark.parametrize("from_file", [False, True])
def test_magika_classifies_as_numpy_does(from_file, tmp_path):
    weights = module("magika").random_weights(3 if from_file else 0)
    options = []
    if from_file:
        path = tmp_path / "magika.gguf"
        ggml.write_gguf(path, {"general.architecture": "magika"}, [
            (name, array, "f32", array.shape[::-1]) for name, array in weights.items()])
        options = ["--model", path]
    rng = np.random.default_rng(1)
    contents = [b"", b"x = 1\n", b"abc" * 300, rng.bytes(513), rng.bytes(100_000)]
    for i, content in enumerate(contents):
        (tmp_path / f"{i}.bin").write_bytes(content)
    files = [tmp_path / f"{i}.bin" for i in range(len(contents))]
    lines = example("magika.py", *options, *files, cwd=tmp_path).splitlines()
    tops = set()
    for path, line, content in zip(files, lines, contents, strict=True):
        assert line.startswith(f"{path}: ")
        expected = magika(weights, content)
        shown = re.findall(r"(\d+) \((\d+\.\d+)%\)", line.removeprefix(f"{path}: "))
        assert len(shown) == 5
        for label, percent in shown:
            assert abs(expected[int(label)] * 100 - float(percent)) < 0.02
        assert abs(max(expected) * 100 - float(shown[0][1])) < 0.02
        tops.add(shown[0])
    assert len(tops) == len(contents)  # the answer depends on the file


def test_perf_metrics(tmp_path):
    options = ("--n-op", 16, "--n-iter", 2, "--n-embd", 128, "--device", "CPU")
    first, *lines = example("perf_metrics.py", *options, cwd=tmp_path).splitlines()
    nodes, each = re.fullmatch(
        r"(\d+) nodes, ([\d.]+) µs each; the last is all \[42\.\]", first).groups()
    assert int(nodes) == 2 * 16 + 1 and float(each) > 0
    rows = [re.fullmatch(r"(\w+) +(.+?) +([\d.]+) ms +([\d.]+) GB/s *([\d.]+)?.*", line).groups()
            for line in lines]
    assert [row[0] for row in rows] == 2 * [
        *["MUL_MAT"] * 3, "FLASH_ATTN_EXT", "ROPE", "RMS_NORM", "SOFT_MAX", "ADD"]
    assert all((row[4] is not None) == (row[0] in ("MUL_MAT", "FLASH_ATTN_EXT")) for row in rows)
