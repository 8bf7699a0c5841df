"""Answers of the command line about a file, for the page `open`, which has no terminal."""

import contextlib
import io
import json
import sys
from pathlib import Path

from ggml_py.cli import main
from ggml_py.files.kinds import N_HEAD, RECORD, kind_of
from ggml_py.trace.names import counted

PAGE = "/tmp/ggml-py-page.html"
WHOLE = ""  # in place of a plan's number


def ran(*words):
    """The exit status, standard output and standard error of `ggml-py WORDS`."""
    sys.argv = ["ggml-py", *words]
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    return status, out.getvalue(), err.getvalue()


def answer(name, number=None):
    """A file's verdict and page, as JSON. A record has a page, and so has its plan with that
    number. `error` is there in place of them."""
    name = f"./{name}" if name.startswith("-") else name  # it is no option
    with Path(name).open("rb") as file:
        is_record = kind_of(file.read(N_HEAD)) is RECORD
    found = {"plans": []}
    if number is None:
        status, found["verdict"], error = ran("check", name)
        if status and not found["verdict"]:
            return _error(error)
        if is_record:
            _status, listed, _notes = ran("view", name, "--json")
            plans = json.loads(listed)["plans"]
            found["plans"] = [(WHOLE, "the whole record")]
            found["plans"] += [(plan["plan"], _said(plan)) for plan in plans]
        number = WHOLE
    chosen = () if number == WHOLE else ("--plan", str(number))
    status, _out, notes = ran("view", name, *chosen, "-o", PAGE, "--force")
    if status:
        return _error(notes)
    notes = " ".join(line for line in notes.splitlines() if not line.startswith(PAGE))
    page = Path(PAGE).read_text("utf-8")
    return json.dumps({**found, "number": number, "page": page, "notes": notes})


def _error(text):
    return json.dumps({"error": text.removeprefix("error: ").partition("\nUsage: ")[0].strip()})


def _said(plan):
    tokens = "" if plan["n_tokens"] is None else f" of {plan['n_tokens']}"
    sizes = (counted(plan[f"n_{what}s"], what) for what in ("node", "split"))
    times = counted(plan["computed"], "time")
    return f"{plan['plan']}: {plan['kind']}{tokens}, {', '.join(sizes)}, computed {times}"
