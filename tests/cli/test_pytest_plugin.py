"""The pytest plugin, in runs of pytest of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_py as ggml
import ggml_py.export.snapshot_plan
import ggml_py.trace.answers.requirements  # here, before pytester takes note of what is loaded

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.thorough("long", quick=8)

PLUGIN = ("-p", "ggml_py.pytest_plugin", "-p", "no:cacheprovider")
TESTS = """
import json, os, pytest, ggml_py

def plan(name):
    return ggml_py.Plan.from_json(os.environ.get(f"PLAN_{name}", f"{name}.json"))

def test_mlp(plan_snapshot):
    plan_snapshot(plan("mlp"))

@pytest.mark.parametrize("name", ["views", "sweeps"])
def test_each(plan_snapshot, name):
    plan_snapshot(plan(name))
    plan_snapshot(plan("mlp"), "other")
"""
PAGES = [
    "test_each[sweeps].other.plan", "test_each[sweeps].plan", "test_each[views].other.plan",
    "test_each[views].plan", "test_mlp.plan",
]  # fmt: skip


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """The runs have no plugins of others, and are not in CI."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def folder(pytester, plans):
    """A folder with tests of three plans; `run_here(…)` runs them."""
    for name in ("mlp", "views", "sweeps"):
        plans[name].to_json(pytester.path / f"{name}.json")
    pytester.makepyfile(test_kept=TESTS)
    pytester.run_here = lambda *args: pytester.runpytest_inprocess(*PLUGIN, *args)
    return pytester


@pytest.fixture
def kept(folder):
    """The same with the pages written."""
    folder.run_here("--plan-update").assert_outcomes(passed=3)
    return folder


def pages(folder):
    return sorted(p.name for p in (folder.path / "__plans__" / "test_kept").glob("*"))


def moved(folder, plans, monkeypatch, name="mlp"):
    """The plan of that name is another from now on: BLAS cannot do anything."""
    other = plans[name].what_if(drop=["BLAS"])
    other.to_json(folder.path / "other.json")
    monkeypatch.setenv(f"PLAN_{name}", "other.json")


def test_pages_are_written_when_asked_to_and_then_agree(folder, plans):
    written = folder.run_here("--plan-update")
    written.assert_outcomes(passed=3)
    written.stdout.fnmatch_lines(["*= plans =*", "written: __plans__/test_kept/test_mlp.plan"])
    assert pages(folder) == PAGES
    page = folder.path / "__plans__/test_kept/test_mlp.plan"
    assert page.read_bytes().decode() == plans["mlp"].snapshot()
    before = page.stat().st_mtime_ns
    for args in ((), ("--plan-update",), ("-k", "mlp")):
        again = folder.run_here(*args)
        again.assert_outcomes(passed=1 if "-k" in args else 3, deselected=2 * ("-k" in args))
        again.stdout.no_fnmatch_line("*= plans =*")
    assert page.stat().st_mtime_ns == before


def test_a_missing_page_fails_and_says_what_to_run(folder, plans):
    done = folder.run_here("-k", "mlp")
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines([
        "E*AssertionError: no plan is saved in __plans__/test_kept/test_mlp.plan; it is now: 3 s*",
        "E*If it is right: pytest --plan-update 'test_kept.py::test_mlp', and commit the page.",
    ])
    done.stdout.no_fnmatch_line("*pytest_plugin.py*")  # the traceback ends in the test
    assert pages(folder) == []


def test_a_plan_that_changed_fails_with_the_diff_and_the_reason(kept, plans, monkeypatch):
    moved(kept, plans, monkeypatch)
    done = kept.run_here()
    done.assert_outcomes(failed=3)  # of test_each, the second page
    done.stdout.fnmatch_lines([
        ">*plan_snapshot(plan(\"mlp\"))",
        "E*AssertionError: the plan is not the one in __plans__/test_kept/test_mlp.plan: 2 of 3 *",
        "E*on another backend:",
        "E*h (MUL_MAT): BLAS 1.wgt0 → CPU 1.wgt0",
        "E*h (MUL_MAT(f32 [[]64, 128], f32 [[]64, 48])) is on CPU: 1.wgt0 via src[[]0] up",
    ])
    assert pages(kept) == PAGES
    kept.run_here("--plan-update").assert_outcomes(passed=3)
    kept.run_here().assert_outcomes(passed=3)


