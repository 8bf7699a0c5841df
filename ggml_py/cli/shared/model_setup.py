"""A model with the options that it is planned with, which can be opened again with some changed:
from our own options, or from a program's command line behind --."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from ...llama.options import BY_NAME
from .model_options import in_click
from .program_options import open_it

if TYPE_CHECKING:
    from ...llama import LlamaModel
    from ...models import Model
    from .source import Source

log = logging.getLogger("ggml_py")
Changes = dict[str, Any]


class ModelSetup:
    """Our own options, as `source_options` have them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.options: dict[str, Any] = {**source.options, "graphs": _graphs(source.options)}
        if self.options["fit"] == "on":  # what it chose is what others are compared with
            self.options |= self.fit({}) or {}
            self.options["fit"] = "off"

    @contextmanager
    def opened(self, changes: Changes) -> Iterator[Model]:
        """The model with changes. Warnings about the given options are shown, once; those about
        changes are not."""
        with (
            _quiet({*changes} - {"graphs"}),
            self.source.opened(quiet=True, **{**self.options, **changes}) as model,
        ):
            yield model

    def by_libllama(self, changes: Changes) -> AbstractContextManager[Model]:
        """The model with changes, opened by libllama if it is there. Its largest buffers are known
        then, and our own graphs have the same ones."""
        return self.opened({**changes, "graphs": _graphs({"graphs": "auto"})})

    def fit(self, changes: Changes) -> Changes | None:
        """What llama.cpp's --fit chooses with changes, its context, and the changes; None without
        libllama, or if nothing fits."""
        from ...errors import AbortError, AllocError, ModelError, NotBuiltError
        from ...llama import LlamaModel
        from ...llama.overrides import layers_joined

        try:
            with self._fitting(changes) as model:
                if not isinstance(model, LlamaModel) or not model.fits:
                    return None
                chosen = model.fitted
        except (AbortError, AllocError, ModelError, NotBuiltError):
            return None
        pairs = ",".join(f"{p}={b}" for p, b in layers_joined(chosen.get("tensor_overrides", ())))
        split = chosen.get("tensor_split", ())
        return changes | {
            "n_ctx": chosen["n_ctx"], "n_gpu_layers": chosen["n_gpu_layers"],
            "overrides": (pairs,) if pairs else (), "tensor_split": split if any(split) else None,
        }  # fmt: skip

    @contextmanager
    def _fitting(self, changes: Changes) -> Iterator[Model]:
        more = {"fit": "on", "graphs": "libllama", "no_build": True}
        with self.opened({**changes, **more}) as model:
            yield model


class ProgramSetup(ModelSetup):
    """A program's command line: its options for placement are known by llama.cpp's names, and all
    others stay as they are."""

    def __init__(self, source: Source, words: Sequence[str]) -> None:
        self._rest, given, self._is_fit = _divided(words)
        self.source = source
        self.options = {**source.options, **given, "fit": "off"}
        if self._is_fit and (chosen := self.fit({})):
            n_ctx = chosen.pop("n_ctx")
            self.options |= chosen
            if not {"-c", "--ctx-size"}.intersection(self._rest):
                self._rest += ["-c", str(n_ctx)]

    @contextmanager
    def opened(self, changes: Changes) -> Iterator[Model]:
        given = {**self.options, **changes}
        with self._with(given, ["--fit", "off"], {*changes} - {"graphs"}) as model:
            yield model

    @contextmanager
    def _fitting(self, changes: Changes) -> Iterator[Model]:
        with self._with({**self.options, **changes}, ["--fit", "on"], True) as model:
            yield model

    @contextmanager
    def _with(
        self, options: Mapping[str, Any], more: Sequence[str], quiet: object
    ) -> Iterator[LlamaModel]:
        words = [*self._rest, *_words(options), *more]
        with (
            _quiet(quiet),
            open_it(self.source.path, words, self.source.devices(), build=False) as model,
        ):
            yield model


def setup_of(source: Source) -> ModelSetup:
    """The setup of a model."""
    return ModelSetup(source) if source.words is None else ProgramSetup(source, source.words)


@contextmanager
def _quiet(wanted: object) -> Iterator[None]:
    before, log.disabled = log.disabled, log.disabled or bool(wanted)
    try:
        yield
    finally:
        log.disabled = before


def _graphs(options: Mapping[str, Any]) -> str:
    """Who builds the graphs: libllama if it is there, which plans without any memory."""
    from ...errors import NotBuiltError
    from ...llama.library import find

    if options["graphs"] != "auto":
        return str(options["graphs"])
    try:
        find(build=False)
    except NotBuiltError:
        return "auto"
    return "libllama"


# The options that are changed. All others stay as the command line has them.
_CHANGED = [
    BY_NAME[name]
    for name in (
        "n_gpu_layers", "tensor_overrides", "cpu_moe", "n_cpu_moe", "n_cpu_ffn", "offload_kqv",
        "op_offload", "split_mode", "tensor_split", "main_gpu", "repack", "flash_attn", "type_k",
        "type_v", "n_ubatch",
    )
]  # fmt: skip
_FIT = ("-fit", "--fit")


def _divided(words: Sequence[str]) -> tuple[list[str], Changes, bool]:
    """The words without these options, the options that they give, and whether --fit is on."""
    changed = [in_click(option) for option in _CHANGED]
    flags = {
        flag: (option, flag in option.opts)
        for option in changed for flag in (*option.opts, *option.secondary_opts)
    }  # fmt: skip
    rest, given, is_fit = list[str](), Changes(), True
    left = iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        if flag in _FIT:
            is_fit = (value if equals else next(left, "on")) != "off"
            continue
        if flag not in flags:
            rest.append(word)
            continue
        option, positive = flags[flag]
        name = str(option.name)
        if option.is_flag:
            given[name] = positive
        else:
            text = value if equals else next(left, "")
            converted = option.type.convert(text, option, None)
            given[name] = (*given.get(name, ()), text) if option.multiple else converted
    return rest, given, is_fit


def _words(options: Mapping[str, Any]) -> list[str]:
    """The options as words, without those at their default."""
    found: list[str] = []
    for option in _CHANGED:
        value = options.get(option.verb or option.name)
        if option.kind == "overrides":
            found += [word for text in value or () for word in option.line(text)]
        elif value is not None and value != option.in_verbs:
            found += option.line(value)
    return found
