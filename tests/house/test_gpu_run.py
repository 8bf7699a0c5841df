"""The runner of a kit for a machine with a GPU (benchmarks/gpu): parts, resuming, what is missing.

The parts are small programs, and the environment is this Python: no kit is made.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
sys.path.insert(0, str(GPU))
import machine as machines  # noqa: E402
import parts  # noqa: E402
import record  # noqa: E402
import run_kit  # noqa: E402
import unpack  # noqa: E402

THIS = ".".join(map(str, sys.version_info[:2]))
KIT = {
    "id": "0123456789ab", "commit": "c0ffee", "build": "0.26.0-12345678", "dry_run": False,
    "cuda": True, "machine": "x86_64", "processor": [], "pythons": [THIS],
    "symbols": {}, "architectures": ["90"], "libraries": [], "about": {"good": {"a.py": "1"}},
}  # fmt: skip
H100 = {"name": "NVIDIA H100", "totalGlobalMem": 80 << 30, "major": 9, "minor": 0}
PROGRAM = """
import json, os, signal, subprocess, sys, time
out = sys.argv[sys.argv.index("--out") + 1]
def keep(**found):
    with open(out, "w") as file:
        json.dump(found, file)
with open(__file__ + ".runs", "a") as runs:
    runs.write("x")
print("begins", flush=True)
"""
PROGRAMS = {
    "good": "keep(complete=True, said='fine', failures=[])",
    "bad": "keep(complete=True, said='no', failures=['one']); sys.exit(1)",
    "raises": "keep(rows=[1]); raise ValueError('why')",
    "faults": "os.kill(os.getpid(), signal.SIGSEGV)",
    "nonsense": "open(out, 'w').write('{')",
    "nan": "open(out, 'w').write('{\"complete\": true, \"x\": NaN}')",
    "large": "keep(complete=True, rows=['x' * 1000] * 20000)",
    "slow": "keep(rows=[1]); subprocess.Popen(['sleep', '60']); signal.signal(signal.SIGTERM, "
    "signal.SIG_IGN); time.sleep(60)",
    "waits": "keep(rows=[1])\ntime.sleep(60)",
    "twice": "rows = json.load(open(out))['rows'] if os.path.exists(out) else []\n"
    "keep(complete=bool(rows), rows=[*rows, 1], failures=[])\nsys.exit(0 if rows else 3)",
}
ENDS = {
    "good": ("passed", None), "bad": ("failed", None),
    "raises": ("died", "it exited with 1, without a whole result"),
    "faults": ("died", "it died of SIGSEGV"),
    "nonsense": ("died", "it exited with 0, without a whole result"),
    "nan": ("died", "not JSON compliant"), "large": ("died", "expected at most"),
    "slow": ("timed out", "it took more than"), "waits": ("timed out", "it took more than"),
    "twice": ("timed out", "no time for all of it"),
}  # fmt: skip


pytestmark = pytest.mark.thorough("cases", quick=10)


def made(*names: str) -> tuple[parts.Part, ...]:
    return tuple(parts.Part(name, f"a {name} part", 10, 0) for name in names)


@pytest.fixture
def run(tmp_path, monkeypatch) -> run_kit.Run:
    """A run whose work folder is set up, with this Python as its environment."""
    monkeypatch.setattr(run_kit, "GRACE_S", 0.1)
    work = unpack.Work(tmp_path / "work")
    work.python.parent.mkdir(parents=True)
    work.python.symlink_to(sys.executable)
    programs = work.tree / "benchmarks" / "gpu"
    programs.mkdir(parents=True)
    for name, code in PROGRAMS.items():
        (programs / f"part_{name}.py").write_text(PROGRAM + code)
    record.write(work.folder / unpack.STAMP, {"kit": KIT["id"]})
    return run_kit.Run(KIT, work, machines.Machine(gpus=[H100], cores=4, driver="CUDA 13.0"))


def runs(run, name) -> int:
    path = run.work.tree / "benchmarks" / "gpu" / f"part_{name}.py.runs"
    return len(path.read_text()) if path.exists() else 0


# ---- parts


@pytest.mark.parametrize("name", PROGRAMS)
def test_however_a_part_ends_it_is_recorded_and_the_next_runs(run, tmp_path, name):
    for limit_s in (0.5, 2, 8) if name in ("slow", "waits") else (20,):
        two = (parts.Part(name, "", limit_s, 0), *made("good"))
        status = run_kit.run_parts(run, two, 60, False, tmp_path / "none")
        assert status == (0 if name == "good" else 1)
        found = record.read(run.work.results / f"{name}.json")
        if found["result"]:  # on a busy machine a Python starts slowly
            break
    how, why = ENDS[name]
    assert found["status"] == how and (why or "") in found.get("why", "")
    assert found["tail"].startswith("begins")
    assert found["device"]["name"] == "NVIDIA H100" and found["commit"] == "c0ffee"
    good = record.read(run.work.results / "good.json")
    assert good["status"] == "passed" and good["about"] == {"a.py": "1"}
    if name in ("raises", "slow"):  # what it had found is kept
        assert found["result"] == {"rows": [1]}
    if name == "slow":
        children = subprocess.run(["ps", "-eo", "pgid,args"], capture_output=True, text=True)
        assert str(run.work.folder) not in children.stdout


def test_what_has_a_result_is_not_run_again(run, tmp_path):
    asked = made("good", "bad", "twice")
    for expected in (1, 1, 1):
        assert run_kit.run_parts(run, asked, 60, False, tmp_path / "none") == expected
    assert [runs(run, part.name) for part in asked] == [1, 1, 2]  # the last one went on once
    assert record.read(run.work.results / "twice.json")["result"]["rows"] == [1, 1]
    assert run_kit.run_parts(run, asked[:1], 60, True, tmp_path / "none") == 0
    assert runs(run, "good") == 2


def test_earlier_results_count_if_they_are_of_this_kit_and_device(run, tmp_path):
    data = run.envelope("good", "passed", 1.0, {"complete": True})
    for change, expected in (
        ({}, 0), ({"kit": "another"}, 1), ({"device": {"name": "another"}}, 1),
        ({"status": "died"}, 1), ({"status": "timed out"}, 1),
    ):  # fmt: skip
        (run.work.results / "good.json").unlink(missing_ok=True)
        record.write(tmp_path / "have" / "good.json", data | change)
        before = runs(run, "good")
        assert run_kit.run_parts(run, made("good"), 60, False, tmp_path / "have") == 0
        assert runs(run, "good") - before == expected, change


def test_a_part_is_not_begun_without_time(run, tmp_path, capsys):
    asked = (parts.Part("good", "", 20, 15), *made("bad"))
    assert run_kit.run_parts(run, asked, 12, False, tmp_path / "none") == 3
    assert runs(run, "good") == 0 and runs(run, "bad") == 1
    assert "no time for good: run it again" in capsys.readouterr().out


def wait_for(happened) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_runs_do_not_work_in_one_folder(tmp_path, capsys):
    with run_kit.locked(tmp_path) as first, run_kit.locked(tmp_path) as second:
        assert (first, second) == (True, False)
    assert "another run is working in" in capsys.readouterr().out
    with run_kit.locked(tmp_path) as again:
        assert again


DRIVER = """
import sys
sys.path.insert(0, {gpu!r})
import signal, parts, run_kit, unpack, machine
from pathlib import Path
run_kit.GRACE_S = 0.1
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
run = run_kit.Run({kit!r}, unpack.Work(Path({work!r})), machine.Machine(gpus=[{gpu0!r}], cores=4))
asked = tuple(parts.Part(name, "", 60, 0) for name in ("good", "waits", "bad"))
sys.exit(run_kit.run_parts(run, asked, 100, False, Path("none")))
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_goes_on(run, tmp_path, how):
    code = DRIVER.format(gpu=str(GPU), kit=KIT, work=str(run.work.folder), gpu0=H100)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    begun = run.work.folder / "waits.partial.json"
    wait_for(begun.exists)
    child.send_signal(how)
    assert child.wait(30) == (143 if how == signal.SIGTERM else -how)
    listed = ["pgrep", "-f", str(begun)]  # the part ends with it
    wait_for(lambda: not subprocess.run(listed, capture_output=True, text=True).stdout)
    assert set(record.results(run.work.results)) == {"good"}
    assert run_kit.run_parts(run, made("good", "bad"), 60, False, tmp_path / "none") == 1
    assert runs(run, "good") == 1 and runs(run, "bad") == 1


