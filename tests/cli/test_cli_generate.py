"""``ggml-py generate``: sampling, streaming, how it ends."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ggml_py import Gguf
from ggml_py.cli.generate import _stream
from ggml_py.gguf.writer import write_gguf
from ggml_py.models import Sampler, load
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support import arch_files
from ..support.cli_runs import COMMAND, fails, ok, run

pytestmark = pytest.mark.thorough("long", quick=8)

SPEC = LlamaSpec(n_layer=1, n_vocab=512, n_ctx=2048, type="f32")
PROMPT = "1,2,3"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "m.gguf"
    write_llama(path, SPEC)
    return path


@pytest.fixture
def generate(model):
    """Runs it on one thread: its tokens, and what it said."""
    def run_it(*arguments, path=model):
        done = run("generate", path, "-d", "CPU", "-t", 1, "--tokens", PROMPT, *arguments)
        assert done.returncode == 0, done.stderr
        return [int(t) for t in done.stdout.split(",")], done.stderr

    return run_it


@pytest.mark.thorough("long")
def test_the_likeliest_tokens(generate, model):
    tokens, said = generate("-n", 5)
    data = json.loads(ok("generate", model, "-d", "CPU", "--tokens", PROMPT, "-n", 5, "--json"))
    assert tokens == data["tokens"] and len(tokens) == 5
    assert data["prompt"] == [1, 2, 3] and data["stop_type"] == "limit" and data["seed"] is None
    assert said.startswith("5 tokens in ") and "seed" not in said
    assert len(generate()[0]) == 16


@pytest.mark.thorough("programs")
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["-s", 7], {"seed": 7}),
        (["-s", 7, "--grammar", "root ::= [a-z]+", "--dry-multiplier", 0.8,
          "--dry-sequence-breaker", "a", "--dry-sequence-breaker", "b"],
         {"seed": 7, "grammar": "root ::= [a-z]+", "dry_multiplier": 0.8,
          "dry_sequence_breakers": ("a", "b")}),
        (["--seed", 7, "--temp", 1.5, "--top-k", 0, "--top-p", 1, "--min-p", 0],
         {"seed": 7, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}),
        (["--temp", 0, "--repeat-penalty", 1.8, "--repeat-last-n", 9, "--frequency-penalty", 0.5,
          "--presence-penalty", 0.25],
         {"temperature": 0.0, "repeat_penalty": 1.8, "repeat_last_n": 9,
          "frequency_penalty": 0.5, "presence_penalty": 0.25}),
        (["--temp", 0, "-l", "5+1e3", "-l", "6-inf"], {"temperature": 0.0, "logit_bias": {5: 1e3}}),
    ],
)  # fmt: skip
def test_sampling(generate, model, options, settings):
    """The names are llama.cpp's; what is not named has llama.cpp's default."""
    tokens, said = generate("-n", 20, "--ignore-eos", *options)
    with load(model, n_threads=1) as loaded:
        bias = dict.fromkeys(loaded.hparams.eog_tokens, float("-inf"))
        settings = {**settings, "logit_bias": bias | settings.get("logit_bias", {})}
        sampler = Sampler(**settings, tokenizer=loaded.tokenizer)
        assert tokens == loaded.generate([1, 2, 3], 20, sampler)
    assert (", seed 7" in said) == ("seed" in settings)
    assert generate("-n", 20, "--ignore-eos", "--graphs", "libllama", *options)[0] == tokens


@pytest.mark.thorough("programs")
def test_a_random_seed_is_told(generate):
    tokens, said = generate("--temp", 2, "--top-k", 0, "-n", 30)
    seed = said.split("seed ")[1].strip()
    assert generate("--temp", 2, "--top-k", 0, "-n", 30, "-s", seed)[0] == tokens
    assert generate("--temp", 2, "--top-k", 0, "-n", 30, "-s", -1)[0] != tokens


@pytest.mark.thorough("long")
def test_the_end_of_the_text(generate, tmp_path):
    """A file whose end is the likeliest token: the last one, unless it is never chosen."""
    path = tmp_path / "ends.gguf"
    likeliest = generate("-n", 4)[0]
    write_gguf(path, {**SPEC.header(), "tokenizer.ggml.eos_token_id": likeliest[2]}, SPEC.tensors())
    with Gguf.open(path) as gguf:
        assert gguf.metadata["tokenizer.ggml.eos_token_id"] == likeliest[2]
    assert generate(path=path)[0] == likeliest[: likeliest.index(likeliest[2]) + 1]
    unending = generate("--ignore-eos", path=path)[0]
    assert len(unending) == 16 and likeliest[2] not in unending
    data = json.loads(ok("generate", path, "-d", "CPU", "-t", 1, "--tokens", PROMPT, "--json"))
    assert data["stop_type"] == "eos"


@pytest.mark.thorough("long")
def test_until_the_context_is_full_and_on(generate, model):
    assert len(generate("-n", -1, "-c", 256, "--ignore-eos")[0]) == 254
    assert "the context is full" in fails(
        "generate", model, "-d", "CPU", "--tokens", PROMPT, "-c", 256, "-n", 300)  # fmt: skip
    shifted = ["-c", 256, "-n", 260, "-s", 1, "--ignore-eos", "--context-shift"]
    plain, kept = generate(*shifted)[0], generate(*shifted, "--keep", -1)[0]
    assert len(plain) == len(kept) == 260 and plain != kept


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--top-p", "2"], 1, "error: --top-p 2.0: expected 0 to 1"),
        (["--repeat-penalty", "0"], 1, "1 is no penalty"),
        (["--temp", "warm"], 2, "Usage"),
        (["-l", "5"], 2, "'5': expected a token id and a signed number"),
        (["-l", "5+x"], 2, "'5+x': expected a token id"),
        (["-s", "-2"], 2, "Usage"),
        (["-n", "-3"], 2, "Usage"),
        (["--context-shift", "--keep", "600", "-c", "256"], 1, "error: "),
        (["--context-shift", "--graphs", "ours"], 2, "is libllama's: not with --graphs ours"),
    ],
)
def test_wrong_options(model, arguments, code, message):
    tokens = ",".join(["1"] * (254 if "--keep" in arguments else 1))
    base = ["generate", model, "-d", "CPU", "-t", 1, "--tokens", tokens]
    assert message in fails(*base, *arguments, code=code)


def started(path, *options):
    """A generation that goes on until it is told to stop."""
    command = [*COMMAND, "generate", path, "-d", "CPU", "-t", 1, "--tokens", 1, *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(list(map(str, command)), stdout=pipe, stderr=pipe, bufsize=0)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "large.gguf"
    write_llama(path, LlamaSpec(n_layer=8, n_vocab=8192, n_ctx=8192))
    return path


def test_tokens_come_as_they_are_computed_and_ctrl_c_keeps_them(large):
    process = started(large, "-n", 8000, "-c", 8192, "--ignore-eos")
    first = b""
    while first.count(b",") < 10:
        first += process.stdout.read(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    tokens = [int(t) for t in (first + out).split(b",")]
    assert 10 < len(tokens) < 8000 and out.endswith(b"\n")
    assert err.decode().splitlines()[-1] == f"stopped after {len(tokens)} of 8000 tokens"


def test_ctrl_c_that_is_ignored_stays_so(model):
    """As of a job in a shell's background."""
    command = [*COMMAND, "generate", model, "-d", "CPU", "-t", 1, "--tokens", 1, "-n", 400]
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *map(str, command), "--ignore-eos"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert len((first + out).split(b",")) == 400


