"""Contexts with their ops, and graphs."""

from pathlib import Path

from ..boundary import ffi as ffi
from ..builds import generated

# For another release, the ops are in the file that was generated with its build.
_committed = Path(__file__).with_name("ops.py")
_own = generated(ffi.BUILD, "ops.py", _committed)
if _own != _committed:
    from ..boundary.release import Release

    ops = ffi.load("ggml_py.graphs.ops", _own)
    Release(ffi.BUILD["label"]).fit_ops(ops.Ops)
