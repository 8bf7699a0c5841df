"""The architectures, by their names in GGUF files."""

from __future__ import annotations

from typing import Any, Final

from ..build.decoder import Decoder
from .gpt_oss import GptOssGraph
from .llama import LlamaGraph
from .qwen2 import Qwen2Graph
from .qwen3 import Qwen3Graph
from .qwen3moe import Qwen3MoeGraph

ARCHS: Final[dict[str, type[Decoder[Any]]]] = {
    "llama": LlamaGraph,
    "qwen2": Qwen2Graph,
    "qwen3": Qwen3Graph,
    "qwen3moe": Qwen3MoeGraph,
    "gpt-oss": GptOssGraph,
}
