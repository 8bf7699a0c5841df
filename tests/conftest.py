"""Fixtures that several files share, and the options of the test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from oracle_programs import Oracle

REPO = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--oracle",
        type=Path,
        metavar="DIR",
        help="a folder with upstream's programs and ours on libllama, instead of building them",
    )


@pytest.fixture(scope="session")
def oracle(request: pytest.FixtureRequest) -> Oracle:
    """Upstream's programs; built on first use, about three minutes, kept in the user's cache."""
    given = request.config.getoption("--oracle")
    if given is not None:
        return Oracle(given)
    say = request.config.pluginmanager.getplugin("terminalreporter").write_line
    say("\nthe oracle: upstream's own programs (the first time takes three minutes to build)")
    build = [sys.executable, str(REPO / "build_ggml.py"), "--reference"]
    done = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        pytest.fail("build_ggml.py --reference failed; what it said is above", pytrace=False)
    return Oracle(Path(done.stdout.splitlines()[-1]) / "bin")
