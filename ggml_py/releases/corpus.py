"""A corpus: a folder of plans (`releases.kept`), made of models or of what programs did."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ..plan import Plan
from ..trace.record import TensorRecord
from ..typed import typed
from .kept import PLAN


class Corpus:
    """A folder to write plans into."""

    @typed
    def __init__(self, folder: Path) -> None:
        """Makes the folder if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._added: set[bytes] = set()

    @cached_property
    def _found(self) -> set[bytes]:
        return {_content(Plan.from_json(path)) for path in self.folder.glob(f"*{PLAN}")}

    def add(
        self,
        name: str,
        plans: Iterable[tuple[str, Plan]],
        *,
        names: bool = True,
        anew: bool = False,
    ) -> int:
        """Writes plans, each into a file `name.label.json.gz`, and returns how many were written.

        Skips a plan if the folder already has a plan with the same graph and decisions. With
        `anew`, compares it only with the earlier plans of this object and the file of that name.
        Without `names`, replaces the names of tensors (`nameless`). Raises ValueError for a plan
        without the backends' answers, and if a file of that name has another plan."""
        written = 0
        for label, one in plans:
            one.capture.check_answers()
            plan = one if names else nameless(one)
            content = _content(plan)
            if content in self._added or (not anew and content in self._found):
                continue
            path = self.folder / f"{name}.{label}{PLAN}"
            if path.exists():
                if _content(Plan.from_json(path)) == content:
                    self._added.add(content)
                    continue
                raise ValueError(f"{path} is there with another plan: choose another name")
            plan.to_json(path)
            self._added.add(content)
            written += 1
        return written


def nameless(plan: Plan) -> Plan:
    """The plan without names of tensors, name, flags and hash of the model, and reasons of pins.
    Shapes, types, ops, backends and buffer types stay: the scheduler decides by them."""
    capture, outcome = plan.capture, plan.outcome
    tensors = tuple(t._replace(name=f"{t.op_desc.lower()}-{t.id}") for t in capture.tensors)
    source_of = {copy: source for split in outcome.splits for source, copy in split.inputs}

    def copied(copy: TensorRecord) -> TensorRecord:
        backend, _sign, rest = copy.name.partition("#")
        source = source_of.get(copy.id, -1)
        name = tensors[source].name if 0 <= source < len(tensors) else f"copy-{copy.id}"
        return copy._replace(name=f"{backend}#{name}#{rest.rpartition('#')[2]}")

    return Plan(
        replace(capture, tensors=tensors, pins=()),
        replace(outcome, copies=tuple(map(copied, outcome.copies))),
        provenance=plan.provenance.nameless,
    )


def _content(plan: Plan) -> bytes:
    """A hash that two plans share if they count once. It leaves out settings that no rule reads."""
    capture = plan.capture
    settings = (capture.settings.release, capture.settings.op_offload, capture.settings.n_copies)
    tensors = [t._replace(name="") for t in capture.tensors]
    parts = (
        settings, capture.backends, capture.bufts, capture.buffers, tensors, capture.leaf_ids,
        plan.outcome,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).digest()
