"""llama.cpp's own library on our ggml: any model that it loads, with plans and causes.

`open` loads a model; the options are those of `ggml_py.models.load`. libllama is built when it is
first needed. Names are loaded on first use: the table of options needs no native library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .llama_model import LlamaModel as LlamaModel
    from .model import Model as Model
    from .opening import open as open
    from .opening import open_command_line as open_command_line
    from .options import Fit as Fit
    from .tokenizer import Tokenizer as Tokenizer

_PUBLIC = {
    "Model": "model", "LlamaModel": "llama_model", "open": "opening",
    "open_command_line": "opening", "Fit": "options", "Tokenizer": "tokenizer",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "Fit":  # first: without it the error says which wheel has it
        importlib.import_module("ggml_py.boundary.ffi")
    found = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = found
    return found
