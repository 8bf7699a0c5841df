"""What this layer has from those above it, by name, as functions that load it.

"Plan" and "Run" are the classes that users know: the data here, with methods that reach higher.
"diff_html" is how a notebook shows a comparison. `ggml_py/__init__.py` fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ABOVE: dict[str, Callable[[], Any]] = {}
