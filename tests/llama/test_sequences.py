"""Several sequences in one batch, against a program of libllama: the same logits and positions."""

from __future__ import annotations

import numpy as np
import pytest

from ..support.arch_files import ARCHS
from ..support.sequence_cases import SCRIPT, SHIFTS
from ..support.sequence_scripts import Random, agree, run, t

STREAMS = {"streams": {"n_seq_max": 4}, "unified": {"n_seq_max": 4, "kv_unified": True}}
OPTIONS = {
    "plain": {"flash_attn": "off"},
    "flash": {"flash_attn": "on"},
    "q8_0": {"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
}
WINDOWS = ("olmo2", "gemma2", "gemma3", "gpt-oss")

CORNERS = {  # an architecture, how it is loaded, what is done: rarely met, and easy to get wrong
    "a token of two sequences with unlike pasts sees that of one": (
        "llama",
        {"n_seq_max": 2, "kv_unified": True},
        [
            ("decode", *run(1, 4, 0), *run(2, 4, 1)),
            ("decode", t(5, (0, 1), pos=4), t(6, 0, pos=5), t(7, 1, pos=5)),
        ],
    ),
    "a stream is copied while its keys are to be rotated": (
        "llama",
        {"n_seq_max": 2, "n_ctx": 512},
        [
            ("decode", *run(1, 12, 0)),
            ("seq_add", 0, 4, None, 3),
            ("seq_cp", 0, 1, 0, None),
            ("decode", t(1, 0), t(2, 1)),
        ],
    ),
    "a window's ubatch takes cells that an earlier one would still see": (
        "gemma3",
        {"n_seq_max": 4, "kv_unified": True, "n_ubatch": 16},
        [
            ("decode", *run(1, 16, 1)),
            ("decode", *run(2, 16, 2)),
            ("decode", *run(3, 180, 0)),
            ("seq_rm", 2, 0, None),
            ("decode", *run(4, 16, 0)),
            ("seq_rm", 1, 0, None),
            ("decode", *run(5, 32, 0)),
        ],
    ),
    "another split fits where the first does not": (
        "gemma3",
        {"n_seq_max": 5, "kv_unified": True, "n_ubatch": 16},
        [
            ("decode", *run(1, 210, 3)),
            ("seq_cp", 3, 2, 0, None),
            ("decode", *run(2, 31, 0)),
            ("decode", *run(3, 6, 0), *run(4, 5, 1), *run(5, 5, 4)),
            ("decode", t(1, 0), t(2, 1), t(3, 4)),
        ],
    ),
}


@pytest.mark.parametrize(
    ("streams", "options"), [("streams", "plain"), ("streams", "q8_0"), ("unified", "flash")]
)
@pytest.mark.parametrize("name", ARCHS)
def test_logits_are_libllamas(oracle, arch_file, tmp_path, name, options, streams):
    options = OPTIONS[options] | STREAMS[streams]
    agree(oracle, arch_file(name), SCRIPT, tmp_path, n_ctx=1024, n_ubatch=8, **options)


@pytest.mark.parametrize("corner", CORNERS)
def test_corners(oracle, arch_file, tmp_path, corner):
    name, options, commands = CORNERS[corner]
    agree(oracle, arch_file(name), commands, tmp_path, flash_attn="off", **options)


@pytest.mark.parametrize("options", ["plain", "q8_0"])
@pytest.mark.parametrize("name", [name for name in ARCHS if not name.startswith("mamba")])
def test_positions_that_are_moved(oracle, arch_file, tmp_path, name, options):
    """Keys are rotated, of quantised and of rotated caches too."""
    options = OPTIONS[options] | {"n_seq_max": 2, "n_ctx": 512, "swa_full": name in WINDOWS}
    agree(oracle, arch_file(name), SHIFTS, tmp_path, **options)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "phi3"])
def test_random_walks(oracle, arch_file, tmp_path, name, streams, seed):
    """Whatever is done: sequences that share tokens, contexts that are full, ubatches of all sizes,
    windows that move on."""
    pick = np.random.default_rng([seed, len(name), len(streams)]).choice
    options = STREAMS[streams] | OPTIONS[pick(list(OPTIONS))]
    options["n_seq_max"], options["n_ubatch"] = int(pick([1, 2, 4])), int(pick([1, 3, 16, 512]))
    options["n_ctx"] = 256 * (1 if streams == "unified" else options["n_seq_max"])
    options["swa_full"] = name in WINDOWS and bool(pick(2))
    shifts = name not in WINDOWS or options["swa_full"]
    walk = Random(seed, 12, streams == "unified" or options["n_seq_max"] == 1, shifts)
    assert len(agree(oracle, arch_file(name), walk, tmp_path, **options)) >= 1
