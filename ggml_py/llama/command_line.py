"""Command lines of llama.cpp's programs, as upstream itself reads them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from ..backends.device import Device
from ..boundary.ffi import NULL, text
from ..enums import Type
from ..errors import AbortError, ModelError
from ..sim.given import named_devices
from .library import Library
from .line_options import not_planned, options_of
from .options import TABLE, Keyword
from .params import GPU_TYPES
from .programs import PROGRAMS

# Programs that make the same context as another.
_SAME_AS = {"fit-params": "completion"}


class CommandLine(NamedTuple):
    """What a program's command line asks for. Made by `parse`."""

    program: str
    path: str
    words: tuple[str, ...]  # all but the program and the model
    options: dict[str, Any]  # of `ggml_py.llama.open`
    fit: tuple[tuple[int, ...], int] | None  # --fit-target in bytes, --fit-ctx
    left_out: tuple[str, ...]  # options that ask for more than a model and its context
    model: Any  # struct llama_model_params
    context: Any  # struct llama_context_params
    kept: Any  # owns what these point to


def parse(
    library: Library, words: str | Sequence[str], devices: Sequence[str | Device]
) -> CommandLine:
    """Reads a command line, beginning with the program ("llama-server -m m.gguf -ngl 20"). As the
    program does, it also reads the environment (LLAMA_ARG_...) and llama.cpp's config.ini.

    `devices` are those of the machine that it would run on; -dev chooses among them.

    Raises `ModelError` with upstream's reason for what llama.cpp refuses.
    C++: common_params_parse
    """
    argv = shlex.split(words) if isinstance(words, str) else [os.fspath(word) for word in words]
    program = _program(argv)
    found = [device for one in devices for device in named_devices(one)]
    ffi, lib = library.ffi, library.lib
    line = ffi.new("struct gpl_command_line *")
    strings = [ffi.new("char[]", word.encode()) for word in argv]
    try:
        raw = lib.gpl_parse(len(argv), ffi.new("char *[]", strings), program.encode(), line)
    except AbortError as error:
        reason = error.condition.partition("\n\nto show complete usage")[0].strip()
        raise ModelError(f"{argv[0]}: {reason.removeprefix('error: ')}") from None
    kept = ffi.gc(raw, lib.gpl_parsed_free)
    path = text(line.path)
    if not path:
        raise ModelError(f"{argv[0]}: expected a model, -m FILE")
    if line.model.devices != NULL:
        found = _chosen(argv[0], line.model.devices, found)
    fit = None
    if line.fit:
        n = max(1, sum(device.type in GPU_TYPES for device in found))
        fit = (tuple(line.fit_target[0:n]), int(line.fit_ctx))
    given, told = (text(words).splitlines() for words in (line.given, line.left_out))
    left_out = not_planned(given, told, options_of(library, program))
    options, kept = _options(program, line, found), (line, kept)
    words = tuple(_without_model(argv[1:]))
    return CommandLine(program, path, words, options, fit, left_out, line.model, line.context, kept)


def _without_model(words: Sequence[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word in ("-m", "--model"):
            next(rest, None)
        else:
            yield word


def _program(argv: Sequence[str]) -> str:
    """The key of `PROGRAMS`."""
    name = PurePath(argv[0]).name.removesuffix(".exe") if argv else ""
    program = name.removeprefix("llama-")
    if name == "llama-bench":
        raise ModelError(
            "llama-bench has options of its own, which are not read here: give ours, with "
            'program="bench" (--for bench)'
        )
    if program == name or (program not in PROGRAMS and program not in _SAME_AS):
        known = ", ".join(p.name for p in PROGRAMS.values() if p.name != "llama-bench")
        raise ModelError(f"command line of {name or 'nothing'!r}: expected one of {known}")
    for word in argv[1:]:
        if word.partition("=")[0] == "--rpc":
            raise ModelError("--rpc: give the server as a device, rpc:HOST:PORT (-d)")
    return program


def _chosen(program: str, raw: Any, known: Sequence[Device]) -> list[Device]:
    """The devices of -dev, and those of `known` that are no GPUs."""
    found, i = [], 0
    while raw[i] != NULL:
        found.append(Device(raw[i]))
        i += 1
    for device in found:
        if device not in known:
            names = ", ".join(d.name for d in known)
            raise ModelError(f"{program}: -dev {device.name}: expected one of {names}")
    return found + [device for device in known if device.type not in GPU_TYPES]


def _options(program: str, line: Any, devices: list[Device]) -> dict[str, Any]:
    """The options of `open`; None where the program chooses."""
    model, context = line.model, line.context
    n_gpus = sum(device.type in GPU_TYPES for device in devices)
    split = [] if model.tensor_split == NULL else list(model.tensor_split[0:n_gpus])
    found = {
        option.name: _value(option, getattr(getattr(line, struct), field))
        for option in TABLE
        for struct, _, field in (option.field.partition("."),)
        if field and option.name != "load_mode"  # which locks memory, too
    }
    return found | {
        "devices": devices,
        "program": _SAME_AS.get(program, program),
        "tensor_split": split if any(split) else None,
        "n_threads": int(context.n_threads) if context.n_threads > 0 else None,
        "n_outputs_max": found["n_outputs_max"] or None,
    }


def _value(option: Keyword, number: Any) -> Any:
    """A field of llama.h, as `open` takes it."""
    number = int(number)
    if option.kind == "bool":
        return bool(number)
    if option.kind == "type":
        return Type(number)
    if option.words:
        return next(word for word, known in option.words.items() if known == number)
    # llama.cpp casts numbers from int32_t to uint32_t.
    return number - (1 << 32) if number >= 1 << 31 else number
