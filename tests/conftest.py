"""Fixtures that several files share, and the options of the test run."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

TESTS = Path(__file__).resolve().parent

pytest.register_assert_rewrite("tests.support.tiers")
from ggml_py.builds import why_none  # noqa: E402

if no_build := why_none():
    print(f"ERROR: {no_build}", file=sys.stderr)
    raise SystemExit(pytest.ExitCode.USAGE_ERROR)  # pytest shows a traceback of anything else

import ggml_py as ggml  # noqa: E402
from ggml_py.boundary.handle import LIVE  # noqa: E402
from ggml_py.boundary.since import SINCE  # noqa: E402

from .support import arch_headers, tiers  # noqa: E402
from .support.arch_files import ARCHS, SEEDS  # noqa: E402
from .support.gpu_device import gpu_or_skip  # noqa: E402
from .support.oracle_programs import Oracle  # noqa: E402

if TYPE_CHECKING:
    from ggml_py.models.synthetic import LlamaSpec

# The first where the installed one has no entry point yet.
pytest_plugins = ["ggml_py.pytest_plugin", "tests.support.tiers"]
REPO = TESTS.parent
DEFAULT = re.search(r'^default = "(.*?)"', (REPO / "vendor/upstream.toml").read_text(), re.M)[1]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background; the tests of Ctrl-C, and what they start, need it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--oracle",
        type=Path,
        metavar="DIR",
        help="a folder with upstream's programs and ours on libllama, instead of building them",
    )


@pytest.fixture(autouse=True, scope="session")
def nothing_from_outside() -> None:
    """What commands read from the environment is the tests' to set: in a CI, `--update` refuses."""
    for name in list(os.environ):
        if name in {"CI", "NO_COLOR", "FORCE_COLOR"} or name.startswith("LLAMA_ARG_"):
            del os.environ[name]


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """What was there before a module's tests stays: a collection of garbage that looked at what
    pytest has collected, a quarter of a million objects, took 0.16 s, and tests ask for thousands.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        'needs("ggml_function", "Op.NAME", release="0.9.7", why=""): skipped with a build that '
        'lacks one of them, or is older; release="default" is the default pin only',
    )


def loaded() -> dict:
    """The build that is loaded. Not at import: pytest's fault handler comes before our signals."""
    from ggml_py.boundary.ffi import BUILD

    return BUILD


def lacks(name: str) -> bool:
    """Whether this build lacks a function, an op ("Context.fill") or an enum's member."""
    owner, _, attribute = name.rpartition(".")
    if owner == "Context":
        return not hasattr(ggml.Context, attribute)
    return not hasattr(getattr(ggml.enums, owner, None) if owner else ggml.lib, attribute)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        this = loaded()["ggml_version"]
        release, why = mark.kwargs.get("release", "0.0"), mark.kwargs.get("why", "")
        for name in filter(lacks, mark.args):
            assert name in SINCE, f"needs({name!r}): no release has that"
            pytest.skip(f"ggml {this} lacks {name}")
        if release == "default":
            if this != DEFAULT:
                pytest.skip(f"of ggml {DEFAULT}, this is {this} {why}".strip())
        elif [int(n) for n in this.split(".")] < [int(n) for n in release.split(".")]:
            pytest.skip(f"needs ggml {release}, this is {this}: {why}")


@pytest.fixture(scope="session")
def oracle(request: pytest.FixtureRequest) -> Oracle:
    """Upstream's programs; built on first use, about three minutes, kept in the user's cache."""
    tiers.only_with_all(request)
    this = loaded()["ggml_version"]
    if this != DEFAULT:
        pytest.skip(f"upstream's programs are those of ggml {DEFAULT}, this is {this}")
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


