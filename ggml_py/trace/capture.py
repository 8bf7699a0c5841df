"""Public alias of ``scheduler/capture.py``, the module that asks a live scheduler."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("ggml_py.scheduler.capture")