@pytest.mark.thorough("long")
def test_ctrl_c_with_json(large):
    """However long it takes to load: before that there is nothing to print."""
    for seconds in (2.5, 10, 40):
        process = started(large, "-n", -1, "-c", 512, "--context-shift", "--ignore-eos", "--json")
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        if out:
            break
        assert err.endswith(b"stopped\n")
    data = json.loads(out)
    assert data["stop_type"] == "interrupt"
    assert err.decode().splitlines()[-1] == f"stopped after {len(data['tokens'])} tokens"


# --- a prompt of several batches


class Noting(Sampler):
    """Keeps the bits of all logits that it samples from."""

    def __call__(self, logits):
        seen.append(logits.tobytes())
        return super().__call__(logits)


seen = []


@pytest.mark.thorough("programs")
@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt-oss", "mamba2"])
@pytest.mark.parametrize("n_prompt", [5, 48, 144, 145, 150])
def test_a_prompt_batch_by_batch_is_the_prompt(arch_file, arch, n_prompt):
    """Every bit, where batches have several graphs, and windows and penalties see them all."""
    prompt = np.random.default_rng(1).integers(0, 128, n_prompt).tolist()
    found = []
    with arch_files.load(arch_file(arch), n_ctx=256, n_batch=48, n_ubatch=20) as model:
        for stream in (
            lambda sampler: model.stream(prompt, 6, sampler),
            lambda sampler: _stream(model, prompt, 6, sampler, wants_bar=False),
        ):
            model.reset()
            seen.clear()
            tokens = list(stream(Noting(seed=3, repeat_penalty=1.5, repeat_last_n=200)))
            found.append((tokens, list(seen), model.n_past))
    assert found[0] == found[1] and len(found[0][1]) == 6 and found[0][2] == n_prompt + 5


