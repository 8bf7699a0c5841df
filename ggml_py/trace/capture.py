"""The public path of ``scheduler/capture.py``, which asks a live scheduler: the same module."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("ggml_py.scheduler.capture")
