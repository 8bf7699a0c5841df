"""Finds the smallest changes to a node that a device supports.

`supports_op` only answers yes or no. The node is therefore rebuilt with one change at a time, and
the device is asked about each. A change makes a source contiguous, or sets the type of a source, a
parameter of the op, or a size and all sizes that must equal it. Sizes are bisected to the last
supported one. If no single change helps, several are made at once and then undone one by one, until
only the necessary ones are left.

Nothing is allocated or computed. One search asks the device at most `MOST_ASKED` times.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..backends.backend import Backend
from ..backends.device import Device
from ..boundary.arguments import describe
from ..boundary.ffi import NULL, lib, text
from ..errors import AbortError
from ..graphs.context import Context
from ..tensors.tensor import Tensor
from ..trace.answers.variant import KINDS, Nearest, Variant
from ..trace.plan_tensor import PlanTensor
from . import change as c
from .change import Change
from .operand import is_contiguous
from .phrases import Wording, type_name, variant
from .rebuild import Replay, State, node_of

MOST_ASKED = 20_000
_DRAWS = 150  # random lists of several changes


def nearest(what: Tensor | PlanTensor, device: Device | Backend) -> Nearest:
    """Finds the smallest changes to the node `what` that `device` supports.

    `what` is a node of a graph or of a plan. For a node of a plan, which may have been saved
    elsewhere, the device is asked about the recorded node, without the buffers of its sources.
    Raises `ArgumentError` for a leaf.
    C: ggml_backend_dev_supports_op, ggml_backend_supports_op
    """
    if not isinstance(what, Tensor | PlanTensor):
        raise TypeError(f"expected a Tensor or a PlanTensor, got {describe(what)}")
    if not isinstance(device, Device | Backend):
        raise TypeError(f"expected a Device or a Backend, got {describe(device)}")
    node = node_of(what)
    with Context() as scratch:
        search = _Search(Replay(node, scratch), device.supports_op)
        if isinstance(what, Tensor):
            supported, variants = search.live(what)
        else:
            supported = search.ask(search.state) is True
            variants = [] if supported else search.variants()
        return Nearest(
            op=node.kind,
            node=node.out.name,
            device=device.name,
            supported=supported,
            variants=tuple(variants),
            tried=search.asked,
            constructor=search.replay.recipe.method,
        )


class _Search:
    """Searches the variants of one node that one device supports."""

    def __init__(self, replay: Replay, supports: Callable[[Tensor], bool]) -> None:
        self.replay = replay
        self.supports = supports
        self.state = replay.state
        self.words = Wording(replay)
        self.asked = 0
        self._known: dict[Hashable, bool | None] = {}  # by State.key
        self._made: dict[Hashable, Tensor | None] = {}

    @cached_property
    def groups(self) -> list[tuple[c.Group, bool]]:
        """Sizes that change together, and whether they shrink (True) or grow (False)."""
        return c.groups(self.replay, self.state)

    def ask(self, state: State | None) -> bool | None:
        """Whether the device supports it; None for an invalid op, or if the device cannot say."""
        if state is None or self.asked >= MOST_ASKED:
            return None
        if state.key not in self._known:
            self._known[state.key] = None
            made = self.made(state)
            if made is not None:
                self.asked += 1
                with contextlib.suppress(AbortError):  # the backend never expected such an op
                    self._known[state.key] = self.supports(made)
        return self._known[state.key]

    def made(self, state: State) -> Tensor | None:
        """The node with the changes in `state`, made once; None if that op is invalid."""
        if state.key not in self._made:
            self._made[state.key] = self.replay.build(state)
        return self._made[state.key]

    def with_(self, *changes: Change, state: State | None = None) -> State | None:
        """The state with all of the changes, in this order or the reverse: a size that is not whole
        blocks of a new type may be changed too."""
        for order in (changes, changes[::-1]):
            made: State | None = state or self.state
            for change in order:
                made = None if made is None else c.apply(self.replay, made, change)
            if made is not None or len(changes) < 2:
                return made
        return None

    # ---- single changes

    def live(self, tensor: Tensor) -> tuple[bool, list[Variant]]:
        """Whether a node of this process is supported, and its variants. Its sources may be in
        buffers."""
        self.asked += 1
        if self.supports(tensor):
            return True, []
        if self.ask(self.state) is not True:
            return False, self.variants()
        return False, self._buffers(tensor)

    def _buffers(self, tensor: Tensor) -> list[Variant]:
        """The sources whose buffer alone makes the device refuse the node."""
        found = []
        for place, source in enumerate(tensor.ptr.src):
            index = -1 if source == NULL else self.replay.node.places[place]
            if index < 0 or source.buffer == NULL:
                continue
            made = self.replay.build(self.state)
            copy = self.replay.tensor(index, self.state.sources[index])
            copy._ptr.buffer = source.buffer
            self.asked += 1
            refused = not self.supports(made)  # type: ignore[arg-type]
            copy._ptr.buffer = NULL
            if refused:
                name = self.replay.name(place)
                buft = text(
                    lib.ggml_backend_buft_name(lib.ggml_backend_buffer_get_type(source.buffer))
                )
                said = f"{name} in a buffer other than {buft}"
                found.append(variant("buffer", place, name, said, before=buft))
        return found

    def variants(self) -> list[Variant]:
        """The variants that are supported, smallest change first: by kind, then by distance."""
        single = [*self._contiguous(), *self._types(), *self._params(), *self._sizes()]
        kinds = {v.kind for _, v in single}
        if "type" not in kinds:
            single += self._same_type()
        if "contiguous" not in kinds:
            single += self._all_contiguous()
        if not single:
            single += self._several()
        return [v for _, v in sorted(single, key=lambda s: (KINDS.index(s[1].kind), s[0]))]

    def _strided(self) -> list[Change]:
        """For each source that is not contiguous, the change that makes it contiguous."""
        sources = enumerate(self.state.sources)
        return [Change("contiguous", i, None) for i, s in sources if not is_contiguous(s)]

    def _contiguous(self) -> list[tuple[float, Variant]]:
        return [(0, self.words.told(one)) for one in self._strided() if self.ask(self.with_(one))]

    def _types(self) -> list[tuple[float, Variant]]:
        found = []
        targets: list[tuple[Any, str]] = [(i, s.type) for i, s in enumerate(self.state.sources)]
        targets += [(name, dict(self.state.args)[name])
                    for name, kind in self.replay.recipe.kinds if kind == "TypeLike"]  # fmt: skip
        for target, now in targets:
            ranks = list(enumerate(c.types_near(now)))
            good = [(rank, t) for rank, t in ranks
                    if self.ask(self.with_(Change("type", target, t)))]  # fmt: skip
            if good:
                also = tuple(type_name(t) for _, t in good[1:])
                told = self.words.told(Change("type", target, good[0][1]))
                found.append((float(good[0][0]), replace(told, also=also)))
        return found

    def _params(self) -> list[tuple[float, Variant]]:
        found: dict[Any, tuple[float, Variant]] = {}
        for change in c.neutral(self.replay, self.state):
            if change.target not in found and self.ask(self.with_(change)):
                found[change.target] = (0, self.words.told(change))
        return list(found.values())

    def _sizes(self) -> list[tuple[float, Variant]]:
        found = []
        by_group: dict[c.Group, list[bool]] = {}
        for group, down in self.groups:
            by_group.setdefault(group, []).append(down)
        for group, directions in by_group.items():
            answers, best = self._answers(self.state, group, directions)
            now = c.size_of(self.state, group[0])
            for size in best:
                far = abs(math.log2(size / now))
                told = self.words.told(Change("dimension", group, size), answers)
                found.append((far, told))
        return found

    def _answers(
        self, state: State, group: c.Group, directions: list[bool]
    ) -> tuple[dict[int, bool], list[int]]:
        """The device's answers to sizes of the group, and the nearest supported one each way."""
        now, step = c.size_of(state, group[0]), c.step_of(state, group)
        answers: dict[int, bool] = {now: False}

        def ask(size: int) -> bool:
            said = self.ask(self.with_(Change("dimension", group, size), state=state))
            if said is not None:
                answers[size] = said
            return said is True

        best = []
        for down in directions:
            sizes = c.sizes_near(now, step, down)
            good = [size for size in sizes if ask(size)]
            if good:
                yes = good[0]
                no = [now, *sizes][sizes.index(yes)]
                while min(yes, no) < (middle := (yes + no) // 2 // step * step) < max(yes, no):
                    yes, no = (middle, no) if ask(middle) else (yes, middle)
                best.append(yes)
        return answers, best

    # ---- several changes

    def _same_type(self) -> list[tuple[float, Variant]]:
        """Gives two sources (such as K and V of an attention), or all of them, the same type."""
        sources = self.state.sources
        free = [i for i, s in enumerate(sources) if not c.is_integer(s.type)]
        for n in sorted({2, len(free)} - {0, 1}):
            for several in itertools.combinations(free, n):
                first = sources[several[0]].type
                good = []
                for type_ in [*c.types_near(first), first]:
                    changes = [
                        Change("type", i, type_) for i in several if sources[i].type != type_
                    ]
                    if len(changes) == n and self.ask(self.with_(*changes)):
                        good.append((changes, type_))
                if good:
                    told = self.words.together(good[0][0])
                    return [(0, replace(told, also=tuple(type_name(t) for _, t in good[1:])))]
        return []

    def _all_contiguous(self) -> list[tuple[float, Variant]]:
        changes = self._strided()
        if len(changes) < 2 or not self.ask(self.with_(*changes)):
            return []
        return [(0, self.words.together(self._needed(changes)))]

    def _several(self) -> list[tuple[float, Variant]]:
        """A tame variant that is supported, with as many changes undone as possible."""
        for changes in self._tame():
            if changes and self.ask(self.with_(*changes)):
                needed, answers = self._nearer(self._needed(changes))
                if len(needed) == 1:
                    return [(0, self.words.told(needed[0], answers.get(needed[0])))]
                return [(0, self.words.together(needed, answers))]
        return []

    def _tame(self) -> Iterator[list[Change]]:
        """Lists of changes: first to the types and sizes that backends are written for, then random
        ones."""
        groups = list(dict.fromkeys(g for g, _ in self.groups))
        first = {one.target: one for one in reversed(list(c.neutral(self.replay, self.state)))}
        params = list(first.values())
        kinds = (None, ("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("f32", "f16"))
        sizes = (None, 0, 1, 256, 128, 64, 32)
        for whole, some, size, types in itertools.product((0, 1), ([], params), sizes, kinds):
            yield self._tamed(some, [(g, size) for g in groups], types, bool(whole))
        rng = random.Random(0)
        for _ in range(_DRAWS):
            several = [(g, rng.choice(sizes)) for g in groups]
            yield self._tamed(rng.choice(([], params)), several, rng.choice(kinds), False)

    def _tamed(
        self,
        params: list[Change],
        sizes: list[tuple[c.Group, int | None]],
        types: tuple[str, str] | None,
        whole: bool,
    ) -> list[Change]:
        """The changes that the op allows, applied one after the other. Size 0 means the next
        multiple of 256; integer sources get another type only if `whole`."""
        changes = self._strided()
        state = self.with_(*changes)
        wanted = [*params]
        for i, source in enumerate(self.state.sources):
            if types and (whole or not c.is_integer(source.type)):
                wanted.append(Change("type", i, types[min(i, 1)]))
        for group, size in sizes:
            if size is not None:
                now = c.size_of(self.state, group[0])
                wanted.append(Change("dimension", group, size or -(-now // 256) * 256))
        for change in wanted:
            tried = c.apply(self.replay, state, change) if state is not None else None
            if tried is not None and tried != state and self.made(tried) is not None:
                state = tried
                changes.append(change)
        return changes

    def _needed(self, changes: list[Change]) -> list[Change]:
        """The changes without those that can be undone; tries the largest first."""
        left = sorted(changes, key=lambda one: -KINDS.index(one.kind))
        before = 0
        while len(left) != before:  # a change that another needs can be undone after that one
            before = len(left)
            for change in list(left):
                fewer = [one for one in left if one is not change]
                if fewer and self.ask(self.with_(*fewer)):
                    left = fewer
        return sorted(left, key=lambda one: KINDS.index(one.kind))

    def _nearer(self, changes: list[Change]) -> tuple[list[Change], dict[Change, dict[int, bool]]]:
        """Each change as small as possible given the others, and the answers to sizes."""
        said = {}
        for i, change in enumerate(changes):
            others = [one for one in changes if one is not change]
            state = self.with_(*others)
            if state is None:
                continue
            if change.kind == "type":
                now = self.state.sources[change.target].type
                for type_ in c.types_near(now):
                    closer = replace(change, value=type_)
                    if self.ask(self.with_(*others, closer)):
                        changes[i] = closer
                        break
            elif change.kind == "dimension":
                now = c.size_of(self.state, change.target[0])
                answers, best = self._answers(state, change.target, [change.value < now])
                if best:
                    changes[i] = replace(change, value=best[0])
                    said[changes[i]] = answers
        return changes, said
