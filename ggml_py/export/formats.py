"""The formats that a plan can be written in, and how a file's name tells which."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..cost.machine import Machine
from ..files.foreign import visible
from ..files.writing import write_whole
from ..trace.planned import Planned
from ..trace.recorded import Recorded
from ..typed import typed

if TYPE_CHECKING:
    from .page.first_screen import ModelAnswers


class Exporter(NamedTuple):
    """One format. `module` (in this package) has `render(plan)`. It returns text, bytes, or data
    for JSON. With `compares` it also takes `other` (a plan). With `predicts` it takes a `machine`,
    and with both `tried` (answers from the model). `runs` is the module for runs, "" if there is
    none."""

    name: str
    suffixes: tuple[str, ...]
    what: str
    module: str
    compares: bool = False
    runs: str = ""
    predicts: bool = False


EXPORTERS = (
    Exporter(
        "json",
        (".json",),
        "everything, can be read back (docs/plan.schema.json)",
        "json.plan_file",
        runs="json.run_file",
    ),
    Exporter(
        "html",
        (".html", ".htm"),
        "a page to look at in a browser",
        "page.to_html",
        True,
        "page.to_html",
        True,
    ),
    Exporter(
        "chrome",
        (".trace.json",),
        "Chrome's trace format, for Perfetto",
        "to_chrome",
        runs="to_chrome",
        predicts=True,
    ),
    Exporter(
        "speedscope",
        (".speedscope.json",),
        "for speedscope.app: flame graphs of layers, splits and nodes",
        "to_speedscope",
        runs="to_speedscope",
        predicts=True,
    ),
    Exporter(
        "pprof",
        (".pprof", ".pb"),
        "for go tool pprof: time by backend, layer, split and node",
        "to_pprof",
        runs="to_pprof",
        predicts=True,
    ),
    Exporter(
        "markdown",
        (".md",),
        "for pasting into an issue: short, the rest folded",
        "to_markdown",
        True,
    ),
    Exporter("dot", (".dot", ".gv"), "for Graphviz: backends' colours, layers folded", "to_dot"),
    Exporter(
        "model-explorer", (".explorer.json",), "for Google's Model Explorer", "to_model_explorer"
    ),
    Exporter("svg", (".svg",), "a picture of the lanes", "to_svg"),
    Exporter("csv", (".csv",), "a line per node, for spreadsheets and DataFrames", "to_csv"),
    Exporter("text", (".txt",), "upstream's GGML_SCHED_DEBUG=2 layout", "to_text"),
)


@typed
def exporter_for(path: str | Path, name: str | None = None, runs: bool = False) -> Exporter:
    """The format called `name`, otherwise the one of the file's suffix, which ".gz" may follow.
    With `runs` only formats that show runs.

    Raises ValueError that lists the formats.
    """
    able = [exporter for exporter in EXPORTERS if exporter.runs or not runs]
    for exporter in able:
        if exporter.name == name:
            return exporter
    plain = str(path).lower().removesuffix(".gz")
    found = [(len(s), e) for e in able for s in e.suffixes if plain.endswith(s)]
    if name is None and found:
        return max(found, key=lambda f: f[0])[1]
    known = ", ".join(f"{' or '.join(e.suffixes)} ({e.name})" for e in able)
    asked = f"format {name!r}" if name is not None else f"the suffix of {path}"
    of = " for a run" if runs else ""
    raise ValueError(f"{asked} is not known{of}; known are {known}, each with .gz too")


def render(
    source: Planned | Recorded,
    exporter: Exporter,
    other: Planned | None = None,
    machine: Machine | None = None,
    tried: ModelAnswers | None = None,
) -> str | bytes:
    """The content of the file; a format that shows times has those predicted for `machine`. Raises
    ValueError for an `other` if the format shows only one plan, and for a run if it shows none."""
    is_run = isinstance(source, Recorded)
    if is_run and (not exporter.runs or other is not None):
        able = ", ".join(e.name for e in EXPORTERS if e.runs)
        raise ValueError(f"a run can only be shown alone, and only in {able}")
    if other is not None and not isinstance(other, Planned):
        raise TypeError(f"other={other!r}: expected a Plan; Plan.from_json reads one from a file")
    if other is not None and not exporter.compares:
        able = ", ".join(e.name for e in EXPORTERS if e.compares)
        raise ValueError(f"{exporter.name} shows only one plan; two can be compared in {able}")
    function: Callable[..., object] = importlib.import_module(
        f".{exporter.runs if is_run else exporter.module}", __package__
    ).render
    given: dict[str, object] = {"other": other} if exporter.compares else {}
    if exporter.predicts:
        given["machine"] = machine
        if exporter.compares:  # a page
            given["tried"] = tried
    content = function(source, **given)
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return visible(content) if exporter.name == "text" else content
    return json.dumps(content, separators=(",", ":"))


def export(
    source: Planned | Recorded,
    path: str | Path,
    format: str | None = None,
    other: Planned | None = None,
    force: bool = False,
    machine: Machine | None = None,
    tried: ModelAnswers | None = None,
) -> None:
    """See `Plan.export` and `Run.export`. `tried` are answers for a page that need the model."""
    exporter = exporter_for(path, format)
    if not force and Path(path).exists():
        raise FileExistsError(f"{path} already exists: force=True replaces it")
    content = render(source, exporter, other, machine, tried)
    write_whole(path, content if isinstance(content, bytes) else content.encode(), force)