# ---- files of results


def test_results_that_cannot_be_brought_back_are_an_error(tmp_path):
    with pytest.raises(record.BadResultError, match=r"a\.json would have 13,000,0\d\d bytes"):
        record.write(tmp_path / "a.json", {"x": "y" * 13_000_000})
    with pytest.raises(record.BadResultError, match="not JSON compliant"):
        record.write(tmp_path / "a.json", {"x": float("inf")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format 2, status 'passed': expected 1"),
        ({"status": "fine"}, "status 'fine': expected 1 and one of passed, failed"),
        ({"device": "H100"}, "device='H100' is not what a result has"),
        ({"date": None}, "date=None is not what a result has"),
    ],
)
def test_a_file_that_is_no_result(run, tmp_path, change, said):
    path = tmp_path / "good.json"
    path.write_text(json.dumps(run.envelope("good", "passed", 1.0, {}) | change))
    with pytest.raises(record.BadResultError, match=re.escape(said)):
        record.read(path)
    for text in ("[]", "{", ""):
        path.write_text(text)
        with pytest.raises(record.BadResultError, match=r"good\.json: (not|expected)"):
            record.read(path)
    assert record.results(tmp_path) == {}


# ---- the table of parts


def test_all_parts_together_take_at_most_32_minutes():
    assert all(0 < part.least_s <= part.limit_s <= parts.MOST_S == 480 for part in parts.PARTS)
    assert sum(part.limit_s for part in parts.PARTS) + parts.SETUP_S <= parts.ALL_S == 1920
    assert len(parts.PARTS) + 1 <= record.MOST_FILES  # with machine.json


