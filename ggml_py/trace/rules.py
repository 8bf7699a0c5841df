"""The scheduler's rules that differ between releases."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from .record import Settings

MAX_SPLIT_INPUTS = 30  # GGML_SCHED_MAX_SPLIT_INPUTS, in all releases of vendor/upstream.toml
# Two packages have ggml 0.9.4; this is the label of the older one.
_RESERVE_WITHOUT_PINS = "0.9.4.p0.2.4"


class Rules(NamedTuple):
    """How one release plans. C: ggml_backend_sched_split_graph"""

    # Ops that do not follow their weights in pass 1, because these are too small.
    ignore_weights: frozenset[str]
    # When a split with many inputs ends: at 30 inputs ("fixed"), at the room that earlier plans
    # left in its slot ("capacity"), never ("").
    input_limit: Literal["fixed", "capacity", ""]
    # Where graph inputs are copied for pipeline parallelism: in pass 5, as the inputs are met, or
    # in a pass 6, for all input leafs.
    graph_inputs_pass: Literal[5, 6]
    # Whether `reserve` drops the pins before it plans.
    reserve_ignores_pins: bool


def rules_of(settings: Settings) -> Rules:
    """The rules of the release that made a plan. Raises ValueError for an unreadable version."""
    version = parse_version(settings.upstream)
    # llama.cpp #25800: attention sinks in host memory pulled flash attention to the GPU.
    follows = {"ROPE"} if version < (0, 18) else {"ROPE", "FLASH_ATTN_EXT"}
    limit: Literal["fixed", "capacity", ""] = "capacity" if version < (0, 24) else ""
    return Rules(
        ignore_weights=frozenset(follows),
        input_limit="fixed" if version <= (0, 18, 0) else limit,
        graph_inputs_pass=5 if version < (0, 25) else 6,
        reserve_ignores_pins=settings.release == _RESERVE_WITHOUT_PINS,
    )


def parse_version(upstream: str) -> tuple[int, ...]:
    """ "0.26.0" -> (0, 26, 0)"""
    try:
        return tuple(int(part) for part in upstream.split("."))
    except ValueError:
        raise ValueError(f"ggml version {upstream!r}: expected numbers separated by dots") from None


class Known(NamedTuple):
    """One release: its label, ggml's version, the version of the package that has it, and
    llama.cpp's build ("" if the package does not say)."""

    label: str
    ggml: str
    package: str
    build: str


# The releases of vendor/upstream.toml, newest first; a test compares them.
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
_KEY = re.compile(r"-[0-9a-f]{8}$")  # the hash of a build
_SUFFIXES = ("-portable", "-sanitize", "-debug", "-pristine")


def find_release(name: object, argument: str = "upstream") -> Known:
    """The release of that name: ggml's version, `b<build>`, a package's version, a label, or the
    key of a build. A version between two known ones plans by the rules for its own number.

    Raises TypeError, and ValueError with the known names.
    """
    if not isinstance(name, str):
        raise TypeError(f'{argument}={name!r}: expected a ggml version, as in {argument}="0.17.0"')
    bare = _KEY.sub("", name).removeprefix("v")
    for suffix in _SUFFIXES:
        bare = bare.removesuffix(suffix)
    if bare.endswith("-source"):
        raise ValueError(
            f"{argument}={name!r} is a build of a checkout, whose rules may differ from any "
            f"release's: give a release, as in {argument}={RELEASES[0].label!r}, or let "
            f"`ggml-py compare --source` plan with the checkout itself"
        )
    for known in RELEASES:  # newest first, like `build --upstream`
        if bare and bare in known:
            return known
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", bare):
        version, newest, oldest = (
            parse_version(text) for text in (bare, RELEASES[0].ggml, RELEASES[-1].ggml)
        )
        if oldest <= version <= newest:
            return Known(bare, bare, "", "")
    known_names = ", ".join(f"{k.label} ({k.build})" if k.build else k.label for k in RELEASES)
    raise ValueError(f"{argument}={name!r} is not a known release of ggml: {known_names}")


def release_behind(version: str) -> Known:
    """The newest known release that is not newer than this version of ggml: what a checkout of that
    version is based on. Raises ValueError for a version before all of them, and for no version."""
    number = parse_version(version)
    for known in RELEASES:
        if parse_version(known.ggml) <= number:
            return known
    raise ValueError(f"ggml {version} is older than {RELEASES[-1].ggml}, the oldest known release")
