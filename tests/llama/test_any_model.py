"""libllama on our ggml: models of any architecture, planned from their headers and run."""

import gc
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import llama, models
from ggml_py.backends.threadpool import ThreadPool
from ggml_py.boundary.ffi import lib
from ggml_py.boundary.handle import LIVE
from ggml_py.errors import AbortError, ClosedError, ModelError
from ggml_py.llama import native
from ggml_py.llama.archs import ARCHITECTURES
from ggml_py.scheduler.capture import read_plan

from ..support import doc_pages
from ..support.arch_files import ARCHS, OURS, RECURRENT
from ..support.placements import blank
from ..support.upstream_plans import SETTINGS, compared

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
REPO = Path(__file__).resolve().parents[2]

# Of upstream's files: attention of each kind, experts, states, encoders, hybrids.
SAMPLE = (
    "deepseek2-moe", "qwen3next-moe", "cohere2-dense", "gpt-oss-moe", "falcon-h1-dense",
    "jamba-dense", "glm4moe-moe", "minicpm3-dense", "llama4-moe", "lfm2moe-moe",
)  # fmt: skip


@pytest.fixture(scope="module")
def archs(oracle, tmp_path_factory):
    """All small models that upstream's test-llama-archs writes."""
    folder = tmp_path_factory.mktemp("archs")
    oracle.run("test-llama-archs", "-s", 42, "-o", folder)
    return folder


def test_there_are_models_of_the_sample(archs):
    there = {path.stem for path in archs.glob("*.gguf")}
    assert len(there) > 120
    assert set(SAMPLE) & there and len(set(SAMPLE) - there) <= 2, sorted(there)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SAMPLE)
def test_plans_and_bytes_are_those_of_an_unmodified_build(oracle, archs, name, setting):
    path = archs / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"this release writes no {name}")
    said = compared(oracle, path, setting)
    assert said == "equal" or said.startswith("refused"), said


@pytest.mark.parametrize("devices, poll", [(("CPU",), 50), (("BLAS", "CPU"), 0), (("spun0",), 0)])
def test_threads_do_not_spin_beside_those_of_other_devices(archs, monkeypatch, devices, poll):
    """BLAS and simulated devices compute on the same cores."""
    made = []
    monkeypatch.setattr(
        native, "ThreadPool", lambda *n, **how: made.append(ThreadPool(*n, **how)) or made[-1]
    )
    path = archs / f"{ARCHS['llama']}.gguf"
    with ggml.sim_device("spun0"), llama.open(path, devices=devices, n_threads=2) as model:
        model.eval([1, 2, 3])
    assert [pool.poll for pool in made] == [poll]


@pytest.mark.parametrize("name", OURS)
def test_both_ways_give_the_same_plan(archs, name):
    """Node by node, with causes, for the architectures that we write ourselves."""
    path = archs / f"{ARCHS[name]}.gguf"
    n_past = 300
    with ggml.sim_device("both0", profile="rtx4090"):
        for n_gpu_layers in (0, 1, 99):
            options = {
                "devices": ("both0",), "n_gpu_layers": n_gpu_layers, "repack": False,
                "n_ctx": 1024,
            }  # fmt: skip
            with (
                models.load(path, graphs="ours", **options) as ours,
                models.load(path, graphs="libllama", **options) as theirs,
            ):
                # The buffer that libllama copies logits to is its own.
                told = [row._replace(outputs=0) for row in theirs.memory]
                assert sorted(ours.memory) == sorted(row for row in told if row.nbytes)
                for shape in ((1, 0), (31, 0), (1, n_past)):
                    a, b = ours.plan(*shape), theirs.plan(*shape)
                    assert a.text() == b.text(), shape
                    assert a.capture.pins == b.capture.pins, shape


@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "gpt-oss", "mamba", "qwen3moe", "deepseek2-moe"]
)
def test_a_plan_is_that_of_a_real_decode(archs, name):
    """Of the same number of tokens after the same number of others."""
    path = archs / f"{ARCHS.get(name, name)}.gguf"
    with (
        ggml.sim_device("real0", profile="rtx4090"),
        llama.open(path, devices=("real0",), n_gpu_layers=1, repack=False) as model,
    ):
        for n_tokens, n_past in ((7, 0), (1, 7), (33, 8), (1, 41)):
            assert model.n_past == n_past
            planned = model.plan(n_tokens, n_past)
            running = model._loaded()
            sched = model._library.lib.gpl_sched(running.context.ptr)
            lib.gp_sched_trace(sched, True)
            model.eval(list(range(1, n_tokens + 1)))
            real = read_plan(lib.gp_sched_read, sched, lib.gp_sched_graph(sched), {})
            assert blank(planned.text()) == blank(real.text()), (n_tokens, n_past)


