"""docs/PYTEST.md: its tests run, its commands do what it says, and its output is current."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py.boundary.ffi import BUILD
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support import doc_pages
from ..support.default_release import PIN

PAGE = Path(__file__).parents[2] / "docs" / "PYTEST.md"
BLOCK = re.compile(r"^```(.*?)\n(.*?)^```$", re.M | re.S)
pytestmark = [
    pytest.mark.skipif(BUILD["ggml_version"] != PIN, reason=f"the page shows what {PIN} gives"),
    pytest.mark.skipif(os.name != "posix", reason="the commands are those of a shell"),
    pytest.mark.thorough("long"),
]


def blocks(kind):
    """The content of the page's blocks of that kind, by their titles."""
    found = [(k, text) for k, text in BLOCK.findall(PAGE.read_text()) if k.split(" ")[0] == kind]
    return {k.partition("title=")[2].strip('"') or str(i): text for i, (k, text) in
            enumerate(found)}  # fmt: skip


def pytest_in(folder, *args, **env):
    command = [sys.executable, "-m", "pytest", "-p", "ggml_py.pytest_plugin", *args]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200", "CI": "", **env}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )


def message(done):
    """pytest's output for the first exception."""
    first = done.stdout.split("\n\n\n")[0].split("_ test_")[1]
    return re.findall(r"^E {0,7}(.*)", first, re.M)


def prepared(folder):
    """The folder, with a model and the page's tests."""
    write_llama(folder / "model.gguf", LlamaSpec(n_layer=6, n_vocab=512))
    for name, text in blocks("python").items():
        if not name.endswith(".py"):
            continue
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def folder(tmp_path):
    return prepared(tmp_path)


def shown(folder):
    """The content of the two blocks that show output: the page, and the failure."""
    kept = folder / "__plans__/test_placement/test_placement[1].plan"
    source = folder / "test_placement.py"
    source.write_text(source.read_text().replace("99, ", '99, type_k="iq4_nl", type_v="iq4_nl", '))
    failed = pytest_in(folder, "test_placement.py", "-k", "1]")
    return kept.read_text(), "\n".join(message(failed)) + "\n"


def test_the_recipe(folder):
    commands = blocks("sh")["commands"]
    update, add, again = (shlex.split(line, comments=True) for line in commands.splitlines())
    before = pytest_in(folder, "test_placement.py")
    assert before.returncode == 1 and "pytest --plan-update 'test_placement.py::" in before.stdout
    assert not (folder / "__plans__").exists()
    for command in (update, again):
        done = pytest_in(folder, *command[1:], "test_placement.py")
        assert done.returncode == 0, done.stdout
    assert add == ["git", "add", "__plans__"]
    assert sorted(p.name for p in (folder / "__plans__").rglob("*.plan")) == [
        "test_placement[1].plan", "test_placement[512].plan"
    ]  # fmt: skip
    for block, real in zip(blocks("").values(), shown(folder), strict=True):
        assert doc_pages.shows(block, real)
    source = (folder / "test_placement.py").read_text()
    assert len(source.splitlines()) <= 12


def test_the_recipe_for_a_fork(folder, oracle):
    """Upstream itself serves as the fork."""
    (line,) = re.findall(r'^FORK="llama-bench (.*)" pytest .*', PAGE.read_text(), re.M)
    fork = {"FORK": f"{oracle.bin / 'llama-bench'} {line} -t 1", "LD_LIBRARY_PATH": ""}
    assert pytest_in(folder, "--plan-update", "test_fork.py", **fork).returncode == 0
    (kept,) = (folder / "__plans__").rglob("*.plan")
    assert "layers i = 0-4\n" in kept.read_text() and kept.name == "test_fork.plan"
    again = pytest_in(folder, "test_fork.py", **fork)
    assert again.returncode == 0, again.stdout
    other = pytest_in(folder, "test_fork.py", **{**fork, "FORK": fork["FORK"] + " -fa 0"})
    said = message(other)
    assert said[0].startswith("AssertionError: the plan is not the one in __plans__/test_fork/")
    assert any("FLASH_ATTN" in row for row in said[said.index("only before:") :])


def refresh(folder):
    """Writes the current output into the page."""
    assert pytest_in(folder, "--plan-update", "test_placement.py").returncode == 0
    kept, failure = shown(folder)
    kept = kept[: kept.index("\n\nlayer i = ")] + "\n…\n"  # the rest is more of the same
    texts = iter((kept, failure))
    PAGE.write_text(
        BLOCK.sub(lambda m: m[0] if m[1] else f"```\n{next(texts)}```", PAGE.read_text())
    )


if __name__ == "__main__":  # make docs
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        refresh(prepared(Path(made)))
