"""Why a recorded scheduler has no pipeline parallelism, as far as its plans show it."""

from __future__ import annotations

from ..trace.choice import PIPELINE, Choice
from ..trace.names import block_of, counted, is_cache
from ..trace.planned import Planned

_GPUS = ("GPU", "IGPU")


def no_pipeline(plan: Planned, before: bool) -> tuple[Choice, ...]:
    """The decision against it for a plan of llama.cpp with several GPUs; () for other plans.

    Nothing that llama.cpp logs is recorded, so this is inferred from the conditions of
    llama_context::llama_context that a graph shows. `before`: an earlier scheduler for the same
    devices had a pipeline and computed nothing.
    """
    n_gpus = sum(b.device_type in _GPUS for b in plan.backends)
    layers = {t.id: block_of(t.name) for t in plan.leafs}
    if n_gpus < 2 or plan.settings.n_copies > 1 or not any(layers.values()):
        return ()
    last = len(plan.backends) - 1
    own = {plan.backends[b].buft for b in range(last) if plan.backends[b].device_type in _GPUS}
    hosts = [
        t for t in plan.leafs
        if t.buft is not None and t.buft.readers >> last & 1
        and plan.capture.buft_of(t.record) not in own
    ]  # fmt: skip
    on_host = {block[0] for t in hosts if (block := layers[t.id])}
    reasons, flips = [], []
    if on_host:
        layer = counted(len(on_host), "layer")
        reasons.append(f"weights of {layer} are in host memory (-ngl or -ot)")
        flips.append("-ngl all without -ot")
    elif any(is_cache(t.name) for t in hosts):
        reasons.append("caches are in host memory (-nkvo)")
        flips.append("-kvo")
    elif any(b.name == "BLAS" for b in plan.backends):
        reasons.append("BLAS has no asynchronous computing and no events")
    elif before:
        reasons.append(
            "an earlier scheduler for the same devices had it and computed nothing: its compute "
            "buffers did not fit, or it was only measured (--fit)"
        )
    why = "; ".join(reasons) or (
        "the plan shows no reason: an option (-sm), or a device without asynchronous computing or "
        "events"
    )
    return (Choice(PIPELINE, "pipeline parallelism", "is off", why, flips=tuple(flips),
                   inferred=True),)  # fmt: skip