@pytest.mark.parametrize("name", OURS)
def test_logits_are_those_of_our_own_graphs(archs, name):
    path = archs / f"{ARCHS[name]}.gguf"
    options = {"repack": False, "n_threads": 1}
    with (
        models.load(path, graphs="ours", **options) as ours,
        models.load(path, graphs="libllama", **options) as theirs,
    ):
        tokens = [(i * 7919 + 11) % 97 for i in range(19)]
        assert (ours.eval(tokens) == theirs.eval(tokens)).all()
        assert (ours.eval([3]) == theirs.eval([3])).all()
        ours.reset(), theirs.reset()
        assert ours.generate(tokens, 8) == theirs.generate(tokens, 8)


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
def test_a_graph_is_used_again_until_the_cache_grows(archs, graphs):
    path = archs / f"{ARCHS['llama']}.gguf"
    with models.load(path, graphs=graphs, n_threads=1, n_ctx=1024) as model:
        assert model.n_reused == 0
        model.eval([1] * 250)
        for i in range(12):  # attention reads 256 cells for six of them, then 512
            model.eval([2])
            assert model.n_reused == (i if i < 6 else i - 1)


def test_both_kinds_of_model_are_looked_into(archs):
    path = archs / "llama-dense.gguf"
    tokens = [1, 2, 3, 4, 5]
    seen = []
    for graphs in ("ours", "libllama"):
        with models.load(path, graphs=graphs, repack=False) as model:
            plain = model.eval(tokens)
            model.reset()
            logits, found = model.eval(tokens, watch=["l_out-*", "attn_norm-1"])
            assert (logits == plain).all()
            assert set(found) == {"l_out-0", "l_out-1", "attn_norm-1"}
            assert found["attn_norm-1"].shape[0] == 5 and found["l_out-1"].ndim == 1
            seen.append(found)
            model.reset()
            assert (model.eval(tokens) == plain).all()  # nothing is left of the watching
            with pytest.raises(TypeError, match=r"watch='l_out-1': expected a list of names"):
                model.eval([1], watch="l_out-1")
    assert all((seen[0][name] == seen[1][name]).all() for name in seen[0])


def test_a_callback_that_raises_stops_the_evaluation(archs, monkeypatch):
    from ggml_py.llama import watching

    def fails(_tensor):
        raise ZeroDivisionError("looked too closely")

    monkeypatch.setattr(watching, "array_of", fails)
    with llama.open(archs / "llama-dense.gguf", repack=False) as model:
        with pytest.raises(ZeroDivisionError, match="looked too closely"):
            model.eval([1, 2], watch=["l_out-0"])
        monkeypatch.undo()
        model.reset()
        assert model.eval([1, 2]).shape == (128,)


@pytest.mark.parametrize("split_mode", ["row", "tensor"])
def test_other_split_modes_go_to_libllama_by_themselves(archs, split_mode):
    with ggml.sim_device("sm0"), ggml.sim_device("sm1"):
        options = {"devices": ("sm0", "sm1"), "n_gpu_layers": 99, "split_mode": split_mode}
        if split_mode == "row":  # upstream's own error
            with pytest.raises(ModelError, match="device sm0 does not support split buffers"):
                models.load(archs / "llama-dense.gguf", **options)
            return
        with models.load(archs / "llama-dense.gguf", **options) as model:
            plan = model.plan(8)
            assert plan.headline().startswith("libllama's graph: ")
            assert plan.backends[0].name == "Meta(sm0,sm1)"


