"""``ggml-py build``"""

from __future__ import annotations

import runpy
import sys

import click

from ..builds.script import find_script


@click.command(
    "build",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Build ggml: another release, other backends. Options: those of build_ggml.py (try --help)."""
    script = find_script()
    sys.argv = ["ggml-py build", *arguments]
    runpy.run_path(str(script), run_name="__main__")
