"""Sequences saved and restored: libllama's bytes and files, both ways; damaged ones."""

from __future__ import annotations

import errno
import random
import signal
import struct
import subprocess
import sys
import textwrap
import time
from functools import partial

import pytest

from ggml_py import ModelError, models
from ggml_py.models import Batch
from ggml_py.models.synthetic import LlamaSpec

load = partial(models.load, n_threads=1, repack=False, graphs="libllama")  # see test_models.py
SPEC = LlamaSpec(n_layer=2, n_embd=64, n_head=4, n_head_kv=2, n_ff=96, n_vocab=300, type="f32")
WIDE = LlamaSpec(n_layer=2, n_embd=128, n_head=2, n_head_kv=1, n_ff=96, n_vocab=300, type="f32")
PROMPT = [(i * 37 + 11) % 97 for i in range(40)]
LONG = [(i * 37 + 11) % 97 for i in range(150)]


@pytest.fixture(scope="module")
def path(model_file):
    return model_file(SPEC)


@pytest.fixture(scope="module")
def wide(model_file):
    return model_file(WIDE)


@pytest.fixture
def model(path):
    with load(path, n_ctx=256) as model:
        yield model


# --- libllama


CASES = {  # a file, options of both, tokens
    "llama": ("small", {}, PROMPT),
    "transposed": ("small", {"flash_attn": "off"}, PROMPT),
    "f32": ("small", {"type_k": "f32", "type_v": "f32"}, PROMPT),
    "rotated": ("wide", {"type_k": "q8_0", "type_v": "q4_0", "flash_attn": "on"}, PROMPT),
    "streams": ("small", {"n_seq_max": 2, "n_ctx": 512}, PROMPT),
    "unified": ("small", {"n_seq_max": 3, "kv_unified": True}, PROMPT),
    "windows": ("gemma3", {}, LONG),
    "learned-positions": ("gpt2", {"n_ctx": 256}, PROMPT),
    "mamba": ("mamba", {}, PROMPT),
    "mamba2": ("mamba2", {"n_seq_max": 2}, PROMPT),
}


@pytest.mark.parametrize("case", CASES)
def test_files_are_libllamas(oracle, request, tmp_path, case):
    """The same bytes; one that the other wrote goes on as if it were its own."""
    name, options, prompt = CASES[case]
    if name in ("small", "wide"):
        file = request.getfixturevalue({"small": "path", "wide": "wide"}[name])
    else:
        file = request.getfixturevalue("arch_file")(name)
    seq = options.get("n_seq_max", 1) - 1
    theirs, data, ours = (tmp_path / n for n in ("theirs.bin", "data.bin", "ours.bin"))
    both = {**options, "seq": seq}
    flags = {"kv_unified": True} if options.get("kv_unified") else {}
    both = {k: v for k, v in both.items() if k != "kv_unified"} | flags
    expected, _known = oracle.generate(file, prompt, 12, save=theirs, data=data, **both)
    with load(file, **options) as model:
        tokens = model.generate(prompt, 1, seq=seq)
        assert model.seq_state(seq) == data.read_bytes()
        model.save_seq(ours, seq, prompt)
        assert ours.read_bytes() == theirs.read_bytes()
        tokens += model.generate(tokens, 11, seq=seq)
        assert tokens == expected
        model.reset()
        assert model.load_seq(theirs, seq) == prompt
        assert model.seq_pos_max(seq) == len(prompt) - 1
        assert model.generate(expected[:1], 11, seq=seq) == expected[1:]
    again, known = oracle.generate(file, expected[:1], 11, load=ours, **both)
    assert known == prompt and again == expected[1:]


# --- around it


def test_a_sequence_moves_to_another_and_to_another_context(path):
    with load(path, n_seq_max=3, kv_unified=True) as model:
        model.eval(PROMPT[:9], seq=1)
        model.eval(PROMPT, seq=0)
        kept, state = model.seq_state(1), model.seq_state(0)
        model.set_seq_state(2, state)
        ours = [model.generate([5], 8, seq=seq) for seq in (0, 2)]
        assert ours[0] == ours[1]
        assert model.seq_state(1) == kept  # the others are as they were
    with load(path, n_ctx=1024) as other:
        other.eval([1, 2, 3])
        other.set_seq_state(0, bytearray(state))
        assert other.n_past == len(PROMPT)
        assert other.generate([5], 8) == ours[0]


def test_a_cache_on_a_device(path):
    """In memory that the host does not read: the same bytes, and back."""
    with load(path) as model:
        model.eval(PROMPT)
        expected, tokens = model.seq_state(), model.generate([5], 4)
    with load(path, devices=("sim:state0", "CPU"), n_gpu_layers=99) as model:
        model.eval(PROMPT)
        assert model.seq_state() == expected
        model.reset()
        model.set_seq_state(0, expected)
        assert model.generate([5], 4) == tokens


