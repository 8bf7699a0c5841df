"""Changes to a node, and the parts that must change together.

A size is rarely free: the k of a mul_mat is ne0 of both sources. Which sizes belong together is
found by trial: the smallest set of sizes equal to this one that the constructor accepts when they
change together.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .. import enums
from ..boundary.ffi import lib
from ..errors import GgmlError
from ..graphs.node import block_of
from ..tensors.op_settings import OpSettings
from .operand import changed, contiguous
from .rebuild import Replay, State

# A size: (source, dimension), the name of an argument, or (-1, dimension) of a result that is made
# field by field.
Slot: TypeAlias = "tuple[int, int] | str"
Group: TypeAlias = "tuple[Slot, ...]"

# Sizes (place, dimension) and arguments that may differ for the constructor but never in a model.
_TIES: dict[str, tuple[tuple[Slot, ...], ...]] = {
    "FLASH_ATTN_EXT": (
        ((0, 0), (1, 0), (2, 0)), ((1, 1), (2, 1), (3, 0)), ((0, 1), (3, 1)), ((1, 2), (2, 2)),
    ),
    "SOFT_MAX": (((0, 1), (1, 1)),),
    "ROPE": (((0, 0), "n_dims"),),
}  # fmt: skip
_MOST_COMBINATIONS = 100  # combinations of sizes tried for one group

_FAMILIES = (
    ("f32", "f16", "bf16", "f64"),
    ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q1_0", "q2_0"),
    ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
    ("tq1_0", "tq2_0", "mxfp4", "nvfp4"),
    ("i8", "i16", "i32", "i64"),
)
_USUAL = ("f16", "f32", "bf16", "q8_0", "q4_0")
_INTERNAL = ("q8_1", "q8_k", "count")  # dot products convert their other operand to these
_INTEGERS = _FAMILIES[-1]


@dataclass(frozen=True)
class Change:
    """A new value for one part of a node."""

    kind: str  # contiguous, type, op_param, dimension
    target: Any  # index of the source; name of the argument; word of op_params; Group
    value: Any


def types_near(type_: str) -> list[str]:
    """The other types, nearest first. Types of its family come first, by difference in bits per
    element; of two equally near types the larger one is first. Next are f16, f32, bf16, q8_0 and
    q4_0, then the rest, again by bits."""
    family = next((f for f in _FAMILIES if type_ in f), ())

    def bits(name: str) -> float:
        block, size = block_of(name)
        return 8 * size / block

    def far(name: str) -> tuple[float, ...]:
        gap = (abs(bits(name) - bits(type_)), -bits(name), enums.Type[name.upper()])
        if name in family:
            return (0, *gap)
        return (1, _USUAL.index(name)) if name in _USUAL else (2, *gap)

    names = [t.name.lower() for t in enums.Type if t.name.lower() not in (*_INTERNAL, type_)]
    return sorted((name for name in names if block_of(name)[0] > 0), key=far)


def is_integer(type_: str) -> bool:
    """Whether it is an integer type, as of ids and positions."""
    return type_ in _INTEGERS


def apply(replay: Replay, state: State, change: Change) -> State | None:
    """The state with the change; None if no such tensor exists."""
    if change.kind == "contiguous":
        return _with_source(state, change.target, contiguous(state.sources[change.target]))
    if change.kind == "type" and isinstance(change.target, int):
        old = state.sources[change.target]
        return _with_source(state, change.target, changed(old, change.value, old.ne))
    if change.kind == "dimension":
        made: State | None = state
        for slot in change.target:
            made = None if made is None else _sized(made, slot, change.value)
        return made
    if isinstance(change.target, int):
        words = list(state.words)
        words[change.target] = change.value
        return replace(state, words=tuple(words))
    return _with_arg(state, change.target, change.value)


def _with_source(state: State, index: int, source: Any) -> State | None:
    if source is None:
        return None
    sources = (*state.sources[:index], source, *state.sources[index + 1 :])
    return State(sources, state.args, state.words, state.ne)


def _with_arg(state: State, name: str, value: Any) -> State:
    return replace(state, args=tuple((n, value if n == name else v) for n, v in state.args))


def _sized(state: State, slot: Slot, size: int) -> State | None:
    if isinstance(slot, str):
        return _with_arg(state, slot, size)
    index, d = slot
    if index < 0:
        return replace(state, ne=(*state.ne[:d], size, *state.ne[d + 1 :]))
    old = state.sources[index]
    return _with_source(state, index, changed(old, old.type, (*old.ne[:d], size, *old.ne[d + 1 :])))


# ---- sizes


def size_of(state: State, slot: Slot) -> int:
    """The present size at that slot."""
    if isinstance(slot, str):
        return int(dict(state.args)[slot])
    index, d = slot
    return state.ne[d] if index < 0 else state.sources[index].ne[d]


def step_of(state: State, group: Group) -> int:
    """The number that sizes of the group must be multiples of, for whole blocks of their types."""
    blocks = [block_of(state.sources[s[0]].type)[0]
              for s in group if not isinstance(s, str) and s[1] == 0 and s[0] >= 0]  # fmt: skip
    return math.lcm(*blocks) if blocks else 1


def _slots(replay: Replay) -> list[Slot]:
    slots: list[Slot] = [(i, d) for i in range(len(replay.node.operands)) for d in range(4)]
    slots += [name for name, kind in replay.recipe.kinds if kind == "int" and name != "mode"]
    if not replay.recipe.method:
        slots += [(-1, d) for d in range(4)]
    return slots


def groups(replay: Replay, state: State) -> list[tuple[Group, bool]]:
    """Sizes that change together, and whether they can shrink (True) or grow (False)."""
    found: dict[tuple[Group, bool], None] = {}
    slots = _slots(replay)
    for slot, down in itertools.product(slots, (True, False)):
        group = _group(replay, state, slots, slot, down)
        if group:
            found.setdefault((group, down))
    return list(found)


def _group(replay: Replay, state: State, slots: list[Slot], slot: Slot, down: bool) -> Group | None:
    """The smallest set of sizes, including `slot`, that the op lets change together."""
    size = size_of(state, slot)
    if size < 1 or (down and size == 1):
        return None
    peers = [s for s in slots if s != slot and size_of(state, s) == size]
    tied = _tied(replay, state, slot) if replay.recipe.method else tuple(peers)

    def takes(group: Group, special: bool) -> bool:
        step = step_of(state, group)
        if special:
            other = size // 2 if down else size * 2
        else:
            other = size - step if down else size + step
        if other < 1 or other % step:
            return False
        made = apply(replay, state, Change("dimension", group, other))
        return made is not None and replay.build(made) is not None

    # First the next size, which fits nothing by chance: a doubled one may fit by broadcasting.
    for special in (False, True):
        for several in _choices(size, slot, peers, tied):
            group = (slot, *several)
            if not takes(group, special):
                continue
            for one in several if several != tied else ():
                fewer = tuple(s for s in group if s != one)
                group = fewer if takes(fewer, special) else group
            return tuple(s for s in slots if s in group)
    return None


def _choices(size: int, slot: Slot, peers: list[Slot], tied: Group) -> Iterator[Group]:
    """Sets of sizes that may have to change with `slot`."""
    if tied:
        yield tied
    yield ()
    yield from ((one,) for one in peers)
    if not isinstance(slot, str):
        yield tuple(s for s in peers if not isinstance(s, str) and s[1] == slot[1])
    if size > 1:
        yield tuple(peers)
        few = (itertools.combinations(peers, n) for n in (2, 3))
        yield from itertools.islice(itertools.chain.from_iterable(few), _MOST_COMBINATIONS)


def _tied(replay: Replay, state: State, slot: Slot) -> tuple[Slot, ...]:
    node, found = replay.node, set()
    names = {name for name, _ in replay.recipe.kinds}
    for tie in _TIES.get(node.kind, ()):
        there: list[Slot] = []
        for one in tie:
            if isinstance(one, str):
                there += [one] if one in names else []
            elif node.places[one[0] : one[0] + 1] and node.places[one[0]] >= 0:
                there.append((node.places[one[0]], one[1]))
        if slot in there:
            found |= {s for s in there if size_of(state, s) == size_of(state, slot)}
    return tuple(sorted(found - {slot}, key=str))


def sizes_near(size: int, step: int, down: bool) -> list[int]:
    """Other sizes to ask about, nearest first. They are the next size, every multiple of 8 up to
    640 (the range of head sizes), and 2**n times 1, 3, 5, 7 and 9. Each power of two adds its
    neighbours and its multiple nearest to `size`. All are rounded up to multiples of `step`."""
    most = size - 1 if down else max(16 * size, 1 << 17)
    found = {size - step if down else size + step, *range(8, 641, 8)}
    for n in range(most.bit_length() + 1):
        found |= {m << n for m in (1, 3, 5, 7, 9)}
        found.add((size - 1 >> n << n) if down else (size >> n) + 1 << n)
        found |= {(1 << n) - step, (1 << n) + step}  # these are not round numbers
    found = {-(-v // step) * step for v in found}
    return sorted(
        (v for v in found if 1 <= v <= most and (v < size if down else v > size)), reverse=down
    )


# ---- other numbers


def neutral(replay: Replay, state: State) -> Iterator[Change]:
    """Changes of arguments and words of op_params to values that request nothing special."""
    for name, kind in replay.recipe.kinds:
        now = dict(state.args)[name]
        values: list[Any] = []
        if kind == "float":
            values = [0.0, 1.0]
        elif kind == "bool" and name != "inplace":
            values = [not now]
        elif kind.startswith("enums.") and name != "op":
            values = list(getattr(enums, kind.split(".")[1].split(" ")[0]))
        elif name == "mode":
            values = [0, *rope_modes()]
        yield from (Change("op_param", name, v) for v in values if v != now)
    for i, word in enumerate(state.words):
        if word and i not in replay.recipe.owned:
            yield Change("op_param", i, 0)


def rope_modes() -> dict[int, str]:
    """The modes of rope that this release has."""
    known = ("NEOX", "MROPE", "VISION", "IMROPE")
    there = [n for n in known if hasattr(lib, f"GGML_ROPE_TYPE_{n}")]
    return {int(getattr(lib, f"GGML_ROPE_TYPE_{n}")): n.lower() for n in there}


def word_name(replay: Replay, word: int) -> tuple[str, Any]:
    """The name of a word of op_params that no argument sets, after the setter of OpSettings that
    changes it, and the enum of its values, if any."""
    for name, setter in vars(OpSettings).items():
        if not name.startswith("set_"):
            continue
        kind = str(list(inspect.signature(setter).parameters.values())[1].annotation)
        enum = getattr(enums, kind.split(".")[1].split(" ")[0]) if "enums." in kind else None
        for value in list(enum) if enum else (1, 2):
            made = replay.build(replace(replay.state, words=(0,) * len(replay.state.words)))
            try:
                setter(made, value)
            except (GgmlError, AttributeError, TypeError):
                continue
            if made is not None and made._ptr.op_params[word]:
                return name.removeprefix("set_"), enum
    return f"op_params[{word}]", None
