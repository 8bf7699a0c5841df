"""Models from GGUF files: `load(path)` gives a `Model` that evaluates tokens and plans its graphs."""

from __future__ import annotations

from .hparams import HParams as HParams
from .model import ARCHS as ARCHS
from .model import Model as Model
from .model import load as load
