"""This machine as llama.cpp and ggml_py find it: builds, devices, memory, threads, programs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...export.wrapping import wrapped
from ...files.foreign import markdown
from ...trace.names import counted
from ...trace.planned import format_bytes

_PROGRAMS = ("llama-server", "llama-cli", "llama-bench", "whisper-cli", "whisper-server",
             "sd-cli", "sd", "ollama")  # fmt: skip
_PCI, _DISPLAY = Path("/sys/bus/pci/devices"), "0x03"  # class of display controllers
_VENDORS = {
    "0x10de": ("NVIDIA", ("cuda", "vulkan")), "0x1002": ("AMD", ("hip", "vulkan")),
    "0x8086": ("Intel", ("sycl", "vulkan")),
}  # fmt: skip
_GPUS = {"GPU": "discrete GPU", "IGPU": "integrated GPU"}
_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_CACHE = (
    Path.home() / "Library" / "Caches"
    if sys.platform == "darwin"
    else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
) / "ggml_py"  # as vendor/cache.py
_MOST_SHOWN = 4  # folders of the cache
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_STRICT = "2"  # of vm.overcommit_memory
# Features that ggml's kernels use: Linux's name of each, and the CPU backend's.
_FEATURES = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512",
             "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16", "avx_vnni": "AVX_VNNI",
             "amx_int8": "AMX_INT8"}  # fmt: skip


class MachineFact(NamedTuple):
    """One line about the machine."""

    what: str
    text: str
    is_wrong: bool = False
    mend: str = ""  # the command that mends it


@dataclass(frozen=True)
class ThisMachine:
    """What was found."""

    used: str  # the devices that llama.cpp would use, in a clause
    facts: tuple[MachineFact, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether something should be changed."""
        return any(fact.is_wrong for fact in self.facts)

    @property
    def verdict(self) -> str:
        """A sentence."""
        wrong = [fact for fact in self.facts if fact.is_wrong]
        if not wrong:
            return f"{self.used}. Nothing to mend was found."
        others = f" ({counted(len(wrong) - 1, 'more problem')} below)" if wrong[1:] else ""
        return f"{self.used}. {wrong[0].text[:1].upper()}{wrong[0].text[1:]}{others}."

    def lines(self) -> Iterator[str]:
        """On a terminal."""
        yield from wrapped(self.verdict)
        for fact in self.facts:
            mark = "! " if fact.is_wrong else "  "
            mend = f"  > {fact.mend}" if fact.mend else ""
            yield from wrapped(f"{fact.text}{mend}", f"{mark}{fact.what:11} ")

    def markdown(self) -> str:
        """As Markdown."""
        rows = [f"**{markdown(self.verdict)}**", "", "| | | |", "|---|---|---|"]
        rows += [
            f"| {markdown(f.what)} | {markdown(f.text)} | {f'`{f.mend}`' if f.mend else ''} |"
            for f in self.facts
        ]
        return "\n".join(rows)

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        facts = [fact._asdict() for fact in self.facts]
        return {"verdict": self.verdict, "wrong": self.is_wrong, "facts": facts}


def this_machine() -> ThisMachine:
    """Looks at it; takes a second or two. Raises `NotBuiltError` without a build."""
    parts = (_build, _devices, _processor, _memory, _tools, _programs)
    return ThisMachine(_used(), tuple(fact for part in parts for fact in part()))


def _used() -> str:
    from ...backends.device import devices

    discrete, integrated = ([d.name for d in devices() if d.type.name == t] for t in _GPUS)
    used = discrete or integrated
    beside = f" and not on {', '.join(integrated)}, which is integrated" if discrete else ""
    where = ", ".join(used) + beside * bool(integrated) if used else "the CPU: there is no GPU"
    return f"llama.cpp would put a model on {where}"


def without_devices() -> dict[str, str]:
    """Why some backends of this build have no device here, by backend name."""
    from ... import log as _log
    from ...backends.registry import registries

    reasons = {}
    for registry in registries():
        if registry.devices:
            continue
        name = registry.name
        said = [line for line in _log.recent() if line.startswith(f"ggml_{name.lower()}_")]
        if name == "RPC":
            reasons[name] = "its devices belong to servers: name one as rpc:HOST:PORT"
        elif said:
            reasons[name] = f"no device here ({said[-1]})"
        else:
            reasons[name] = "no device here: no hardware was found, or no driver for it"
    return reasons


def _build() -> Iterator[MachineFact]:
    from ...boundary.ffi import BUILD
    from ...builds import builds

    has = BUILD["backends"]
    yield MachineFact(
        "build", f"ggml {BUILD['ggml_version']} ({BUILD['key']}) with {', '.join(has)}"
    )
    for vendor, backends in _cards():
        if not set(backends) & set(has):
            yield MachineFact(
                "build", f"a GPU of {vendor} is in this machine, and no backend of this build "
                "computes on it", True, f"ggml-py build --backend {','.join([*has, backends[0]])}",
            )  # fmt: skip
    others = builds()
    size = sum(_size(build["folder"]) for build in others)
    yield MachineFact("builds", f"{counted(len(others), 'build')} of ggml, {format_bytes(size)}")
    if _CACHE.is_dir():
        sizes = {folder.name: _size(folder) for folder in _CACHE.iterdir() if folder.is_dir()}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_MOST_SHOWN]
        text = ", ".join(f"{name} {format_bytes(sizes[name])}" for name in largest)
        yield MachineFact("cache", f"{format_bytes(sum(sizes.values()))} in {_CACHE}: {text}, …; "
                          "what is deleted is made again when it is needed")  # fmt: skip


