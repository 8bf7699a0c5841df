"""What libllama decided before it planned: fused ops, pipeline parallelism, layers on GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..backends.device import Device
from ..boundary.ffi import NULL, lib, text
from ..scheduler.capture import read_plan
from ..trace.choice import FUSED, LAYERS, PIPELINE
from ..trace.choice import Choice as Choice
from ..trace.names import counted
from ..trace.probes import where_probed
from .library import Library
from .native import ContextHandle
from .norm_pins import why_norms
from .options import SPLIT_MODES
from .params import Params

if TYPE_CHECKING:
    from ..plan import Plan
    from ..trace.answers.why_not import WhyNot
    from ..trace.planned import PlanTensor

_LIST = {number: name for name, number in SPLIT_MODES.items()}


def choices_of(
    library: Library,
    handle: ContextHandle,
    params: Params,
    n_layer: int,
    margins: Sequence[int] | None,
) -> tuple[Choice, ...]:
    """What libllama decided when it made a context. `margins` are the bytes that --fit keeps free;
    None without --fit."""
    state = library.ffi.new("struct gpl_context_state *")
    library.lib.gpl_read_state(handle.ptr, state)
    n_gpu_layers = int(params.model.n_gpu_layers)
    full_offload = n_gpu_layers < 0 or n_gpu_layers > n_layer
    refused = [
        _refused_op(library, handle.ptr, handle.probes, i, params, full_offload)
        for i in range(int(library.lib.gpl_probes_n(handle.probes)))
    ]
    piped = () if state.pipeline_parallel else _pipeline(params, n_layer)
    fitted = () if margins is None else _fitted_layers(params, n_layer, margins)
    return (*refused, *piped, *fitted)


def _refused_op(
    library: Library, ctx: Any, probes: Any, i: int, params: Params, full_offload: bool
) -> Choice:
    told = library.ffi.new("struct gpl_probe_record *")
    library.lib.gpl_probe_read(probes, i, told)
    plan = _probe_plan(library, ctx, probes, i, why_norms(full_offload, int(told.n_tokens)))
    node = plan.node(int(told.node))
    device = None if told.device_layer == NULL else Device(told.device_layer)
    offload_kqv = bool(params.context.offload_kqv)
    return refused_op(text(told.name), plan, node, int(told.layer), device, offload_kqv)


def refused_op(
    what: str,
    plan: Plan,
    node: PlanTensor,
    layer: int,
    device: Device | None,
    offload_kqv: bool,
) -> Choice:
    """The decision to do without a fused op: `node` of `plan`, a probe of one token per sequence,
    is not on its layer's `device`."""
    why, flips = where_probed(node, layer, device.name if device else "no device"), list[str]()
    if device is not None and any(b.device == device.name for b in plan.backends):
        answer = plan.why_not(node, device.name, device)
        why += f" ({answer.reasons[0].text})" if answer.reasons else ""
        flips += _variants(answer)
    reads_cache = any((s.view_src or s).name.startswith("cache_") for s in node.srcs)
    if not offload_kqv and reads_cache:
        why += (
            ". The cache is on the CPU (-nkvo) and attention with it, but libllama compares with "
            "the layer's device (its source says that this is wrong)"
        )
        flips.insert(0, "without -nkvo, the cache and its attention are on the layer's device")
    if node.op == "FLASH_ATTN_EXT":
        flips.append(f"-fa on uses it without a probe, on {node.backend} in this layer")
    return Choice(FUSED, what, "is off", why, node.name, node.op, _shape(plan), tuple(flips))


def _shape(plan: Plan) -> str:
    return f"a graph of {counted(len(plan.nodes), 'node')}, planned when the context was made"


_CACHE_FLAGS = {"K": "-ctk", "V": "-ctv"}


def _variants(answer: WhyNot) -> Iterator[str]:
    """The nearest types of the cache with which the layer's device supports attention."""
    found = answer.nearest
    for variant in found.variants if found is not None else ():
        parts = variant.parts or (variant,)
        if all(part.kind == "type" and part.name in _CACHE_FLAGS for part in parts):
            flags = " ".join(f"{_CACHE_FLAGS[part.name]} {part.after}" for part in parts)
            yield f"{flags}, which {answer.backend} supports"
            return