def test_cells_that_lie_apart(path):
    """Of two sequences that took turns, one with a gap: restored into other cells, as it was."""
    with load(path, n_seq_max=2, kv_unified=True, flash_attn="off") as model:
        for i in range(20):
            batch = Batch()
            batch.add(PROMPT[i], seq=0)
            batch.add(PROMPT[i], seq=1, logits=True)
            model.decode(batch)
        model.seq_rm(0, 5, 9)
        model.seq_add(0, 9, None, -4)
        with pytest.raises(ModelError, match="rotated by the next evaluation"):
            model.seq_state(0)
        model.eval([3], seq=1)
        state = model.seq_state(0)
        expected = model.eval([7]).copy()
        model.reset()
        model.eval([1, 2, 3], seq=1)
        model.set_seq_state(0, state)
        assert model.seq_pos_max(0) == 15
        assert abs(model.eval([7]) - expected).max() <= 1e-5 * abs(expected).max()


def test_an_empty_sequence(path, tmp_path):
    with load(path, n_seq_max=2) as model:
        state = model.seq_state(1)
        model.save_seq(tmp_path / "empty.bin", 1)
        for restore in (
            lambda: model.set_seq_state(0, state),
            lambda: model.load_seq(tmp_path / "empty.bin"),
        ):
            model.eval(PROMPT)
            restore()
            assert model.n_past == 0


def test_too_few_cells(path):
    with load(path, n_ctx=512) as large:
        large.eval([1] * 300)
        state = large.seq_state()
    with load(path, n_ctx=256, n_seq_max=2, kv_unified=True) as model:
        model.eval(PROMPT, seq=0)
        model.eval(PROMPT, seq=1)
        before = model.seq_state(0)
        with pytest.raises(ModelError, match="not enough cells"):
            model.set_seq_state(0, state)
        assert model.seq_state(0) == before


# --- damaged and foreign


def unchanged(model, before, act):
    """Runs `act`, which is refused; the model goes on as if it had not been tried."""
    with pytest.raises(ModelError) as error:
        act()
    assert model.seq_state() == before
    return str(error.value)


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_no_part_of_a_state_is_taken_for_a_whole_one(path, tmp_path, flash_attn):
    with load(path, n_ctx=256, flash_attn=flash_attn) as model:
        model.eval(PROMPT[:3])
        state = model.seq_state()
        model.save_seq(tmp_path / "s.bin", tokens=PROMPT[:3])
        whole = (tmp_path / "s.bin").read_bytes()
        model.eval(PROMPT[3:9])
        before = model.seq_state()
        for n in [*range(120), *range(120, len(state), 61)]:
            unchanged(model, before, lambda n=n: model.set_seq_state(0, state[:n]))
            (tmp_path / "part.bin").write_bytes(whole[:n])
            said = unchanged(model, before, lambda: model.load_seq(tmp_path / "part.bin"))
            assert "part.bin is not a sequence of this model: " in said
        said = unchanged(model, before, lambda: model.set_seq_state(0, state + b"\0"))
        assert "1 bytes too many" in said


def test_states_of_other_models(path, wide, arch_file, tmp_path):
    """Each is refused with what differs."""
    with load(path) as model:
        model.eval(PROMPT)
        before = model.seq_state()
        others = {
            "n_stream mismatch": (path, {"n_seq_max": 2}),
            "incompatible V transposition": (path, {"flash_attn": "off"}),
            "mismatched key type": (path, {"type_k": "f32"}),
            "mismatched value type": (path, {"type_v": "bf16"}),
            "incompatible key rotation": (wide, {"type_k": "q8_0"}),
            "mismatched key row size": (wide, {}),
            "is not a sequence of this model": (arch_file("mamba2"), {}),
        }
        for message, (file, options) in others.items():
            with load(file, **options) as other:
                other.eval(PROMPT)
                state = other.seq_state()
            with pytest.raises(ModelError, match=message):
                model.set_seq_state(0, state)
            assert model.seq_state() == before
        with load(arch_file("mamba2")) as other:
            for foreign in (before, before[:8] + struct.pack("<I", 2) + before[12:]):
                with pytest.raises(ModelError):
                    other.set_seq_state(0, foreign)
        for content, message in (
            (b"GGUF" + bytes(40), "unknown .magic, version."),
            (struct.pack("<3I", 0x6767736E, 11, 0), "unknown .magic, version."),
            (struct.pack("<3I", 0x67677371, 3, 0), "unknown .magic, version."),
            (b"", "is not a sequence of this model: "),
        ):
            (tmp_path / "x.bin").write_bytes(content)
            with pytest.raises(ModelError, match=message):
                model.load_seq(tmp_path / "x.bin")
        with pytest.raises(ModelError, match="wrong sequence state magic"):
            model.set_seq_state(0, before[4:])
        assert model.seq_state() == before


