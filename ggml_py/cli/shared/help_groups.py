"""Heading of each option in a verb's help, and whether `--help` shows it. llama.cpp's options have
both in `llama.options.TABLE`; all others are here, by the name of their parameter."""

from __future__ import annotations

from dataclasses import fields

import click

from ...llama.options import ASKED, CONTEXT, DEVICES, PLACEMENT
from ...llama.sampling import Sampling

SAMPLING, BUILDS, TIME, OUTPUT, HELP = (
    "Sampling", "Builds and releases", "Time", "Output", "Help",
)  # fmt: skip
GROUPS = (ASKED, DEVICES, PLACEMENT, CONTEXT, SAMPLING, BUILDS, TIME, OUTPUT, HELP)

# "*" marks the usual ones.
_NAMES = {
    ASKED: "_model more prompt* tokens* chat* system_prompt n_predict* n_prompt* n_gen* depths* "
    "n_depth n_parallel workloads ignore_eos context_shift n_keep n_tokens* n_past between* limit "
    "changes* numbers when dump ask* renames* good* bad* records* ops* types cache_types run* "
    "as_environment of every first allow update plans_only support_only per_op against as_run "
    "fit_print",
    DEVICES: "devices* profile_set",
    PLACEMENT: "weights fit fit_target fit_ctx reserve",
    CONTEXT: "n_threads*",
    SAMPLING: " ".join(f.name for f in fields(Sampling) if f.name != "temperature")
    + " temperature*",
    BUILDS: "graphs no_build upstream releases source library defines jobs",
    TIME: "machine_path* machine_paths* analyze seconds plans measuring* program rounds",
    OUTPUT: "output* force text passes steps order cpu advice* verbose* at_peak* no_changes html* "
    "junit markdown* format_ open_* op_tests case* name no_names max_size quiet as_json*",
}  # fmt: skip
_ROWS = {
    name.removesuffix("*"): (group, name.endswith("*"))
    for group, names in _NAMES.items() for name in names.split()
}  # fmt: skip


def group_of(option: click.Option) -> str:
    """The heading that it stands under."""
    if option.is_eager:  # --help and --help-all
        return HELP
    return str(getattr(option, "group", None) or _row(option)[0])


def is_usual(option: click.Option) -> bool:
    """Whether `--help` shows it; `--help-all` shows all."""
    usual = getattr(option, "usual", None)
    return option.is_eager or bool(_row(option)[1] if usual is None else usual)


def _row(option: click.Option) -> tuple[str, bool]:
    return _ROWS.get(str(option.name), (ASKED, True))