@pytest.fixture(scope="session")
def arch_file(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`arch_file(name, seed)`: upstream's file of that architecture; without `--all` one of ours
    with the same header (tests/support/arch_headers.py)."""
    folder = tmp_path_factory.mktemp("archs")

    def get(name: str, seed: int = SEEDS[0]) -> Path:
        made, path = folder / f"{ARCHS[name]}.gguf", folder / f"{name}-{seed}.gguf"
        if not path.exists() and request.config.getoption("--all"):
            arch = name.removesuffix("-moe")
            oracle = request.getfixturevalue("oracle")
            oracle.run("test-llama-archs", "-a", f"^{arch}$", "-s", seed, "-o", folder)
            made.rename(path)
        elif not path.exists():
            arch_headers.write(path, name, seed)
        return path

    return get


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[LlamaSpec], Path]:
    """`model_file(LlamaSpec(...))`: that model's file, made once; for reading only."""
    from ggml_py.models.synthetic import write_llama

    folder = tmp_path_factory.mktemp("llamas")
    made: dict[str, Path] = {}

    def get(spec: LlamaSpec) -> Path:
        key = repr(spec)
        if key not in made:
            path = folder / f"{len(made)}.gguf"
            write_llama(path, spec)
            made[key] = path
        return made[key]

    return get


@pytest.fixture(params=["rpc", pytest.param("here", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    """A GPU's name: "rpc:HOST:PORT", this CPU as one; then the machine's own, or a skip."""
    from .support.rpc_net import server

    if request.param == "here":
        yield gpu_or_skip()
    elif "rpc" not in loaded()["backends"]:
        pytest.skip("built without RPC")
    else:
        with server() as process:
            yield f"rpc:{process.endpoint}"


@pytest.fixture(scope="session")
def pristine(request: pytest.FixtureRequest) -> str:
    """The key of a pristine build of the release that is loaded, made on first use."""
    tiers.only_with_all(request)
    command = [sys.executable, "-m", "ggml_py", "build", "--pristine", "--cards=none", "--json"]
    command += ["--upstream", loaded()["label"]]
    env = {k: v for k, v in os.environ.items() if k != "GGML_PY_UPSTREAM"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["key"]


@pytest.fixture(autouse=True, scope="module")
def no_simulated_devices() -> Iterator[None]:
    """Other modules look at all devices: those that a module made are closed when it ends."""
    yield
    simulated = sys.modules.get("ggml_py.sim.sim_device")
    left = list(simulated._sims.values()) if simulated else []
    for _ in range(2):  # those first that share the buffer type of another
        for sim in left:
            with contextlib.suppress(ggml.ArgumentError):
                sim.close()
    assert not [sim for sim in left if not sim.closed]


@pytest.fixture(autouse=True, scope="module")
def no_devices_of_servers() -> Iterator[None]:
    """The device of an RPC server stays until its process ends, and the modules after would plan
    and compute on it: a test that asks for one does so in a process of its own."""

    def asked() -> list[str]:
        rpc = sys.modules.get("ggml_py.backends.rpc")
        return [f"{host}:{port}" for host, port in rpc._servers] if rpc else []

    before = asked()
    yield
    assert asked() == before, f"servers that tests of this module asked: {asked()}"


@pytest.fixture
def sims() -> Iterator[Callable[..., ggml.SimDevice]]:
    """Makes simulated devices, which are closed in the end: other tests look for GPUs."""
    made: list[ggml.SimDevice] = []

    def make(name: str = "gpu0", **settings: Any) -> ggml.SimDevice:
        made.append(ggml.sim_device(name, **settings))
        return made[-1]

    yield make
    gc.collect()
    for device in reversed(made):  # what shares a buffer type was made later
        device.close()


@pytest.fixture(autouse=True, scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run outside the source tree, so that they (and the Pythons they start) import the
    installed package, and no native object may be left when they end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it; commands would wrap lines
        yield
    gc.unfreeze()
    gc.collect()
    left = {kind: n for kind, n in LIVE.items() if n}
    assert left == {}, f"native objects that nobody closed: {left}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium; skips what needs it where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: .[test-all]")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if path is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def plans() -> dict[str, ggml.Plan]:
    """A plan of each graph of graphs.py, by name."""
    from .support import graphs

    made = {}
    for name, make in graphs.CASES.items():
        case = make()
        made[name] = case.scheduler.plan(case.graph)
        case.close()
    return made


@pytest.fixture(scope="session")
def mlp(plans: dict[str, ggml.Plan]) -> ggml.Plan:
    """The plan of two products with an activation between."""
    return plans["mlp"]
