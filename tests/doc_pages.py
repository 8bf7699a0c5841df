"""The runnable examples of docs/: a ```python block, and after it what it prints, a ```text block.

`python tests/doc_pages.py` runs them all and writes what they print into the pages (`make docs`).
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
NAMES = ("SCHEDULER.md", "EXPLAIN.md", "PROFILES.md", "DEVICES.md", "RUN.md")
PAGES = [DOCS / name for name in NAMES]
PAGES += sorted((DOCS / "advice").glob("GP*.md"))
PAGES = [page for page in PAGES if page.exists()]

_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)

# The blocks of a page share their names, as one session.
_SESSION = """
import contextlib, io, json, sys
names, printed = {}, []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "<page>", "exec"), names)
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def examples(page):
    """(code, what it prints as shown) of each example; None for one that shows nothing."""
    return [(m[1], m[2]) for m in _EXAMPLE.finditer(page.read_text())]


def run(codes):
    """What each prints, run in order in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _SESSION], cwd=folder, input=json.dumps(codes), text=True,
            capture_output=True, check=False, timeout=120,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def refresh(page):
    """Writes into a page what its examples print now."""
    printed = iter(run([code for code, _shown in examples(page)]))

    def shown(match):
        out = "".join(line.rstrip() + "\n" for line in next(printed).splitlines())
        return f"```python\n{match[1]}```\n" + (f"\n```text\n{out}```\n" if out else "")

    page.write_text(_EXAMPLE.sub(shown, page.read_text()))


if __name__ == "__main__":
    for page in PAGES:
        refresh(page)
