"""Python that is started in a clone: it takes the installed build if that is made of the clone's
files, or says at once why not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py import builds, errors
from ggml_py.boundary.ffi import BUILD

REPO = Path(__file__).resolve().parents[2]
WHERE = (
    "import ggml_py, ggml_py.builds as b; "
    "print(ggml_py.__file__, b.current()['folder'], len(ggml_py.devices()))"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """`pip install .` of this repository; its build comes from the user's cache."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, REPO],
        check=True,
    )
    return folder


@pytest.fixture
def clone(tmp_path):
    """What git has of this repository, in a folder of its own: nothing is built there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("this is no clone")
    for name in filter(None, listed.stdout.split("\0")):
        target = tmp_path / "clone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (REPO / name).is_file():
            shutil.copy(REPO / name, target)
    return tmp_path / "clone"


def python(clone, *arguments, path=""):
    variables = {k: v for k, v in os.environ.items() if k != "GGML_PY_UPSTREAM"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=clone, env=variables | {"PYTHONPATH": str(path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_clone_uses_the_installed_build(site, clone):
    with (clone / "ggml_py" / "log.py").open("a") as source:
        source.write("\n# what is not compiled may be another\n")
    done = python(clone, "-W", "error", "-c", WHERE, path=site)
    assert done.returncode == 0, done.stderr
    package, build, n_devices = done.stdout.split()
    assert Path(package) == clone / "ggml_py" / "__init__.py"
    assert Path(build).parent == site / "ggml_py" / "native" / "lib"
    assert int(n_devices) > 0
    tests = ("-q", "-p", "no:cacheprovider", "-x", "tests/tensors/test_views.py")
    done = python(clone, "-m", "pytest", *tests, path=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]
    assert not (clone / "ggml_py" / "native" / "lib").exists()


@pytest.mark.parametrize(
    "changed", ["ggml_py/native/guard.h", "vendor/bindgen.py", "ggml_py/builds/default_enums.py"]
)
def test_a_clone_with_other_sources_says_so_first(site, clone, changed):
    with (clone / changed).open("a") as source:
        source.write("\n")
    done = python(clone, "-c", "import ggml_py; print(ggml_py.Plan)", path=site)
    assert done.returncode == 0, done.stderr  # plans can be read
    first = done.stderr.splitlines()[0]
    assert f"from other sources ({changed})" in first
    assert "python build_ggml.py" in first
    assert str(site) in first
    done = python(clone, "-c", "import ggml_py; ggml_py.devices()", path=site)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ggml_py.errors.NotBuiltError: this source tree")
    done = python(clone, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/tensors", path=site)
    assert done.returncode == 4
    said = (done.stdout + done.stderr).strip().splitlines()
    assert f"from other sources ({changed})" in said[0]
    assert len(said) == 1


ALONE = """
import os, pathlib, sys
given = os.environ["PYTHONPATH"]
sys.path[1:] = [p for p in sys.path[1:] if p == given or not pathlib.Path(p, "ggml_py").exists()]
import ggml_py
ggml_py.devices()
"""


def test_a_build_that_does_not_tell_what_it_is_made_of_is_not_taken(clone, tmp_path):
    older = tmp_path / "site" / "ggml_py" / "native" / "lib" / "0.26.0-12345678"
    older.mkdir(parents=True)
    (older / "build.json").write_text('{"ggml_version": "0.26.0", "key": "0.26.0-12345678"}')
    done = python(clone, "-c", ALONE, path=tmp_path / "site")
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert f"{older}: it was made from other sources (those of a version before 0.2.0)" in first


def test_a_build_of_an_older_release_alone_is_not_taken(clone, tmp_path):
    """Nothing shows that it is of the clone's enums and ops."""
    folder = tmp_path / "other" / "ggml_py" / "native" / "lib" / "0.17.0-00000000"
    folder.mkdir(parents=True)
    manifest = {"ggml_version": "0.17.0", "made_of": {}}
    (folder / "build.json").write_text(json.dumps(manifest))
    with (clone / "ggml_py" / "builds" / "default_enums.py").open("a") as source:
        source.write("\n")
    done = python(clone, "-c", "import ggml_py; print(ggml_py.Plan)", path=tmp_path / "other")
    assert done.returncode == 0, done.stderr
    assert "python build_ggml.py" in done.stderr.splitlines()[0]


def test_a_clone_where_nothing_is_installed_says_that(clone):
    done = python(clone, "-c", ALONE)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "ggml_py has no native library yet" in lines[0]
    assert str(clone / "ggml_py" / "native" / "lib") in lines[0]
    assert "python build_ggml.py" in lines[0]
    assert lines[-1].startswith("ggml_py.errors.NotBuiltError: ggml_py has no native library yet")


def test_a_build_of_a_checkout_is_not_taken_unless_it_is_named(monkeypatch):
    """`compare --source` makes one, newer than the others; other verbs go on with the release."""
    checkout = {**BUILD, "key": f"{BUILD['ggml_version']}-source-12345678", "package": None}
    checkout |= {"label": f"{BUILD['ggml_version']}-source", "version": None}
    monkeypatch.setattr(builds, "builds", lambda: [checkout, dict(BUILD)])
    assert builds.select(None)["key"] == BUILD["key"]
    assert builds.select(checkout["key"])["key"] == checkout["key"]
    assert builds.select(checkout["label"])["key"] == checkout["key"]
    monkeypatch.setattr(builds, "builds", lambda: [checkout])
    assert builds.select(None)["key"] == checkout["key"]  # there is no other


def test_a_build_of_other_sources_is_not_taken_by_its_releases_name(monkeypatch):
    """Its native code lacks what the Python code of this tree asks for."""
    monkeypatch.setattr(builds, "PACKAGE", REPO / "ggml_py")  # as if it were not installed
    made_of = {**BUILD["made_of"], "ggml_py/native/guard.h": "0"}
    old = {**BUILD, "key": "0.17.0-12345678", "label": "0.17.0", "ggml_version": "0.17.0"}
    monkeypatch.setattr(builds, "builds", lambda: [old | {"made_of": made_of}, dict(BUILD)])
    with pytest.raises(errors.NotBuiltError, match=r"guard.h\). .* --upstream 0.17.0$"):
        builds.select("0.17.0")
    assert builds.select(old["key"])["key"] == old["key"]
    monkeypatch.setattr(builds, "builds", lambda: [old])
    assert builds.select("0.17.0")["key"] == old["key"]
