"""Opens models through libllama."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from ..backends.device import Device
from ..backends.device import devices as all_devices
from ..gguf.header_file import check_has_weights, described
from ..gguf.reader import Gguf
from ..typed import typed
from .command_line import CommandLine, parse
from .library import Library, library
from .llama_model import LlamaModel
from .options import DEFAULTS, Fit, Options, Progress, checked

log = logging.getLogger("ggml_py")


@typed
def open(
    path: str | os.PathLike[str],
    *,
    build: bool = True,
    header_only: bool = True,
    fit: Fit | bool = False,
    **options: Any,
) -> LlamaModel:
    """Opens a model of any architecture that llama.cpp of this release loads.

    Options are those of `ggml_py.models.load`, with the same defaults. split_mode may be "row" and
    "tensor", too. Only the header is read, from a file that may end after it. Weights are read when
    the first token is evaluated. `path` may be an http(s) address, which is only read as far as its
    header goes. Without `build` libllama must have been built before.

    With `fit` llama.cpp chooses n_gpu_layers, n_ctx and the places of weights if they are not
    given, so that all fits into the devices' free memory (its --fit). `LlamaModel.fitted` has the
    choice.

    Raises `ModelError` with libllama's reason if it does not load the model, `GgufError`,
    `UnknownDeviceError`, and `NotBuiltError`. C: llama_model_load_from_file, llama_init_from_model
    """
    if unknown := sorted(options.keys() - DEFAULTS.keys()):
        raise TypeError(f"open: unknown option {unknown[0]!r}: expected {', '.join(DEFAULTS)}")
    fitting = Fit() if fit is True else fit or None
    chosen = {"n_gpu_layers": -1, "n_ctx": 0} if fitting else {}
    given = {name: value for name, value in options.items() if value is not None}
    wanted = checked(DEFAULTS | chosen | given)
    return _opened(library(build), path, wanted, fitting, header_only)


@typed
def open_command_line(
    words: str | Sequence[str],
    *,
    devices: Sequence[str | Device] | None = None,
    build: bool = True,
    header_only: bool = True,
    progress: Progress | None = None,
) -> LlamaModel:
    """Opens the model as a program of llama.cpp would with that command line: "llama-server -m
    m.gguf -ngl 20 -ot exps=CPU -c 8192 --temp 0.7". Upstream's own parser reads it. The program is
    llama-server, llama-cli, llama-completion or llama-perplexity. Like the program, this also reads
    the environment (LLAMA_ARG_...) and llama.cpp's config.ini, and fits the model to the devices'
    free memory unless --fit is off.

    `devices` are the devices of the machine that would run it (default: all of this machine). The
    option -dev chooses among them. Options that ask for more than a model and its context (--lora,
    --control-vector, --model-draft, --mmproj) are in `LlamaModel.left_out`, with a warning.

    Raises `ModelError` with llama.cpp's reason for options that it refuses, and what `open` does.
    C++: common_params_parse
    """
    found = library(build)
    line = parse(found, words, all_devices() if devices is None else devices)
    wanted = checked(DEFAULTS | {**line.options, "progress": progress})
    fitting = None if line.fit is None else Fit(*line.fit)
    if line.left_out:
        left_out = ", ".join(line.left_out)
        log.warning("%s: not part of plans: %s", line.path, left_out)
    return _opened(found, line.path, wanted, fitting, header_only, line)


def _opened(
    library: Library,
    path: str | os.PathLike[str],
    wanted: Options,
    fitting: Fit | None,
    header_only: bool,
    line: CommandLine | None = None,
) -> LlamaModel:
    with (
        described(path, header_only) as (local, only_header),
        Gguf.open(local, header_only=header_only) as gguf,
    ):
        check_has_weights(gguf)
        arch = str(gguf.metadata.get("general.architecture", ""))
        n_ctx_train = int(gguf.metadata.get(f"{arch}.context_length", 0))
        # With n_ctx 0 --fit knows that it may choose.
        as_given = line is not None or (fitting is not None and not wanted.n_ctx)
        wanted = wanted if as_given else wanted.sized(n_ctx_train)

        def again(options: Options) -> LlamaModel:
            return _opened(library, path, options, None, header_only)

        given = (library, gguf, arch, wanted, fitting, only_header, line)
        return LlamaModel(*given, None if line is not None else again)
