"""Findings about nodes that run on another backend than the nodes around them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ..trace import causes
from ..trace.answers.reasons import key
from ..trace.facts import NO_OP_OFFLOAD, Facts, Option, nbytes, override, verb
from ..trace.names import quoted
from ..trace.planned import format_bytes
from ..trace.record import TensorRecord
from ..trace.refusals import about_memory
from .finding import Observation

_HALF_AND_MORE = frozenset({"f32", "f16", "bf16"})


def fallback(facts: Facts) -> Iterator[Observation]:
    """Nodes that would be on a device, with the nodes around them, if it supported them."""
    for device in facts.devices:
        groups: dict[tuple[str, ...], list[TensorRecord]] = {}
        for t in facts.computed:
            if _kept_off(facts, t, device):
                types = [facts.capture.tensors[i].type for i in t.src if i >= 0]
                groups.setdefault((t.op_desc, *types), []).append(t)
        for (op, *types), nodes in groups.items():
            name = facts.name(device)
            after = facts.what_if(supports={(name, t.id): True for t in nodes})
            if after is None:
                continue
            moved = [t for t in nodes if after.outcome.placements[t.id].backend == device]
            if not moved:
                continue
            copies = facts.around(moved)
            facts.explain(copies, moved)
            where = facts.name(facts.where[moved[0].id])
            yield Observation(
                f"{facts.of(moved, op + ' node')} {verb(moved, 'runs', 'run')} on {where}, in the "
                f"middle of what {name} computes, because {name} does not support "
                f"{verb(moved, 'it', 'them')} (sources: {', '.join(types)}). If it did: "
                f"{facts.compared(after)}.",
                _what_to_do(facts, moved[0], name),
                moved,
                nbytes(copies),
                _options(facts, moved[0]),
                headline=f"{op} runs on {where}, as {name} does not support it",
            )


def _kept_off(facts: Facts, t: TensorRecord, device: int) -> bool:
    """Whether `t` is next to nodes on a device that does not support it, and runs in CPU memory."""
    where = facts.where[t.id]
    if t.supports >> device & 1 or t.pin >= 0 or t.id in facts.explained_nodes:
        return False
    if about_memory(facts.plan.tensor(t.id), device):
        return False
    if where < device or facts.has_own_memory(where):
        return False
    around = [facts.where[i] for i in t.src if i >= 0]
    around += [facts.where[r.id] for r in facts.readers.get(t.id, ())]
    return device in around


def _what_to_do(facts: Facts, t: TensorRecord, device: str) -> str:
    ask = f"plan.why_not({key(facts.plan.tensor(t.id))!r}, '{device}') says more."
    if t.op == "FLASH_ATTN_EXT":
        return f"Most devices support attention of other types of cache, or in several ops. {ask}"
    return f"Use types and shapes that {device} supports, or another op. {ask}"


def _options(facts: Facts, t: TensorRecord) -> tuple[Option, ...]:
    if t.op != "FLASH_ATTN_EXT":
        return ()
    k, v = (facts.capture.tensors[i].type for i in t.src[1:3])
    if {k, v} <= _HALF_AND_MORE:
        return (Option("-fa off", {"flash_attn": "off"}),)
    return (Option("-ctk f16 -ctv f16", {"type_k": "f16", "type_v": "f16"}),)


# Ops whose work is mostly reading their weights: such a node should follow them.
_LARGE_WEIGHTS = frozenset({"MUL_MAT", "MUL_MAT_ID", "OUT_PROD", "GET_ROWS"})


def dragged(facts: Facts) -> Iterator[Observation]:
    """Nodes that follow a weight although another source is larger."""
    groups: dict[tuple[str, int, int, bool], list[tuple[TensorRecord, TensorRecord]]] = {}
    copied = {(c.tensor.id, c.to) for c in facts.unexplained()}
    for t in facts.computed:
        weight, where = facts.followed_weight(t), facts.where[t.id]
        if weight is None or t.op in _LARGE_WEIGHTS or t.id in facts.explained_nodes:
            continue
        largest = max(facts.sources(t), key=lambda s: (s.id != weight.id, s.nbytes))
        home = facts.where[largest.id]
        if weight.nbytes > largest.nbytes or (largest.id, where) not in copied:
            continue
        if t.supports >> home & 1:
            key = t.op_desc, where, home, facts.cause(t) == causes.OFFLOADED.code
            groups.setdefault(key, []).append((t, weight))
    for (op, where, home, offloaded), pairs in groups.items():
        nodes = [t for t, _weight in pairs]
        weights = list(dict.fromkeys(weight for _t, weight in pairs))
        if offloaded:
            after = facts.what_if(pins={t.id: facts.name(home) for t in nodes})
        else:
            after = facts.what_if(move_weights={w.id: facts.name(home) for w in weights})
        if not facts.is_better(after):
            continue
        copies = facts.around(nodes)
        facts.explain(copies, nodes)
        n = weights[0].nbytes
        yield Observation(
            f"{facts.of(nodes, op + ' node')} {verb(nodes)} on {facts.name(where)} because of "
            f"{facts.of(weights, 'weight')} of {format_bytes(n)}, while the larger sources are "
            f"on {facts.name(home)}. If {verb(nodes, 'it', 'they')} were there too: "
            f"{facts.compared(after)}.",
            _let_go(op) if offloaded else
            f"Keep {verb(weights, 'that weight', 'those weights')} on {facts.name(home)}.",
            nodes,
            nbytes(copies),
            (NO_OP_OFFLOAD,) if offloaded else (override(facts, weights, home),),
        )  # fmt: skip


def _let_go(op: str) -> str:
    since = " ggml 0.18.0 and later do not move it." if op == "FLASH_ATTN_EXT" else ""
    return f"Op offload moves it: turn that off, or pin the node with set_tensor_backend.{since}"


def swept(facts: Facts) -> Iterator[Observation]:
    """Nodes that pass 2 moved away from several sources, although their result alone is smaller."""
    copied = {(c.tensor.id, c.to) for c in facts.unexplained()}
    groups: dict[tuple[int, int], list[TensorRecord]] = {}
    for t in facts.computed:
        on = facts.where[t.id]
        if facts.cause(t) != causes.SPREAD.code or t.id in facts.explained_nodes:
            continue
        read = [s for s in facts.sources(t) if not facts.is_weight(s)]
        homes = {facts.where[s.id] for s in read}
        if len(read) < 2 or len(homes) > 1 or not all((s.id, on) in copied for s in read):
            continue
        if t.supports >> max(homes) & 1:
            groups.setdefault((on, max(homes)), []).append(t)
    for (on, home), nodes in groups.items():
        after = facts.what_if(pins={t.id: facts.name(home) for t in nodes})
        if not facts.is_better(after):
            continue
        saved = facts.plan.copy_bytes - after.copy_bytes
        if saved < max(facts.min_bytes, 1):
            continue
        around = facts.around(nodes)
        facts.explain(around, nodes)
        yield Observation(
            f"{facts.of(nodes, 'node')} {verb(nodes)} on {facts.name(on)} because a neighbour is, "
            f"but everything that {verb(nodes, 'it reads', 'they read')} is computed on "
            f"{facts.name(home)} and copied. If {verb(nodes, 'it', 'they')} ran there, only "
            f"{verb(nodes, 'the result', 'the results')} would be: {facts.compared(after)}.",
            f"Pin {verb(nodes, 'it', 'them')} to {facts.name(home)} with set_tensor_backend.",
            nodes,
            min(saved, nbytes(around)),
        )


def avoidable_splits(facts: Facts) -> Iterator[Observation]:
    """Runs of nodes between splits of a device that could run them without more copies."""
    groups: dict[tuple[int, str], list[TensorRecord]] = {}
    for device, nodes in _between(facts):
        alike = " ".join(f"{t.op_desc} {facts.cause(t)}" for t in nodes)
        groups.setdefault((device, alike), []).extend(nodes)
    for (device, _alike), nodes in groups.items():
        after = facts.what_if(pins={t.id: facts.name(device) for t in nodes})
        if not facts.is_better(after) or after.n_splits == facts.plan.n_splits:
            continue
        copies = facts.around(nodes)
        facts.explain(copies, nodes)
        first = facts.plan.tensor(nodes[0].id)
        yield Observation(
            f"{facts.of(nodes, 'node')} {verb(nodes, 'runs', 'run')} on {first.backend}, between "
            f"splits of {facts.name(device)}, which supports {verb(nodes, 'it', 'them')} and would "
            f"not have to copy more: {facts.compared(after)}. {quoted(first)} is where it is "
            f"because {first.cause.text}.",
            f"Remove {verb(nodes, 'its pin', 'their pins')}."
            if first.cause.code == causes.PINNED.code
            else f"Pin {verb(nodes, 'it', 'them')} to {facts.name(device)} with "
            "set_tensor_backend, or move what keeps it where it is.",
            nodes,
            nbytes(copies),
        )


def _between(facts: Facts) -> Iterator[tuple[int, list[TensorRecord]]]:
    """The runs without a finding whose nodes the device around them supports."""
    for device, nodes in _runs(facts):
        if all(
            t.supports >> device & 1 and t.id not in facts.explained_nodes for t in nodes
        ):  # fmt: skip
            yield device, nodes


def _runs(facts: Facts) -> Iterator[tuple[int, list[TensorRecord]]]:
    """Each run of splits between two splits of a higher-priority device: the device, the nodes."""
    splits = facts.plan.split_records
    computed = {t.id: t for t in facts.computed}
    for device in facts.devices:
        at = [i for i, split in enumerate(splits) if split.backend == device]
        for i, j in pairwise(at):
            run = splits[i + 1 : j]
            ids = (id for s in run for id in range(s.start, s.end))
            nodes = [computed[id] for id in ids if id in computed]
            if nodes and all(split.backend > device for split in run):
                yield device, nodes


# Ops that write into memory that is allocated already, which keeps them there.
_WRITES = frozenset({"SET_ROWS", "CPY"})


# Causes of nodes that no weight, memory or pin keeps: passes 2 and 3 placed them by support.
_NOT_HELD = (
    "", causes.SPREAD.code, causes.MOST_SOURCES.code, causes.UPGRADED.code,
)  # fmt: skip


def round_trips(facts: Facts) -> Iterator[Observation]:
    """What a log can show of fallbacks and avoidable splits: nodes that read no weights, between
    splits of a device."""
    groups: dict[tuple[int, str, bool], list[TensorRecord]] = {}
    causes = any(facts.cause(t) for t in facts.computed)
    for device, nodes in _runs(facts):
        kept = any(facts.is_weight(s) for t in nodes for s in facts.sources(t))
        kept = kept or all(t.op in _WRITES for t in nodes)
        kept = kept or any(facts.cause(t) not in _NOT_HELD for t in nodes)
        if not kept and not {facts.where[t.id] for t in nodes}.intersection(facts.devices):
            ops = ", ".join(dict.fromkeys(t.op_desc for t in nodes))
            sure = causes or not any(
                facts.may_be_weight(s) for t in nodes for s in facts.sources(t)
            )
            groups.setdefault((device, ops, sure), []).extend(nodes)
    for (device, ops, sure), nodes in groups.items():
        copies = facts.around(nodes)
        facts.explain(copies, nodes)
        name, where = facts.name(device), facts.name(facts.where[nodes[0].id])
        it = verb(nodes, "it", "them")
        if causes:
            why = f"according to the printed causes no weight, memory or pin keeps {it} there"
        elif sure:
            why = f"nothing that {verb(nodes, 'it reads', 'they read')} is named like a weight"
        else:
            held = [s for t in nodes for s in facts.sources(t) if facts.may_be_weight(s)]
            why = (
                f"whether a weight keeps {it} there is not known: the name '{held[0].name}' is cut "
                "at 20 bytes, and may be a weight's"
            )
        often = f" The usual reason is that {name} does not support the op for these types and"
        yield Observation(
            f"{facts.of(nodes, 'node')} ({ops}) {verb(nodes, 'runs', 'run')} on {where} between "
            f"splits of {name}, and {why}." + (f"{often} shapes." if sure else ""),
            "The log does not say why; why_not does, on a plan of this graph from Scheduler.plan.",
            nodes,
            nbytes(copies),
        )
