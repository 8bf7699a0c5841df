"""Completes a prompt with llama-cpp-py-sync.

    python use_llama_cpp_py_sync.py MODEL.gguf

Prints the text of four tokens.
"""

import sys

import llama_cpp_py_sync

with llama_cpp_py_sync.Llama(sys.argv[1], n_ctx=256, n_batch=64, n_threads=2, seed=1) as model:
    print(repr(model.generate("hello", max_tokens=4, temperature=0.0)))
