"""What type is a file? ggml's `magika` example in Python, a network over the bytes of files.

    python examples/magika.py [--model magika.gguf] FILE...     # no model: random weights
"""

import argparse
from pathlib import Path

import numpy as np

import ggml_py as ggml

PART, PADDING = 512, 256  # bytes each of beginning, middle and end; the code for "no byte"
SHAPES = {"dense/kernel:0": (128, 257), "dense/bias:0": (128,),
          "layer_normalization/gamma:0": (384,), "layer_normalization/beta:0": (384,),
          "dense_1/kernel:0": (256, 512), "dense_1/bias:0": (256,),
          "dense_2/kernel:0": (256, 256), "dense_2/bias:0": (256,),
          "layer_normalization_1/gamma:0": (256,), "layer_normalization_1/beta:0": (256,),
          "target_label/kernel:0": (113, 256), "target_label/bias:0": (113,)}  # fmt: skip


def random_weights(seed):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in SHAPES.items()}


def read_weights(path):
    with ggml.Gguf.open(path) as file:
        places = {name: file.tensors[name].offset for name in SHAPES}
        return {name: np.ndarray(SHAPES[name], "f4", file.mmap(), places[name]) for name in SHAPES}


def one_hot(content):
    """[1536, 257] of the first, middle and last bytes, padded at the end, both ends, the start."""
    middle = content[max(0, (len(content) - PART) // 2) :][:PART]
    codes = np.full(3 * PART, PADDING)
    codes[: len(content[:PART])] = list(content[:PART])
    codes[PART + PART // 2 - len(middle) // 2 :][: len(middle)] = list(middle)
    codes[3 * PART - len(content[-PART:]) :] = list(content[-PART:])
    return np.eye(257, dtype=np.float32)[codes]


def classify(backend, weights, contents):
    """Probabilities of the labels, one row per file."""
    with ggml.Context() as c:
        w = {name: c.from_numpy(array, name) for name, array in weights.items()}

        def dense(name, x):
            return c.add(c.mul_mat(w[f"{name}/kernel:0"], x), w[f"{name}/bias:0"])

        def norm(name, x):
            return c.add(c.mul(c.norm(x, 1e-3), w[f"{name}/gamma:0"]), w[f"{name}/beta:0"])

        files = c.new_tensor("f32", 257, 3 * PART, len(contents), name="input")
        cur = c.gelu(dense("dense", files))  # [128, 1536, n_files]
        cur = c.cont(c.transpose(c.reshape_3d(cur, 512, 384, len(contents))))  # [384, 512, ..]
        cur = c.cont(c.transpose(norm("layer_normalization", cur)))  # [512, 384, n_files]
        cur = c.gelu(dense("dense_2", c.gelu(dense("dense_1", cur))))  # [256, 384, n_files]
        cur = c.pool_1d(c.cont(c.transpose(cur)), "max", 384, 384, 0)  # [1, 256, n_files]
        cur = norm("layer_normalization_1", c.reshape_2d(cur, 256, len(contents)))
        probabilities = c.soft_max(dense("target_label", cur))  # [113, n_files]
        graph = c.new_graph()
        graph.build_forward_expand(probabilities)
        c.alloc(backend)  # the weights, the input and every result
        files.set(np.stack([one_hot(content) for content in contents]))
        backend.compute(graph)
        return probabilities.get().reshape(len(contents), -1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--model")
    parser.add_argument("files", nargs="+", type=Path)
    asked = parser.parse_args()
    weights = read_weights(asked.model) if asked.model else random_weights(0)
    with ggml.device("CPU").init() as backend:
        rows = classify(backend, weights, [path.read_bytes() for path in asked.files])
    for path, row in zip(asked.files, rows, strict=True):
        print(f"{path}:", *(f"{label} ({row[label]:.2%})" for label in row.argsort()[:-6:-1]))
