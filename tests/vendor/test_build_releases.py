"""The table of upstream releases, and what a user may call one."""

from __future__ import annotations

import re

import pytest

from vendor import releases
from vendor.report import BuildError

from ..support import build_support  # noqa: F401  (puts the checkout on the path)


def test_fifteen_releases_each_with_its_own_label_and_hash() -> None:
    table = releases.releases()
    assert len(table) == 15
    assert len({one.label for one in table}) == len({one.sha256 for one in table}) == 15
    for one in table:
        assert re.fullmatch(r"[0-9a-f]{64}", one.sha256)
        assert one.version in one.file
        assert one.build is None or f".{one.build}" in one.version


def test_the_default_pin() -> None:
    pin = releases.default()
    assert (pin.ggml, pin.build, pin.package) == ("0.26.0", 11549, "xllamacpp")
    assert releases.find(None) == pin
    assert pin.sha256.startswith("c17ee116")


@pytest.mark.parametrize(("selector", "version"), [
    ("0.21.0", "2026.8.10566"),
    ("v0.21.0", "2026.8.10566"),
    ("b10566", "2026.8.10566"),
    ("2026.8.10566", "2026.8.10566"),
    ("0.9.4", "0.2.5"),                 # two packages say 0.9.4: the newer one
    ("0.2.4", "0.2.4"),                 # the older one, by its package version
    ("0.9.4.p0.2.4", "0.2.4"),          # and by its label
    ("0.26.0-1234abcd", "2026.10.11549"),               # a build's key
    ("0.26.0-pristine-debug-1234abcd", "2026.10.11549"),
    ("0.26.0-portable", "2026.10.11549"),
    ("0.26.0-sanitize-1234abcd", "2026.10.11549"),
])
def test_selectors(selector: str, version: str) -> None:
    assert releases.find(selector).version == version


def test_an_unknown_release_is_answered_with_the_list() -> None:
    with pytest.raises(BuildError) as caught:
        releases.find("9.9.9")
    assert "'9.9.9'" in str(caught.value)
    for one in releases.releases():
        assert one.label in str(caught.value)


@pytest.mark.parametrize(("system", "machine", "libc", "part"), [
    ("linux", "x86_64", "glibc", "manylinux_2_28_x86_64"),
    ("linux", "aarch64", "glibc", "manylinux_2_28_aarch64"),
    ("darwin", "arm64", "", "macosx_11_0_arm64"),
    ("darwin", "x86_64", "", "macosx_10_13_x86_64"),
])
def test_openblas_per_platform(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str, part: str
) -> None:
    monkeypatch.setattr(releases.sys, "platform", system)
    monkeypatch.setattr(releases.platform, "machine", lambda: machine)
    monkeypatch.setattr(releases.platform, "libc_ver", lambda: (libc, ""))
    assert part in releases.openblas().file


def test_a_platform_without_openblas_says_how_to_do_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(releases.platform, "machine", lambda: "riscv64")
    with pytest.raises(BuildError, match=r"riscv64.*remove blas from --backend"):
        releases.openblas()
