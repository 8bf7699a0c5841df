"""Why llama.cpp pins nodes: the three places of libllama that call set_tensor_backend.

They are `llama_context::graph_get_cb`, `llm_graph_context::build_attn_mha` and
`llm_graph_context::build_moe_cache_slots`. A pin is known by its node, in a record of a program
too.
"""

from __future__ import annotations

from collections.abc import Sequence

from .record import PinRecord, TensorRecord

# Below this number of tokens llama.cpp pins each layer's norms to the layer's own device. Without
# the pin the scheduler puts a layer's first norm on the previous layer's device: more to copy.
PIN_BELOW = 32
WITH_CACHE = "the result of attention stays with the cache, which is on the CPU (-nkvo)"
_LAST = "a layer's last op stays on the layer's device"
_NEXTN = "h_nextn"  # deepseek4 gives its last layer's "l_last" this name
_SLOTS = (
    "the slots of the experts are looked up where the expert cache is, on the layer's device "
    "(--moe-cache-mib)"
)
NORMS_STAY = "a layer's norms stay on the layer's device"
NORMS = (
    f"{NORMS_STAY} if all layers are to be on GPUs (-ngl), or with fewer than {PIN_BELOW} tokens"
)
UNKNOWN = "why is not known: no place of libllama is known to make it"
SLOT_MAP = "moe_cache.slot_map-"  # the name of a layer's slot map begins with


def llama_pins(
    tensors: Sequence[TensorRecord], last: int, norms: str, all_known: bool
) -> tuple[PinRecord, ...]:
    """The pins of a graph of libllama's, with their reasons.

    `last` is the index of the last backend, the CPU, and `norms` why norms are pinned. A pin that
    none of libllama's places makes is left out, or with `all_known` called unknown.
    """
    found = []
    for t in tensors:
        if t.pin >= 0:
            why = _why(t, tensors, last, norms)
            if why or all_known:
                found.append(PinRecord(t.id, "llama.cpp", why or f"{UNKNOWN} ('{t.name}')"))
    return tuple(found)


def _why(t: TensorRecord, tensors: Sequence[TensorRecord], last: int, norms: str) -> str:
    kind, _, layer = t.name.rpartition("-")
    if layer.isdecimal() and kind == "norm":
        return norms
    if (layer.isdecimal() and kind == "l_last") or t.name == _NEXTN:
        return _LAST
    source = _source(t, tensors)
    if t.op == "GET_ROWS" and source is not None and source.name.startswith(SLOT_MAP):
        return _SLOTS
    # The result of attention without flash: cont(permute(mul_mat)), whatever its name is then.
    if t.op == "CONT" and t.pin == last and source is not None and source.op == "PERMUTE":
        product = _source(source, tensors)
        if product is not None and product.op == "MUL_MAT":
            return WITH_CACHE
    return ""


def _source(t: TensorRecord, tensors: Sequence[TensorRecord]) -> TensorRecord | None:
    return tensors[t.src[0]] if t.src and t.src[0] >= 0 else None