def test_positions_that_cannot_be(model, arch_file):
    """Below 0, without room for the next; a cell of several sequences."""
    model.eval(PROMPT[:3])
    before = bytearray(model.seq_state())
    assert struct.unpack_from("<4I", before, 12)[:3] == (3, 0, 1)  # tokens; position, sequences
    for offset, value in ((16, -1), (40, 2**31 - 2), (20, 0), (32, 2)):
        damaged = bytearray(before)
        struct.pack_into("<i", damaged, offset, value)
        with pytest.raises(ModelError, match=r"impossible positions|invalid seq_id"):
            model.set_seq_state(0, damaged)
        assert model.seq_state() == before
    with load(arch_file("mamba2")) as recurrent:
        recurrent.eval(PROMPT[:3])
        before = bytearray(recurrent.seq_state())
        for offset, value in ((12, -1), (12, 2**31 - 1), (16, 1)):
            damaged = bytearray(before)
            struct.pack_into("<i", damaged, offset, value)
            with pytest.raises(ModelError, match="is not a sequence of this model"):
                recurrent.set_seq_state(0, damaged)
            assert recurrent.seq_state() == before


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss"])
def test_positions_below_zero_in_one_cache_of_two(arch_file, name):
    """Upstream takes them and never frees their cells; the cache would be full soon."""
    with load(arch_file(name), n_ctx=256) as model:
        model.eval(LONG[:40])
        good = model.seq_state()
        bad, at = bytearray(good), good.find(struct.pack("<3I", 40, 0, 1))
        for cell in range(1, 40):
            struct.pack_into("<i", bad, at + 4 + 12 * cell, -5)
        for _ in range(9):
            with pytest.raises(ModelError, match="impossible positions"):
                model.set_seq_state(0, bad)
            assert model.seq_state() == good
        model.reset()
        model.eval(LONG)


def test_a_sequence_that_cannot_be_restored_is_named(path):
    """It shared its tokens, and the context is full."""
    with load(path, n_ctx=256, n_seq_max=2, kv_unified=True) as model:
        model.eval([1] * 200)
        state = model.seq_state()
        model.seq_cp(0, 1)
        with pytest.raises(ModelError, match="no room to restore sequence 0: it is empty now"):
            model.set_seq_state(0, state[:-3])
        assert (model.seq_pos_max(0), model.seq_pos_max(1)) == (-1, 199)


@pytest.mark.parametrize("name", ["llama", "mamba2"])
def test_damaged_states_end_nothing(path, arch_file, name):
    """2000 mutants: each is refused, or taken; afterwards the model is as good as before."""
    file = path if name == "llama" else arch_file(name)
    rng = random.Random(5)
    with load(file, n_ctx=256) as model:
        expected = model.generate(PROMPT[:6], 4)
        model.reset()
        model.eval(PROMPT[:6])
        state, n_taken = model.seq_state(), 0
        for _ in range(2000):
            mutant = bytearray(state)
            for _ in range(rng.choice((1, 1, 3))):
                at = rng.choice((rng.randrange(len(state)), rng.randrange(8, 150)))
                mutant[at] = rng.randrange(256)
            try:
                model.set_seq_state(0, mutant)
            except ModelError:
                continue
            n_taken += 1
            if n_taken % 50 == 0:
                model.eval(PROMPT[:3])
        model.reset()
        assert model.generate(PROMPT[:6], 4) == expected
    assert 100 < n_taken < 1900


# --- files


FULL = """
    import resource, sys
    from ggml_py import models
    with models.load(sys.argv[1], n_threads=1, graphs="libllama") as model:
        model.eval([1, 2, 3])
        model.save_seq(sys.argv[2], tokens=[1, 2, 3])
        model.eval([4] * 400)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            model.save_seq(sys.argv[2])
        except OSError as error:
            print(error.errno, model.n_past, len(model.generate([5], 3)))
"""


def test_a_full_disk_leaves_the_old_file(path, model, tmp_path):
    file = tmp_path / "folder" / "s.bin"
    file.parent.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), path, file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [str(errno.EFBIG), "403", "3"], done.stderr
    assert list(file.parent.iterdir()) == [file]
    assert model.load_seq(file) == [1, 2, 3] and model.n_past == 3


KILLED = """
    import sys
    from ggml_py import models
    with models.load(sys.argv[1], n_threads=1, graphs="libllama") as model:
        model.eval([7] * 500)
        print("now", flush=True)
        while True:
            model.save_seq(sys.argv[2], tokens=[7] * 500)
"""


@pytest.mark.thorough("long")
def test_a_process_that_is_killed_leaves_a_whole_file(path, tmp_path):
    file = tmp_path / "s.bin"
    for i in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), path, file], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"now\n"
        while not file.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(0.003 * i)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with load(path) as model:
            assert model.load_seq(file) == [7] * 500 and model.n_past == 500


def test_where_no_file_can_be(model, tmp_path):
    with pytest.raises(FileNotFoundError):
        model.load_seq(tmp_path / "none.bin")
    with pytest.raises(FileNotFoundError):
        model.save_seq(tmp_path / "none" / "s.bin")
    with pytest.raises(OSError):
        model.save_seq(tmp_path)
    assert list(tmp_path.iterdir()) == []
