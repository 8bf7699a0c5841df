"""A page of the site for each verb, made from its help when the site is built: a hook of
mkdocs.yml.

`python -m tests.support.verb_pages` (`make docs`) writes the tables of options in docs/CLI.md.
"""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click

from ggml_py.cli import GROUPS, cli, generate, plan
from ggml_py.cli.shared.help_groups import HELP
from ggml_py.cli.shared.model_options import LOAD_OPTIONS, SHAPE_OPTIONS
from ggml_py.cli.shared.verb import Told, Verb
from ggml_py.llama.options import ASKED, TABLE
from ggml_py.llama.sampling import Sampling

REPO = Path(__file__).parents[2]
CLI = REPO / "docs" / "CLI.md"
FOLDER = "verbs"
STATUS = "0 on success, 1 on failure, 2 for wrong usage, 130 after Ctrl-C."
VERBS = {group: [module.command for module in verbs] for group, verbs in GROUPS.items()}


def on_config(config):
    """Puts the pages into the navigation of the reference, in the groups of `ggml-py --help`."""
    listed = [{group: [{v.name: f"{FOLDER}/{v.name}.md"} for v in verbs]}
              for group, verbs in VERBS.items()]  # fmt: skip
    reference = next(part["Reference"] for part in config.nav if "Reference" in part)
    reference.insert(1, {"Verbs": listed})


def on_files(files, config):
    """Makes the pages."""
    from mkdocs.structure.files import File

    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        files.append(File.generated(config, f"{FOLDER}/{verb.name}.md", content=page(verb)))


def page(verb):
    """The page of a verb, in Markdown."""
    top = click.Context(cli, info_name="ggml-py")
    context = click.Context(verb, info_name=verb.name, parent=top)
    inner = [click.Context(c, info_name=name, parent=context)
             for name, c in getattr(verb, "commands", {}).items()]  # fmt: skip
    lines = [f"# ggml-py {verb.name}", "", f"{verb.get_short_help_str(200)}", "", "## Synopsis", ""]
    shown = inner or [context]
    synopses = (" ".join([c.command_path, *c.command.collect_usage_pieces(c)]) for c in shown)
    lines += ["```text", *synopses, "```", "", "## What it does", ""]
    for ctx in dict.fromkeys((context, *inner)):
        lines += [f"### {ctx.command_path}", ""] if inner and ctx is not context else []
        lines += [line for part in Told.of(ctx.command).text for line in (*_paragraph(part), "")]
    for ctx in shown:
        lines += _options(ctx, f" of {ctx.command_path}" if inner else "")
    told = [Told.of(ctx.command) for ctx in dict.fromkeys((context, *inner))]
    own = " ".join(" ".join(part.split()) for one in told for part in one.status)
    lines += ["## Exit status", "", *([_marked(own), ""] if own else []), STATUS, ""]
    if examples := [line for one in told for line in one.examples]:
        lines += ["## Examples", "", "```sh", *examples, "```", ""]
    if rows := _keys(verb.name):
        lines += ["## What --json prints", "", "| command | keys |", "|---|---|", *rows, ""]
    return "\n".join([*lines, "## See also", "", *_see_also(verb), ""])


def _paragraph(text):
    verbatim = text.partition("\b\n")[2]
    if not verbatim:
        return [_marked(" ".join(text.split()))]
    return ["```text", *verbatim.splitlines(), "```"]


def _options(context, of):
    if not isinstance(context.command, Verb):
        done = subprocess.run([sys.executable, REPO / "build_ggml.py", "--help"], text=True,
                              capture_output=True, check=True)  # fmt: skip
        return ["## Options", "", "```text", *done.stdout.splitlines(), "```", ""]
    lines = [f"## Options{of}", ""]
    for group, rows in context.command.sections(context).items():
        if group == HELP:
            continue
        cells = (f"| `{_cell(terms)}` | {_cell(_marked(told))} |" for terms, told in rows)
        lines += [f"### {group}", "", "| option | |", "|---|---|", *cells, ""]
    epilog = context.command.epilog
    return [*lines, *([*_paragraph(epilog), ""] if epilog else [])]


def _marked(text):
    """Text in which Markdown and HTML mean nothing, outside of backquotes."""
    parts = text.split("`")
    parts[::2] = (re.sub(r"([\\*_<>\[\]|#])", r"\\\1", part) for part in parts[::2])
    return "`".join(parts)


def _cell(text):
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _keys(verb):
    """The rows of docs/CLI.md about what `--json` prints."""
    rows = CLI.read_text().partition("\n## Keys\n")[2].partition("\n## ")[0].splitlines()
    return [_up(row) for row in rows if re.match(rf"\| `{verb}[ `]", row)]


def _up(text):
    """Text of docs/CLI.md with links from another folder."""
    return re.sub(r"\]\((?=\w)", "](../", text.replace("](#", "](CLI.md#"))


def _see_also(verb):
    links = dict.fromkeys(
        (text, target) for row in CLI.read_text().splitlines()
        if re.match(rf"\| `{verb.name}[ `]", row) for text, target in _LINK.findall(row)
    )  # fmt: skip
    group = next(verbs for verbs in VERBS.values() if verb in verbs)
    named = re.findall(r"`ggml-py ([\w-]+)", verb.help or "")
    verbs = dict.fromkeys([v for v in named if v in cli.commands] + [v.name for v in group])
    found = [f"- [ggml-py {name}]({name}.md)" for name in verbs if name != verb.name]
    found += [f"- {_up(f'[{text}]({target})')}" for text, target in links]
    return [*found, "- [The command line, for programs](../CLI.md)"]


def tables():
    """The tables of docs/CLI.md by their first line: options of a model with the keywords of
    `load`, options of sampling with those of `Sampler`."""
    context = click.Context(plan.command)
    names = {option.verb or option.name: option.name for option in TABLE} | _KEYWORDS
    of_model = [o for o in (*LOAD_OPTIONS, *SHAPE_OPTIONS) if o.name in names and o.group != ASKED]
    known = {f.name for f in fields(Sampling)}
    of_sampling = [o for o in generate.command.params if o.name in known]
    return {
        "| option | `load` | |": [_row(o, names[o.name], context) for o in of_model],
        "| option | `Sampler` | |": [_row(o, o.name, context) for o in of_sampling],
    }


def _row(option, keyword, context):
    flags = " / ".join(
        ", ".join(f"`{flag}`" for flag in flags)
        for flags in (option.opts, option.secondary_opts) if flags
    )  # fmt: skip
    told = " ".join(option.get_help_record(context)[1].split())
    return f"| {flags} | `{keyword}` | {_cell(_marked(told))} |"


def with_tables(text):
    """The page with its tables as they should be."""
    for head, rows in tables().items():
        before, _, rest = text.partition(f"{head}\n|---|---|---|\n")
        after = rest.partition("\n\n")[2]
        text = "\n".join([before + head, "|---|---|---|", *rows, "", after])
    return text


_KEYWORDS = {
    "profile_set": "devices", "no_build": "build=False", "graphs": "graphs", "fit": "fit",
    "fit_target": "fit", "fit_ctx": "fit",
}  # fmt: skip
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


if __name__ == "__main__":
    CLI.write_text(with_tables(CLI.read_text()))
