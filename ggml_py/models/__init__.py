"""Models from GGUF files: `load(path)` gives a `Model`, which evaluates tokens and plans graphs."""

from __future__ import annotations

from .archs import ARCHS as ARCHS
from .batch import Batch as Batch
from .desc import desc as desc
from .generation import Interrupted as Interrupted
from .hparams import HParams as HParams
from .loading import load as load
from .model import Model as Model
from .sampling import Sampler as Sampler
