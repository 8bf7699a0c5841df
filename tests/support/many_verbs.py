"""Runs command lines one after the other (a list of lists of words on standard input) and prints
what became of each, as JSON: exit status, standard output, standard error."""

import contextlib
import io
import json
import sys

from ggml_py.cli import main


def _ran(words):
    sys.argv = ["ggml-py", *words]
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    return status, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    print(json.dumps([_ran(words) for words in json.load(sys.stdin)]))
