"""The tokenizer of a model that another thread closes."""

import subprocess
import sys

import pytest

from ggml_py.models.synthetic import LlamaSpec

pytestmark = pytest.mark.needs(release="default")

PROGRAM = """
import sys, threading, time
from ggml_py import BusyError, ClosedError
from ggml_py.llama import Tokenizer

path, name = sys.argv[1:]
for delay in (0, 1e-4, 1e-3, 5e-3) * 2:
    tokenizer = Tokenizer.open(path)
    ids, odd = tokenizer.tokenize("Hello world " * 50), []
    call = {
        "tokenize": lambda: tokenizer.tokenize("Hello world " * 2000),
        "detokenize": lambda: tokenizer.detokenize(ids),
        "piece": lambda: tokenizer.piece(ids[0]),
        "eog": lambda: tokenizer.eog,
        "bos": lambda: tokenizer.bos,
        "chat_template": lambda: tokenizer.chat_template,
        "chat": lambda: tokenizer.chat([{"role": "user", "content": "Hi"}]),
    }[name]

    def use():
        try:
            while True:
                call()
        except (BusyError, ClosedError) as error:
            if "close" not in str(error):
                odd.append(error)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(delay)
    tokenizer.close()
    for thread in threads:
        thread.join()
    assert not odd, odd
"""


@pytest.mark.thorough("cases", quick=2)
@pytest.mark.parametrize(
    "name", ["tokenize", "detokenize", "piece", "eog", "bos", "chat_template", "chat"]
)
def test_another_thread_closes_its_model(name, model_file):
    """`close` waits for the call; later calls raise."""
    path = model_file(LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=2, n_ff=32, n_vocab=300))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
