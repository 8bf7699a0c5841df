"""The scheduler's passes in readable Python: they decide where each node runs.

The algorithm is upstream's, step for step, over plain data, and must give the same plan
(`tests/scheduler/test_differential.py`). docs/SCHEDULER.md walks through it with small graphs.
C: ggml_backend_sched_split_graph
"""

from __future__ import annotations

from . import causes, record
from .causes import GPU_DOWN, GPU_UP, PASS_1, PASS_3, PASS_4, PASS_5, REST_DOWN, REST_UP, USER
from .names import label_in
from .planned import P, Planned
from .record import COPY, NODE, Capture, Outcome, Placement, SplitRecord, TensorRecord
from .rules import MAX_SPLIT_INPUTS, rules_of
from .steps import RawStep

NOBODY = -1


class CannotPlanError(ValueError):
    """The scheduler would abort on this graph. The message says at which tensor, and why."""


def plan_by_rules(capture: Capture, kind: type[P], steps: list[RawStep] | None = None) -> P:
    """See `reference.plan`. The plan is an object of the class `kind`."""
    capture.check_answers()
    with record.collection_paused():
        return kind(capture, Planning(capture, steps).run(), "reference")


def reference_of(plan: P) -> P:
    """The reference's plan of the same graph, cached."""
    if plan.planner == "reference":
        return plan
    made: P = plan.derived(_again)[0]
    return made


def steps_of_reference(plan: Planned) -> list[RawStep]:
    """The questions and decisions of the reference's plan of the same graph, cached."""
    return plan.derived(_again)[1]


def _again(plan: P) -> tuple[P, list[RawStep]]:
    steps: list[RawStep] = []
    return plan_by_rules(plan.capture, type(plan), steps).made(plan.provenance), steps


