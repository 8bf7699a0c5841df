"""Layers on a GPU: this machine's CPU over RPC, and its own GPU where there is one."""

from __future__ import annotations

import pytest

from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.gpu_device import run

CLIENT = """
    from ggml_py.models import load

    prompt = [3, 1, 4, 1, 5, 9, 2]

    def answers(**options):
        with load(sys.argv[2], n_threads=1, **options) as m:
            logits = m.eval(prompt, all_logits=True)
            plan = m.plan()
            layers = range(m.hparams.n_layer)

            def there(node):
                return plan.node(node).backend != "CPU"

            return logits, {
                "tokens": m.generate([2], 8),
                "layers": [there(f"attn_out-{il}") for il in layers],
                "caches": [there(f"cache_k_l{il}") for il in layers],
                "norms": [plan.node(f"norm-{il}").cause.code for il in layers],
                "output": there("result_output"),
                "embd": there("embd"),
                "splits": [split.backend for split in plan.splits],
            }

    expected, on_cpu = answers()
    rows = []
    for n_gpu_layers in (0, 1, 2, 3, 4, 99):
        logits, row = answers(devices=(NAME, "CPU"), n_gpu_layers=n_gpu_layers)
        worst = abs(logits - expected).max() / abs(expected).max()
        rows.append(row | {"n_gpu_layers": n_gpu_layers, "worst": float(worst)})
    print(json.dumps([on_cpu, rows]))
"""


@pytest.mark.parametrize("tied", [False, True])
def test_the_last_layers_are_on_the_gpu(tmp_path, gpu, tied):
    path = tmp_path / "model.gguf"
    sizes = {"n_layer": 3, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 192, "n_vocab": 300}
    write_llama(path, LlamaSpec(**sizes, type="q8_0", tied=tied))
    on_cpu, rows = run(CLIENT, gpu, str(path))
    for row in rows:
        n = row["n_gpu_layers"]  # the output is the last of them
        there = [il >= 3 + 1 - n for il in range(3)]
        assert (row["layers"], row["caches"], row["output"]) == (there, there, n > 0), row
        assert row["norms"] == ["usr"] * 3 and not row["embd"]
        # A server has several devices, which share the layers in their order.
        assert row["splits"][0] == "CPU" and len(set(row["splits"])) == len(row["splits"])
        assert len(row["splits"]) > 1 if n else row["splits"] == ["CPU"]
        if gpu.startswith("rpc:"):  # the same kernels; another GPU's round otherwise
            assert row["tokens"] == on_cpu["tokens"]
        assert row["worst"] <= (1e-3 if gpu.startswith("rpc:") else 3e-2)
