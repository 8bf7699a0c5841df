"""Makes compilers that know older glibcs, out of zig's clang: the package `ziglang` of the index.

zig links a libc++ of its own into every library. An exception that one of our libraries throws must
be caught in another, so all of ours share one libc++, which goes into the build (`RUNTIME`). The
recorder, which runs in other programs, asks for a libc++ inside it with -static-libstdc++.

Stacks are unwound by the system's libgcc_s instead of zig's libunwind. glibc uses libgcc_s when a
thread ends in the middle of a call, and neither unwinder can read the other's state.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vendor import cache as caches
from vendor.report import BuildError, step

GLIBC = "2.28"  # RHEL 8, Debian 10; OpenBLAS needs 2.27
RUNTIME = "libggml-c++.so"
_FLAGS = (
    "-O2", "-fPIC", "-DNDEBUG", "-w", "-funwind-tables", "-D_LIBCPP_BUILDING_LIBRARY",
    "-DLIBCXX_BUILDING_LIBCXXABI", "-D_LIBCXXABI_BUILDING_LIBRARY",
    "-DHAVE___CXA_THREAD_ATEXIT_IMPL", "-std=c++23",
)  # fmt: skip
_INCLUDES = {
    "libcxxabi": ("libcxxabi/include", "libcxxabi/src", "libcxx/src", "libcxx/libc", "libcxx"),
    "libcxx": ("libcxx/src", "libcxx/libc", "libcxx", "libcxxabi/include"),
}
# Other platforms' files, and one that defines what cxa_exception.cpp does.
_LEFT_OUT = ("support/", "pstl/", "int128_builtins", "noexception")
# The functions that compilers and libc++abi call; the linker gets a library of this name with them.
UNWINDER = "libgcc_s.so.1"
_UNWINDS = (
    "Backtrace", "DeleteException", "FindEnclosingFunction", "ForcedUnwind", "GetCFA",
    "GetDataRelBase", "GetGR", "GetIP", "GetIPInfo", "GetLanguageSpecificData", "GetRegionStart",
    "GetTextRelBase", "RaiseException", "Resume", "Resume_or_Rethrow", "SetGR", "SetIP",
)  # fmt: skip
# A step that links has no -c, -E, …. zig checks for undefined behaviour unless told not to, and its
# linker lacks two options: symbols that --exclude-libs hides are not in our version scripts anyway.
_SCRIPT = """#!/bin/sh
link="-s {unwinder} {libcxx}"
for word; do
    shift
    case "$word" in
        -c|-E|-S|-M|-dM|--version|-print-*) link="" ;;
        -static-libstdc++) link="${{link:+-s {unwinder}}}"; continue ;;
        -static-libgcc|-Wl,--exclude-libs,ALL) continue ;;
        -Wl,-Bsymbolic-functions) word=-Wl,-Bsymbolic ;;
    esac
    set -- "$@" "$word"
done
exec "{zig}" {name} -target {target} -fno-sanitize=undefined "$@" $link
"""


@dataclass(frozen=True)
class Compilers:
    """A folder of programs, and of the library that what they compile needs."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that CMake and build_ggml.py read."""
        names = {"CC": "cc", "CXX": "c++", "CMAKE_TOOLCHAIN_FILE": "toolchain.cmake"}
        return {variable: str(self.folder / name) for variable, name in names.items()}

    @property
    def runtime(self) -> Path:
        """The folder with the shared libc++ and its licence."""
        return runtime_of(str(self.folder / "c++"))


def runtime_of(cxx: str) -> Path:
    """What goes into a build that the compiler `cxx` made; there is no such folder for others."""
    return Path(cxx).parent / "runtime"


def compilers(machine: str, cache: Path) -> Compilers:
    """The compilers for `machine` (x86_64, aarch64), made if they are missing. Raises BuildError
    without the package ziglang."""
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise BuildError("wheels are compiled with zig: python -m pip install ziglang")
    home = Path(found.origin).parent
    made_of = f"{home}{(home / 'zig').stat().st_mtime_ns}{Path(__file__).read_text('utf-8')}"
    key = hashlib.sha256(made_of.encode()).hexdigest()[:8]
    made = Compilers(cache / "compilers" / f"zig-{machine}-{GLIBC}-{key}")
    if made.runtime.is_dir():
        return made
    made.folder.mkdir(parents=True, exist_ok=True)
    target = f"{machine}-linux-gnu.{GLIBC}"
    for name in ("cc", "c++", "ar", "ranlib"):
        compiles = name in ("cc", "c++")
        libcxx = f"-nostdlib++ {made.runtime / RUNTIME}" if name == "c++" else ""
        text = _SCRIPT if compiles else '#!/bin/sh\nexec "{zig}" {name} "$@"\n'
        script = made.folder / name
        script.write_text(
            text.format(zig=home / "zig", name=name, target=target, libcxx=libcxx,
                        unwinder=made.folder / UNWINDER), "utf-8")  # fmt: skip
        script.chmod(0o755)
    stub = made.folder / "unwinder.c"
    names = ["__gcc_personality_v0", *(f"_Unwind_{name}" for name in _UNWINDS)]
    stub.write_text("".join(f"void {name}(void) {{}}\n" for name in names), "utf-8")
    _run(home / "zig", "cc", "-target", target, "-shared", "-nostdlib", "-w", stub,
         f"-Wl,-soname,{UNWINDER}", "-o", made.folder / UNWINDER)  # fmt: skip
    lines = [f"set(CMAKE_{name.upper()} {made.folder / name})" for name in ("ar", "ranlib")]
    if machine != platform.machine():
        lines += ["set(CMAKE_SYSTEM_NAME Linux)", f"set(CMAKE_SYSTEM_PROCESSOR {machine})"]
    (made.folder / "toolchain.cmake").write_text("\n".join(lines) + "\n", "utf-8")
    with step(f"compiling libc++ for {machine}"), caches.staged(made.runtime) as stage:
        _libcxx(home / "lib", made, stage)
    return made


def _libcxx(sources: Path, made: Compilers, stage: Path) -> None:
    """Compiles zig's own libc++ and libc++abi into one shared library in `stage`."""
    files = [
        (part, path) for part in _INCLUDES for path in sorted((sources / part / "src").rglob("*"))
        if path.suffix == ".cpp" and not any(word in str(path) for word in _LEFT_OUT)
    ]  # fmt: skip
    objects = made.folder / "objects"
    objects.mkdir(exist_ok=True)

    def compiled(one: tuple[str, Path]) -> Path:
        part, path = one
        target = objects / f"{part}-{path.name}.o"
        folders = [f"-I{sources / folder}" for folder in _INCLUDES[part]]
        _run(made.folder / "c++", *_FLAGS, *folders, "-c", path, "-o", target)
        return target

    with ThreadPoolExecutor(2) as pool:
        linked = list(pool.map(compiled, files))
    # -static-libstdc++ keeps the compiler from linking the library with itself.
    _run(made.folder / "c++", "-static-libstdc++", "-nostdlib++", "-shared", "-o", stage / RUNTIME,
         f"-Wl,-soname,{RUNTIME}", *linked, "-lpthread", "-ldl")  # fmt: skip
    licence = sources / "libcxx" / "LICENSE.TXT"
    if licence.is_file():
        (stage / "libc++-LICENSE.TXT").write_bytes(licence.read_bytes())


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False)  # fmt: skip
    if done.returncode:
        raise BuildError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
