"""Facts about a program or library that recording needs: ELF files, read with pyelftools."""

from __future__ import annotations

import platform
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.hash import ELFHashSection, GNUHashSection
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection
from elftools.elf.segments import InterpSegment

from ...errors import ArgumentError
from ...files.reading import open_file

MADE = "ggml_backend_sched_new"  # every program that plans a graph calls it
INSIDE = b"GGML_ASSERT("  # in the text of ggml, however it was linked and stripped
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64", "riscv64": "EM_RISCV"}


def is_elf(path: Path) -> bool:
    """Whether the file is an ELF file."""
    with open_file(path) as file:
        return file.read(4) == b"\x7fELF"


@contextmanager
def opened(path: Path) -> Iterator[ELFFile]:
    """The file, parsed. Raises `ArgumentError` if it is damaged."""
    with path.open("rb") as file:
        try:
            yield ELFFile(file)
        except (ELFError, ValueError, KeyError) as error:
            raise ArgumentError(f"{path} is a damaged ELF file: {error}") from error


def is_for_here(path: Path) -> bool:
    """Whether this machine's programs can load it: packages bring libraries for others, too."""
    with opened(path) as elf:
        machine = elf["e_machine"]
        return elf.elfclass == 64 and machine == _MACHINES.get(platform.machine(), machine)


def check_program(path: Path) -> None:
    """Raises `ArgumentError` for a program whose libraries we cannot stand in front of."""
    mode = path.stat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID):
        raise ArgumentError(
            f"{path} is set-uid or set-gid: the system's loader puts no library in front of its "
            "own. Record a copy without that bit (`cp` makes one)"
        )
    here = platform.machine()
    with opened(path) as elf:
        bits, machine = elf.elfclass, elf["e_machine"]
    if bits != 64 or machine != _MACHINES.get(here, machine):
        raise ArgumentError(
            f"{path} is a {bits}-bit program for {str(machine).removeprefix('EM_')}, and what "
            f"records it would be for {here}: record it on a machine of its own kind"
        )


def interpreter(path: Path) -> str | None:
    """The loader that the program asks for; None for a static program."""
    with opened(path) as elf:
        for segment in elf.iter_segments():
            if isinstance(segment, InterpSegment):
                return str(segment.get_interp_name())
    return None


def defines(path: Path, symbol: str = MADE) -> bool:
    """Whether the file exports the function."""
    with opened(path) as elf:
        for section in elf.iter_sections():
            if isinstance(section, GNUHashSection | ELFHashSection):
                found = section.get_symbol(symbol)
                if found is not None and found["st_shndx"] != "SHN_UNDEF":
                    return True
    return False


def soname(path: Path) -> str | None:
    """The name that programs linked with the library ask for; None if it has none."""
    with opened(path) as elf:
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                for tag in section.iter_tags():
                    if tag.entry.d_tag == "DT_SONAME":
                        return str(getattr(tag, "soname"))  # noqa: B009  (added by pyelftools)
    return None


def exported(path: Path) -> set[str]:
    """The C functions and data that a library exports."""
    with opened(path) as elf:
        section = elf.get_section_by_name(".dynsym")
        if not isinstance(section, SymbolTableSection):
            return set()
        return {
            symbol.name for symbol in section.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF" and not symbol.name.startswith("_")
        }  # fmt: skip


def calls_through_loader(path: Path, symbol: str = MADE) -> bool:
    """Whether a call of the function inside the file goes through the loader, which then finds ours
    first."""
    with opened(path) as elf:
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                tags = {tag.entry.d_tag for tag in section.iter_tags()}
                if "DT_SYMBOLIC" in tags:
                    return False
        for section in elf.iter_sections():
            if isinstance(section, RelocationSection) and section.name.startswith(".rela"):
                symbols = elf.get_section(section["sh_link"])
                if isinstance(symbols, SymbolTableSection):
                    used = {relocation["r_info_sym"] for relocation in section.iter_relocations()}
                    if any(symbols.get_symbol(i).name == symbol for i in used if i):
                        return True
    return False


def contains(path: Path, text: bytes) -> bool:
    """Whether the file has these bytes anywhere."""
    import mmap

    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0
