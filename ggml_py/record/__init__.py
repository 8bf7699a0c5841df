"""Records of what schedulers did: made by `ggml-py record` of any program, or here of ourselves.

    with ggml_py.record("plans.ggrec"):
        model.generate(...)
    for one in ggml_py.Record.read("plans.ggrec"):
        print(one.kind, one.computed, one.plan.headline())

`ggml_py.record` is both: this package, and what records this process.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..typed import typed

if TYPE_CHECKING:
    from .here import SelfRecord


@typed
def record(
    path: str | os.PathLike[str],
    *,
    run: bool = False,
    lines: bool = False,
    max_size: int = 1 << 30,
    every: int = 1,
    first: int | None = None,
    force: bool = False,
) -> SelfRecord:
    """Records each plan that schedulers of this process make during a `with` block, with how often
    it was made and computed, in a file that `Record.read` and the verbs of `ggml-py` read.

    Schedulers of models and of libllama count; `Scheduler.plan`, which only asks, does not. `run`
    records computes too, with times. `lines` prints a line on standard error for each new plan.
    `max_size` is in bytes. With `every=N`, only every N-th plan of a scheduler is looked at. With
    `first=N`, only the first N different plans are written. Omitted plans are counted. A forked
    child continues in the same file.

    Raises `ArgumentError` if the file exists, unless `force`, `BusyError` if this process is being
    recorded already, OSError if the file cannot be written, and `MissingFunctionError` in a build
    without instrumentation. C: gp_record_start
    """
    from .here import SelfRecord

    return SelfRecord(path, run, lines, max_size, every, first, force)


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> SelfRecord:
        return record(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