def test_a_change_of_the_page_alone_is_shown_in_lines(kept):
    page = kept.path / "__plans__/test_kept/test_mlp.plan"
    page.write_text(page.read_text().replace("splits  3", "splits  4"))
    done = kept.run_here("-k", "mlp")
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines(["E*the same nodes are in the same places, but the page differs",
                               "E*-splits  4", "E*+splits  3"])


def test_a_damaged_page_names_the_line(kept):
    page = kept.path / "__plans__/test_kept/test_mlp.plan"
    page.write_text(page.read_text().replace("1.wgt0", ""))
    done = kept.run_here("-k", "mlp")
    done.stdout.fnmatch_lines(["E*test_mlp.plan: the page cannot be read: line 9 is damaged*"])


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_page_in_another_encoding_cannot_be_read(kept, encoding):
    page = kept.path / "__plans__/test_kept/test_mlp.plan"
    page.write_text(page.read_text().replace("copies", "cöpies"), encoding=encoding)
    done = kept.run_here("-k", "mlp")
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines(["E*AssertionError: the plan is not the one in *test_mlp.plan: *"])
    done.stdout.fnmatch_lines(["E*pytest --plan-update 'test_kept.py::test_mlp', and commit*"])
    kept.run_here("-k", "mlp", "--plan-update").assert_outcomes(passed=1, deselected=2)
    kept.run_here().assert_outcomes(passed=3)


def test_an_update_that_fails_leaves_the_page(kept, plans, monkeypatch):
    """As Ctrl-C would, or a full disk."""
    moved(kept, plans, monkeypatch)
    page = kept.path / "__plans__/test_kept/test_mlp.plan"
    before = page.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _file: (_ for _ in ()).throw(OSError("disk full")))
    done = kept.run_here("-k", "mlp", "--plan-update")
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines(["E*OSError: disk full"])
    assert page.read_bytes() == before and pages(kept) == PAGES


def test_nothing_is_written_in_ci(folder, monkeypatch):
    monkeypatch.setenv("CI", "true")
    done = folder.run_here("--plan-update")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --plan-update in CI would accept whatever*"])
    folder.run_here().assert_outcomes(failed=3)
    assert pages(folder) == []
    monkeypatch.setenv("CI", "false")
    folder.run_here("--plan-update").assert_outcomes(passed=3)


LEFT = "not used by any test, delete it: __plans__/test_kept/"


def test_unused_pages_are_told(kept):
    there = kept.path / "__plans__" / "test_kept"
    (there / "test_gone.plan").write_text("x")
    (there / "test_mlp.gone.plan").write_text("x")
    (there.parent / "test_no_more").mkdir()
    (there.parent / "test_no_more" / "test_x.plan").write_text("x")
    done = kept.run_here()
    done.assert_outcomes(passed=3)
    assert [line for line in done.outlines if line.startswith("not used")] == [
        f"{LEFT}test_gone.plan", f"{LEFT}test_mlp.gone.plan",
        f"{LEFT.replace('test_kept', 'test_no_more')}test_x.plan",
    ]  # fmt: skip
    # Of tests that did not run nothing is known.
    done = kept.run_here("-k", "each")
    assert [line for line in done.outlines if line.startswith("not used")] == [
        f"{LEFT}test_gone.plan", f"{LEFT.replace('test_kept', 'test_no_more')}test_x.plan",
    ]  # fmt: skip
    kept.run_here("test_kept.py::test_mlp").stdout.no_fnmatch_line("not used*")
    assert (there / "test_gone.plan").exists()


def test_a_test_that_failed_keeps_its_pages(kept, plans, monkeypatch):
    moved(kept, plans, monkeypatch, "views")
    done = kept.run_here()  # test_each[views] fails before it comes to its second page
    done.assert_outcomes(failed=1, passed=2)
    done.stdout.no_fnmatch_line("not used*")


