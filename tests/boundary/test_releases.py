"""Several releases live side by side in one installation; GGML_PY_UPSTREAM selects one at start.

The oldest runs a part of the test suite: what the same Python code is to do on every release.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py.boundary.ffi import BUILD
from ggml_py.boundary.since import SINCE

from ..support.older_builds import OLDEST, RELEASES, build, run

TESTS = Path(__file__).parents[1]
# What CI runs on the oldest. `pytest` with GGML_PY_UPSTREAM runs all that builds nothing.
# Why a release has no place for an edit of ours (`edits_absent` of its build.json).
_BEFORE_0_24 = {
    "ggml-backend.cpp: tensors that backends keep allocated": "it has no add_alloc_dep",
    "ggml-rpc/ggml-rpc.cpp: all": "its RPC client is another: docs/DEVICES.md",
    "ggml-rpc/transport.cpp: all": "its RPC client is another: docs/DEVICES.md",
}
ABSENT = {
    "0.26.0": {
        "ggml-backend.cpp: reservation without a check": "upstream checks since 0.24",
        "ggml-backend.cpp: base of several buffers": "upstream asks for none, after 0.9.4",
        "ggml.c: comb of dsv4_hc_post": "it may be NULL, since 0.24.0",
        "ggml-opt.cpp: end of an optimizer context": "upstream frees it",
        "ggml-cpu/ops.cpp: get_rows_back's rows, f32": "upstream checks since 0.25.3",
        "ggml-cpu/ops.cpp: get_rows_back's rows, f16": "upstream checks since 0.25.3",
        "ggml-cpu/ops.cpp: blocks of concat": "upstream moves blocks",
        "ggml-cpu/ops.cpp: soft_max_back in the place of y": "upstream reads both first",
        "ggml-cpu/ops.cpp: rms_norm_back in the place of dz": "upstream reads both first",
        "ggml-rpc/ggml-rpc.cpp: RPC: graph sent, before 0.26": "'graph sent' is there",
    },
    "0.21.0": {
        **_BEFORE_0_24,
        "ggml-backend.cpp: base of several buffers": "upstream asks for none, after 0.9.4",
        "ggml-opt.cpp: end of an optimizer context": "upstream frees it",
        "ggml-cpu/ops.cpp: blocks of concat": "upstream moves blocks",
        "ggml-cpu/ops.cpp: rms_norm_back in the place of dz": "upstream reads both first",
    },
    "0.9.4.p0.2.4": {
        **_BEFORE_0_24,
        "ggml-backend.cpp: reallocation that GGML_SCHED_DEBUG_REALLOC ends at": "it has no such",
        "ggml.c: pads of pad_ext_circular": "it has no such op",
        "ggml.c: k of top_k": "it has no such op",
        "ggml.c: comb of dsv4_hc_post": "it has no such op",
        "ggml.c: recursion over sources": "it goes by the name that visit_parents.h expects then",
        "ggml-cpu/ggml-cpu.c: nodes fused": "its CPU fuses nothing",
        "ggml-cpu/ggml-cpu.c: RMS_NORM and MUL fused": "its CPU fuses nothing",
        "ggml-cpu/ggml-cpu.c: rms_norm that may be left out": "its CPU fuses nothing",
    },
}

PLANS = """
import json, sys
sys.path.append({tree!r})
import ggml_py as ggml
from tests.support import graphs
from ggml_py import enums
from ggml_py.boundary.ffi import BUILD
plans = {{}}
for name, make in graphs.CASES.items():
    case = make()
    first = case.scheduler.plan(case.graph)
    assert case.scheduler.plan(case.graph) == first
    assert case.scheduler.alloc_graph(case.graph) == first
    case.graph["inp"].set([[1.0] * case.graph["inp"].ne[0]] * case.graph["inp"].ne[1])
    case.scheduler.compute(case.graph)
    plans[name] = [(n.op, n.backend, n.placement.cause) for n in first.nodes]
    case.close()
