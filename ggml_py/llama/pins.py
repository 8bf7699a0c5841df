"""Why llama.cpp pins nodes (llama_context::graph_get_cb, llm_graph_context::build_attn)."""

from __future__ import annotations

# Below this number of tokens llama.cpp pins each layer's norms to the layer's own device. Without
# the pin the scheduler puts a layer's first norm on the previous layer's device: more to copy.
PIN_BELOW = 32
WITH_CACHE = "the result of attention stays with the cache, which is on the CPU (-nkvo)"


def why_norms(full_offload: bool, n_tokens: int) -> str:
    """Why the norms of layers are pinned in a graph of n_tokens tokens; "" if they are not."""
    norms = "a layer's norms stay on the layer's device"
    if full_offload:
        return f"{norms} if all layers are to be on GPUs (-ngl)"
    return f"{norms} in graphs of fewer than {PIN_BELOW} tokens" * (n_tokens < PIN_BELOW)