class Planning:
    """One run over a capture."""

    def __init__(self, capture: Capture, steps: list[RawStep] | None) -> None:
        self.capture = capture
        self.rules = rules_of(capture.settings)
        self.tensors = capture.tensors
        self.nodes = [t for t in capture.tensors if t.kind == NODE]
        self.leafs = [capture.tensors[i] for i in capture.leaf_ids]
        self.n_placed = len(self.nodes) + len(self.leafs)  # their ids come first
        self.all_backends = range(len(capture.backends))
        self.last = len(capture.backends) - 1
        self.op_offload = capture.settings.op_offload
        self.n_copies = capture.settings.n_copies
        self.bufts = [b.buft for b in capture.backends]  # what each backend allocates from
        self.readers = [b.readers for b in capture.bufts]
        self.placed_in = [capture.buft_of(t) for t in capture.tensors]
        # What the passes change:
        self.backend = [t.pin for t in capture.tensors]
        pinned, free = (causes.PINNED.code, USER.number), ("", USER.number)
        self.cause = [pinned if t.pin >= 0 else free for t in capture.tensors]
        self.stage = USER.number
        self.passes: list[list[int]] = []  # backends of nodes and leafs after each stage
        self.copies: dict[tuple[int, int], bool] = {}  # (tensor, backend); False: of a graph input
        self.splits: list[tuple[int, int, list[int]]] = []  # backend, first node, inputs
        # Tensors that take a slot of the hash set, which has a fixed size.
        self.slots: set[int] = {t.id for t in capture.tensors if t.pin >= 0}
        self.steps = steps

    def run(self) -> Outcome:
        """All passes."""
        self.pass_1_weights_and_inputs()
        self.pass_2_expand()
        self.pass_3_upgrade()
        self.pass_4_rest()
        self.pass_5_split()
        return self.outcome()

    # --- questions to a backend

    def supports(self, b: int, t: TensorRecord) -> bool:
        """Whether backend `b` can compute `t`. C: ggml_backend_supports_op"""
        answer = bool(t.supports >> b & 1)
        if self.steps is not None:
            self.note(t, "supports_op", b, answer)
        return answer

    def wants(self, b: int, t: TensorRecord, weight: TensorRecord) -> bool:
        """Whether backend `b` wants to compute `t` although the weight must be copied there first.

        C: ggml_backend_offload_op
        """
        answer = bool(t.offload >> b & 1)
        if self.steps is not None:
            self.note(t, "offload_op", b, answer, weight)
        return answer

    def reads(self, b: int, buft: int, t: TensorRecord, whose: TensorRecord) -> bool:
        """Whether backend `b` can use the memory that `whose` is in.

        C: ggml_backend_supports_buft
        """
        answer = bool(self.readers[buft] >> b & 1)
        if self.steps is not None:
            self.note(t, "supports_buft", b, answer, whose)
        return answer

    def reads_source(self, b: int, src: TensorRecord, t: TensorRecord) -> bool:
        """Whether backend `b` can use `src` where it is, or will be according to the plan so far.

        C: ggml_backend_sched_buffer_supported
        """
        buft = self.placed_in[src.id]
        if buft < 0:
            backend = self.backend_of(src.id)
            if backend == NOBODY and src.view_src >= 0:
                backend = self.backend_of(src.view_src)
            if backend == NOBODY:
                return False
            buft = self.bufts[backend]
        return self.reads(b, buft, t, src)

    # --- decisions

    def backend_of(self, id: int) -> int:
        """The backend of a tensor. The lookup takes a slot of the hash set, even for id -1."""
        self.slots.add(id)
        return self.backend[id] if id >= 0 else NOBODY

    def assign(
        self, t: TensorRecord, b: int, cause: str, witness: TensorRecord | None = None
    ) -> None:
        """Places `t` on backend `b` because of `witness`."""
        self.backend[t.id] = b
        self.set_cause(t, cause)
        if self.steps is not None:
            self.note(t, "assign", b, cause, witness)

    def set_cause(self, t: TensorRecord, cause: str) -> None:
        """Upstream's SET_CAUSE."""
        self.cause[t.id] = (cause, self.stage)

    def note(
        self,
        t: TensorRecord,
        query: str,
        b: int,
        answer: bool | str,
        witness: TensorRecord | None = None,
    ) -> None:
        """Records one step."""
        assert self.steps is not None
        self.steps.append(
            RawStep(self.stage, t.id, query, b, answer, witness.id if witness else -1)
        )

    def sources(self, t: TensorRecord) -> list[TensorRecord]:
        """The sources of `t`; a source that occurs twice counts twice."""
        return [self.tensors[i] for i in t.src if i >= 0]

    def end_stage(self) -> None:
        """Records the assignment for `Plan.passes`."""
        self.passes.append(self.backend[: self.n_placed])

    # --- pass 1: tensors in memory, and what follows from them

    def pass_1_weights_and_inputs(self) -> None:
        """Places leafs and nodes by memory: their own or that of their weights."""
        self.stage = PASS_1.number
        for t in (*self.leafs, *self.nodes):
            if self.backend_of(t.id) == NOBODY:
                self.place_by_memory(t)
            elif self.steps is not None:
                self.note(t, "pin", self.backend[t.id], causes.PINNED.code)
        self.end_stage()

    def place_by_memory(self, t: TensorRecord) -> None:
        """C: ggml_backend_sched_backend_id_from_cur"""
        b = self.first_that_reads(t, t)
        if b != NOBODY:
            self.assign(t, b, causes.ALLOCATED.code)
            return
        if t.view_src >= 0:
            viewed = self.tensors[t.view_src]
            b = self.first_that_reads(viewed, t)
            if b != NOBODY:
                self.assign(t, b, causes.VIEW_ALLOCATED.code, viewed)
                return
        if t.buffer >= 0 or self.placed_in[t.id] >= 0:
            buft = self.capture.bufts[self.placed_in[t.id]].name
            raise CannotPlanError(
                f"{self.quoted(t)} is already allocated in {buft} memory, and no backend can run "
                f"{t.op_desc} there: ggml aborts"
            )
        if "input" in t.flags:
            self.assign(t, self.last, causes.GRAPH_INPUT.code)
            return
        if t.op not in self.rules.ignore_weights:
            self.follow_weight(t)

    def first_that_reads(self, whose: TensorRecord, op: TensorRecord) -> int:
        """The backend of highest priority that can use the memory of `whose` and supports `op`.

        C: ggml_backend_sched_backend_from_buffer
        """
        buft = self.placed_in[whose.id]
        if buft < 0:
            return NOBODY
        for b in self.all_backends:
            if self.reads(b, buft, op, whose) and self.supports(b, op):
                return b
        return NOBODY

    def follow_weight(self, t: TensorRecord) -> None:
        """The first source that is a weight decides; the others do not matter."""
        for j, id in enumerate(t.src):
            if id < 0 or not self.capture.is_weight(self.tensors[id]):
                continue
            weight = self.tensors[id]
            b = self.first_that_reads(weight, t)
            if self.op_offload and b == self.last and self.is_host(weight):
                for higher in range(b):
                    if self.supports(higher, t) and self.wants(higher, t, weight):
                        self.assign(t, higher, causes.OFFLOADED.code, weight)
                        return
            if b != NOBODY:
                self.assign(t, b, f"{causes.WEIGHT.code}{j}", weight)
            else:
                self.set_cause(t, f"{causes.WEIGHT.code}{j}")  # as upstream, which places it later
            return

    def is_host(self, t: TensorRecord) -> bool:
        """Whether its own buffer is memory that the CPU can address."""
        return self.capture.bufts[self.capture.buffers[t.buffer].buft].is_host

    # --- pass 2: neighbours

    def pass_2_expand(self) -> None:
        """Spreads assignments to neighbours in graph order. First the "gpu" sweeps, down and up,
        spread all backends but the last, whose nodes stop them. Then the "rest" sweeps spread all.
        """
        computed = [t for t in self.nodes if not t.is_view_op]
        for stage, order in (
            (GPU_DOWN.number, computed), (GPU_UP.number, computed[::-1]),
            (REST_DOWN.number, computed), (REST_UP.number, computed[::-1]),
        ):  # fmt: skip
            self.stage = stage
            self.sweep(
                order, skip=self.last if stage in (GPU_DOWN.number, GPU_UP.number) else NOBODY
            )
            self.end_stage()

    def sweep(self, order: list[TensorRecord], skip: int) -> None:
        """Goes through the nodes once, carrying the backend of the last node that had one."""
        carried, carrier = NOBODY, None
        for t in order:
            b = self.backend[t.id]
            if b != NOBODY:
                carried, carrier = (NOBODY if b == skip else b), t
            elif carried != NOBODY and self.supports(carried, t):
                self.assign(t, carried, causes.SPREAD.code, carrier)
                carrier = t

    # --- pass 3: better backends on the same memory

    def pass_3_upgrade(self) -> None:
        """Nodes without a backend get the one that can read the most sources. The others move to a
        higher-priority backend with the same buffer type, if it supports the op and can read the
        sources."""
        self.stage = PASS_3.number
        for t in self.nodes:
            if t.is_view_op:
                continue
            if self.backend[t.id] == NOBODY:
                self.place_by_sources(t)
            else:
                self.upgrade(t)
        self.end_stage()

    def place_by_sources(self, t: TensorRecord) -> None:
        best = -1
        for b in self.all_backends:
            if self.supports(b, t):
                readable = sum(
                    self.has_place(src) and self.reads_source(b, src, t) for src in self.sources(t)
                )
                if readable > best:
                    best = readable
                    self.assign(t, b, causes.MOST_SOURCES.code)

    def has_place(self, t: TensorRecord) -> bool:
        return self.backend_of(t.id) != NOBODY or self.backend_of(t.view_src) != NOBODY

    def upgrade(self, t: TensorRecord) -> None:
        now = self.backend[t.id]
        for b in range(now):
            if (
                self.bufts[b] == self.bufts[now]
                and self.supports(b, t)
                and all(self.reads_source(b, src, t) for src in self.sources(t))
            ):
                self.assign(t, b, causes.UPGRADED.code)
                return

    # --- pass 4: the rest

    def pass_4_rest(self) -> None:
        """Views go where their source is, other sources where their first consumer runs."""
        self.stage = PASS_4.number
        for t in self.nodes:
            if t.view_src >= 0 and self.backend[t.id] == NOBODY:
                viewed = self.tensors[t.view_src]
                self.assign(t, self.backend_of(t.view_src), causes.VIEW.code, viewed)
            for src in self.sources(t):
                if self.backend_of(src.id) != NOBODY:
                    continue
                if src.view_src >= 0:
                    viewed = self.tensors[src.view_src]
                    self.assign(src, self.backend_of(src.view_src), causes.VIEW.code, viewed)
                else:
                    self.assign(src, self.backend[t.id], causes.CONSUMER.code, t)
            for b in self.all_backends:
                if self.backend[t.id] == NOBODY and self.supports(b, t):
                    self.assign(t, b, causes.FIRST_ABLE.code)
            if self.backend[t.id] == NOBODY:
                raise CannotPlanError(
                    f"no backend supports {self.quoted(t)} ({t.op_desc}): ggml aborts"
                )
        self.end_stage()

    # --- pass 5: splits and copies

    def pass_5_split(self) -> None:
        """Cuts where the backend changes, and where a weight must be copied to a split that already
        has inputs (so the weights of one split can reuse the memory of another's)."""
        self.stage = PASS_5.number
        computed = [t for t in self.nodes if not t.is_view_op]
        first = self.backend[computed[0].id] if computed else self.capture.left_backend
        self.splits.append((first, 0, []))
        for t in computed:
            current, _start, inputs = self.splits[-1]
            b = self.backend[t.id]
            if b != current:
                self.new_split(t, b, "backend")
            elif inputs and (reason := self.reason_to_split(t, current, len(inputs))):
                self.new_split(t, b, reason[0], reason[1])
            self.copy_sources(t)
        if self.n_copies > 1 and self.rules.graph_inputs_pass == 6:
            for leaf in self.leafs:
                if "input" in leaf.flags:
                    self.keep_copies(leaf, causes.INPUT_COPY.code)

    def new_split(
        self, t: TensorRecord, b: int, reason: str, witness: TensorRecord | None = None
    ) -> None:
        self.splits.append((b, t.id, []))
        if self.steps is not None:
            self.note(t, "new_split", b, reason, witness)

    def reason_to_split(
        self, t: TensorRecord, b: int, n_inputs: int
    ) -> tuple[str, TensorRecord] | None:
        for src in self.sources(t):
            if self.backend[src.id] == b:
                continue
            if self.capture.is_weight(src) and not self.reads_source(b, src, t):
                return "weight", src
            new = (src.id, b) not in self.copies
            if new and self.is_full(n_inputs) and not self.reads_source(b, src, t):
                return "inputs", src
        return None

    def is_full(self, n_inputs: int) -> bool:
        """Whether the split has as many inputs as the release allows."""
        if self.rules.input_limit == "capacity":
            return n_inputs >= self.capacity(n_inputs)
        return self.rules.input_limit == "fixed" and n_inputs == MAX_SPLIT_INPUTS

    def capacity(self, n_inputs: int) -> int:
        """Room for inputs of the current split: what earlier plans left in its slot, doubled until
        its inputs fit."""
        slot, left = len(self.splits) - 1, self.capture.split_capacities
        room = left[slot] if slot < len(left) else 0
        while room < n_inputs:
            room = 2 * room or MAX_SPLIT_INPUTS
        return room

    def copy_sources(self, t: TensorRecord) -> None:
        """Sources that the split's backend cannot read become inputs of the split."""
        current, _start, inputs = self.splits[-1]
        for src in self.sources(t):
            if self.n_copies > 1 and self.rules.graph_inputs_pass == 5 and "input" in src.flags:
                self.keep_copies(src, causes.SPLIT_COPY.code)
            b = self.backend_of(src.id)
            if b == NOBODY:
                raise CannotPlanError(
                    f"{self.quoted(src)}, a source of {self.quoted(t)}, has no backend: ggml aborts"
                )
            if b == current or self.reads_source(current, src, t):
                continue
            if (src.id, current) not in self.copies:
                self.copies[src.id, current] = True
                inputs.append(src.id)
                if self.rules.input_limit == "fixed" and len(inputs) > MAX_SPLIT_INPUTS:
                    raise CannotPlanError(
                        f"split {len(self.splits) - 1} at {self.quoted(t)} has more than "
                        f"{MAX_SPLIT_INPUTS} inputs: this release of ggml aborts"
                    )
                if self.steps is not None:
                    self.note(t, "copy", current, True, src)

    def keep_copies(self, t: TensorRecord, cause: str) -> None:
        """Gives a graph input a copy for each graph in flight; the current one is itself."""
        key = t.id, self.backend[t.id]
        if key not in self.copies:
            self.copies[key] = False
            if cause != causes.INPUT_COPY.code:  # pass 6 leaves the input its own cause
                self.set_cause(t, cause)
            fixed, kept = self.rules.input_limit == "fixed", self.copies.values()
            if fixed and list(kept).count(False) > MAX_SPLIT_INPUTS:
                raise CannotPlanError(
                    f"{self.quoted(t)} is one too many: more than {MAX_SPLIT_INPUTS} graph inputs "
                    "are copied for pipeline parallelism, and this release of ggml aborts"
                )

    def quoted(self, t: TensorRecord) -> str:
        """Its label, for messages."""
        return f"'{label_in(self.capture, t)}'"

    # --- the result

    def outcome(self) -> Outcome:
        """Splits, placements and copies, in the order of native/sched_trace.cpp."""
        made = []  # (tensor, backend, which) of the copies that are tensors of their own
        for (id, b), for_split in sorted(self.copies.items()):
            for c in range(self.n_copies):
                if for_split or c != self.capture.settings.cur_copy:
                    made.append((id, b, c))
        numbers = {key: len(self.tensors) + i for i, key in enumerate(made)}
        now = self.capture.settings.cur_copy
        splits = []
        ends = [start for _b, start, _inputs in self.splits[1:]] + [len(self.nodes)]
        for (b, start, inputs), end in zip(self.splits, ends, strict=True):
            pairs = tuple((id, numbers[id, b, now]) for id in inputs)
            splits.append(SplitRecord(b, start, end, pairs))
        placements = [self.placement(t, numbers) for t in self.tensors]
        copies = []
        for (id, b, c), number in numbers.items():
            for_split = self.copies[id, b]
            cause = (
                causes.INPUT_COPY.code
                if not for_split and self.rules.graph_inputs_pass == 6
                else causes.SPLIT_COPY.code
            )
            copies.append(copy_record(self.capture, self.tensors[id], number, b, c))
            placements.append(Placement(b, cause, PASS_5.number, (), (), id, c))
        used = len(self.slots) + self.capture.settings.pins_elsewhere
        return Outcome(tuple(placements), tuple(copies), tuple(splits), used)

    def placement(self, t: TensorRecord, numbers: dict[tuple[int, int, int], int]) -> Placement:
        cause, stage = self.cause[t.id]
        b, now = self.backend[t.id], self.capture.settings.cur_copy
        if t.id >= self.n_placed:
            return Placement(b, cause, stage, (), t.src)
        passes = tuple(row[t.id] for row in self.passes)
        planned = t.src
        if t.kind == NODE and not t.is_view_op:
            planned = tuple(numbers[i, b, now] if self.copies.get((i, b)) else i for i in t.src)
        return Placement(b, cause, stage, passes, planned)


def copy_record(capture: Capture, of: TensorRecord, id: int, b: int, c: int) -> TensorRecord:
    """A copy as ggml makes it: with the layout of its source and a name of at most 63 bytes."""
    name = f"{capture.backends[b].name}#{of.name}#{c}".encode()[:63].decode("utf-8", "replace")
    return of._replace(
        id=id,
        kind=COPY,
        name=name,
        op="NONE",
        op_desc="NONE",
        flags=("input", "output") if capture.settings.n_copies > 1 else (),
        op_params=(),
        src=(),
        view_src=-1,
        view_offs=0,
        buffer=-1,
        use_count=0,
        pin=-1,
        supports=0,
        offload=0,
    )
