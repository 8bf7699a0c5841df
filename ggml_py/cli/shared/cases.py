"""The cases of `compare` and `bisect`: models with options, saved plans, the plans of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ...files.kinds import MODEL, RECORD
from .records import whole_plans
from .source import ADDRESS, FOLDER, Source

if TYPE_CHECKING:
    from ...releases import Work

# For a verb that passes unknown options on to `plan`, in their order.
PLAN_OPTIONS = {"ignore_unknown_options": True}


def cases_of(words: Sequence[str]) -> list[Work]:
    """A case for each model, each saved plan, and each plan of a record. The words are these
    sources, followed by options of `ggml-py plan`.

    A folder stands for the cases kept there (`releases.kept`). With devices (-d) among the options,
    saved graphs are planned on these devices, and each release asks them. Otherwise saved graphs
    are planned with the recorded answers. Each plan of a record then comes after the earlier plans
    of its scheduler. Without sources: `rule_cases`. Raises usage errors, and ValueError for other
    files.
    """
    from ...releases import Work, rule_cases
    from ...releases.kept import kept_in, kept_of_record

    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    sources, options = [Source(word, "compare") for word in words[:first]], tuple(words[first:])
    if not sources and options:
        raise click.UsageError(f"a model, saved plan or record comes before {options[0]}")
    for source in sources:
        if source.kind is FOLDER and options:
            raise click.UsageError(
                f"{source} is a folder of kept plans, which takes no options of ggml-py plan: "
                f"{' '.join(options)}"
            )
    if not sources:
        return rule_cases()
    on_devices = bool(options) and _on_devices(sources[0].given, options)
    found: list[Work] = []
    for source in sources:
        path = source.given if source.kind is ADDRESS else str(Path(source.given).resolve())
        if source.kind is FOLDER:
            found += [kept.work for kept in kept_in(Path(path))]
        elif source.kind is RECORD:
            whole = whole_plans(source.record, str(source))
            for (one, _plan), kept in zip(
                whole, kept_of_record(source.record, str(source)), strict=True
            ):
                words = (path, "--plan", str(one.index), *options)
                found.append(Work(kept.work.name, words) if on_devices else kept.work)
        elif source.kind in (MODEL, ADDRESS) or on_devices:
            found.append(Work(str(source), (path, *options)))
        elif options:
            raise click.UsageError(
                f"{source} is a saved plan, which takes options only with -d: the devices to plan "
                f"the graph on. Given: {' '.join(options)}"
            )
        else:
            ((_label, plan),) = source.plans()
            plan.capture.check_answers()
            found.append(Work(str(source), plan=plan))
    return found


def _on_devices(source: str, options: Sequence[str]) -> bool:
    """Whether devices are among the options of `plan`. Raises its usage errors."""
    from ..plan import command as plan

    parent = click.get_current_context()
    with plan.make_context("plan", [source, *options], parent=parent) as context:
        given = context.get_parameter_source("devices")
        return given is ParameterSource.COMMANDLINE
