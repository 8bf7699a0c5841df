"""Profiles from a file: what some device answered to op tests, on its own machine.

`ggml-py view PLAN --op-tests OPS` writes the ops of plans, and upstream's `test-backend-ops support
--test-file OPS --output csv` asks a device about them. The profile has that device's answers to
exactly these ops. Any other op is not on record, which counts as not supported. Where upstream's
own function can be asked instead (card.py), that is better.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..files import bounds
from ..files.reading import check_lines, decoded, read_file
from ..typed import typed
from .profiles.call import VIEWS, Call, Operand, block_size, recorded_call

log = logging.getLogger("ggml_py")
NOT_ON_RECORD = "not on record"
_COLUMNS = ("op_name", "op_params", "supported")
_MADE_BY = (
    "the output of `test-backend-ops support --test-file OPS --output csv`, with OPS from "
    "`ggml-py view PLAN --op-tests OPS`"
)
# What upstream prints of an op from a file, behind the node's name.
_OP = re.compile(r"type=\w+,ne=\[[\d,]+\],op_params=\[[-\d:,]*\],sources=[\w\[\],]*$")


@dataclass(frozen=True)
class Decision:
    """A profile's answer about one op, and its reason.

    `basis` is one of

    - "exact": a file has this very op.
    - "not on record": the file lacks it, which counts as not supported.
    - "view": nothing is computed.
    - "source": upstream's own function answered.

    `row` is the op as the file has it, or the lines of upstream's source; None without any.
    """

    supported: bool
    row: str | None
    text: str
    basis: str

    def __bool__(self) -> bool:
        return self.supported


class Profile:
    """What one device supports, as far as that is on record. Needs no native library."""

    @typed
    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads the record. Raises `ArgumentError` for a file that is none."""
        self.name = Path(path).stem
        self.title = os.fspath(path)
        self._answers = _read(Path(path))
        self._unrecorded: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<Profile {self.title}>"

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """The ops that it was asked about and does not have on record, also by llama.cpp before it
        planned: where weights go, and fused ops."""
        return tuple(self._unrecorded)

    @property
    def offload(self) -> tuple[str, int]:
        """The way to count the batch, and the smallest batch that is offloaded. A record has
        neither: 32 rows."""
        return "rows", 32

    def decide(self, tensor: Any) -> Decision:
        """Whether the device can compute the op of `tensor`, and the row that says so.

        Also takes nodes of a plan (even a recorded one) and `Call`s, which need no native library.
        Raises `ArgumentError` for nodes of a plan that was read from a debug log.
        """
        if isinstance(tensor, Call):
            return self._decide(tensor)
        if hasattr(tensor, "record"):
            return self._decide(recorded_call(tensor.plan, tensor.record))
        from ..tensors.live_call import call_of  # here: plans work without the library

        try:
            call = call_of(tensor)
        except AttributeError:
            kind = type(tensor).__name__
            raise TypeError(f"expected a Tensor, a node of a plan or a Call, got {kind}") from None
        return self._decide(call)

    def supports(self, tensor: Any) -> bool:
        """Whether the device can compute the op of `tensor`; False if that is not on record."""
        return self.decide(tensor).supported

    @typed
    def answers(self, plan: Any, backend: str) -> dict[tuple[str, int], bool]:
        """The answers that make `backend` this device in `plan.what_if(supports=...)`, one for each
        node of a `Plan` (even a recorded one). Needs no native library.
        """
        nodes = ((t.id, recorded_call(plan, t)) for t in plan.capture.tensors if t.kind == "node")
        return {(backend, i): self._decide(call).supported for i, call in nodes}

    def _decide(self, call: Call) -> Decision:
        if call.op in VIEWS:
            return Decision(True, None, f"yes: {call.op} computes nothing", "view")
        row = f"{call.op}({row_of(call)})"
        supported = self._answers.get(row.lower())
        if supported is None:
            text = f"not on record, which counts as not supported: {self.title} has no {row}"
            if not self._unrecorded:
                log.warning("%s; there may be more (`Profile.unrecorded`)", text)
            self._unrecorded[row] = None
            return Decision(False, None, text, NOT_ON_RECORD)
        return Decision(supported, row, f"{'yes' if supported else 'no'}: tested: {row}", "exact")


def row_of(call: Call) -> str:
    """The parameters of an op, as test-backend-ops prints those of a file. C++: var_to_str"""
    sources = ",".join(_source(one) if one is not None else "none" for one in call.src)
    params = ",".join(f"{i}:{value}" for i, value in enumerate(call.params) if value)
    return f"type={call.out.type},ne={_four(call.out.ne)},op_params=[{params}],sources={sources}"


def _source(one: Operand) -> str:
    """Its type and shape, and its strides unless they are those of a contiguous tensor."""
    step = min(one.nb)  # bytes of a block: the innermost stride, however it is permuted
    usual = [step, step * (one.ne[0] // block_size(one.type))]
    usual += [usual[1] * one.ne[1], usual[1] * one.ne[1] * one.ne[2]]
    strides = "" if list(one.nb) == usual else f"nb{_four(one.nb)}"
    return f"{one.type}{_four(one.ne)}{strides}"


def _four(values: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, values))}]"


def _read(path: Path) -> dict[str, bool]:
    """The answers by op and parameters, in lower case. An op with different answers is no."""
    found: dict[str, bool] = {}
    try:
        text = decoded(read_file(path, bounds.TABLE), "it")
        check_lines(text, "it", bounds.LINE)
        with io.StringIO(text, newline="") as file:
            table = csv.DictReader(file)
            missing = [one for one in _COLUMNS if one not in (table.fieldnames or ())]
            if missing:
                raise ArgumentError(
                    f"{path} has no column {', '.join(missing)}: expected {_MADE_BY}"
                )
            for row in table:
                if row["supported"] is None:
                    continue  # a message of the program between the rows
                if op := _OP.search(row["op_params"]):
                    key = f"{row['op_name']}({op[0]})".lower()
                    supported = row["supported"] in ("1", "yes", "true")
                    found[key] = found.get(key, True) and supported
    except ArgumentError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise ArgumentError(f"{path} cannot be read as CSV: {error}") from error
    if not found:
        raise ArgumentError(f"{path} has no op of a test file: expected {_MADE_BY}")
    return found
