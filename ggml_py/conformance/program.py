"""Upstream's `test-backend-ops`, built for one of our builds of ggml, and run."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..builds.script import folder_of
from ..errors import NotBuiltError

NAME = "test-backend-ops"
_BACKEND = re.compile(r"^Backend \d+/\d+: (.+)$")


class OpProgram(NamedTuple):
    """The program of a build. `libraries` are the folders that it loads ggml from."""

    path: Path
    libraries: tuple[Path, ...]
    build: dict[str, Any]  # its build.json

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the program, with the folders of its libraries."""
        old = os.environ.get("LD_LIBRARY_PATH")
        folders = [*map(str, self.libraries), *([old] if old else [])]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}

    def devices(self) -> list[str]:
        """The names of this machine's devices, as the program sees them. Raises RuntimeError if it
        does not run."""
        lines: list[str] = []
        ended = self.run(("support", "-b", "-"), lines.append)
        if ended:
            raise RuntimeError(f"{self.path} does not run: {ended}")
        return [match[1] for line in lines if (match := _BACKEND.match(line))]

    def has_option(self, option: str) -> bool:
        """Whether its help names an option, which older releases may lack."""
        lines: list[str] = []
        self.run(("--help",), lines.append)
        return any(option in line for line in lines)

    def run(
        self, arguments: Sequence[str], line: Callable[[str], object], **environment: str
    ) -> str:
        """Runs the program and calls `line` with each line that it prints. Returns how it ended, ""
        if it did so by itself."""
        with subprocess.Popen(
            [str(self.path), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
            env=self.environment | environment,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            last = ""
            try:
                for text in process.stdout:
                    if "GGML_ASSERT" in text or "GGML_ABORT" in text or "error:" in text:
                        last = text.strip()
                    line(text.rstrip("\n"))
            except BaseException:
                process.kill()
                raise
        if process.returncode >= 0:
            return "" if process.returncode <= 1 else f"exit status {process.returncode}"
        try:
            name = signal.Signals(-process.returncode).name
        except ValueError:
            name = f"signal {-process.returncode}"
        return f"{name}: {last}" if last else name


def op_program(build: dict[str, Any], may_build: bool = True, source: str = "") -> OpProgram:
    """The program for a build of ggml (`builds.select`), built if it is missing, in two minutes.
    `source` is the checkout of llama.cpp that the build was made from, "" for a release. Raises
    `NotBuiltError`, with the reason on standard error."""
    folder = Path(build["folder"])
    arguments = ["--op-tests", "--on", str(folder), *(("--source", source) if source else ())]
    found = folder_of(*arguments, "--no-build", quiet=True)
    if found is None and may_build:
        found = folder_of(*arguments)
    if found is None:
        how = f"`ggml-py build --op-tests --on {folder}` builds it"
        why = "could not be built (the reason is above)" if may_build else "is not there yet"
        raise NotBuiltError(f"{NAME} of ggml {build['label']} {why}: {how}")
    return OpProgram(found / NAME, (found, folder), build)


def numbered_names(build: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The names of the ops and of the types of a build, each at its number."""
    spec = importlib.util.spec_from_file_location("_enums", Path(build["folder"]) / "enums.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(_by_number(module.Op)), list(_by_number(module.Type))


def _by_number(kind: Any) -> Iterator[str]:
    members = {one.value: one.name for one in kind if one.name != "COUNT"}
    for number in range(max(members) + 1):
        yield members.get(number, f"no_{number}")  # a type that upstream has removed
