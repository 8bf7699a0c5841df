"""What-if plans: the same graph with other pins, answers, places of weights or rules."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from ...typed import names_of
from ..names import counted, label_in
from ..planning import CannotPlanError, plan_by_rules
from ..promise import as_texts
from ..record import NODE, NOT_ON_RECORD, OF_RULES, BufferRecord, Capture, TensorRecord
from ..rules import find_release

if TYPE_CHECKING:
    from ..planned import P, Planned

Which: TypeAlias = "str | int"  # a name, a shell pattern, or an id
Pins: TypeAlias = "Mapping[Which, str | None]"
Supports: TypeAlias = "Mapping[tuple[str, Which], bool]"
Offload: TypeAlias = "Mapping[tuple[str, Which], bool | int]"
Moves: TypeAlias = "Mapping[Which, str]"

MAX_COPIES = 4  # GGML_SCHED_MAX_COPIES, which `parallel` uses


def what_if(plan: P, **changes: Any) -> P:
    """See `Plan.what_if`."""
    capture = changed(plan, **changes)
    _check_memory(capture, _dropped(changes.get("drop", ())))
    promise = plan.promise._replace(changes=(*plan.promise.changes, *as_texts(changes)))
    made = plan.provenance
    if capture.settings.build != plan.settings.build:  # the rules of another release
        made = made.but(package=None, source=None)
    return (
        plan_by_rules(capture, type(plan)).promised(promise, provenance=made).chosen(plan.choices)
    )


def changed(
    plan: Planned,
    pins: Pins | None = None,
    supports: Supports | None = None,
    offload: Offload | None = None,
    move_weights: Moves | None = None,
    op_offload: bool | None = None,
    drop: Iterable[str] = (),
    upstream: str | None = None,
    parallel: bool | None = None,
) -> Capture:
    """The changed capture, as the scheduler would then see it. Raises the errors of `Plan.what_if`
    for changes that mean nothing."""
    capture = plan.capture
    capture.check_answers()
    for name in _dropped(drop):
        capture = _without(capture, name)
    # A change copies the capture, so changes that do the same are made together.
    for backend, moves in groupby(_items("move_weights", move_weights), itemgetter(1)):
        capture = _moved(capture, [which for which, _backend in moves], backend)
    for question, given, read in (
        ("supports", supports, _yes_or_no), ("offload", offload, _by_batch),
    ):  # fmt: skip
        for (name, (_type, answer)), keys in groupby(_items(question, given), _by_backend):
            asked = [key for key, _answer in keys]
            capture = _answered(capture, question, name, asked, read(asked[0], answer))
    for which, pin in _items("pins", pins):
        capture = _pinned(capture, which, pin)
    capture = _with_settings(capture, op_offload, upstream, parallel)
    if capture != plan.capture:  # the backends were not asked about other splits
        capture = replace(capture, optimized=(), cpu=())
    return capture


def _dropped(drop: str | Iterable[str]) -> list[str]:
    return names_of("drop", drop)


def _items(argument: str, given: Any) -> list[tuple[Any, Any]]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{argument}={given!r}: expected a dict, such as {argument}={_LIKE[argument]}"
        )
    return list(given.items())


_LIKE = {
    "pins": '{"ffn_norm-3": "CPU"}',
    "supports": '{("CPU", "TOP_K"): False}',
    "offload": '{("CUDA0", "MUL_MAT_ID"): True}',
    "move_weights": '{"blk.3.*": "CUDA0"}',
}

# --- which tensors


def _matching(capture: Capture, argument: str, which: Which, ops: bool = False) -> list[int]:
    """Ids of the tensors that `which` names. An id or a name stands for one tensor: for a name the
    last tensor, as in `Plan.node`. A pattern stands for all tensors that match. With `ops` an op or
    its description stands for its nodes."""
    if isinstance(which, int) and not isinstance(which, bool):
        if not 0 <= which < len(capture.tensors):
            raise KeyError(
                f"{argument}: no tensor {which}; ids are 0 to {len(capture.tensors) - 1}"
            )
        return [which]
    if not isinstance(which, str):
        raise TypeError(
            f"{argument}: {which!r} is not a tensor: expected a name, a pattern or an id"
        )
    every = [t for t in capture.tensors if not ops or t.kind == NODE]
    if ops and (found := [t.id for t in every if which.upper() in (t.op, t.op_desc)]):
        return found
    if found := [t.id for t in every if t.name == which]:
        nodes = [i for i in found if capture.tensors[i].kind == NODE]
        return (nodes or found)[-1:]
    match = fnmatch.fnmatchcase
    found = [
        t.id
        for t in every
        if match(t.name, which) or (ops and (match(t.op, which) or match(t.op_desc, which)))
    ]
    if not found:
        likely = [t for t in every if argument != "move_weights" or t.buffer >= 0]
        words = {w for t in likely for w in ((t.name, t.op, t.op_desc) if ops else (t.name,)) if w}
        raise KeyError(f"{argument}: {_nothing(which, words, ops)}")
    return found


def _nothing(which: str, words: Iterable[str], ops: bool) -> str:
    """Says that nothing matches, with similar names."""
    pool = sorted(words)
    near = difflib.get_close_matches(which, pool, 5, 0.5)
    near = near or [w for w in pool if which.strip("*?").lower() in w.lower()][:5]
    what = "node or op" if ops else "tensor"
    listed = f"near it: {', '.join(near)}" if near else f"there are {', '.join(pool[:8])}, …"
    return f"no {what} matches '{which}'; {listed}"


def _backend(capture: Capture, argument: str, name: Any) -> int:
    if not isinstance(name, str):
        names = ", ".join(b.name for b in capture.backends)
        raise TypeError(f"{argument}: {name!r} is not a backend name; the plan has {names}")
    try:
        return capture.backend_index(name)
    except KeyError as error:
        raise KeyError(f"{argument}: {error.args[0]}") from None


def _edited(capture: Capture, ids: Iterable[int], **fields: Any) -> Capture:
    """The capture with fields of some tensors replaced; a field may be a function of the tensor."""
    tensors = list(capture.tensors)
    for i in ids:
        values = {k: v(tensors[i]) if callable(v) else v for k, v in fields.items()}
        tensors[i] = tensors[i]._replace(**values)
    return replace(capture, tensors=tuple(tensors))


# --- the changes


def _without(capture: Capture, name: str) -> Capture:
    """As if the scheduler had been made without a backend."""
    gone = _backend(capture, "drop", name)
    if gone == len(capture.backends) - 1:
        raise ValueError(
            f"drop: {capture.backends[gone].name} is the last backend, which a scheduler needs: it "
            "runs what no other backend supports"
        )

    def bits(answers: int) -> int:
        return answers & ((1 << gone) - 1) | answers >> (gone + 1) << gone

    def index(b: int) -> int:
        return -1 if b == gone else b - (b > gone)

    tensors = [
        t._replace(supports=bits(t.supports), offload=bits(t.offload), pin=index(t.pin))
        for t in capture.tensors
    ]
    bufts = [b.buft for i, b in enumerate(capture.backends) if i != gone]
    made = {  # where the compute buffers of the backends that stay are now
        b.backend: bufts.index(capture.backends[b.backend].buft)
        for b in capture.compute_buffers
        if capture.backends[b.backend].buft in bufts
    }
    return replace(
        capture,
        backends=tuple(b for i, b in enumerate(capture.backends) if i != gone),
        compute_buffers=tuple(
            b._replace(backend=made[b.backend])
            for b in capture.compute_buffers
            if b.backend in made
        ),
        alloc_sizes=tuple(
            s._replace(backend=made[s.backend]) for s in capture.alloc_sizes if s.backend in made
        ),
        bufts=tuple(t._replace(readers=bits(t.readers)) for t in capture.bufts),
        tensors=tuple(tensors),
        dropped_pins=tuple((i, index(b)) for i, b in capture.dropped_pins if b != gone),
        optimizers=bits(capture.optimizers),
        refusals=None
        if capture.refusals is None
        else tuple(
            refusal._replace(backend=index(refusal.backend))
            for refusal in capture.refusals
            if refusal.backend != gone
        ),
    )


def _moved(capture: Capture, moves: Iterable[Which], name: Any) -> Capture:
    """Moves tensors that have memory, and their views, to a buffer type."""
    buft = _buft(capture, name)
    roots: set[int] = set()
    for which in moves:
        matching = [capture.tensors[i] for i in _matching(capture, "move_weights", which)]
        mine = {t.view_src if t.view_src >= 0 else t.id for t in matching}
        mine = {i for i in mine if capture.tensors[i].buffer >= 0}
        if not mine:
            raise ValueError(
                f"move_weights: '{matching[0].name}' has no memory before planning, so there is "
                "nothing to move; use pins= to decide where it is computed"
            )
        roots |= mine
    buffers, tensors = list(capture.buffers), list(capture.tensors)
    made: dict[str, int] = {}  # usage -> the new buffer
    for t in capture.tensors:
        root = t.view_src if t.view_src >= 0 else t.id
        if root not in roots or t.buffer < 0 or buffers[t.buffer].buft == buft:
            continue
        usage = buffers[t.buffer].usage
        if usage not in made:
            made[usage] = len(buffers)
            buffers.append(BufferRecord(buft, usage, 0))
        if t.id == root:
            for i, n in ((t.buffer, -t.nbytes), (made[usage], t.nbytes)):
                buffers[i] = buffers[i]._replace(size=max(buffers[i].size + n, 0))
        tensors[t.id] = t._replace(buffer=made[usage])
    moved = replace(capture, buffers=tuple(buffers), tensors=tuple(tensors))
    return _without_answers_about_memory(moved)


def _without_answers_about_memory(capture: Capture) -> Capture:
    """A backend that refused an op only for its sources' memory supports it once they are in the
    backend's own memory."""
    tensors, kept = list(capture.tensors), []
    for refusal in capture.refusals or ():
        if refusal.srcs == NOT_ON_RECORD:
            kept.append(refusal)
            continue
        t = tensors[refusal.tensor]
        where = [
            capture.buft_of(tensors[i])
            for j, i in enumerate(t.src)
            if i >= 0 and (refusal.srcs >> j & 1 or not refusal.srcs)
        ]
        own = capture.backends[refusal.backend].buft
        if all(buft in (-1, own) for buft in where):
            tensors[t.id] = t._replace(supports=t.supports | 1 << refusal.backend)
        else:
            kept.append(refusal)
    if len(kept) == len(capture.refusals or ()):
        return capture
    return replace(capture, tensors=tuple(tensors), refusals=tuple(kept))


