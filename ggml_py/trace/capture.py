"""The public path of ``scheduler/capture.py``, which asks a live scheduler."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("ggml_py.scheduler.capture"), name)
