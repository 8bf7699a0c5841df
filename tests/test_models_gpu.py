"""Layers on a GPU. The device is this machine's CPU behind ggml's RPC backend on loopback: to the
scheduler a device of type GPU, whose memory the CPU cannot read."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from ggml_py._ffi import BUILD
from ggml_py.models.synthetic import LlamaSpec, write_llama

pytestmark = pytest.mark.skipif("rpc" not in BUILD["backends"], reason="built without RPC")

SERVER = """
    import socket
    import ggml_py as ggml

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    print(endpoint, flush=True)
    cpu = ggml.ffi.new("ggml_backend_dev_t[]", [ggml.device("CPU").ptr])
    ggml.lib.ggml_backend_rpc_start_server(endpoint.encode(), ggml.ffi.NULL, 1, 1, cpu)
"""
CLIENT = """
    import json, sys, time
    import ggml_py as ggml
    from ggml_py.models import load

    path, endpoint = sys.argv[1:]
    deadline = time.monotonic() + 20
    while True:
        try:
            ggml.rpc_devices(endpoint)
            break
        except ggml.RpcError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    prompt = [3, 1, 4, 1, 5, 9, 2]

    def run(**options):
        with load(path, n_threads=1, **options) as m:
            logits = m.eval(prompt, all_logits=True)
            plan = m.plan()
            layers = [plan.node(f"attn_out-{il}").backend for il in range(m.hparams.n_layer)]
            caches = [plan.node(f"cache_k_l{il}").backend for il in range(m.hparams.n_layer)]
            return logits, {
                "tokens": m.generate([2], 8),
                "layers": [n.startswith("RPC") for n in layers],
                "caches": [n.startswith("RPC") for n in caches],
                "norms": [plan.node(f"norm-{il}").cause.code for il in range(m.hparams.n_layer)],
                "output": plan.node("result_output").backend.startswith("RPC"),
                "embd": plan.node("embd").backend.startswith("RPC"),
                "n_splits": plan.n_splits,
            }

    expected, on_cpu = run()
    rows = []
    for n_gpu_layers in (0, 1, 2, 3, 4, 99):
        logits, row = run(devices=(f"rpc:{endpoint}", "CPU"), n_gpu_layers=n_gpu_layers)
        worst = abs(logits - expected).max() / abs(expected).max()
        rows.append(row | {"n_gpu_layers": n_gpu_layers, "worst": float(worst)})
    print(json.dumps([on_cpu, rows]))
"""


@pytest.mark.parametrize("tied", [False, True])
def test_the_last_layers_are_on_the_gpu(tmp_path, tied):
    path = tmp_path / "model.gguf"
    sizes = {"n_layer": 3, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 192, "n_vocab": 300}
    write_llama(path, LlamaSpec(**sizes, type="q8_0", tied=tied))
    python = [sys.executable, "-c"]
    with subprocess.Popen(
        [*python, textwrap.dedent(SERVER)], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            endpoint = server.stdout.readline().strip()
            client = [*python, textwrap.dedent(CLIENT), str(path), endpoint]
            done = subprocess.run(client, capture_output=True, text=True, check=False, timeout=60)
        finally:
            server.kill()
    assert done.returncode == 0, done.stderr
    on_cpu, rows = json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        n = row["n_gpu_layers"]  # the output is the last of them
        there = [il >= 3 + 1 - n for il in range(3)]
        assert (row["layers"], row["caches"], row["output"]) == (there, there, n > 0), row
        assert row["norms"] == ["usr"] * 3 and not row["embd"]
        assert row["n_splits"] == (2 if n else 1)
        assert row["worst"] <= 1e-3 and row["tokens"] == on_cpu["tokens"]
