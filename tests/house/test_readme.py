"""The commands in README give the output that is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_py as ggml

from ..support.real_headers import LLAMA_70B

pytestmark = pytest.mark.thorough("long", quick=6)

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text()
BIN = Path(sys.executable).parent


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
    return [text for kind, text in found if kind == language]


def sh(line, cwd):
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "80"}  # as on a screen
    return subprocess.run(
        ["bash", "-c", line], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


def test_the_two_commands_are_there_and_ci_runs_the_second():
    assert "pip install . && ggml-py demo" in README
    assert "pip install '.[test]' && pytest" in README
    assert "README.md" in (REPO / ".ci" / "run").read_text()


@pytest.mark.thorough("programs")
def test_the_first_example_shows_why_it_fails(oracle, tmp_path):
    """Found wrong: a filter dropped the error."""
    first = re.search(r"^\$ (ggml-py record .*)", README, re.M)[1]
    done = sh(f"PATH={BIN}:/usr/bin:/bin; {first}", tmp_path)
    assert "llama-bench: no such program" in done.stdout
    done = sh(f"PATH={oracle.bin}:$PATH; {first}", tmp_path)
    assert "error: failed to load model 'model.gguf'" in done.stdout


def test_the_answer_on_screen_is_what_check_prints(tmp_path):
    """Its first lines: the memory of the CPU is this machine's."""
    (shown,) = (b for b in blocks("") if b.startswith("$ ggml-py check"))
    command, *lines = shown.splitlines()
    LLAMA_70B.write(tmp_path / "llama70b.gguf")
    done = sh(command.removeprefix("$ "), tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[: len(lines)] == lines


def test_the_python_example_prints_what_is_shown(tmp_path):
    (code,) = blocks("python")
    (expected,) = (b for b in blocks("") if b.startswith("## SPLIT"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    assert len([line for line in code.splitlines() if line]) <= 20


def test_the_build_options_shown_exist():
    page = (REPO / "docs" / "BUILD.md").read_text()
    options = re.findall(r"--[a-z]+", re.search(r"^```sh\n(.*?)^```", page, re.M | re.S)[1])
    known = subprocess.run(
        [sys.executable, str(REPO / "build_ggml.py"), "--help"], capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert {o for o in options if o != "--config"} <= set(re.findall(r"--[a-z]+", known)) | {
        "--config-settings"
    }


def test_it_can_be_read_outside_the_repository():
    """A package index shows README without other files: paths are plain text, without pictures."""
    text = re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)]*)\)", text) + re.findall(r"<(?:img|a)[^>]*=\W*([^\s>]*)", text)
    assert [t for t in targets if not t.startswith("https://")] == []
    named = set(re.findall(r"`((?:docs|examples)/[^`*]+)`|`(\w+\.md)`", text))
    paths = {path for pair in named for path in pair if path}
    assert len(paths) > 10
    assert [path for path in paths if not (REPO / path).exists()] == []


def test_one_version_everywhere(tmp_path):
    written = re.search(r'^version = "(.*)"$', (REPO / "pyproject.toml").read_text(), re.M)[1]
    newest = re.search(r"^## (\S+)$", (REPO / "CHANGELOG.md").read_text(), re.M)[1]
    assert written == newest == ggml.__version__
    for name in ("ggml-py", "ggml-xray"):
        assert sh(f"{name} --version", tmp_path).stdout == f"ggml-py, version {written}\n"


def test_the_package_has_a_name_of_its_own():
    """`ggml-py` on PyPI is another project: nothing tells people to install it, or `ggml_py`."""
    name = re.search(r'^name = "(\S+)"', (REPO / "pyproject.toml").read_text(), re.M)[1]
    assert name == "ggml-xray" and f"The package is `{name}`" in README
    files = [p for folder in ("ggml_py", "docs", "vendor") for p in (REPO / folder).rglob("*.*")]
    files = [p for p in files if p.suffix in (".py", ".md", ".toml")]
    files += [*REPO.glob("*.md"), *REPO.glob("*.py"), *REPO.glob("*.toml")]
    wrong = re.compile(r"(pip install|uvx|pipx \w+)[^`\n&|;#]* ggml[-_]py(?![\w-])")
    found = {p: wrong.findall(p.read_text(encoding="utf-8")) for p in files}
    assert len(files) > 400 and {p: said for p, said in found.items() if said} == {}
