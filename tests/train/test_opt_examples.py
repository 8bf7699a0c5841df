"""The mnist examples, run as a user runs them."""

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *args):
    command = [sys.executable, str(EXAMPLES / name), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The trained file, and what training printed."""
    path = tmp_path_factory.mktemp("mnist") / "model.gguf"
    start = time.monotonic()
    said = run("mnist_train.py", path)
    assert time.monotonic() - start < 60  # 2 s on an idle machine
    return path, said


def test_training_learns(model):
    _path, said = model
    rates = [float(rate) for rate in re.findall(r"validation ([\d.]+)%", said)]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert rates[-1] > 90 and losses[-1] < losses[0] / 10


def test_the_file_knows_digits_that_were_not_trained(model):
    said = run("mnist_eval.py", model[0])
    (line,) = re.findall(r"2000 images: loss ([\d.]+), accuracy ([\d.]+)% ± ([\d.]+)%", said)
    loss, accuracy, unc = map(float, line)
    assert accuracy > 90 and 0 < unc < 1

    spec = importlib.util.spec_from_file_location("mnist_train", EXAMPLES / "mnist_train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    x, classes = train.digits(2000, seed=2)
    with ggml.Gguf.open(model[0]) as file:
        assert file.metadata["general.architecture"] == "mnist-fc"
        w = {
            name: file.data(name).view(np.float32).reshape(tensor.ne[1::-1]).astype(np.float64)
            for name, tensor in file.tensors.items()
        }
    hidden = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)
    logits = hidden @ w["fc2.weight"].T + w["fc2.bias"]
    assert accuracy == pytest.approx(100 * np.mean(np.argmax(logits, 1) == classes), abs=0.051)
    soft = logits - logits.max(1, keepdims=True)
    soft -= np.log(np.exp(soft).sum(1, keepdims=True))
    assert loss == pytest.approx(-soft[np.arange(2000), classes].mean(), abs=2e-4)
    assert f"predicted a {np.argmax(logits[0])}" in said


def test_without_a_path_they_say_how():
    for name in ("mnist_train.py", "mnist_eval.py"):
        command = [sys.executable, str(EXAMPLES / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and f"python examples/{name} model.gguf" in done.stderr