def test_each_part_has_its_program_and_is_about_files_that_are_there():
    programs = {path.name for path in GPU.glob("part_*.py")}
    assert {part.program for part in parts.PARTS} == programs
    for part in parts.PARTS:
        for pattern in part.patterns:
            assert list(GPU.parents[1].glob(pattern)), (part.name, pattern)


def test_parts_are_chosen_by_name():
    assert [part.name for part in parts.named("speed,tests")] == ["tests", "speed"]
    assert parts.named("") == parts.PARTS
    with pytest.raises(ValueError, match="no part 'spede': expected some of tests, supports"):
        parts.named("spede")


def test_the_runner_needs_only_the_standard_library():
    import make_kit

    own = {Path(name).stem for name in make_kit.RUNNER}
    for name in make_kit.RUNNER:
        for node in ast.walk(ast.parse((GPU / name).read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) else []  # fmt: skip
            for one in names:
                assert one.split(".")[0] in sys.stdlib_module_names | own, (name, one)


# ---- the machine


def missing(tmp_path, **kit) -> str:
    return "\n".join(machines.look(KIT | kit, tmp_path).missing)


def test_a_machine_without_a_gpu_says_so_in_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(machines, "DRIVERS", (str(tmp_path),))
    monkeypatch.setattr(machines.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError()))
    start = time.monotonic()
    said = missing(tmp_path, libraries=["libnone.so.99"])
    assert time.monotonic() - start < 5
    assert f"NVIDIA's driver: neither the loader nor {tmp_path} has libcuda.so.1" in said
    assert "libnone.so.99: neither the loader nor" in said


def test_libraries_are_found_in_a_toolkit_and_in_packages(tmp_path, monkeypatch):
    toolkit, package = tmp_path / "cuda" / "lib64", tmp_path / "site" / "nvidia" / "cu13" / "lib"
    for folder, name in ((toolkit, "libone.so.13"), (package, "libtwo.so.13")):
        folder.mkdir(parents=True)
        (folder / name).touch()
    (toolkit / "libthree.so.12").touch()
    monkeypatch.setattr(machines, "_folders", lambda python: [toolkit, package])
    found = machines.Machine()
    machines._libraries(found, ["libone.so.13", "libtwo.so.13", "libthree.so.13"])
    assert found.libraries == [str(toolkit), str(package)]
    (said,) = found.missing
    assert said.startswith("libthree.so.13: neither") and said.endswith("libthree.so.12)")
    path = found.environment["LD_LIBRARY_PATH"].split(os.pathsep)
    assert path[:2] == found.libraries


@pytest.mark.parametrize(
    ("cc", "ok"), [((9, 0), True), ((9, 1), True), ((8, 9), False), ((10, 0), False)]
)
def test_machine_code_runs_on_its_own_generation(monkeypatch, cc, ok):
    class Driver:
        def cuInit(self, flags):
            return 0

        def cuDriverGetVersion(self, number):
            number._obj.value = 13000

        cuDeviceGetCount = lambda self, number: setattr(number._obj, "value", 1)  # noqa: E731

    gpu = H100 | {"major": cc[0], "minor": cc[1]}
    monkeypatch.setattr(machines.ctypes, "CDLL", lambda name: Driver())
    monkeypatch.setattr(machines, "_gpu", lambda cuda, index: gpu)
    found = machines.Machine()
    machines._gpus(found, ["90"])
    assert found.gpus == [gpu] and found.driver == "CUDA 13.0"
    assert bool(found.missing) != ok
    if not ok:
        assert f"Make it with ARCH={cc[0] * 10 + cc[1]}" in found.missing[0]


@pytest.mark.parametrize(
    ("kit", "said"),
    [
        ({"pythons": ["3.99"]}, "Python 3.99 with its module venv, which the kit has wheels for"),
        ({"processor": ["avx1024"]}, "processor with avx1024"),
        ({"machine": "sparc"}, "Linux on sparc: this is"),
        ({"symbols": {"GLIBC": "9.99"}}, "libc.so.6 with GLIBC_9.99"),
        ({"symbols": {"GLIBCXX": "9.9.9"}}, "libstdc++.so.6 with GLIBCXX_9.9.9"),
    ],
)
def test_what_else_can_be_missing(tmp_path, kit, said):
    assert said in missing(tmp_path, cuda=False, **kit)


def test_nothing_is_missing_for_a_dry_run_here(tmp_path):
    here = {"GLIBC": "2.17", "GLIBCXX": "3.4.20"}
    assert missing(tmp_path, cuda=False, dry_run=True, symbols=here) == ""


def test_a_run_without_a_kit_or_on_the_wrong_machine_says_what_to_do(tmp_path):
    command = [sys.executable, str(GPU / "run_kit.py"), "--kit", str(tmp_path),
               "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "make gpu-kit makes a kit" in done.stdout
    (tmp_path / "kit.json").write_text(json.dumps(KIT | {"pythons": ["3.99"], "cuda": False}))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "missing: Python 3.99" in done.stdout
    said = json.loads((tmp_path / "out" / "machine.json").read_text())
    assert "Python 3.99" in said["missing"][0] and said["kit"]["id"] == KIT["id"]
