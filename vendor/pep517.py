"""The build backend: hatchling's, with our options taken from pip's config settings.

`pip install . --config-settings backend=cpu,vulkan --config-settings upstream=0.21.0` gives
options of build_ggml.py; switches are given as `pristine=true`. `vendor/hatch_hook.py` adds the
build to the wheel and gets it from `built()` here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatchling import build as hatchling_build

import build_ggml
from vendor import fetch, recorder, releases, toolchain
from vendor.identity import Options, key_of, upstream_of, uses_openblas
from vendor.report import BuildError

Settings = Mapping[str, Any] | None

_OFF = ("0", "false", "no", "off")
_settings: dict[str, Any] = {}      # of the running hook; PEP 517 runs one hook per process


def argv_of(settings: Settings) -> list[str]:
    """The command line for the config settings. Raises BuildError for an unknown name."""
    argv: list[str] = []
    switches = {"pristine", "debug", "portable", "llama", "recorder"}
    valued = {"backend", "upstream", "source", "sanitize", "jobs", "cache", "cards", "cuda-arch"}
    lists = {"backend", "cards", "sanitize"}
    for given, value in (settings or {}).items():
        name = given.lstrip("-")
        if name == "pure":          # `is_pure`: nothing is built
            continue
        values = [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]
        if name == "D" or name == "define":
            argv += [f"-D{one}" for one in values]
        elif name in switches:
            if values[-1].lower() not in _OFF:
                argv.append(f"--{name}")
        elif name in valued:
            argv.append(f"--{name}={','.join(values) if name in lists else values[-1]}")
        else:
            known = ", ".join(sorted(switches | valued | {"pure"}))
            raise BuildError(f"unknown config setting {given!r}; known: {known}, D")
    return argv


@contextmanager
def _with(settings: Settings) -> Iterator[None]:
    """Run a hook with these settings. A BuildError ends the process with one line, no traceback."""
    _settings.clear()
    _settings.update(settings or {})
    try:
        yield
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _chosen(settings: Settings) -> Options:
    return build_ggml.options_of(build_ggml.parser("config settings").parse_args(argv_of(settings)))


def is_pure() -> bool:
    """Whether the running hook's settings ask for a wheel without native code, for any system."""
    return str(_settings.get("pure", "false")).lower() not in _OFF


def built() -> Path:
    """The finished build for the running hook, built now if the cache lacks it."""
    return build_ggml.build(_chosen(_settings))


def brought(folder: Path) -> dict[str, Path]:
    """Other folders of libraries that the running hook's settings ask for, by their places below
    `native/lib`: libllama for the build in `folder`, and the recorder. They are built now if the
    cache lacks them."""
    arguments = build_ggml.parser("config settings").parse_args(argv_of(_settings))
    options = build_ggml.options_of(arguments)
    found = {}
    if arguments.llama:
        found[f"{folder.name}/llama"] = build_ggml.llama_for(folder, options)
    if arguments.recorder:
        for simulator in (False, True):
            # Without the settings of our own build: it goes in front of another program's.
            plain = Options(upstream=options.upstream, jobs=options.jobs, cache=options.cache)
            made = recorder.build(plain, simulator=simulator)
            found[f"{made.parent.name}/{made.name}"] = made
    return found


def _needs(settings: Settings) -> list[str]:
    """Packages that the build needs from the index; none if the finished build is cached."""
    if is_pure():
        return []
    toolchain.check_python()
    options = _chosen(settings)
    toolchain.check_names(options.backend)
    upstream = upstream_of(options)
    if build_ggml.read_proof(options.cache / "builds" / key_of(options, upstream)):
        return []
    needs = [*build_ggml.GENERATOR_NEEDS, *toolchain.missing_programs()]
    files = [upstream.release, releases.openblas() if uses_openblas(options) else None]
    if any(file and not fetch.downloaded(file, options.cache) for file in files):
        needs += fetch.NEEDS
    return needs


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """PEP 517."""
    with _with(config_settings):
        return hatchling_build.get_requires_for_build_wheel() + _needs(config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """PEP 660."""
    with _with(config_settings):
        return hatchling_build.get_requires_for_build_editable() + _needs(config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """PEP 517. A source distribution contains no build."""
    return hatchling_build.get_requires_for_build_sdist()


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """PEP 517: only the metadata; nothing is built.

    hatchling omits this hook under pip, and pip would then build during "Preparing metadata".
    """
    from hatchling.builders.wheel import WheelBuilder

    builder = WheelBuilder(".")
    folder = Path(metadata_directory) / f"{builder.artifact_project_id}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = builder.config.core_metadata_constructor(builder.metadata)
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    return folder.name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """PEP 517: a wheel that contains one build."""
    with _with(config_settings):
        return hatchling_build.build_wheel(wheel_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """PEP 660: a wheel that points to this tree. The build is put into the tree."""
    with _with(config_settings):
        return hatchling_build.build_editable(wheel_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """PEP 517."""
    return hatchling_build.build_sdist(sdist_directory)