print(json.dumps({{
    "key": BUILD["key"],
    "enums": enums.UPSTREAM,
    "n_ops": len(enums.Op),
    "op_count": ggml.lib.GGML_OP_COUNT,
    "plans": plans,
}}))
"""

# Every name of SINCE is there, or an error that says since when it is.
NAMES = """
import importlib, json, pkgutil, sys
import ggml_py
for module in pkgutil.walk_packages(ggml_py.__path__, "ggml_py."):
    if ".native" not in module.name and "_build" not in module.name and "__main" not in module.name:
        importlib.import_module(module.name)
from ggml_py import enums; from ggml_py.graphs import ops
from ggml_py.boundary.since import SINCE
modules = [m for n, m in sys.modules.items() if n.startswith("ggml_py.")]
assert all(m.enums is enums for m in modules if hasattr(m, "enums"))
assert issubclass(ggml_py.Context, ops.Ops)
context, lacking = ggml_py.Context(), {}

def use(name):
    owner, _, attribute = name.rpartition(".")
    if name.endswith(")"):
        op, _, parameter = attribute[:-1].partition("(")
        getattr(context, op)(**{parameter: 1})
    elif owner == "Context":
        getattr(context, attribute)
    else:
        getattr(getattr(enums, owner) if owner else enums if hasattr(enums, name) else
                enums if name[0] not in "gG" else ggml_py.lib, attribute)

for name in SINCE:
    try:
        use(name)
    except ggml_py.MissingFunctionError as error:
        lacking[name] = str(error)
        assert isinstance(error, AttributeError) and isinstance(error, ggml_py.GgmlError)
    except TypeError as error:
        assert name.endswith(")") and "missing" in str(error), (name, error)