def _buft(capture: Capture, name: Any) -> int:
    """The buffer type of that name, or a backend's own."""
    names = [t.name for t in capture.bufts]
    if name in names:
        return names.index(name)
    try:
        backend = capture.backends[_backend(capture, "move_weights", name)]
    except KeyError as error:
        said, mark, hint = str(error.args[0]).partition(". Did you mean ")
        raise KeyError(f"{said}, and buffer types {', '.join(names)}{mark}{hint}") from None
    own = capture.own_memory(capture.backends.index(backend))
    return names.index(own) if own in names else backend.buft


def _by_backend(item: tuple[Any, Any]) -> tuple[Any, Any]:
    """The backend and the answer about a node."""
    key, answer = item
    return (key[0] if isinstance(key, tuple) and key else key), (type(answer), answer)


def _answered(
    capture: Capture,
    question: str,
    backend: Any,
    keys: Sequence[Any],
    answer: Callable[[TensorRecord], bool],
) -> Capture:
    """Changes the answer of a backend about some nodes."""
    for key in keys:
        if not (isinstance(key, tuple) and len(key) == 2):
            raise TypeError(
                f"{question}: {key!r}: expected (backend, op or node), such as "
                f"{question}={_LIKE[question]}"
            )
    bit = 1 << _backend(capture, question, backend)

    def changed(t: TensorRecord) -> int:
        answers: int = getattr(t, question)
        return answers | bit if answer(t) else answers & ~bit

    ids = [i for key in keys for i in _matching(capture, question, key[1], ops=True)]
    capture = _edited(capture, ids, **{question: changed})
    if question == "supports" and capture.refusals:  # such an answer is about the op
        asked, b = set(ids), bit.bit_length() - 1
        kept = tuple(r for r in capture.refusals if r.tensor not in asked or r.backend != b)
        capture = replace(capture, refusals=kept)
    return capture


