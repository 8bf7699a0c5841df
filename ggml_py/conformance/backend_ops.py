"""Asks upstream's `test-backend-ops` which ops a device supports, and whether they are right."""

from __future__ import annotations

import csv
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..files.similar import one_of
from ..record.op_tests import left_out, write_op_tests
from ..trace.names import counted
from .op_results import NOT_RUN, OK, UNSUPPORTED, OpCase, OpResults, parse_case
from .program import NAME, OpProgram, numbered_names

if TYPE_CHECKING:
    from ..plan import Plan

Progress = Callable[[float], None]


def check_ops(
    device: str,
    program: OpProgram,
    *,
    ops: Sequence[str] = (),
    plans: Iterable[Plan] = (),
    source: str = "",
    support_only: bool = False,
    progress: Progress | None = None,
) -> OpResults:
    """Runs upstream's cases on a device of this machine: whether the device supports each, and
    whether its result agrees with the CPU's reference kernels. The limit of the normalised mean
    squared error is upstream's.

    With `plans` the cases are the different ops of these plans, with random data; `source` says
    where the plans are from. `ops` chooses by name. With `support_only` nothing is computed. A case
    that ends the program counts as an end in its op, and the other ops are tested without it.

    Raises ValueError for an unknown device or op and for plans that a release cannot take,
    RuntimeError if the program does not run.
    """
    names = program.devices()
    real = {name.lower(): name for name in names}.get(device.lower())
    if real is None:
        raise ValueError(f"device {device!r}: {NAME} sees {', '.join(names)}{_why_not(device)}")
    plans = list(plans)
    with tempfile.TemporaryDirectory() as folder:
        options: list[str] = []
        notes: list[str] = []
        if plans:
            path = Path(folder) / "ops.txt"
            notes = _write(program, plans, path)
            options = ["--test-file", str(path)]
        return _OpCheck(program, real, options, ops, source, support_only, progress, notes).result()


def _why_not(device: str) -> str:
    if device.startswith("sim:"):
        return "; a simulated device computes with the CPU's kernels: test CPU"
    if device.startswith("rpc:"):
        return "; it cannot reach servers: run it on the server's machine"
    return ""


def _write(program: OpProgram, plans: Sequence[Plan], path: Path) -> list[str]:
    """Writes the ops of the plans. Returns what is to be said about that."""
    label = program.build["label"]
    if not program.has_option("--test-file"):
        raise ValueError(
            f"{NAME} of ggml {label} reads no ops from files (--test-file): ask a newer release, "
            "or without --record"
        )
    op_names, type_names = numbered_names(program.build)
    if not write_op_tests(plans, path, ops=op_names, types=type_names):
        raise ValueError("the plans compute no op that can be tested from a file")
    left = Counter((one.node.op, one.why) for one in left_out(plans))
    return [
        f"not tested: {counted(n, op + ' node')}: {why}" for (op, why), n in sorted(left.items())
    ]


class _OpCheck:
    """One check: the list of cases first, then all in one process, then op by op what is left."""

    def __init__(
        self, program: OpProgram, device: str, options: list[str], ops: Sequence[str], source: str,
        support_only: bool, progress: Progress | None, notes: list[str],
    ) -> None:  # fmt: skip
        self.program, self.device, self.options = program, device, options
        self.ops, self.support_only, self.notes = ops, support_only, notes
        self.source = source or "upstream's own"
        self.tell = progress or (lambda _share: None)
        self.found: dict[tuple[str, str], list[OpCase]] = {}
        self.ended: dict[str, str] = {}

    def result(self) -> OpResults:
        listed = self._listed()
        known = {op for op, _params, _supported in listed}
        if unknown := [op for op in self.ops if op not in known]:
            raise ValueError(
                f"no case of {', '.join(unknown)}; there are {one_of(unknown[0], sorted(known))}"
            )
        if not self.support_only:
            self._test(max(len(listed), 1))
        return self._results(listed)

    def _listed(self) -> list[tuple[str, str, bool]]:
        """Each case, and whether the device supports it."""
        lines: list[str] = []
        arguments = ["support", "-b", self.device, *self.options, "--output", "csv"]
        ended = self.program.run(arguments, lines.append)
        if ended:
            raise RuntimeError(f"{NAME} support -b {self.device}: {ended}")
        first = next((i for i, line in enumerate(lines) if line.startswith('"')), 0)
        rows = csv.DictReader(line for line in lines[first:] if line.startswith('"'))
        return [
            (row["op_name"], row["op_params"], row["supported"] in ("1", "yes", "true"))
            for row in rows
        ]

    def _test(self, n: int) -> None:
        chosen = ["-o", ",".join(self.ops)] if self.ops else []
        ended = self._run(chosen, n)
        if not ended:
            return
        # The line of the case that ended it is missing, and a case before is no proof of its op.
        listed = self._listed()
        self.found.clear()
        todo = sorted({op for op, _p, supported in listed if supported})
        for i, op in enumerate(op for op in todo if not self.ops or op in self.ops):
            if how := self._run(["-o", op], 0):
                self.ended[op] = how
            self.tell((i + 1) / len(todo))
        if not self.ended:
            self.notes.append(
                f"the program ended ({ended}) with all ops in one process, but not with each in "
                "its own: combined ops were not tested"
            )
        else:
            self.notes.append("combined ops were not tested, because the program ended before")

    def _run(self, chosen: Sequence[str], n: int) -> str:
        done = 0

        def line(text: str) -> None:
            nonlocal done
            case = parse_case(text)
            if case is not None:
                self.found.setdefault((case.op, case.params), []).append(case)
                done += 1
                if n:
                    self.tell(min(done / n, 1.0))

        # Upstream leaves memory around an op uninitialised; NaN there would count as a failure.
        environment = {"MALLOC_PERTURB_": "255"} if self.options else {}
        arguments = ["test", "-b", self.device, *self.options, *chosen]
        return self.program.run(arguments, line, **environment)

    def _results(self, listed: Sequence[tuple[str, str, bool]]) -> OpResults:
        cases = []
        found = {key: list(some) for key, some in self.found.items()}
        for op, params, supported in listed:
            if self.ops and op not in self.ops:
                continue
            tested = found.get((op, params))
            if tested:
                cases.append(tested.pop(0))
            elif not supported:
                cases.append(OpCase(op, params, UNSUPPORTED))
            else:
                cases.append(OpCase(op, params, OK if self.support_only else NOT_RUN))
        cases += [case for rest in found.values() for case in rest]  # combined ops are not listed
        if self.device == "CPU" and not self.support_only:
            self.notes.append(
                "the CPU was compared with its own reference kernels, which for most ops are the "
                "same code: an error in both is not seen"
            )
        return OpResults(self.device, str(self.program.build["label"]), self.source, tuple(cases),
                         self.ended, tuple(self.notes), self.support_only)  # fmt: skip
