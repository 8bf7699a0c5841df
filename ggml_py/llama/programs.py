"""What llama.cpp's programs ask of a context when their command line does not say otherwise.

Read off the sources of the pinned release; each row names them. Fitting a model to a small GPU
(`--fit`) is not here: a plan is for devices on which everything fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError


@dataclass(frozen=True)
class Program:
    """The defaults of a program. All of it is what llama.h calls it in llama_context_params."""

    name: str
    n_ctx: int = 0  # of each sequence with `per_seq`; 0: what the model was trained with
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    kv_unified: bool = False  # only if -np does not say otherwise
    per_seq: bool = False  # n_ctx is for each of as many sequences as fit into a batch
    one_output: bool = False  # one output per sequence; otherwise as many as a batch has tokens


PROGRAMS = {
    # tools/llama-bench/llama-bench.cpp; n_ctx is that of its first test, pp512
    "bench": Program("llama-bench", n_ctx=512),
    # tools/server/server.cpp and server-context.cpp (server_output_limits)
    "server": Program("llama-server", n_seq_max=4, kv_unified=True, one_output=True),
    # tools/cli/cli-server.h: a llama-server with one slot
    "cli": Program("llama-cli", one_output=True),
    # tools/completion/completion.cpp, common/common.h
    "completion": Program("llama-completion"),
    # tools/perplexity/perplexity.cpp
    "perplexity": Program("llama-perplexity", n_ctx=512, per_seq=True),
}
_OURS = {
    "n_ctx": 512, "n_batch": 512, "n_ubatch": 512, "n_seq_max": 1, "kv_unified": False,
    "n_outputs_max": 0,
}  # fmt: skip


def with_defaults(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `load`, with defaults in place of None: the defaults of `program`, or
    without a program our own. Raises `ModelError` for an unknown program."""
    given = {name: value for name, value in asked.items() if value is not None}
    key = given.pop("program", None)
    if key is None:
        return {**asked, **_OURS, **given, "program": None}
    key = str(key).removeprefix("llama-")
    if key not in PROGRAMS:
        raise ModelError(
            f"program={asked['program']!r}: expected one of {', '.join(map(repr, PROGRAMS))}"
        )
    program = PROGRAMS[key]
    found = {**asked, **{name: getattr(program, name, 0) for name in _OURS}, **given}
    if "n_seq_max" in given and "kv_unified" not in given:
        found["kv_unified"] = False
    if program.per_seq and "n_seq_max" not in given and found["n_ctx"] > 0:
        found["n_seq_max"] = max(1, found["n_batch"] // found["n_ctx"])
        found["n_ctx"] *= found["n_seq_max"]
    if program.one_output and "n_outputs_max" not in given:
        found["n_outputs_max"] = min(found["n_batch"], found["n_seq_max"])
    return {**found, "program": key}