def test_fit_chooses_what_fits(archs):
    """Less memory, fewer layers; what was given stays."""
    path, layers = archs / "llama-moe.gguf", []
    for mib in (1024, 1030, 1036):
        with (
            ggml.sim_device(f"fit{mib}", profile="rtx4090", memory=mib << 20),
            llama.open(path, devices=(f"fit{mib}",), fit=True) as model,
        ):
            layers.append(model.fitted["n_gpu_layers"])
            weights = sum(r.weights for r in model.memory if r.device == f"fit{mib}")
            assert weights <= (mib - 1024) << 20
    assert layers == [0, 1, -1]  # the last one: as many as there are
    with llama.open(path, fit=True, n_ctx=512) as model:
        assert model.fitted["n_ctx"] == model.n_ctx == 512


def test_errors_are_those_of_upstream_and_nothing_is_lost(archs, tmp_path):
    data = (archs / "deepseek2-moe.gguf").read_bytes()
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(data.replace(b"blk.0.attn_norm.weight", b"blk.0.attn_nerm.weight"))
    with pytest.raises(ModelError, match=r"wrong\.gguf: .*attn_norm"):
        llama.open(wrong)
    with llama.open(archs / "deepseek2-moe.gguf", n_ctx=256) as model:
        for bad in ({"n_tokens": 0}, {"n_past": 256}, {"n_seqs": 2}, {"n_tokens": 300}):
            with pytest.raises(ModelError, match=next(iter(bad))):
                model.plan(**bad)
        for bad, said in (([], "no tokens"), ([-1], "token -1 is not in the vocabulary"),
                          ([1.5], "expected a list of token ids"),
                          ([1] * 300, "no room")):  # fmt: skip
            with pytest.raises(ModelError, match=said):
                model.eval(bad)
        assert model.n_past == 0
        assert model.eval([1]).shape == (128,)
        call = model._library.lib
        with pytest.raises(AbortError):
            call.gpl_build_reserved(model._context.ptr, 1, 1, 0)  # GGML_ASSERT(n_outputs >= 1)
        assert model.plan(1).n_splits == 1
    with pytest.raises(ClosedError):
        model.plan(1)


def test_a_header_is_enough(archs, tmp_path):
    """The file ends after its header, and what is planned is the same."""
    whole = archs / "deepseek2-moe.gguf"
    with ggml.Gguf.open(whole) as gguf:
        n = gguf.data_offset
    cut = tmp_path / "deepseek2-moe.gguf"
    cut.write_bytes(whole.read_bytes()[:n])
    with llama.open(whole) as one, llama.open(cut) as other:
        assert one.plan(31).text() == other.plan(31).text()
        assert one.memory == other.memory
        with pytest.raises(ModelError, match="ends before its weights do"):
            other.eval([1])


def test_a_file_that_was_damaged_before_is_not_libllamas(archs, tmp_path):
    """In a process of its own: the first call into libllama comes after a damage was raised."""
    script = f"""
import numpy as np
from ggml_py import llama
from ggml_py.errors import DamagedFileError
from ggml_py.gguf.writer import write_gguf
from ggml_py import Gguf
path = {str(tmp_path / "damaged.gguf")!r}
write_gguf(path, {{}}, [("a", np.ones((4096, 32), np.float32), "f32", (32, 4096))])
with Gguf.open(path) as gguf:
    data = gguf.data("a")
    open(path, "r+b").truncate(4096)
    try:
        print(data[-1])
    except DamagedFileError:
        print("damaged")
with llama.open({str(archs / "llama-dense.gguf")!r}) as model:
    print(model.plan(1).n_splits)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["damaged", "1"]), done.stderr


def test_a_large_model_needs_no_memory(archs, tmp_path):
    """In a process of its own: 32 layers, 1 TB, planned in seconds and under 300 MB."""
    script = f"""
import sys, time
sys.path.append({str(REPO)!r})
from tests.support.large_model import write
path = write({str(tmp_path)!r})
from ggml_py import llama
from ggml_py.llama.library import library
library()
start = time.perf_counter()
with llama.open(path, devices=("sim:big,profile=mi300x",), n_gpu_layers=20) as model:
    plan = model.plan(1)
    weights = sum(row.weights for row in model.memory)
status = open("/proc/self/status").read()  # ru_maxrss would be the parent's, if that was larger
print(time.perf_counter() - start, status.partition("VmHWM:")[2].split()[0], weights)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, kib, weights = map(float, done.stdout.split())
    assert weights > 400e9 and seconds < 20 and kib < 300_000, done.stdout