context.close()
report = json.loads((ggml_py.boundary.ffi.BUILD["folder"] / "bindings.json").read_text())
print(json.dumps({
    "label": ggml_py.boundary.ffi.BUILD["label"],
    "lacking": lacking,
    "bound": [f for functions in report["bound"].values() for f in functions],
    "typos": [hasattr(ggml_py.lib, "ggml_typo"), hasattr(enums.Op, "TYPO"), hasattr(enums, "Typo"),
              hasattr(context, "typo")],
}))
"""


@pytest.fixture(scope="module", params=RELEASES, ids=[r[0] for r in RELEASES])
def release(request) -> tuple[str, str]:
    """(key of a build, version of ggml) of an older release, made on first use."""
    selector, version = request.param
    return build(selector), version


def test_an_older_release_beside_the_default(release):
    key, version = release
    plans = PLANS.format(tree=str(TESTS.parent))
    older, default = run(key, plans), run("0.26.0", plans)
    assert older["key"] == key != default["key"]
    # its own numbers, generated from its own headers
    assert older["enums"] == version
    assert older["n_ops"] == older["op_count"] + 1
    assert default["n_ops"] == default["op_count"] + 1 >= older["n_ops"]
    # nothing in these small graphs is planned otherwise than today
    assert older["plans"] == default["plans"]


def test_what_is_not_edited_needs_no_edit():
    assert sorted(BUILD["edits_absent"]) == sorted(ABSENT[BUILD["label"]])


def test_what_an_older_release_has_no_place_for(release):
    program = "import json\nfrom ggml_py.boundary.ffi import BUILD\n"
    program += "print(json.dumps({'found': [BUILD[k] for k in ('label', 'edits_absent')]}))"
    label, found = run(release[0], program)["found"]
    assert sorted(found) == sorted(ABSENT[label])


def test_what_a_release_lacks_says_since_when_it_is(release):
    key, _version = release
    older, default = run(key, NAMES), run("0.26.0", NAMES)
    assert default["lacking"] == {}
    assert older["typos"] == default["typos"] == [False] * 4
    labels = list(dict.fromkeys(SINCE.values()))  # oldest first; of the oldest of all all is news
    news = labels[labels.index(older["label"]) + 1 :] if older["label"] in labels else labels
    expected = {name for name, since in SINCE.items() if since in news}
    gone_between = {"ggml_type_sizef"}  # in 0.9.4, not in 0.9.7, again in 0.9.11
    assert expected - gone_between <= set(older["lacking"]) <= expected
    for name, message in older["lacking"].items():
        # of an op that is not there no parameter is looked at, of an enum no member
        owners = (name.partition(".")[0], name.partition("(")[0])
        said = next((owner for owner in owners if owner in older["lacking"]), name)
        assert message.startswith(f"{said.removeprefix('Context.')} is not in ggml ")
        assert f"ggml {SINCE[said]} is the first release with it" in message
    # the table knows every function that this release has not
    gone = set(default["bound"]) - set(older["bound"])
    assert gone == {name for name in older["lacking"] if name in default["bound"]}


@pytest.mark.thorough("builds")
@pytest.mark.parametrize(
    "module",
    [
        "enums", "backends.device", "graphs.ops", "tensors.tensor", "gguf.reader", "models",
        "scheduler.scheduler",
    ],
)  # fmt: skip
def test_any_module_may_be_imported_first(module):
    program = f"""if True:
        import ggml_py.{module}, json
        from ggml_py import enums; from ggml_py.graphs import ops
        assert issubclass(ggml_py.Context, ops.Ops) and not hasattr(ops.Ops, "fill")
        print(json.dumps(enums.UPSTREAM))"""
    assert run(build(OLDEST), program) == RELEASES[0][1]


ENUMS_FIRST = """
from ggml_py.enums import Op, Type
import json
import ggml_py
from ggml_py import enums
context = ggml_py.Context()
a = context.new_tensor(Type.F32, 4, 4)
print(json.dumps({
    "same": enums.Op is Op,
    "op": context.mul_mat(a, a).op is Op.MUL_MAT,
    "upstream": enums.UPSTREAM,
    "numbers": {op.name: int(op) for op in Op if op != Op.COUNT},
    "names": [op.name for op in Op if op != Op.COUNT
              if getattr(ggml_py.lib, f"GGML_OP_{op.name}") != op],
}))
"""


def test_enums_that_are_imported_first_have_the_numbers_of_the_build(release):
    key, version = release
    older, default = run(key, ENUMS_FIRST), run("0.26.0", ENUMS_FIRST)
    for found in (older, default):
        assert (found["same"], found["op"], found["names"]) == (True, True, [])
    assert (older["upstream"], default["upstream"]) == (version, "0.26.0")
    moved = [n for n, number in older["numbers"].items() if default["numbers"][n] != number]
    assert len(moved) > 70 if version == "0.9.4" else moved == []


@pytest.mark.thorough("builds")
def test_a_build_with_other_numbers_than_the_enums_have_is_refused():
    program = f"""if True:
        import json, os
        os.environ["GGML_PY_UPSTREAM"] = "0.26.0"
        from ggml_py.enums import Op
        os.environ["GGML_PY_UPSTREAM"] = {build(OLDEST)!r}
        import ggml_py
        try:
            ggml_py.devices()
        except ggml_py.LoadError as error:
            print(json.dumps(str(error)))"""
    error = run("", program)
    assert "default_enums.py; build 0.9.4" in error and "set GGML_PY_UPSTREAM before" in error


@pytest.mark.thorough("builds")
def test_the_suite_on_the_oldest_release():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--all"]
    command += ["--any-release", str(TESTS)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "GGML_PY_UPSTREAM": build(OLDEST)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout.splitlines()[-1]


@pytest.mark.thorough("builds")
def test_the_reference_plans_as_a_release_between_does(tmp_path):
    """One whose plans depend on those before: the room that a split's inputs were given."""
    done = subprocess.run(
        [sys.executable, str(TESTS.parent / "benchmarks" / "differential.py"), "--cases", "2000",
         "--out", str(tmp_path / "differential.json")],
        capture_output=True, text=True, check=False,
        env={**os.environ, "GGML_PY_UPSTREAM": build("b10566")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "2,000 cases" in done.stdout
