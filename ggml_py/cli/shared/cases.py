"""The cases of `compare` and `bisect`: models with options, saved plans, the plans of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .records import is_record, read_record
from .source import saved_plan

if TYPE_CHECKING:
    from ...releases import Work

_DEVICES = ("-d", "--device")


def cases_of(sources: Sequence[str], options: Sequence[str]) -> list[Work]:
    """A case for each model and saved plan, and for each plan of a record.

    With devices (-d) among the options, saved graphs are planned on these, which each release asks;
    otherwise with the answers that were recorded. Without sources: `rule_cases`.
    """
    from ...releases import Work, rule_cases

    if not sources:
        return rule_cases()
    on_devices = any(word in _DEVICES or word.startswith("-d") for word in options)
    found: list[Work] = []
    for source in sources:
        path = str(Path(source).resolve())
        if is_record(source):
            for one in read_record(source).plans:
                name = f"{source} {one.index} ({one.label})"
                words = (path, "--plan", str(one.index), *options)
                found.append(Work(name, words) if on_devices else Work(name, plan=one.plan))
            continue
        plan = saved_plan(source)
        if plan is None or on_devices:
            found.append(Work(source, (path, *options)))
        elif options:
            raise click.UsageError(
                f"{source} is a saved plan, which takes options only with -d: the devices to plan "
                f"the graph on. Given: {' '.join(options)}"
            )
        else:
            plan.capture.check_answers()
            found.append(Work(source, plan=plan))
    return found
