"""What this layer needs from the layers above, by name, as functions that load it.

"Plan" and "Run" are the public classes: the data of this layer, with methods that need higher
layers. "diff_html" shows a comparison in a notebook. `ggml_py/__init__.py` fills the table in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ABOVE: dict[str, Callable[[], Any]] = {}
