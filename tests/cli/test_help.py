"""Each verb's help in 80 columns: options in groups, usual ones or all; the site's page of it."""

import re

import click
import pytest
from click.testing import CliRunner

from ggml_py.cli import cli
from ggml_py.cli.shared import help_groups
from ggml_py.cli.shared.verb import Told, Verb

from ..support import verb_pages

VERBS = {
    " ".join(path): command
    for name, top in cli.commands.items()
    for path, command in [((name,), top), *(((name, n), c) for n, c in
                                            getattr(top, "commands", {}).items())]
    if isinstance(command, Verb)
}  # fmt: skip
GROUPS = [f"{group}:" for group in help_groups.GROUPS]
MOST = 16  # options that `--help` shows


def told(*words):
    done = CliRunner().invoke(cli, words, prog_name="ggml-py")
    assert done.exit_code == 0, done.output
    return done.output


def listed(text, command):
    """The options of a command that a help lists."""
    lists = text[text.index("\n" + next(line for line in text.splitlines() if line in GROUPS)):]
    names = set(re.findall(r"^  (-[\w-]+)", lists, re.M))
    return [o for o in options(command) if names & {*o.opts, *o.secondary_opts}]


def options(command):
    found = (o for o in command.get_params(click.Context(command)) if isinstance(o, click.Option))
    return [option for option in found if not option.hidden]


def test_every_option_has_a_group_and_no_row_is_left_over():
    own = (o for v in VERBS.values() for o in options(v) if not getattr(o, "group", None))
    names = {str(o.name) for o in own if not o.is_eager}
    assert names == set(help_groups._ROWS)
    assert {help_groups.group_of(o) for v in VERBS.values() for o in options(v)} == set(
        help_groups.GROUPS
    )


@pytest.mark.parametrize("verb", VERBS)
def test_it_shows_the_usual_options_by_group(verb):
    short, everything = told(*verb.split(), "--help"), told(*verb.split(), "--help-all")
    known, shown = options(VERBS[verb]), listed(short, VERBS[verb])
    assert listed(everything, VERBS[verb]) == known
    left = len(known) - len(shown)
    said = f"\n{left} more options: ggml-py {verb} --help-all\n"
    assert short.endswith(said) if left else "more options" not in short
    assert len(shown) <= MOST and all(help_groups.is_usual(o) for o in shown if left)
    for text in (short, everything):
        headings = [line for line in text.splitlines() if line in GROUPS]
        assert headings == sorted(headings, key=GROUPS.index) and headings[-1] == "Help:"


@pytest.mark.parametrize("verb", VERBS)
def test_it_is_aligned_in_80_columns(verb):
    text = told(*verb.split(), "--help-all")
    assert max(map(len, text.splitlines())) <= 80
    columns = {m.end() for m in re.finditer(r"^  -.*?\S  +(?=\S)", text, re.M)}
    starts = {line_start(text, at) for at in columns}
    assert len(starts) <= 1, starts


def line_start(text, at):
    return at - text.rfind("\n", 0, at) - 1


def test_what_help_leaves_out_works_and_is_known():
    assert "--swa-full" not in told("plan", "--help")
    done = CliRunner().invoke(cli, ["plan", "m.gguf", "--swa-ful"], prog_name="ggml-py")
    assert done.exit_code == 2 and "'--swa-full'" in done.output


@pytest.mark.parametrize("verb", cli.commands)
def test_its_page_has_all_of_it(verb):
    page = verb_pages.page(cli.commands[verb])
    for heading in ("Synopsis", "What it does", "Options", "Exit status", "See also"):
        assert f"\n## {heading}" in page, heading
    for name, command in VERBS.items():
        if name.split()[0] == verb:
            assert all(line in page for line in Told.of(command).examples)
            assert all(o.opts[0] in page for o in options(command) if not o.is_eager)
