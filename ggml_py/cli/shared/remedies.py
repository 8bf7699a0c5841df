"""llama.cpp's options that would give a model's graph fewer splits. The graph is planned with each
candidate, and options that do not help are not shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import AllocError, ModelError

if TYPE_CHECKING:
    from ...plan import Plan
    from ...trace.answers.remedy import Remedy

log = logging.getLogger("ggml_py")
Changes = dict[str, Any]
Make = Callable[[Changes], "Plan | None"]


def model_remedy(
    plan: Plan, planned_with: Callable[..., Plan], model: str, options: dict[str, Any]
) -> Remedy | None:
    """The remedy for `model`, which `planned_with(**options)` has planned."""
    from ...trace.advice.facts import Facts
    from ...trace.answers.remedy import best

    tried: dict[str, Plan | None] = {}

    def make(changes: Changes) -> Plan | None:
        key = repr(sorted(changes.items()))
        if key not in tried:
            log.disabled = True  # its warnings about the options were already shown
            try:
                tried[key] = planned_with(**{**options, **changes})
            except (AllocError, ModelError):  # too large, or options that cannot be combined
                tried[key] = None
            finally:
                log.disabled = False
        return tried[key]

    n_devices = len(Facts(plan, 0).devices)
    if not n_devices or plan.n_splits < 3:
        return None
    return best(plan, _candidates(options, _n_layer(model), n_devices, make), make)


def _n_layer(model: str) -> int:
    from ...gguf.reader import Gguf

    with Gguf.open(model) as gguf:
        return int(gguf.metadata[f"{gguf.metadata['general.architecture']}.block_count"])


def _candidates(
    options: dict[str, Any], n_layer: int, n_devices: int, make: Make
) -> Iterator[tuple[str, Changes]]:
    """Options that may help, judging by the given ones. As many layers and experts as fit go to the
    devices."""
    if 0 <= options["n_gpu_layers"] <= n_layer:
        n = _first(range(n_layer + 1, options["n_gpu_layers"], -1), "n_gpu_layers", make)
        if n is not None:
            yield f"-ngl {'all' if n > n_layer else n}", {"n_gpu_layers": -1 if n > n_layer else n}
    if options["cpu_moe"] or options["n_cpu_moe"]:
        before = n_layer if options["cpu_moe"] else min(options["n_cpu_moe"], n_layer)
        n = _first(range(before), "n_cpu_moe", make, cpu_moe=False)
        given = "-cmoe" if options["cpu_moe"] else "-ncmoe"
        if n is not None:
            flag = f"-ncmoe {n}" if n else f"without {given}"
            yield flag, {"cpu_moe": False, "n_cpu_moe": n}
    if options["n_cpu_ffn"]:
        n = _first(range(min(options["n_cpu_ffn"], n_layer)), "n_cpu_ffn", make)
        if n is not None:
            yield f"-ncffn {n}" if n else "without -ncffn", {"n_cpu_ffn": n}
    if options["overrides"]:
        yield "without -ot", {"overrides": ()}
    if not options["offload_kqv"]:
        yield "-kvo", {"offload_kqv": True}
    if options["flash_attn"] == "off":
        yield "-fa auto", {"flash_attn": "auto"}
    if {options["type_k"], options["type_v"]} - {"f16", "q8_0"}:
        for type_ in ("q8_0", "f16"):
            yield f"-ctk {type_} -ctv {type_}", {"type_k": type_, "type_v": type_}
    if options["split_mode"] == "layer" and n_devices > 1:
        yield "-sm none", {"split_mode": "none"}


def _first(numbers: range, option: str, make: Make, **besides: Any) -> int | None:
    """The first number with which a plan can be made; it can with all later ones, too."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2 if low else 0  # usually everything fits
        if make({option: numbers[middle], **besides}) is not None:
            high = middle
        else:
            low = middle + 1
    return numbers[low] if low < len(numbers) else None
