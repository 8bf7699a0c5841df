"""The runnable examples of docs/: a ```python or ```sh block, followed by a ```text block with its
output. The examples of a page are run one after the other, in one folder.

`python tests/support/doc_pages.py` (`make docs`) runs them all and writes their output into the
pages.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
WITH_LIBLLAMA = [DOCS / "ANY_MODEL.md", DOCS / "MEMORY.md"]  # tests/llama runs these
WITH_PROGRAMS = [DOCS / "ANY_PROGRAM.md"]  # tests/record runs these, with upstream's programs
OTHERS = [*WITH_LIBLLAMA, *WITH_PROGRAMS]
# Use the commands of this Python.
ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
ENV |= {"COLUMNS": "100"}

_EXAMPLE = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
# Pages of commands that show no output are not sessions: tests/house/test_docs.py runs these.
PAGES = [
    page for page in sorted(DOCS.rglob("*.md")) if page not in OTHERS
    and any(m[1] == "python" or m[3] for m in _EXAMPLE.finditer(page.read_text()))
]  # fmt: skip

_FENCED = re.compile(r"^( *)(```+|~~~+)(.*?)\n(.*?)^\1\2$", re.M | re.S)
_INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")


class Block(NamedTuple):
    """A block of code or output, fenced or indented."""

    line: int
    kind: str  # the text after the fence
    text: str


def blocks(page):
    """All blocks of a page, fenced and indented, in order."""
    text, found = page.read_text(), []

    def blank(match):  # do not look for indented lines in fenced blocks
        found.append((match.start(), match[3], match[4]))
        return re.sub(r"[^\n]", "#", match[0])

    rest = _FENCED.sub(blank, text)
    found += [(m.start(), "", m[0]) for m in _INDENTED.finditer(rest)]
    return [Block(text.count("\n", 0, at) + 1, kind, code) for at, kind, code in sorted(found)]


def others(page):
    """The blocks that are neither run as the page's examples nor compared with their output."""
    if page not in (*PAGES, *OTHERS):
        return blocks(page)
    seen = [part for (_language, code), shown in examples(page) for part in (code, shown)]
    return [block for block in blocks(page) if block.text not in seen]


# The blocks of a page share their names, as one session.
_SESSION = """
import contextlib, io, json, subprocess, sys
names, printed = {}, []
for language, code in json.load(sys.stdin):
    if language == "sh":  # its exit status is part of what it tells
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        code = f"unset COLUMNS\\n{code}" if "|" in code else code  # nothing is wrapped in a pipe
        done = subprocess.run(["bash", "-c", code], **both, text=True, check=False)
        printed.append(done.stdout)
        continue
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "<page>", "exec"), names)
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def examples(page):
    """((language, code), output as shown) of each example; None if it shows no output."""
    return [((m[1], m[2]), m[3]) for m in _EXAMPLE.finditer(page.read_text())]


def run(codes):
    """The output of each example, run in order in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _SESSION], cwd=folder, input=json.dumps(codes), text=True,
            capture_output=True, check=False, timeout=120, env=ENV,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def shows(shown, printed):
    """Whether a page has what was printed. A line of "…" stands for lines that it leaves out."""
    return re.fullmatch("(?s:.*)".join(map(re.escape, shown.split("…\n"))), printed) is not None


def refresh(page):
    """Writes the current output of a page's examples into the page."""
    printed = iter(run([code for code, _shown in examples(page)]))

    def shown(match):
        out = "".join(line.rstrip() + "\n" for line in next(printed).splitlines())
        return f"```{match[1]}\n{match[2]}```\n" + (f"\n```text\n{out}```\n" if out else "")

    page.write_text(_EXAMPLE.sub(shown, page.read_text()))


if __name__ == "__main__":
    for page in (*PAGES, *OTHERS):
        if not sys.argv[1:] or page.stem in sys.argv[1:]:
            refresh(page)
