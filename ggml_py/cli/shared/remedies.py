"""llama.cpp's options that would make a model quicker, each judged by planning with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .bar import bar
from .model_setup import ModelSetup, setup_of

if TYPE_CHECKING:
    from ...advice.finding import Finding
    from ...memory.shortfalls import Shortfall
    from ...models import Model
    from ...place.candidates import Given
    from ...place.judge import Changes, GraphShape, Judge, Measure
    from ...trace.answers.remedy import Remedy
    from .predicted import Predictions
    from .source import Source

_LOOKED_AT = 8  # smallest remedies whose plans are searched for findings
_MENDED = 0.5  # of a finding's bytes, at most, that a remedy leaves


class Remedies:
    """The remedies for a model that is planned with options of `source_options`: each is planned as
    llama.cpp would load it, and fits the devices' memory. Nothing is tried before it is asked for.
    """

    def __init__(
        self, source: Source, predictions: Predictions, seconds: float = float("inf")
    ) -> None:
        """After `seconds` of processor time no other options are tried."""
        self._source, self._predictions, self._seconds = source, predictions, seconds
        self._facts: dict[str, Any] = {}
        self._fitted: dict[str, Changes | None] = {}

    @cached_property
    def _setup(self) -> ModelSetup:
        return setup_of(self._source)

    @property
    def lacks(self) -> Sequence[Shortfall] | None:
        """Missing memory of devices with the given options, in the words of `memory`. None if the
        model could not be opened again."""
        from ...errors import AllocError, ModelError

        if self._setup.options["graphs"] != "ours":
            return None if self.judge.given.refused else self.judge.lacks
        try:
            with self._setup.by_libllama({}) as model:
                return model.shortfalls()
        except (AllocError, ModelError):
            return None

    def fitting(self) -> list[Remedy]:
        """Changes with which the model fits: the smallest one of one option, and the removal of all
        options for the place of weights."""
        from ...llama import LlamaModel
        from ...llama.room import fitting
        from ...place.candidates import undone

        again: Any = self._setup.opened  # of libllama, too: it is built
        with self._setup.by_libllama({}) as model, bar("looking for options that make it fit") as b:
            if not isinstance(model, LlamaModel):
                return []
            tried = fitting(model, again, self._reserve, 1, b)
        judge, given = self.judge, self._given
        judge.until = float("inf")
        ways = [(one.text, dict(one.options)) for one in tried]
        ways += [(given.words(changes), changes) for changes in undone(judge, given)]
        found = (judge.fitting(*way) for way in ways)
        return [one for one in found if one is not None]

    def found(self, findings: Iterable[Finding] = ()) -> list[Remedy]:
        """The quickest first; options that `findings` name are tried, too."""
        from ...place.candidates import remedies

        judge = self.judge
        if judge.given.refused or not self._facts:
            return []
        given = self._given
        named = (option.changes for one in findings for option in one.options if option.changes)
        with bar("looking for options that make it quicker") as judge.show:
            found = remedies(judge, given, map(self._added, named))
        judge.show = lambda _share: None
        return found

    @cached_property
    def best(self) -> Remedy | None:
        """The simplest of the quickest, with its plan of the graph that the verb was asked about.
        Its claim is about the judge's graph, which has half of the context before it."""
        from ...place.candidates import simplest

        best = simplest(self.found())
        if best is None:
            return None
        with self._setup.opened(best.changes) as model:
            return replace(best, plan=model.plan(*self._source.shape))

    @property
    def _given(self) -> Given:
        from ...place.candidates import Given

        known = {name: value for name, value in self._facts.items() if name != "n_ctx"}
        return Given(self._setup.options, fit=self._fit, **known)

    def judged(self, findings: Sequence[Finding], graph: int = -1) -> list[Finding]:
        """The findings about a graph of the judge, with the smallest remedy that mends each, or
        word that none was found."""
        found, judge = self.found(findings), self.judge
        was = self._sizes(judge.given.measures[graph]) if found else {}
        smallest = sorted(found, key=lambda one: (len(one.changes), -one.gain))
        looked_at = dict.fromkeys(one.flags for one in (*found[:2], *smallest[:_LOOKED_AT]))
        then = [
            (one, self._sizes(judge.trial(one.changes, measured=True).measures[graph]))
            for one in smallest if one.flags in looked_at
        ]  # fmt: skip
        judged = []
        for finding in findings:
            left = _MENDED * was.get(finding.id, -1)
            best = next((one for one, sizes in then if sizes.get(finding.id, 0) <= left), None)
            tried = best is not None or bool(finding.options)
            judged.append(replace(finding, remedy=best, tried=tried))
        return judged

    @cached_property
    def judge(self) -> Judge:
        """It has planned the graphs that decide."""
        from ...llama.shapes import check_shape
        from ...place.judge import Judge, shapes_of

        options = self._setup.options

        def shapes(model: Model) -> tuple[GraphShape, ...]:
            n_ctx = getattr(model, "n_ctx", options["n_ctx"] or 512)
            self._facts.update(_facts(model), n_ctx=n_ctx)
            most = getattr(model, "n_ctx_seq", n_ctx)  # of each sequence
            n_seq_max = self._source.shape[2]
            check_shape(
                *self._source.shape, n_ubatch=model.n_ubatch, n_ctx_seq=most, n_seq_max=n_seq_max
            )
            return shapes_of(*self._source.shape, most, model.n_ubatch)

        return Judge(
            self._setup.opened, shapes, self._predictions.judging, self._reserve, self._seconds
        )

    @property
    def _reserve(self) -> int:
        return int(self._setup.options["fit_target"][0]) << 20

    def _fit(self, changes: Changes) -> Changes | None:
        key = repr(changes)
        if key not in self._fitted:
            found = self._setup.fit({**changes, "n_ctx": self._facts["n_ctx"]})
            self._fitted[key] = found and {k: v for k, v in found.items() if k != "n_ctx"}
        return self._fitted[key]

    def _added(self, changes: Changes) -> Changes:
        """A finding's option: its overrides come before those given."""
        if "overrides" not in changes:
            return changes
        return {**changes, "overrides": (*changes["overrides"], *self._setup.options["overrides"])}

    def _sizes(self, measure: Measure) -> dict[str, int]:
        """Bytes by finding."""
        from ...plan import Plan

        found: dict[str, int] = {}
        for one in Plan.of(measure.plan).advice(machine=self._predictions.judging):
            found[one.id] = found.get(one.id, 0) + one.bytes
        return found


def _facts(model: Model) -> dict[str, Any]:
    """What `Given` needs to know about a model."""
    from ...llama.params import GPU_TYPES

    arch = model.metadata["general.architecture"]
    return {
        "n_layer": int(model.metadata[f"{arch}.block_count"]),
        "n_expert": int(model.metadata.get(f"{arch}.expert_count", 0)),
        "gpus": tuple(d.name for d in model.devices if d.type in GPU_TYPES),
    }
