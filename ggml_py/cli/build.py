"""``ggml-py build``"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

PACKAGE = Path(__file__).resolve().parent.parent


def find_build_script() -> Path:
    """The path of build_ggml.py: beside the package in a source tree, inside an installed one."""
    for folder in (PACKAGE.parent, PACKAGE / "_build"):
        script = folder / "build_ggml.py"
        if script.exists():
            return script
    raise click.ClickException(
        f"build_ggml.py is neither in {PACKAGE.parent} nor in {PACKAGE / '_build'}"
    )


@click.command(
    "build",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Build ggml: another release, other backends. Options: those of build_ggml.py (try --help)."""
    script = find_build_script()
    sys.argv = ["ggml-py build", *arguments]
    runpy.run_path(str(script), run_name="__main__")
