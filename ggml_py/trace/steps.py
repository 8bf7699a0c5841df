"""Every question that the scheduler asks and every decision that it makes, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .causes import STAGE_ROWS
from .names import quoted

if TYPE_CHECKING:
    from .planned import Planned, PlanTensor

_STAGES = {stage.number: stage for stage in STAGE_ROWS}


class RawStep(NamedTuple):
    """A step as the reference records it: ids and numbers only."""

    stage: int
    tensor: int
    query: str
    backend: int
    answer: bool | str
    witness: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    `query` is the question to `backend` about `tensor`: "supports_op", "offload_op" (does it want
    the op although the weight `witness` must be copied) or "supports_buft" (can it use the memory
    of `witness`). Or it is the decision. "pin": the tensor was pinned before. "assign": `answer` is
    the cause code, and the decision follows from `witness`. "new_split": `answer` is "backend",
    "weight" or "inputs". "copy": `witness` is copied to `backend`.
    """

    index: int
    pass_: int
    sweep: str  # "gpu down", "gpu up", "rest down", "rest up" in pass 2, else ""
    tensor: PlanTensor
    backend: str
    query: str
    answer: bool | str
    witness: PlanTensor | None

    def __str__(self) -> str:
        where = f"{self.pass_} {self.sweep}".rstrip()
        about = f" ({quoted(self.witness)})" if self.witness else ""
        answer = self.answer if isinstance(self.answer, str) else "yes" if self.answer else "no"
        return f"{where}: {quoted(self.tensor)} {self.query} {self.backend}{about}: {answer}"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write; tensors by id and name."""
        tensor, witness = (
            None if t is None else {"id": t.id, "name": t.name} for t in (self.tensor, self.witness)
        )
        return {
            "index": self.index, "pass": self.pass_, "sweep": self.sweep, "tensor": tensor,
            "backend": self.backend, "query": self.query, "answer": self.answer,
            "witness": witness,
        }  # fmt: skip


def steps_of(plan: Planned) -> tuple[Step, ...]:
    """The steps of a plan according to the reference scheduler, cached."""
    return plan.derived(_steps)


def _steps(plan: Planned) -> tuple[Step, ...]:
    return tuple(step_of(plan, i) for i in range(len(raw_steps_of(plan))))


def raw_steps_of(plan: Planned) -> list[RawStep]:
    """The same as ids and numbers: a plan has many times more steps than answers need."""
    from .planning import steps_of_reference

    return steps_of_reference(plan)


def step_of(plan: Planned, index: int) -> Step:
    """Step number `index`."""
    stage, tensor, query, backend, answer, witness = raw_steps_of(plan)[index]
    pass_, title = _STAGES[stage].pass_, _STAGES[stage].title
    return Step(
        index,
        pass_,
        title[2:] if pass_ == 2 else "",
        plan.tensor(tensor),
        plan.backends[backend].name if backend >= 0 else "",
        query,
        answer,
        plan.tensor(witness) if witness >= 0 else None,
    )
