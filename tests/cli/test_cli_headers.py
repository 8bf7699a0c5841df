"""Verbs that take a model, with three files: one that ends after its header, one at an address, and
one with only a vocabulary. Verbs that plan do so, and verbs that compute name the missing weights.
No message names a temporary file."""

import logging
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from ggml_py import GgmlError, Gguf, cli
from ggml_py.cli.record import _say_without_weights
from ggml_py.cli.shared.cases import cases_of
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.sim.sim_device import _sims as sim_devices

from ..support.measured import knows_all
from ..support.served import serving

pytestmark = pytest.mark.thorough("cases", quick=12)

GPU = ("-d", "sim:gpu0,profile=rtx4090", "-d", "CPU", "-ngl", "2")
# Words of each verb; {m} is the model, {d} a folder.
PLANNING = {
    "plan": ("plan", "{m}", *GPU, "--n-tokens", "64"),
    "plan, our graphs": ("plan", "{m}", *GPU, "--n-tokens", "64", "--graphs", "ours"),
    "plan, libllama": ("plan", "{m}", *GPU, "--n-tokens", "64", "--graphs", "libllama"),
    "plan what-if": ("plan", "{m}", *GPU, "--what-if", "op_offload=off"),
    "plan -o": ("plan", "{m}", *GPU, "-o", "{d}/p.json", "--force"),
    "plan --fit": ("plan", "{m}", *GPU[:-2], "--fit", "on"),
    "sweep": ("sweep", "{m}", *GPU, "--n-tokens", "1,64"),
    "memory": ("memory", "{m}", *GPU, "--no-changes"),
    "memory changes": ("memory", "{m}", "-d", "sim:gpu0,memory=3M", "-d", "CPU", "-ngl", "99"),
    "cost": ("cost", "{m}", "-d", "CPU", "--machine", "{d}/machine.json", "-p", "8", "-n", "4"),
    "place": ("place", "{m}", "-d", "CPU", "--machine", "{d}/machine.json", "--plans", "4"),
    "explain": ("explain", "{m}", "result_output", *GPU),
    "why-not": ("why-not", "{m}", "Qcur-0", "gpu0", *GPU),
    "diff": ("diff", "{m}", "{m}", *GPU),
    "corpus make": ("corpus", "make", "{d}/corpus", "{m}"),
    "plan --": ("plan", *GPU[:4], "--", "llama-server", "-m", "{m}", "-ngl", "2"),
    "memory --": ("memory", *GPU[:4], "--no-changes", "--", "llama-server", "-m", "{m}"),
    "explain --": ("explain", "result_output", *GPU[:4], "--", "llama-cli", "-m", "{m}"),
}  # fmt: skip
RUNNING = {
    "generate": ("generate", "{m}", "--tokens", "1,2"),
    "bench": ("bench", "{m}", "-p", "4", "-n", "2", "-r", "1"),
    "trace": ("trace", "{m}", "-n", "2"),
    "diverge": ("diverge", "{m}", "--between", "CPU", "CPU threads=2"),
}  # fmt: skip
OTHERS = {
    "view": ("view", "{m}"),
    "corpus add": ("corpus", "add", "{d}/added", "{m}"),
}  # fmt: skip
NEEDS_LIBLLAMA = {
    "plan, libllama", "plan --fit", "memory", "memory changes", "place", "corpus make", "plan --",
    "memory --", "explain --",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """head.gguf, model.gguf (whole), vocab.gguf and machine.json."""
    path = tmp_path_factory.mktemp("models")
    write_llama(path / "model.gguf", LlamaSpec(n_layer=3, n_vocab=512))
    with Gguf.open(path / "model.gguf") as gguf:
        header = (path / "model.gguf").read_bytes()[: gguf.data_offset]
    (path / "head.gguf").write_bytes(header)
    (path / "vocab.gguf").write_bytes(vocabulary())
    with load(path / "model.gguf", program="bench", n_ctx=512, n_threads=1) as model:
        knows_all([model.plan(1), model.plan(8)]).save(path / "machine.json")
    return path


def vocabulary():
    """A file as upstream's models/ggml-vocab-*.gguf: keys of a model and its tokens, no tensor."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def key(name, type_, value):
        return text(name) + struct.pack("<I", type_) + value

    tokens = [text(f"t{i}") for i in range(8)]
    keys = [
        key("general.architecture", 8, text("llama")),
        *(key(f"llama.{name}", 4, struct.pack("<I", n)) for name, n in (
            ("block_count", 2), ("embedding_length", 64), ("context_length", 128),
            ("feed_forward_length", 128), ("attention.head_count", 4),
        )),
        key("tokenizer.ggml.model", 8, text("llama")),
        key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, len(tokens)) + b"".join(tokens)),
    ]  # fmt: skip
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys)


@pytest.fixture
def run(monkeypatch, capsys, folder, tmp_path):
    """Runs a verb as a user does: its exit status and everything it printed."""

    def run_it(words, model):
        words = [word.format(m=model, d=tmp_path) for word in words]
        monkeypatch.setattr(sys, "argv", ["ggml-py", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        for device in list(sim_devices.values()):  # a process of its own has none
            with suppress(GgmlError):
                device.close()
        printed = capsys.readouterr()
        said = printed.out + printed.err
        for name in (tempfile.gettempdir() + "/ggml_py-", "ggml_py-"):
            assert name not in said, said
        return ended.value.code or 0, said

    (tmp_path / "machine.json").write_bytes((folder / "machine.json").read_bytes())
    yield run_it
    logging.getLogger("ggml").handlers.clear()


def cases(rows):
    return [
        pytest.param(words, marks=pytest.mark.thorough("programs"))
        if name in NEEDS_LIBLLAMA else words
        for name, words in rows.items()
    ]  # fmt: skip


def ids(rows):
    return list(rows)


@pytest.mark.parametrize("words", cases(PLANNING), ids=ids(PLANNING))
@pytest.mark.parametrize("kind", ["header", "address"])
def test_a_verb_that_plans_needs_only_the_header(kind, words, run, folder):
    """Found wrong: `plan` opened the file again for its remedy, `sweep` needed the weights."""
    status, whole = run(words, folder / "model.gguf")
    assert status == 0, whole
    if kind == "header":
        status, said = run(words, folder / "head.gguf")
    else:
        with serving(folder) as (address, _handler):
            status, said = run(words, address)
        at = f"model.gguf is to be downloaded first, from {address}"
        assert said.count(at) == ("-m model.gguf" in said)
        assert "downloaded" not in run(words, folder / "head.gguf")[1]
    assert status == 0, said
    if not {"place", "corpus"} & {*words}:
        assert said.splitlines()[0] == whole.splitlines()[0]


@pytest.mark.parametrize("words", RUNNING.values(), ids=ids(RUNNING))
def test_a_verb_that_runs_says_that_there_are_no_weights(words, run, folder):
    status, said = run(words, folder / "head.gguf")
    assert status == 1 and "head.gguf is truncated: it has only its header and no weights" in said
    with serving(folder) as (address, _handler):
        status, said = run(words, address)
    assert status == 1 and f"{address}: only its header was read, which is enough for plans" in said


@pytest.mark.parametrize(
    "words", [*cases(PLANNING), *RUNNING.values()], ids=[*ids(PLANNING), *ids(RUNNING)]
)
@pytest.mark.parametrize("kind", ["file", "address"])
def test_a_vocabulary_is_called_one(kind, words, run, folder):
    if kind == "file":
        status, said = run(words, folder / "vocab.gguf")
    else:
        with serving(folder) as (address, _handler):
            status, said = run(words, address.replace("model.gguf", "vocab.gguf"))
    assert status == 1 and "vocab.gguf is only a vocabulary: it has a tokenizer and no" in said


@pytest.mark.parametrize("words", OTHERS.values(), ids=ids(OTHERS))
def test_a_verb_that_takes_no_model_names_the_one_that_does(words, run, folder):
    for name in ("head.gguf", "vocab.gguf"):
        status, said = run(words, folder / name)
        assert status in (1, 2) and "is a model: `ggml-py" in said
    with serving(folder) as (address, _handler):
        status, said = run(words, address)
    assert status == 2 and f"`ggml-py plan {address}" in said


def test_compare_and_bisect_take_addresses(folder):
    with serving(folder) as (address, _handler):
        works = cases_of([address, str(folder / "head.gguf")])
    assert [work.words for work in works] == [(address,), (str(folder / "head.gguf"),)]


def test_record_says_why_the_program_will_fail(folder, capsys):
    for name, said in (("head", "only its header and no weights"), ("vocab", "only a vocabulary"),
                       ("model", "")):  # fmt: skip
        _say_without_weights(("llama-bench", "-m", str(folder / f"{name}.gguf")))
        printed = capsys.readouterr().err
        assert said in printed and bool(said) == printed.startswith("note: ")
    _say_without_weights(("python", "-m", "http.server"))
    assert not capsys.readouterr().err


@pytest.mark.thorough("programs")
def test_upstreams_vocabularies(run):
    cache = Path.home() / ".cache/ggml_py/sources"
    found = sorted(cache.glob("*-whole/models/ggml-vocab-*.gguf"))
    if not found:
        pytest.skip("upstream's sources are not in the cache")
    for path in found[::5]:
        status, said = run(("plan", "{m}"), path)
        assert status == 1 and f"{path.name} is only a vocabulary" in said
