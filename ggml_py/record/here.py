"""Records this process: see `ggml_py.record`."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..boundary.arguments import integer
from ..boundary.ffi import BUILD, ffi, lib
from ..errors import ArgumentError, BusyError, MissingFunctionError
from ..export.json.values import to_json
from ..scheduler.process_facts import made_here
from .programs.launch import new_file

if TYPE_CHECKING:
    from .session import Record


class SelfRecord:
    """A record of this process, which is written during the `with` block.

    After it, `n_plans` is the number of plans that were written, `left_out` that of plans and
    computes that were not.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: bool,
        lines: bool,
        max_size: int,
        every: int,
        first: int | None,
        force: bool,
    ) -> None:
        self.path = Path(path).absolute()
        self.n_plans = 0
        self.left_out = 0
        self._force = force
        self._options = {
            "run": bool(run),
            "lines": bool(lines),
            "max_size": integer("max_size", max_size, 1, 1 << 62),
            "every": integer("every", every, 1, 1 << 62),
            "first": 0 if first is None else integer("first", first, 1, 1 << 62),
        }

    def __enter__(self) -> SelfRecord:
        if not lib.gp_trace_present():
            raise MissingFunctionError(
                "this build of ggml is not instrumented, so it cannot record"
            )
        global _current
        if _current is not None:
            raise BusyError(_BUSY)
        new_file(self.path, self._force)
        about = {"release": BUILD["label"], "doubt": "", "made": to_json(made_here(()))}
        options = ffi.new("struct gp_record_options *", self._options)
        failed = lib.gp_record_start(os.fsencode(self.path), json.dumps(about).encode(), options)
        if failed == errno.EALREADY:
            self.path.unlink()
            raise BusyError(_BUSY)
        if failed:
            raise OSError(failed, os.strerror(failed), str(self.path))
        _current = self
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        global _current
        if _current is not self:
            raise ArgumentError("this record has not begun, or has ended")
        _current = None
        counts = ffi.new("uint64_t[2]")
        failed = lib.gp_record_stop(counts, counts + 1)
        self.n_plans, self.left_out = int(counts[0]), int(counts[1])
        if failed:
            raise OSError(failed, os.strerror(failed), str(self.path))

    def read(self) -> Record:
        """The record; within the block, the record so far."""
        from .session import Record

        if _current is self:
            lib.gp_record_flush()
        return Record.read(self.path)


_BUSY = "this process is being recorded already: end that record first"
_current: SelfRecord | None = None