def _probe_plan(library: Library, ctx: Any, probes: Any, i: int, norms: str) -> Plan:
    sched = library.lib.gpl_sched(ctx)
    lib.gp_sched_trace(sched, True)
    try:
        graph = library.lib.gpl_build_probe(ctx, probes, i)
        lib.gp_sched_unplan(library.lib.gpl_sched(ctx))
        return read_plan(lib.gp_sched_plan, library.lib.gpl_sched(ctx), graph, {}, norms)
    finally:
        library.lib.gpl_forget(ctx)


def _pipeline(params: Params, n_layer: int) -> tuple[Choice, ...]:
    model, context = params.model, params.context
    overrides = model.tensor_buft_overrides
    return no_pipeline(
        params.gpus, params.accelerators,
        n_gpu_layers=int(model.n_gpu_layers), n_layer=n_layer,
        split_mode=_LIST[int(model.split_mode)], offload_kqv=bool(context.offload_kqv),
        overrides=overrides != NULL and overrides[0].pattern != NULL,
        expert_cache=params.expert_cache > 0,
    )  # fmt: skip


def no_pipeline(
    gpus: Sequence[Device],
    accelerators: Sequence[Device],
    *,
    n_gpu_layers: int,
    n_layer: int,
    split_mode: str,
    offload_kqv: bool,
    overrides: bool,
    expert_cache: bool = False,
) -> tuple[Choice, ...]:
    """Why the scheduler keeps one copy of inputs although there are several GPUs: those of
    libllama's conditions that do not hold. C++: llama_context::llama_context"""
    if len(gpus) < 2:
        return ()
    conditions = (
        (0 <= n_gpu_layers <= n_layer, f"-ngl {n_gpu_layers} leaves layers on the CPU",
         "-ngl all"),
        (split_mode != "layer", f"-sm is {split_mode}", "-sm layer"),
        (not offload_kqv, "the cache is on the CPU (-nkvo)", "without -nkvo"),
        (overrides, "weights are placed by name (-ot, -cmoe, -ncmoe, -ncffn or --fit)",
         "without them"),
        (expert_cache, "there is an expert cache (--moe-cache-mib)", "without --moe-cache-mib"),
        *(
            (True, f"{device.name} has no asynchronous compute or no events",
             f"without {device.name}" if device in accelerators else "")
            for device in (*gpus, *accelerators)
            if not (device.props.caps.async_ and device.props.caps.events)
        ),
    )  # fmt: skip
    found = [(why, flip) for holds, why, flip in conditions if holds]
    why = " and ".join(reason for reason, _flip in found)
    flips = [flip for _reason, flip in found]
    together = (", ".join(flips),) if flips and all(flips) else ()
    why = why or "why is not known: all of libllama's conditions for it hold"
    return (Choice(PIPELINE, "pipeline parallelism", "is off", why, flips=together),)


def _fitted_layers(params: Params, n_layer: int, margins: Sequence[int]) -> tuple[Choice, ...]:
    """What --fit left on the CPU. `margins` are the bytes that it keeps free."""
    n = int(params.model.n_gpu_layers)
    overrides = params.fitted.get("tensor_overrides", ())
    on_cpu = 0 if n < 0 or n > n_layer else n_layer + 1 - n
    if not on_cpu and not overrides:
        return ()
    said = []
    if on_cpu:
        of = "all layers" if not n else f"{on_cpu} of {n_layer + 1} layers (the output is one)"
        said.append(f"{of} in host memory")
    if overrides:
        said.append(f"the weights of {counted(len(overrides), 'pattern')} elsewhere")
    mib = ", ".join(str(margin >> 20) for margin in margins)
    gpus = ", ".join(f"{d.name} {d.memory[0] / 2**30:.1f} GiB" for d in params.gpus)
    return (
        Choice(
            LAYERS, "--fit", f"put {' and '.join(said)}",
            f"it counts with the free memory of the devices ({gpus}) and keeps {mib} MiB of each "
            f"free. It chose {params.fit_arguments}",
            flips=("a smaller -c or --fit-target, or -ctk q8_0 -ctv q8_0, leaves more room (not "
                   "tried)",),
        ),
    )  # fmt: skip