def test_ctrl_c_stops_an_evaluation(archs):
    options = {"n_ctx": 65536, "n_batch": 4096, "n_ubatch": 4096, "repack": False}
    with llama.open(archs / "llama-dense.gguf", **options) as model:
        model.eval([1])
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            model.eval([5] * 60000)
        assert model.n_past == 1  # as before
        after = model.eval([2])
        model.reset()
        model.eval([1])
        assert (model.eval([2]) == after).all()


def test_what_is_in_use_is_not_closed_or_changed(archs):
    device = ggml.sim_device("used0")
    with llama.open(archs / "llama-dense.gguf", devices=("used0",), n_gpu_layers=99) as model:
        with pytest.raises(ggml.ArgumentError, match="cannot be closed yet; still open: 1 backend"):
            device.close()
        raised = []

        def plan():
            for _ in range(20):
                try:
                    model.plan(8)
                except ggml.BusyError:
                    raised.append(1)

        threads = [threading.Thread(target=plan) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert model.plan(8).n_splits >= 1
    device.close()
    with pytest.raises(TypeError, match="unknown option 'bogus': expected devices, n_gpu_layers"):
        llama.open(archs / "llama-dense.gguf", bogus=3)


def test_nothing_is_left_open(archs):
    gc.collect()
    before = dict(LIVE)
    model = llama.open(archs / "llama-dense.gguf", repack=False)
    model.eval([1, 2])
    assert LIVE["LlamaHandle"] == LIVE["ContextHandle"] == 2
    model.close()
    model.close()  # harmless
    assert model.closed and repr(model) == "<LlamaModel closed>"
    gc.collect()
    assert dict(LIVE) == before
    for call in (lambda: model.plan(1), lambda: model.eval([1]), lambda: model.n_ctx,
                 lambda: model.tokenize("a"), lambda: model.memory):  # fmt: skip
        with pytest.raises(ClosedError):
            call()
    with pytest.raises(ModelError):
        llama.open(archs / "llama-dense.gguf", n_gpu_layers=1, main_gpu=3, split_mode="none",
                   devices=("sim:left0",))  # fmt: skip
    gc.collect()
    assert dict(LIVE) == before


# --- text


def vocabularies():
    cache = Path.home() / ".cache" / "ggml_py" / "sources"
    return sorted(cache.glob("0.26.0-*-whole/models/ggml-vocab-*.gguf"))


@pytest.fixture(scope="module")
def vocabs(oracle):
    found = vocabularies()
    if not found:
        pytest.skip("the sources are not in the usual cache")
    return found


def test_tokens_are_those_of_upstreams_own_tests(vocabs):
    """models/ggml-vocab-*.gguf with .inp and .out, as test-tokenizer-0.cpp reads them."""
    n = 0
    for path in vocabs:
        given, expected = path.with_suffix(".gguf.inp"), path.with_suffix(".gguf.out")
        if not given.exists():
            continue
        texts = given.read_bytes().decode().split("\n__ggml_vocab_test__\n")
        lines = expected.read_text("utf-8").splitlines()
        assert len(texts) >= len(lines)
        with llama.Tokenizer.open(path) as tokenizer:
            for text, line in zip(texts, lines, strict=False):
                ids = [int(word) for word in line.split()]
                found = tokenizer.tokenize(text, add_special=False, parse_special=False)
                assert found == ids, (path.name, text)
                n += 1
    assert n > 400


def test_text_comes_back(vocabs):
    path = next(path for path in vocabs if "llama-bpe" in path.name)
    with llama.Tokenizer.open(path) as tokenizer:
        text = "Hello, world! 你好 \N{GRINNING FACE}\n"
        ids = tokenizer.tokenize(text)
        assert ids[0] == tokenizer.bos
        assert tokenizer.detokenize(ids[1:]) == text
        assert b"".join(map(tokenizer.piece, ids[1:])).decode() == text
        assert tokenizer.eos in tokenizer.eog
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        assert tokenizer.chat(messages) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
        assert tokenizer.chat(messages, template) == "[system] Be brief.[user] Hi"
        with pytest.raises(ModelError, match=r"a message is .*role.*got"):
            tokenizer.chat([{"role": "user", "text": "Hi"}])
        with pytest.raises(ModelError, match="chat template fails"):
            tokenizer.chat(messages, "{% for %}")


# --- the bindings


def sources():
    (folder,) = (Path.home() / ".cache/ggml_py/sources").glob("0.26.0-*-whole")
    return folder


def test_every_function_is_bound(vocabs):
    """Those of llama.h by their names, those of llama-ext.h by a C function of ours each."""
    source = sources()
    bound = set(dir(llama.library.library().lib))
    for name, pattern, ours in (
        ("include/llama.h", r"LLAMA_API\s[^;{]*?\b(llama_\w+)\s*\(", "{}"),
        ("src/llama-ext.h", r"LLAMA_API\s[^;{]*?\b(llama_\w+)\s*\(", "gpl_{}"),
    ):
        text = re.sub(r"//[^\n]*", "", (source / name).read_text())
        declared = set(re.findall(pattern, text))
        assert len(declared) > 20
        expected = {ours.format(f.removeprefix("llama_") if "gpl" in ours else f) for f in declared}
        assert expected - bound == set()


def test_the_architectures_are_those_of_the_source(vocabs):
    from vendor import llama as builder

    assert list(ARCHITECTURES) == builder.architectures(sources())


def test_every_architecture_of_upstreams_files_is_known(archs):
    seen = set()
    for path in archs.glob("*.gguf"):
        with ggml.Gguf.open(path) as gguf:
            seen.add(gguf.metadata["general.architecture"])
    assert seen <= set(ARCHITECTURES)


@pytest.mark.parametrize("page", doc_pages.WITH_LIBLLAMA, ids=lambda page: page.stem)
def test_the_page_prints_what_is_shown(vocabs, page):
    examples = doc_pages.examples(page)
    printed = doc_pages.run([code for code, _shown in examples])
    for (code, shown), said in zip(examples, printed, strict=True):
        lines = [line.rstrip() for line in said.splitlines()]
        assert lines == (shown or "").splitlines(), code


# --- the command line


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ggml_py", *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_command_line_plans_what_we_do_not_write(archs):
    done = run("plan", archs / "deepseek2-moe.gguf", "-d", "sim:gpu0,profile=rtx4090", "-ngl", 1)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.startswith("2 of 2 layers are read from host memory: about ")
    assert re.search("^libllama's graph: 2 splits", done.stdout, re.M)
    done = run("plan", archs / "deepseek2-moe.gguf", "--graphs", "ours")
    assert done.returncode == 1
    assert "architecture 'deepseek2'; supported: " in done.stderr
    assert "--graphs" in done.stderr
    done = run("plan", archs / "llama-moe.gguf", "-d", "sim:g,profile=rtx4090,memory=1030M",
               "--fit", "on")  # fmt: skip
    assert done.returncode == 0 and "libllama's graph" in done.stdout
    done = run("trace", archs / "deepseek2-moe.gguf", "-n", 1)
    assert done.returncode == 0 and "graphs reused: " in done.stdout, done.stderr


def test_the_command_line_generates_with_any_model(archs):
    path = archs / "deepseek2-moe.gguf"
    done = run("generate", path, "--tokens", "1,2,3", "-n", 4)
    assert done.returncode == 0, done.stderr
    with llama.open(path) as model:
        assert done.stdout.strip() == ",".join(map(str, model.generate([1, 2, 3], 4)))
    done = run("generate", path, "-p", "Hello", "-n", 4)
    with llama.open(path) as model:  # upstream's test vocabulary hashes pieces of the text
        text = model.detokenize(model.generate(model.tokenize("Hello"), 4))
    assert done.returncode == 0 and done.stdout.rstrip("\n") == text, done.stderr
    chat = json.loads(run("generate", path, "-p", "a", "--chat", "-c", 256, "--json").stdout)
    assert len(chat["tokens"]) > 16 or chat["stop_type"] == "eos"
    for wrong in ((), ("-p", "a", "--tokens", "1"), ("--tokens", "1", "--chat")):
        assert run("generate", path, *wrong).returncode == 2


def test_recurrent_models_plan_after_any_number_of_tokens(archs):
    for name in RECURRENT:
        with llama.open(archs / f"{ARCHS[name]}.gguf", n_ctx=512) as model:
            assert model.plan(1, 400).n_splits == model.plan(1, 0).n_splits
            assert np.isfinite(model.eval([1, 2])).all()
