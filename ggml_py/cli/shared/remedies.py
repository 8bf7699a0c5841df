"""llama.cpp's options that would make a model quicker, each judged by planning with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .bar import bar
from .source import opened, shape_of

if TYPE_CHECKING:
    from ...cost import Machine
    from ...llama import LlamaModel
    from ...models import Model
    from ...place.judge import Changes, Shape
    from ...trace.answers.remedy import Remedy

log = logging.getLogger("ggml_py")


def model_remedies(source: str, options: dict[str, Any], machine: Machine | None) -> list[Remedy]:
    """The remedies for a model that is planned with these options of `source_options`, the quickest
    first. A remedy is planned as llama.cpp would load it, and fits the devices' memory."""
    from ...place.candidates import Given, remedies
    from ...place.judge import Judge, shapes_of

    asked = shape_of(options)
    facts: dict[str, Any] = {}

    @contextmanager
    def again(changes: Changes) -> Iterator[Model | LlamaModel]:
        log.disabled = True  # its warnings about the options were already shown
        try:
            with opened(source, quiet=True, **{**options, **changes}) as model:
                yield model
        finally:
            log.disabled = False

    def shapes(model: Model | LlamaModel) -> tuple[Shape, ...]:
        facts.update(_facts(model), n_ctx=getattr(model, "n_ctx", options["n_ctx"] or 512))
        return shapes_of(*asked, facts["n_ctx"], model.n_ubatch)

    def fit(changes: Changes) -> Changes | None:
        found = _fitted(source, {**options, "n_ctx": facts["n_ctx"]}, changes)
        return found and {name: value for name, value in found.items() if name != "n_ctx"}

    if options["fit"] == "on":  # what it chose is what others are compared with
        options = {**options, **(_fitted(source, options, {}) or {})}
    options = {**options, "fit": "off", "graphs": _graphs(options)}
    with bar("looking for options that make it quicker"):
        judge = Judge(again, shapes, machine, options["fit_target"][0] << 20)
        if judge.given.refused or not facts:
            return []
        known = {name: value for name, value in facts.items() if name != "n_ctx"}
        return remedies(judge, Given(options, fit=fit, **known))


def _graphs(options: dict[str, Any]) -> str:
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


def _facts(model: Model | LlamaModel) -> dict[str, Any]:
    """What `Given` needs to know about a model."""
    from ...llama.params import GPU_TYPES
    from ...place.judge import devices_of

    arch = model.metadata["general.architecture"]
    return {
        "n_layer": int(model.metadata[f"{arch}.block_count"]),
        "n_expert": int(model.metadata.get(f"{arch}.expert_count", 0)),
        "gpus": tuple(d.name for d in devices_of(model) if d.type in GPU_TYPES),
    }


def _fitted(source: str, options: dict[str, Any], changes: Changes) -> Changes | None:
    """What llama.cpp's --fit chooses with changes; None without libllama, or if nothing fits."""
    from ...errors import AbortError, AllocError, ModelError, NotBuiltError
    from ...llama import LlamaModel

    asked = {**options, **changes, "fit": "on", "graphs": "libllama", "no_build": True}
    try:
        with opened(source, quiet=True, **asked) as model:
            if not isinstance(model, LlamaModel) or not model.fits:
                return None
            chosen = model.fitted
    except (AbortError, AllocError, ModelError, NotBuiltError):
        return None
    pairs = ",".join(f"{p}={b}" for p, b in chosen.get("tensor_overrides", ()))
    split = chosen.get("tensor_split", ())
    return changes | {
        "n_ctx": chosen["n_ctx"], "n_gpu_layers": chosen["n_gpu_layers"],
        "overrides": (pairs,) if pairs else (), "tensor_split": split if any(split) else None,
    }  # fmt: skip