def test_what_a_prompt_of_several_batches_cannot_be(model):
    """Told before anything is computed, of the whole prompt."""
    options = ("-d", "CPU", "-t", 1, "-c", 256, "-b", 32)
    for prompt, message in (
        ([1] * 250, "0 of 256 tokens (-c) are used, so there is no room for 265 more"),
        ([1] * 260, "0 of 256 tokens (-c) are used, so there is no room for 260 more"),
        ([1] * 99 + [512], "token 512 is not in the vocabulary: ids are 0 to 511"),
    ):
        tokens = ",".join(map(str, prompt))
        assert message in fails("generate", model, *options, "--tokens", tokens)


@pytest.fixture
def terminal():
    """A terminal for standard error, and what is read from it by and by."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def with_terminal(theirs, path, prompt, *options):
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")}
    command = [*COMMAND, "generate", path, "-d", "CPU", "-t", 1, "--tokens", prompt, *options]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=theirs,
                            env={**env, "TERM": "xterm"})  # fmt: skip


def read_until(terminal, what):
    text = b""
    while what not in text:
        text += os.read(terminal, 4096)
    return re.sub(r"\x1b\[\d*m", "", text.decode())  # without colours


def test_a_terminal_has_a_bar_while_the_prompt_is_evaluated(model, terminal):
    ours, theirs = terminal
    prompt = ",".join(["1"] * 600)
    process = with_terminal(theirs, model, prompt, "-c", 1024, "-b", 64, "-n", 3, "--ignore-eos")
    said = read_until(ours, b"prompt included")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "prompt ━" in said and "  0%" in said
    bar, _, rest = said.rpartition("\x1b[?25h")  # the cursor is there again, then no bar
    assert bar and "prompt ━" not in rest
    plain = run("generate", model, "-d", "CPU", "-t", 1, "--tokens", prompt, "-c", 1024, "-n", 3,
                "--ignore-eos")  # fmt: skip
    assert plain.stdout == out.decode() and "━" not in plain.stderr


@pytest.mark.parametrize("where", ["console.Console.push_render_hook", "live.Live.refresh"])
def test_ctrl_c_while_a_bar_starts(terminal, where):
    """The cursor, hidden by then, is there again."""
    ours, theirs = terminal
    code = (
        "from unittest import mock; from ggml_py.cli.shared.bar import bar\n"
        f"with mock.patch('rich.{where}', side_effect=KeyboardInterrupt):\n"
        "    try:\n"
        "        with bar('prompt', at_once=True) as show: show(0.0)\n"
        "    except KeyboardInterrupt: print('stopped')\n"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs,
                          env={**env, "TERM": "xterm"}, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"stopped\n")
    said = os.read(ours, 4096).decode()
    assert "\x1b[?25l" in said and said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")


def test_ctrl_c_in_the_prompt(large, terminal):
    ours, theirs = terminal
    process = with_terminal(theirs, large, ",".join(["1"] * 7000), "-c", 8192, "-b", 64)
    said = read_until(ours, b"prompt")
    process.send_signal(signal.SIGINT)
    said += read_until(ours, b"evaluated")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"\n")
    assert "Traceback" not in said and "\x1b[?25h" in said
    n = re.search(r"stopped after 0 of 16 tokens; evaluated (\d+) of the prompt's 7000", said)[1]
    assert int(n) < 7000 and int(n) % 64 == 0