def _yes_or_no(key: Any, answer: Any) -> Callable[[TensorRecord], bool]:
    if not isinstance(answer, bool):
        raise TypeError(f"supports[{key!r}] is {answer!r}: expected True or False")
    return lambda _t: answer


def _by_batch(key: Any, answer: Any) -> Callable[[TensorRecord], bool]:
    if isinstance(answer, bool):
        return lambda _t: answer
    if not isinstance(answer, int) or answer < 1:
        raise TypeError(
            f"offload[{key!r}] is {answer!r}: expected True, False or the smallest number of rows "
            "to offload, 1 or more"
        )
    return lambda t: batch_size(t) >= answer


def batch_size(t: TensorRecord) -> int:
    """The number of rows by which GPU backends decide whether to offload an op whose weights are in
    host memory. C: get_op_batch_size, the same in the CUDA, Vulkan and SYCL backends"""
    if t.op == "GET_ROWS":
        return 0
    if t.op == "MUL_MAT":
        return t.ne[1]
    if t.op in ("MUL_MAT_ID", "ROPE", "ROPE_BACK"):
        return t.ne[2]
    return prod(t.ne[1:])


def _pinned(capture: Capture, which: Which, name: Any) -> Capture:
    """Adds pins, or removes them. A pattern pins computed nodes only: it may also match weights,
    which are where their memory is."""
    ids = _matching(capture, "pins", which)
    named = isinstance(which, int) or which in {capture.tensors[i].name for i in ids}
    if not named:
        nodes = [i for i in ids if capture.tensors[i].kind == NODE]
        computed = [i for i in nodes if not capture.tensors[i].is_view_op]
        if not computed:
            raise ValueError(
                f"pins: '{which}' matches {counted(len(ids), 'tensor')}, none of them a computed "
                "node: pin them by their names, or use move_weights="
            )
        ids = computed
    if name is None:
        if all(capture.tensors[i].pin < 0 for i in ids):
            pinned = ", ".join(t.name for t in capture.tensors if t.pin >= 0) or "none"
            raise ValueError(f"pins: '{which}' is not pinned; pinned tensors: {pinned}")
        return _edited(capture, ids, pin=-1)
    b = _backend(capture, "pins", name)
    for i in ids:
        buft = capture.buft_of(capture.tensors[i])
        if buft >= 0 and not capture.bufts[buft].readers >> b & 1:
            raise ValueError(
                f"pins: '{capture.tensors[i].name}' is in {capture.bufts[buft].name} memory, which "
                f"{capture.backends[b].name} cannot read: use move_weights= to move it there"
            )
    dropped = tuple(pin for pin in capture.dropped_pins if pin[0] not in ids)
    explained = tuple(pin for pin in capture.pins if pin.tensor not in ids)
    return replace(_edited(capture, ids, pin=b), dropped_pins=dropped, pins=explained)


