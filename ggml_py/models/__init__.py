"""Models from GGUF files: `load(path)` returns a `Model` that evaluates tokens and plans graphs."""

from __future__ import annotations

from ..boundary import ffi as ffi  # first: without it the error says which wheel has it
from ..llama.batch import Batch as Batch
from ..llama.generation import Interrupted as Interrupted
from ..llama.model import Model as Model
from ..llama.sampler import Sampler as Sampler
from .archs import ARCHS as ARCHS
from .file.hparams import HParams as HParams
from .loading import load as load
