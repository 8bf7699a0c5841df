"""Load the network that mnist_train.py saved, and see how many new images it recognises.

    python examples/mnist_eval.py model.gguf
"""

from __future__ import annotations

import sys

import numpy as np
from mnist_train import N_BATCH, N_CLASS, N_PIXEL, digits, forward

import ggml_py as ggml


def main(path: str) -> None:
    """Prints the accuracy with its uncertainty, and one image with the network's prediction."""
    x, classes = digits(2000, seed=2)
    # The CPU is last. In so small a network more than one thread would mostly wait for each other.
    backends = [device.init(n_threads=1) for device in ggml.devices()]
    with ggml.Context() as weights, ggml.Context() as ctx, ggml.Scheduler(backends) as scheduler:
        with ggml.Gguf.open(path) as file:
            for name, saved in file.tensors.items():
                array = file.data(name).view(np.float32).reshape(saved.ne[1::-1])
                weights.from_numpy(array, name)
        images = weights.new_tensor("f32", N_PIXEL, N_BATCH, name="images")
        weights.alloc(backends[0])
        with (
            ggml.Dataset(x, np.eye(N_CLASS)[classes]) as dataset,
            ggml.OptResult() as result,
            ggml.OptContext(
                scheduler, "cross_entropy", inputs=images, build_type="forward",
                outputs=forward(ctx, weights, images),
            ) as opt,
        ):  # fmt: skip
            ggml.epoch(opt, dataset, None, result, idata_split=0)
            for row in x[0].reshape(28, 28)[::2]:
                print("".join(" .:*#"[int(np.clip(v + 2, 0, 4))] for v in row))
            print(f"this is a {classes[0]}, predicted a {result.pred[0]}")
            print(
                f"{result.ndata} images: loss {result.loss:.4f}, "
                f"accuracy {100 * result.accuracy:.2f}% ± {100 * result.accuracy_unc:.2f}%"
            )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
