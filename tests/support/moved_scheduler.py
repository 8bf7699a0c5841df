"""A tree of ggml whose scheduler is in a file of its own, as upstream intends."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

NEW = "ggml-backend-sched.cpp"
# Functions before the scheduler that it calls, too. They are static, so that both files have them.
_SHARED = ("ggml_backend_graph_optimize", "ggml_dup_tensor_layout", "ggml_is_view_op")


def move_scheduler(ggml: Path, target: Path, new: str = NEW) -> Path:
    """A copy of the `ggml` folder in `target` with the scheduler moved to the file `new`."""
    shutil.copytree(ggml, target)
    old = target / "src" / "ggml-backend.cpp"
    text = old.read_text(encoding="utf-8")
    start, end = text.index("\n// scheduler\n"), text.index("\n// utils\n")
    top = text[: text.index("\n// backend buffer type\n")]
    shared = "\n".join(_function(text, name) for name in _SHARED)
    (target / "src" / new).write_text(f"{top}\n{shared}\n{text[start:end]}", encoding="utf-8")
    old.write_text(text[:start] + text[end:], encoding="utf-8")
    lists = target / "src" / "CMakeLists.txt"
    listed, n = re.subn(r"\n( +)ggml-backend\.cpp\n", rf"\n\1ggml-backend.cpp\n\1{new}\n",
                        lists.read_text(encoding="utf-8"))  # fmt: skip
    assert n == 1
    lists.write_text(listed, encoding="utf-8")
    return target


def _function(text: str, name: str) -> str:
    found = re.search(rf"(?ms)^static [^;\n]*\b{name}\(.*?^}}\n", text)
    assert found is not None, name
    return found[0]
