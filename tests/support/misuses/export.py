"""Files of plans."""

import numpy as np

from ..misuses import misuse


def _plan(e):
    return e.scheduler.plan(e.graph)


def _recorded(e):
    e.allocated().x.set(np.ones((3, 8)))
    with e.scheduler.record() as recording:
        e.scheduler.compute(e.graph)
    return recording.run


MISUSES = [
    misuse("export-no-suffix", lambda e: _plan(e).export(e.tmp_path / "plan"),
           ValueError, "the suffix of", ".html or .htm (html)"),
    misuse("export-pdf", lambda e: _plan(e).export(str(e.tmp_path / "plan.pdf")),
           ValueError, "plan.pdf", "known are .json (json)"),
    misuse("export-format", lambda e: _plan(e).export(e.tmp_path / "p.html", "bmp"),
           ValueError, "format 'bmp'", "known are .json (json)"),
    misuse("export-number", lambda e: _plan(e).export(5),
           TypeError, "int 5", "path: expected a path"),
    misuse("export-none", lambda e: _plan(e).export(None, "html"),
           TypeError, "NoneType", "path: expected a path"),
    misuse("export-other-a-file", lambda e: _plan(e).export(e.tmp_path / "p.html", other="q.json"),
           TypeError, "other='q.json'", "Plan.from_json reads one"),
    misuse("export-two-as-text", lambda e: _plan(e).export(e.tmp_path / "p.txt", other=_plan(e)),
           ValueError, "text shows only one plan", "two can be compared in html, markdown"),
    misuse("export-run", lambda e: _recorded(e).export(e.tmp_path / "r.csv"),
           ValueError, "a run can only be shown alone", "only in json, html, chrome"),
]  # fmt: skip
