"""The tokenizer of a model that another thread closes; long texts, and templates without an end."""

import resource
import signal
import subprocess
import sys
import time

import pytest

from ggml_py import GgmlError, ModelError, write_gguf
from ggml_py.files import bounds
from ggml_py.llama import Tokenizer
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


SMALL = LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=2, n_ff=32, n_vocab=300)
BOMBS = {
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}":
        f"it has not ended after {bounds.TEMPLATE_SECONDS} s of computing",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "it calls itself too often",
    "{{" + "(" * 200_000: "nested too deeply",
    "{% for %}": "Unexpected token",
}  # fmt: skip


@pytest.mark.thorough("cases", quick=2)
@pytest.mark.parametrize("template", BOMBS, ids=["loops", "calls itself", "nested", "damaged"])
def test_a_template_that_does_not_end(template, model_file):
    with (
        Tokenizer.open(model_file(SMALL)) as tokenizer,
        pytest.raises(ModelError, match=f"the chat template fails: .*{BOMBS[template]}"),
    ):
        tokenizer.chat([{"role": "user", "content": "Hi"}], template)


def test_a_template_gets_what_the_vocabulary_adds_and_any_text(model_file):
    with Tokenizer.open(model_file(SMALL)) as tokenizer:
        said = "a b\n\N{GRINNING FACE}"
        template = "{{ bos_token }}|{{ bos_token }}{{ messages[0].content }}"
        found = tokenizer.chat([{"role": "user", "content": said}], template)
        assert found == f"|<s>{said}"  # upstream removes the first, which tokenize adds


LONG = """
import sys
from ggml_py.llama import Tokenizer

tokenizer = Tokenizer.open(sys.argv[1])
print("begins", flush=True)
messages = [{"role": "user", "content": "Hi"}]
{"text": lambda: tokenizer.tokenize("Hi \U0001f600" * 10_000_000),
 "template": lambda: tokenizer.chat(messages, sys.argv[3])}[sys.argv[2]]()
"""


@pytest.mark.parametrize("what", ["text", "template"])
def test_ctrl_c_is_answered_meanwhile(what, model_file):
    """Time of the processor, which other processes do not lengthen; all of the text takes 17 s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, "-c", LONG, str(model_file(SMALL)), what, next(iter(BOMBS))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begins\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _out, said = process.communicate(timeout=60)
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert took < 4 and b"KeyboardInterrupt" in said, (took, said)


def write_vocabulary(path, pre):
    """A vocabulary of bytes, whose texts the regular expressions of `pre` split."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown} | {b: chr(256 + i) for i, b in enumerate(others)}
    a = letters[ord("a")]
    tokens = [*letters.values(), a + a]
    write_gguf(path, {
        "general.architecture": "llama", "llama.context_length": 64, "llama.block_count": 1,
        "llama.embedding_length": 32, "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": [f"{a} {a}"],
    }, [])  # fmt: skip
    return path


@pytest.mark.parametrize("pre", ["gpt-4o", "bloom"])
def test_a_long_word(pre, tmp_path):
    """Upstream's std::regex calls itself for each character."""
    with Tokenizer.open(write_vocabulary(tmp_path / "v.gguf", pre)) as tokenizer:
        assert len(tokenizer.tokenize("a" * 50_000, add_special=False)) == 25_000
        with pytest.raises(GgmlError, match="256 MiB of stack for it"):
            tokenizer.tokenize("a" * 2_000_000)


def test_a_file_without_a_tokenizer_takes_no_text(tmp_path):
    """llama.cpp's tokenizer "none" asserts; its vocabulary has tokens all the same."""
    spec = LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=1, n_ff=32, n_vocab=300)
    header = {k: v for k, v in spec.header().items() if not k.startswith("tokenizer.")}
    write_gguf(tmp_path / "m.gguf", {**header, "tokenizer.ggml.model": "none"}, spec.tensors())
    with Tokenizer.open(tmp_path / "m.gguf") as tokenizer:
        for call in (lambda: tokenizer.tokenize("hi"), lambda: tokenizer.piece(1),
                     lambda: tokenizer.detokenize([1])):  # fmt: skip
            with pytest.raises(ModelError, match=r"takes no text: expected token ids \(--tokens"):
                call()
