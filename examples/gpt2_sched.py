"""GPT-2 over several devices: ggml's `gpt-2-sched` example in Python, with random weights.

    python examples/gpt2_sched.py 32 2  # tokens; layers on the GPU (default: 16, and all)
"""

import sys

import numpy as np

import ggml_py as ggml

N_VOCAB, N_CTX, N_LAYER, N_HEAD, D, E = 256, 128, 4, 4, 16, 64  # E: n_embd = n_head * d
MATRICES = {"attn_w": (3 * E, E), "proj_w": (E, E), "fc_w": (4 * E, E), "out_w": (E, 4 * E)}
BIASES = {"attn_b": 3 * E, "proj_b": E, "fc_b": 4 * E, "out_b": E}
NORMS = {"ln1_w": E, "ln1_b": E, "ln2_w": E, "ln2_b": E}
OUTER = {"wte": (N_VOCAB, E), "wpe": (N_CTX, E), "lnf_w": E, "lnf_b": E}


def random_weights(rng):
    """A dict of arrays per layer, and one of the arrays outside the layers at the end."""
    shapes = [MATRICES | BIASES | NORMS] * N_LAYER + [OUTER]
    return [{name: rng.normal(0, 1 if name in ("wte", "wpe") else 0.2, shape)
             for name, shape in layer.items()} for layer in shapes]  # fmt: skip


def load(weights, n_gpu_layers):
    """The scheduler, and for each layer its tensors and a cache, on the layer's device."""
    backends, layers = [d.init() for d in ggml.devices() if d.type.name in ("GPU", "CPU")], []
    for il, arrays in enumerate(weights):
        where = backends[0 if N_LAYER - n_gpu_layers <= il < N_LAYER else -1]
        w, cache = ggml.Context(), ggml.Context()
        layers.append({k: w.from_numpy(v, f"l{il}.{k}", "f32") for k, v in arrays.items()})
        w.alloc(where, usage="weights")
        layers[-1]["cache"] = cache.new_tensor("f32", 2 * E, N_CTX, name=f"cache_l{il}")  # k, v
        cache.alloc(where).clear()
    return ggml.Scheduler(backends), layers


def evaluate(sched, layers, tokens, n_past):
    """Logits of the last token, and the plan. Stores the tokens' keys and values in the cache."""
    n, n_kv, outer = len(tokens), n_past + len(tokens), layers[-1]
    with ggml.Context() as c:
        def apply(w, name, x):  # multiplies by a matrix, or applies a norm; then adds the bias
            weight = w[name + "_w"]
            y = c.mul_mat(weight, x) if weight.ne[1] > 1 else c.mul(c.norm(x, 1e-5), weight)
            return c.add(y, w[name + "_b"])
        ids, positions = (c.new_tensor("i32", n, name=name) for name in ("ids", "positions"))
        cur = c.add(c.get_rows(outer["wte"], ids), c.get_rows(outer["wpe"], positions))
        graph = c.new_graph()
        for w in layers[:-1]:
            qkv, cache = apply(w, "attn", apply(w, "ln1", cur)), w["cache"]  # [3 E, n]
            place = c.view_2d(cache, 2 * E, n, cache.nb[1], n_past * cache.nb[1])
            graph.build_forward_expand(c.cpy(c.view_2d(qkv, 2 * E, n, qkv.nb[1], 4 * E), place))
            q = c.permute(c.view_3d(qkv, D, N_HEAD, n, 4 * D, qkv.nb[1], 0), 0, 2, 1, 3)
            k, v = (c.view_3d(cache, D, N_HEAD, n_kv, 4 * D, cache.nb[1], o) for o in (0, 4 * E))
            kq = c.scale(c.mul_mat(c.permute(k, 0, 2, 1, 3), q), D**-0.5)  # [n_kv, n, n_head]
            kq = c.soft_max(c.diag_mask_inf(kq, n_past))
            kqv = c.mul_mat(c.cont(c.permute(v, 1, 2, 0, 3)), kq)  # [d, n, n_head]
            cur = c.add(cur, apply(w, "proj", c.cont_2d(c.permute(kqv, 0, 2, 1, 3), E, n)))
            cur = c.add(cur, apply(w, "out", c.gelu(apply(w, "fc", apply(w, "ln2", cur)))))
        logits = c.mul_mat(outer["wte"], apply(outer, "lnf", cur))  # [n_vocab, n]
        graph.build_forward_expand(logits)
        sched.reset()
        plan = sched.alloc_graph(graph)
        ids.set(tokens)
        positions.set(np.arange(n_past, n_kv))
        sched.compute(graph)
        return logits.get().reshape(n, N_VOCAB)[-1], plan


if __name__ == "__main__":
    n_predict, n_gpu_layers = map(int, sys.argv[1:] or (16, N_LAYER))
    sched, layers = load(random_weights(np.random.default_rng(0)), n_gpu_layers)
    tokens, n_past = [3, 14, 159, 26], 0  # first the prompt in one batch, then token by token
    for _ in range(n_predict):
        logits, plan = evaluate(sched, layers, tokens[n_past:], n_past)
        n_past = len(tokens)
        tokens.append(int(logits.argmax()))
    print(f"{plan.headline()}\ntokens:", *tokens)
