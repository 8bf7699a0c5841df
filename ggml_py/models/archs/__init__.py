"""The architectures, by their names in GGUF files."""

from __future__ import annotations

from typing import Any, Final

from ..build.decoder import Decoder
from .gemma2 import Gemma2Graph
from .gemma3 import Gemma3Graph
from .gpt2 import Gpt2Graph
from .gpt_oss import GptOssGraph
from .llama import LlamaGraph
from .olmo2 import Olmo2Graph
from .phi3 import Phi3Graph
from .qwen2 import Qwen2Graph
from .qwen3 import Qwen3Graph
from .qwen3moe import Qwen3MoeGraph
from .smollm3 import Smollm3Graph

ARCHS: Final[dict[str, type[Decoder[Any]]]] = {
    "llama": LlamaGraph,
    "qwen2": Qwen2Graph,
    "qwen3": Qwen3Graph,
    "smollm3": Smollm3Graph,
    "olmo2": Olmo2Graph,
    "phi3": Phi3Graph,
    "qwen3moe": Qwen3MoeGraph,
    "gpt2": Gpt2Graph,
    "gemma2": Gemma2Graph,
    "gemma3": Gemma3Graph,
    "gpt-oss": GptOssGraph,
}
