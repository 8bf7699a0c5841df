"""Run CMake and ninja. All their output goes to a log; a terminal shows only `[n/m]` progress."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vendor.cache import Lock
from vendor.report import BuildError, full_message, said_full, step, writing
from vendor.toolchain import Tools

ERROR = re.compile(r"\berror:|\bfatal:|CMake Error|undefined reference|cannot find -l|ninja: ")


class Tree:
    """A CMake build tree in the cache, with its log. The lock of the cache must be held.

    While a build runs, the tree holds a mark. A mark found at the start means that the last build
    was killed. An object file may then be truncated and still look up to date, so the tree is
    deleted.
    """

    def __init__(self, folder: Path, log: Path, tools: Tools, lock: Lock) -> None:
        self.folder, self.log, self.tools, self.lock = folder, log, tools, lock
        self.mark = folder / "BUILDING"
        self.build = folder / "build"
        self.shown: Mapping[str, str] = {}      # folders that messages name otherwise
        if self.mark.exists():
            shutil.rmtree(folder)
        with writing("preparing the build tree", folder):
            folder.mkdir(parents=True, exist_ok=True)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"")
            self.mark.touch()

    def configure(self, source: Path, defines: Mapping[str, str], jobs: int) -> None:
        """Run CMake's configure step on `source`, also for an existing tree, where it is quick."""
        tools = self.tools
        settings = {
            "CMAKE_C_COMPILER": tools.cc,
            "CMAKE_CXX_COMPILER": tools.cxx,
            "CMAKE_MAKE_PROGRAM": tools.ninja,
            "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",      # processor.py reads them
            **defines,
        }
        if tools.launcher:
            for language in ("C", "CXX", "CUDA"):
                settings[f"CMAKE_{language}_COMPILER_LAUNCHER"] = tools.launcher
        cache = self.build / "CMakeCache.txt"
        if cache.is_file():
            # CMake remembers options: one that is no longer given would stay set.
            cache.unlink()
        command = [tools.cmake, "-S", str(source), "-B", str(self.build), "-G", "Ninja"]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        self.run(command, "configuring", jobs)

    def compile(self, targets: Sequence[str], jobs: int) -> None:
        """Build `targets` (none = all) with `jobs` compilers at once."""
        self.run([self.tools.ninja, "-C", str(self.build), "-j", str(jobs), *targets],
                 "compiling", jobs)

    def install(self, destination: Path) -> None:
        """`cmake --install` into `destination`."""
        self.run([self.tools.cmake, "--install", str(self.build), "--prefix", str(destination)],
                 "installing", 1)

    def finished(self) -> None:
        """Record success: the next build may reuse this tree."""
        self.mark.unlink(missing_ok=True)

    def failed(self) -> None:
        """Record an orderly failure. No file is truncated: the next build may reuse this tree."""
        self.mark.unlink(missing_ok=True)

    def run(self, command: Sequence[str], doing: str, jobs: int) -> None:
        """Run one program with its output going to the log. If it fails, raise BuildError with the
        first errors that it printed."""
        environment = {
            **os.environ, "NINJA_STATUS": "[%f/%t] ", "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
            "LC_ALL": "C",      # the searches below expect English messages
        }
        # With paths relative to this folder, ccache finds what was compiled in another cache.
        environment.setdefault("CCACHE_BASEDIR", str(self.folder.parent.parent))
        live = sys.stderr.isatty()
        output: list[str] = []
        with step(doing), writing(doing, self.folder), self.log.open("a", encoding="utf-8") as log:
            print("$", *command, file=log, flush=True)
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", env=environment,
                pass_fds=(self.lock.fd,),
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    log.write(line)
                    output.append(line.rstrip())
                    if live and line.startswith("["):
                        print(f"\r\033[K{output[-1][:78]}", end="", file=sys.stderr, flush=True)
            if live and output:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
            if process.returncode:
                raise self._failure(doing, process.returncode, output)

    def _failure(self, doing: str, code: int, output: list[str]) -> BuildError:
        if any(said_full(line) for line in output):
            return BuildError(full_message(doing, self.folder))
        self.failed()
        wanted = 0
        first = []
        for line in filter(str.strip, output):
            # CMake prints the location first and the problem on the lines after it.
            wanted = 4 if "CMake Error" in line else max(wanted - 1, 0)
            if wanted or ERROR.search(line):
                first.append(line)
        first = first[:6] or output[-6:]
        details = "".join(f"\n    {line}" for line in first)
        for folder, name in self.shown.items():
            details = details.replace(folder, name)
        return BuildError(
            f"{doing} failed (exit {code}); first errors:{details}\n  log: {self.log}")
