"""The public name of `scheduler/capture.py`, the module that asks a live scheduler."""

import sys

from ..scheduler import capture

sys.modules[__name__] = capture
