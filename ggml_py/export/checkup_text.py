"""A checkup on a terminal and in Markdown: at most twenty lines."""

from __future__ import annotations

from collections.abc import Iterator

from ..advice.checkup import Checkup, Setback
from ..files.foreign import fenced, markdown
from .wrapping import wrapped

MOST = 20  # lines
_WIDTH = 80


def lines(found: Checkup) -> list[str]:
    """The lines on a terminal of 80 columns. If they are too many, the last reasons go."""
    for n in range(len(found.reasons), -1, -1):
        shown = [*_head(found), *_reasons(found.reasons[:n]), *_tail(found)]
        if len(shown) <= MOST:
            return shown
    return [*shown[: MOST - 1], "… --json has all of it"]


def _head(found: Checkup) -> Iterator[str]:
    yield from wrapped(found.verdict)
    rates = [f"{p.what}: {p.rate} ({p.known_by})" for p in found.phases if p.rate]
    if len(rates) > 1:
        yield from wrapped("; ".join(rates), "  ")
    for text in found.made:
        yield from wrapped(text, "  ")


def _reasons(reasons: tuple[Setback, ...]) -> Iterator[str]:
    said: set[str] = set()
    for i, reason in enumerate(reasons, 1):
        first = f"{i}. {reason.headline}"
        yield f"{first:{_WIDTH - len(reason.rule) - 1}} {reason.rule}"
        if reason.cost:
            yield f"   {reason.cost}"
        remedy = reason.remedy
        if remedy is None:
            yield from wrapped(reason.advice, "   > ")[:2] if reason.advice else ()
            continue
        if remedy.flags in said:
            yield f"   > {remedy.flags}, too"
        else:
            yield from wrapped(str(remedy), "   > ")
        said.add(remedy.flags)


def _tail(found: Checkup) -> Iterator[str]:
    for device in found.memory:
        yield f"{device.device}: {device}"
    if found.not_known:
        yield from wrapped(f"not known: {'; '.join(found.not_known)}")
    if found.command:
        yield f"run:  {found.command}"
    if found.more:
        yield f"more: {'; '.join(found.more)}"


def markdown_of(found: Checkup) -> str:
    """The same as Markdown."""
    rows = [f"**{markdown(found.verdict)}**", ""]
    rows += [f"- {markdown(p.what)}: {p.rate} ({p.known_by})" for p in found.phases if p.rate]
    rows += [f"- {markdown(text)}" for text in found.made]
    if found.reasons:
        rows += ["", "| reason | cost | change |", "|---|---|---|"]
        rows += [
            f"| {markdown(r.headline)} ({r.rule}) | {markdown(r.cost)} | "
            f"{markdown(str(r.remedy)) if r.remedy else '–'} |"
            for r in found.reasons
        ]
    if found.memory:
        rows += ["", "| device | memory |", "|---|---|"]
        rows += [f"| {markdown(d.device)} | {markdown(str(d))} |" for d in found.memory]
    rows += ["", *(f"Not known: {markdown(text)}  " for text in found.not_known)]
    if found.command:
        rows += ["", *fenced(found.command, "sh")]
    return "\n".join(rows)
