"""The releases of ggml that are known, by every name that `ggml-py build --list` prints."""

from __future__ import annotations

import re
from typing import NamedTuple

from .rules import parse_version


class Known(NamedTuple):
    """One release: its label, ggml's version, the version of the package that has it, llama.cpp's
    build ("" where the package does not say)."""

    label: str
    ggml: str
    package: str
    build: str


# Those of vendor/upstream.toml, newest first; a test compares.
RELEASES = (
    Known("0.26.0", "0.26.0", "2026.10.11549", "b11549"),
    Known("0.25.3", "0.25.3", "0.3.36", ""),
    Known("0.24.0", "0.24.0", "2026.9.11063", "b11063"),
    Known("0.23.0", "0.23.0", "2026.9.10809", "b10809"),
    Known("0.21.0", "0.21.0", "2026.8.10566", "b10566"),
    Known("0.18.0", "0.18.0", "2026.8.10229", "b10229"),
    Known("0.17.0", "0.17.0", "2026.7.10068", "b10068"),
    Known("0.15.3", "0.15.3", "2026.7.9873", "b9873"),
    Known("0.15.1", "0.15.1", "2026.6.9713", "b9713"),
    Known("0.13.1", "0.13.1", "2026.6.9538", "b9538"),
    Known("0.11.0", "0.11.0", "2026.5.9093", "b9093"),
    Known("0.9.11", "0.9.11", "2026.4.8672.1", "b8672"),
    Known("0.9.7", "0.9.7", "0.2.14", ""),
    Known("0.9.4", "0.9.4", "0.2.5", ""),
    Known("0.9.4.p0.2.4", "0.9.4", "0.2.4", ""),
)  # fmt: skip
_KEY = re.compile(r"-[0-9a-f]{8}$")  # of a build
_SUFFIXES = ("-portable", "-sanitize", "-debug", "-pristine")


def find_release(name: object, argument: str = "upstream") -> Known:
    """The release of that name: ggml's version, `b<build>`, a package's version, a label, a build's
    key. A version between two known ones plans by the rules of the one before.

    Raises TypeError, and ValueError with the names there are.
    """
    if not isinstance(name, str):
        raise TypeError(f'{argument}={name!r}: expected a ggml version, as in {argument}="0.17.0"')
    bare = _KEY.sub("", name).removeprefix("v")
    for suffix in _SUFFIXES:
        bare = bare.removesuffix(suffix)
    for known in RELEASES:  # newest first, as `build --upstream` looks
        if bare and bare in known:
            return known
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", bare):
        version, newest, oldest = (
            parse_version(text) for text in (bare, RELEASES[0].ggml, RELEASES[-1].ggml)
        )
        if oldest <= version <= newest:
            return Known(bare, bare, "", "")
    known_names = ", ".join(f"{k.label} ({k.build})" if k.build else k.label for k in RELEASES)
    raise ValueError(f"{argument}={name!r} is no release of ggml that is known: {known_names}")
