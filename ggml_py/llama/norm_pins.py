"""Why llama.cpp pins the norms of a graph of that size (llama_context::graph_get_cb)."""

from __future__ import annotations

from ..trace.pins import NORMS_STAY, PIN_BELOW
from ..trace.pins import WITH_CACHE as WITH_CACHE


def why_norms(full_offload: bool, n_tokens: int) -> str:
    """Why the norms of layers are pinned in a graph of n_tokens tokens; "" if they are not."""
    if full_offload:
        return f"{NORMS_STAY} if all layers are to be on GPUs (-ngl)"
    few = n_tokens < PIN_BELOW
    return f"{NORMS_STAY} in graphs of fewer than {PIN_BELOW} tokens" if few else ""
