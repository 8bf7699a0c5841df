"""Standard output that is closed, and files that cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py.models.synthetic import LlamaSpec

from ..support.cli_runs import fails, ok

SMALL = LlamaSpec(n_layer=1, n_embd=32, n_ff=32, n_vocab=300)
KEPT = next(Path(__file__).parents[1].glob("releases/kept/*.json.gz"))


@pytest.mark.parametrize("words", [["devices"], ["releases", "--json"]])
def test_a_closed_standard_output_is_an_error(words):
    program = [sys.executable, "-m", "ggml_py", *words]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == "error: standard output is closed: there is nowhere to print to\n"


def test_a_closed_standard_error_changes_nothing(model_file):
    words = ["generate", str(model_file(SMALL)), "-p", "a", "-n", "1", "-t", "1", "-d", "CPU"]
    program = [sys.executable, "-m", "ggml_py", *words]
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", *program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.strip("\n \0") == ok(*words).strip("\n \0")


@pytest.mark.parametrize(("text", "code"), [("\xe9\u6f22".encode(), 0), (b"\xff\xfe", 2)])
def test_a_prompt_is_utf_8_in_every_locale(text, code, model_file):
    """Python reads the command line in the locale's encoding."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "ggml_py", "generate", str(model_file(SMALL)), "-p", text,
         "-n", "1", "-t", "1", "-d", "CPU"],
        capture_output=True, check=False, env={**os.environ, **plain},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert code == 0 or b"-p: expected text in UTF-8" in done.stderr


def test_a_name_as_long_as_the_system_allows(tmp_path):
    name = tmp_path / f"{'x' * 250}.json"
    ok("plan", KEPT, "-o", name)
    assert [path.name for path in tmp_path.iterdir()] == [name.name]
    too_long = tmp_path / f"{'x' * 251}.json"
    assert "cannot be written: File name too long" in fails("plan", KEPT, "-o", too_long)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder nobody can write to")
def test_what_cannot_be_written_is_said_before_anything_is_measured():
    assert "/proc/x.json: cannot be written: " in fails("calibrate", "-o", "/proc/x.json")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_without_our_characters_shows_the_rest(encoding):
    done = subprocess.run(
        [sys.executable, "-m", "ggml_py", "plan", str(KEPT), "-v"], capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding}, check=True,
    )  # fmt: skip
    assert b"computed nodes" in done.stdout and (encoding == "cp1252" or b"?" in done.stdout)
