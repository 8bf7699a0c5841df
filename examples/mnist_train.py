"""Train a small network on made-up digits and save it: ggml's `mnist` example in Python.

    python examples/mnist_train.py model.gguf
    python examples/mnist_eval.py model.gguf

Nothing is downloaded. Each class is a blurred random pattern of 28x28 pixels. Each image is such a
pattern, moved a little and with noise. By chance one guess in ten would be right.
"""

from __future__ import annotations

import sys

import numpy as np

import ggml_py as ggml

N_CLASS, N_PIXEL, N_HIDDEN, N_BATCH = 10, 28 * 28, 100, 50


def digits(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 784] and their classes; the classes are the same for every seed."""
    shapes = np.random.default_rng(28).standard_normal((N_CLASS, 28, 28))
    for axis in (1, 2):
        shapes = sum(np.roll(shapes, k, axis) for k in range(-3, 4)) / 7**0.5
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, N_CLASS, n)
    shifts = rng.integers(-2, 3, (n, 2))
    images = np.stack([np.roll(shapes[c], s, (0, 1)) for c, s in zip(classes, shifts, strict=True)])
    images += rng.standard_normal(images.shape) * 2.5
    return images.reshape(n, N_PIXEL).astype(np.float32), classes


def forward(ctx: ggml.Context, w: ggml.Context, x: ggml.Tensor) -> ggml.Tensor:
    """Logits [classes, images] for images [784, images]."""
    hidden = ctx.relu(ctx.add(ctx.mul_mat(w["fc1.weight"], x), w["fc1.bias"]))
    return ctx.add(ctx.mul_mat(w["fc2.weight"], hidden), w["fc2.bias"])


def main(path: str) -> None:
    """Trains the network, prints the progress, and writes the model."""
    rng = np.random.default_rng(0)
    # The CPU is last. In so small a network more than one thread would mostly wait for each other.
    backends = [device.init(n_threads=1) for device in ggml.devices()]
    with ggml.Context() as weights, ggml.Context() as ctx, ggml.Scheduler(backends) as scheduler:
        for name, *shape in (
            ("fc1.weight", N_HIDDEN, N_PIXEL), ("fc1.bias", N_HIDDEN),
            ("fc2.weight", N_CLASS, N_HIDDEN), ("fc2.bias", N_CLASS),
        ):  # fmt: skip
            scale = (2 / shape[1]) ** 0.5 if len(shape) == 2 else 0
            weights.from_numpy(rng.standard_normal(shape) * scale, name, "f32").set_param()
        images = weights.new_tensor("f32", N_PIXEL, N_BATCH, name="images")
        weights.alloc(backends[0])
        x, classes = digits(5000, seed=1)
        with ggml.Dataset(x, np.eye(N_CLASS)[classes], ndata_shard=10) as dataset:
            history = ggml.fit(
                scheduler, images, forward(ctx, weights, images), dataset, "cross_entropy",
                ggml.AdamW(alpha=5e-4, wd=1e-2), nepoch=5, nbatch_logical=N_BATCH, val_split=0.1,
            )  # fmt: skip
        for number, e in enumerate(history, 1):
            print(f"epoch {number}: loss {e.loss:.3f}, validation {100 * e.val_accuracy:.1f}%")
        tensors = [(t.name, t.get(), t.type, t.ne) for t in weights if t != images]
        ggml.write_gguf(path, {"general.architecture": "mnist-fc"}, tensors)
        print(f"saved {len(tensors)} tensors to {path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
