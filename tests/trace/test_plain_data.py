"""What is plain data needs no native library: on another machine, in a notebook, in a viewer."""

import json
import subprocess
import sys

from ggml_py.export import formats

from ..support import graphs, imports
from ..support.sim_net import Net

PROGRAM = """
import importlib, json, sys
sys.modules["ggml_py._ggml"] = None
for name in sys.argv[2:]:
    importlib.import_module("ggml_py." + name)
import ggml_py
from ggml_py.export import formats
plan = ggml_py.Plan.from_json(sys.argv[1])
node = plan.node("h")
files = {}
for exporter in formats.EXPORTERS:
    plan.export("x", exporter.name, force=True)
    files[exporter.name] = len(open("x", "rb").read())
print(json.dumps({
    "headline": plan.headline(), "text": plan.text(), "passes": plan.passes(),
    "reference": plan.reference == plan, "steps": len(plan.steps),
    "explain": str(plan.explain("h")), "why_not": str(plan.why_not("h", "CPU")),
    "what_if": plan.what_if(pins={"out": "CPU"}).headline(),
    "advice": [str(f) for f in plan.advice()], "diff": str(plan.diff(plan)),
    "log": ggml_py.Plan.from_debug_log(plan.text()).headline(), "cause": str(node.cause),
    "shares": [str(s) for s in plan.shares()], "files": files,
    "notebook": plan._repr_html_() + plan.diff(plan)._repr_html_(),
    "native": [m for m in sys.modules if m == "ggml_py.boundary.ffi"],
}))
"""

# Everything on these floors, the ground included.
PLAIN = sorted(
    name
    for name in imports.modules()
    if (room := imports.room_of(name))
    and (room[0] == 0 or room[1] in imports.PLAIN)
)

RUN_PROGRAM = """
import json, sys
sys.modules["ggml_py._ggml"] = None
import ggml_py
from ggml_py.export import formats
run = ggml_py.Run.from_json(sys.argv[1])
files = {}
for exporter in formats.EXPORTERS:
    if exporter.runs:
        run.export("x", exporter.name, force=True)
        files[exporter.name] = open("x", encoding="utf-8", errors="replace").read()
run.to_json("again.json.gz")
print(json.dumps({
    "summary": str(run.summary()), "notebook": run._repr_html_(), "said": repr(run),
    "splits": [[s.index, s.backend, s.start, s.end] for c in run.computes for s in c.splits],
    "explain": str(run.computes[0].plan.explain("h")), "files": files,
    "again": ggml_py.Run.from_json("again.json.gz") == run,
    "native": [m for m in sys.modules if m == "ggml_py.boundary.ffi"],
}))
"""


def written(source, exporter):
    content = formats.render(source, exporter)
    return content if isinstance(content, bytes) else content.encode()


def read_back(source, exporter):
    return written(source, exporter).decode("utf-8", "replace")


def test_everything_about_a_saved_run_works_without_the_native_module(tmp_path):
    with Net() as net, net.scheduler.record() as recording:
        net.run()
    run = recording.run
    run.to_json(tmp_path / "r.json")
    done = subprocess.run(
        [sys.executable, "-c", RUN_PROGRAM, str(tmp_path / "r.json")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "summary": str(run.summary()), "notebook": run._repr_html_(), "said": repr(run),
        "splits": [[s.index, s.backend, s.start, s.end] for c in run.computes for s in c.splits],
        "explain": str(run.computes[0].plan.explain("h")), "again": True, "native": [],
        "files": {e.name: read_back(run, e) for e in formats.EXPORTERS if e.runs},
    }  # fmt: skip


def test_everything_about_a_saved_plan_works_without_the_native_module(tmp_path):
    case = graphs.mlp()
    plan = case.scheduler.plan(case.graph)
    case.close()
    plan.to_json(tmp_path / "p.json")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "p.json"), *PLAIN],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.pop("native") == []
    assert said.pop("files") == {
        e.name: len(written(plan, e)) for e in formats.EXPORTERS
    }
    assert said == {
        "headline": plan.headline(), "text": plan.text(), "passes": plan.passes(),
        "reference": True, "steps": len(plan.steps),
        "explain": str(plan.explain("h")), "why_not": str(plan.why_not("h", "CPU")),
        "what_if": plan.what_if(pins={"out": "CPU"}).headline(),
        "advice": [str(f) for f in plan.advice()], "diff": str(plan.diff(plan)),
        "log": type(plan).from_debug_log(plan.text()).headline(),
        "notebook": plan._repr_html_() + plan.diff(plan)._repr_html_(),
        "cause": str(plan.node("h").cause), "shares": [str(s) for s in plan.shares()],
    }  # fmt: skip