def _size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())


def _cards() -> list[tuple[str, tuple[str, ...]]]:
    """Makers of the display controllers, with the backends for them."""
    found = {}
    for device in _PCI.glob("*/class"):
        if _read(device).startswith(_DISPLAY):
            vendor = _read(device.with_name("vendor"))
            if vendor in _VENDORS:
                found[vendor] = _VENDORS[vendor]
    return list(found.values())


def _devices() -> Iterator[MachineFact]:
    from ...backends.device import devices

    found = devices()
    for d in found:
        free, total = d.memory
        memory = f"{format_bytes(free)} of {format_bytes(total)} free" if total else "host's memory"
        kind = _GPUS.get(d.type.name, d.type.name)
        yield MachineFact(d.name, f"{kind}, {d.description}, {memory}")
    order = ", ".join(d.name for d in found)
    yield MachineFact("order", f"{order}: the scheduler prefers the first that can compute an op")
    for name, reason in without_devices().items():
        yield MachineFact(name, reason)


def _processor() -> Iterator[MachineFact]:
    from ...backends.device import default_n_threads, device
    from ...builds.processor import features, host

    n, every = default_n_threads(), os.cpu_count() or 1
    quota = _quota()
    limit = f", a cgroup gives it the time of {quota:g}" if quota and quota < n else ""
    yield MachineFact(
        "threads", f"{n} of {every} cores of {host()}{limit}", bool(limit),
        f"-t {max(1, int(quota or 1))}" if limit else "",
    )  # fmt: skip
    built = device("CPU").features
    lacks = [
        name for flag, name in _FEATURES.items()
        if flag in features() and built.get(name, "0") == "0"
    ]  # fmt: skip
    if lacks and built:
        text = f"it does not use {', '.join(lacks)}, which the processor has"
        yield MachineFact("build", text, True, "ggml-py build")


def _quota() -> float | None:
    """Cores whose time a cgroup allows; None without a limit."""
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _memory() -> Iterator[MachineFact]:
    sizes = {
        line.partition(":")[0]: int(line.split()[1]) << 10
        for line in _read(_PROC / "meminfo").splitlines() if line.endswith(" kB")
    }  # fmt: skip
    if not sizes:
        return
    text = f"{format_bytes(sizes['MemAvailable'])} of {format_bytes(sizes['MemTotal'])} available"
    yield MachineFact("memory", f"{text}, {format_bytes(sizes.get('SwapTotal', 0))} of swap")
    limit = _read(_CGROUP / "memory.max")
    if limit.isdecimal() and int(limit) < sizes["MemTotal"]:
        yield MachineFact(
            "memory", f"a cgroup allows {format_bytes(int(limit))}, and llama.cpp counts with "
            f"{format_bytes(sizes['MemTotal'])}", True, f"-d CPU,memory={int(limit) >> 20}M",
        )  # fmt: skip
    if _read(_PROC / "sys/vm/overcommit_memory") == _STRICT:
        yield MachineFact(
            "memory", "the system refuses memory beyond its limit (vm.overcommit_memory=2), also "
            "for mapped models", True, "sysctl vm.overcommit_memory=0",
        )  # fmt: skip
    pages = _read(_HUGE_PAGES)
    if "[never]" in pages:
        text = "huge pages are off, so large models are read more slowly"
        yield MachineFact("memory", text, True, f"echo madvise > {_HUGE_PAGES}")


def _tools() -> Iterator[MachineFact]:
    from ...builds.script import folder_of
    from ...errors import NotBuiltError
    from ...llama.library import find

    try:
        find(build=False)
        yield MachineFact("libllama", "built: models of all architectures, exact memory")
    except NotBuiltError:
        text = "not built: memory and other architectures need it, two minutes"
        yield MachineFact("libllama", text, mend="ggml-py build --llama")
    if folder_of("--recorder", "--no-build", quiet=True):
        yield MachineFact("recorder", "built: `ggml-py record -- PROGRAM` begins at once")
    else:
        text = "not built: `ggml-py record` makes it, half a minute"
        yield MachineFact("recorder", text, mend="ggml-py build --recorder")


def _programs() -> Iterator[MachineFact]:
    from ...errors import ArgumentError
    from ...record.programs.find import find

    for name in _PROGRAMS:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            found = find([path], os.environ)
            yield MachineFact(
                name, f"{path}: `ggml-py record` can take it ({found[0].library.name})"
            )
        except (ArgumentError, OSError) as error:
            yield MachineFact(name, f"`ggml-py record` cannot take it: {error}")


def _read(path: Path) -> str:
    """The text of a file of the system; "" if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