@pytest.mark.thorough("long")
def test_with_xdist(kept, plans, monkeypatch):
    pytest.importorskip("xdist")
    two = ("-p", "xdist", "-n", "2")
    (kept.path / "__plans__/test_kept/test_gone.plan").write_text("x")
    moved(kept, plans, monkeypatch, "views")
    done = kept.run_here(*two)
    done.assert_outcomes(failed=1, passed=2)
    done.stdout.fnmatch_lines([f"{LEFT}test_gone.plan", "FAILED test_kept.py::test_each[[]views]*"])
    assert sum(line.startswith("not used") for line in done.outlines) == 1
    kept.run_here(*two, "--plan-update").stdout.fnmatch_lines(
        ["written: __plans__/test_kept/test_each[[]views].plan"]
    )
    kept.run_here(*two).assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("plan_snapshot(plan('mlp')); plan_snapshot(plan('mlp'))", "*ValueError*as plan_snapshot("),
        ("plan_snapshot('mlp')", "*TypeError: plan_snapshot: expected a Plan, got str"),
        ("plan_snapshot(plan('mlp'), 'a/b')", "*ValueError: plan_snapshot: name 'a/b': expected*"),
        ("plan_snapshot(plan('mlp'), '語' * 40)", "*ValueError: plan_snapshot: name '語語*"),
        ("plan_snapshot(plan('mlp'), 3)", "*ValueError: plan_snapshot: name 3: expected*"),
    ],
)
def test_misuse(folder, call, error):
    folder.makepyfile(test_kept=f"{TESTS}\ndef test_wrong(plan_snapshot):\n    {call}\n")
    done = folder.run_here("-k", "wrong", "--plan-update")
    done.assert_outcomes(failed=1, deselected=3)
    done.stdout.fnmatch_lines([f"E{error}*"])


def test_names_that_cannot_be_files(folder):
    odd = ["a/b", "a_b", "../x", "x" * 300, "1.5", "ü", "語" * 90, "é" + "語" * 90]
    folder.makepyfile(test_kept=f"""
        import pytest
        from test_base import plan
        class TestIn:
            @pytest.mark.parametrize("odd", {odd!r})
            def test_odd(self, plan_snapshot, odd):
                plan_snapshot(plan("mlp"))
        """, test_base=TESTS.split("def test_mlp")[0])  # fmt: skip
    folder.run_here("--plan-update").assert_outcomes(passed=len(odd))
    names = pages(folder)
    assert len(names) == len(odd)
    assert {"TestIn.test_odd[1.5].plan", "TestIn.test_odd[a_b].plan"} <= {*names}
    done = folder.run_here()
    done.assert_outcomes(passed=len(odd))
    done.stdout.no_fnmatch_line("not used*")
    assert not list(folder.path.glob("*.plan"))
    assert max(len(name.encode()) for name in names) < 150


def test_loading_it_loads_nothing_else():
    program = "import sys, ggml_py.pytest_plugin as p; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [m for m in loaded if m.startswith("ggml_py")] == ["ggml_py", "ggml_py.pytest_plugin"]
    assert "numpy" not in loaded


def test_a_run_without_plans_stays_as_it_was(pytester):
    pytester.makepyfile(
        "import sys\ndef test_x(): assert 'ggml_py.trace.planned' not in sys.modules"
    )
    done = pytester.runpytest_subprocess(*PLUGIN)
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*plans*=*")


def test_the_entry_point_is_declared():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = text.split('[project.entry-points.pytest11]\n"ggml_py.pytest_plugin" = ')[1]
    assert section.startswith('"ggml_py.pytest_plugin"\n')
    help_ = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "--help"], capture_output=True, text=True,
        check=True, env={**os.environ, "COLUMNS": "200"},
    ).stdout  # fmt: skip
    assert re.search(r"--plan-update\s+write the pages", help_)
    assert ggml.__version__