def _with_settings(
    capture: Capture, op_offload: bool | None, upstream: str | None, parallel: bool | None
) -> Capture:
    settings = capture.settings
    for name, value in (("op_offload", op_offload), ("parallel", parallel)):
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}: expected True or False")
    if op_offload is not None:
        settings = settings._replace(op_offload=op_offload)
    if parallel is not None and parallel != (settings.n_copies > 1):
        settings = settings._replace(n_copies=MAX_COPIES if parallel else 1, cur_copy=0)
    if upstream is None or (isinstance(upstream, str) and upstream == settings.release):
        return replace(capture, settings=settings)
    release = find_release(upstream)
    if release.label == settings.release:
        return replace(capture, settings=settings)
    settings = settings._replace(upstream=release.ggml, build=f"{release.label}-{OF_RULES}")
    return replace(capture, settings=settings, split_capacities=())


def _check_memory(capture: Capture, dropped: list[str]) -> None:
    """Upstream aborts on memory that no backend reads; here only a dropped one can be missing."""
    lost = [
        t
        for t in capture.tensors
        if t.view_src < 0 and (buft := capture.buft_of(t)) >= 0 and not capture.bufts[buft].readers
    ]
    if lost and dropped:
        memory = capture.bufts[capture.buft_of(lost[0])].name
        raise CannotPlanError(
            f"without {', '.join(dropped)} no backend can read {memory} memory, which holds "
            f"'{label_in(capture, lost[0])}' and {counted(len(lost) - 1, 'more tensor')}: "
            f'move them, move_weights={{"*": "{capture.backends[-1].name}"}} or by name'
        )
