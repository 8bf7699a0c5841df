"""Completes a prompt in a server of xllamacpp.

    python use_xllamacpp.py MODEL.gguf

Prints the text of four tokens.
"""

import json
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_batch, params.n_ubatch = 256, 64, 64
params.n_parallel, params.n_predict, params.warmup = 1, 4, False
params.cpuparams.n_threads = 2
server = xllamacpp.Server(params)
asked = {"prompt": "hello", "max_tokens": 4, "temperature": 0.0, "seed": 1}
answer = server.handle_completions(asked)
if isinstance(answer, str | bytes):  # of old versions
    answer = json.loads(answer)
print(repr(answer.get("content") or answer["choices"][0]["text"]))
