"""Shared by the tests of the build: real runs of the program, and a package index on loopback.

Every build here uses its own cache, seeded with files from the user's cache, so the pinned releases
are downloaded once per machine, not once per run.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
from vendor import cache as caches  # noqa: E402
from vendor import fetch, releases  # noqa: E402

# Real builds share this cache. Its paths stay the same from run to run, so ccache hits.
WARM = caches.default_folder() / "tests"


def seed(cache: Path) -> Path:
    """Put the pinned files into `cache` (hard links where possible) and return it."""
    target = cache / "downloads"
    target.mkdir(parents=True, exist_ok=True)
    for pinned in (releases.default(), releases.openblas()):
        if not (target / pinned.file).is_file():
            have = fetch.download(pinned, caches.default_folder())
            try:
                os.link(have, target / pinned.file)
            except OSError:
                shutil.copy2(have, target / pinned.file)
    return cache


def run(
    *arguments: str | Path,
    cache: Path | None = None,
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run `python build_ggml.py` as a user would, with `env` on top of ours."""
    return subprocess.run(
        command(*arguments, cache=cache, prefix=prefix), capture_output=True, text=True,
        env={**os.environ, **(env or {})}, check=False, timeout=timeout)


def command(
    *arguments: str | Path, cache: Path | None = None, prefix: Sequence[str] = ()
) -> list[str]:
    """The command line of `run`."""
    chosen = ["--cache", str(cache)] if cache else []
    return [*prefix, sys.executable, str(REPO / "build_ggml.py"), *map(str, arguments), *chosen]


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a run that must fail cleanly: exit 1, a message, no traceback."""
    assert done.returncode == 1, done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]


def small_sdist(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    """A reproducible .tar.gz of these files and symbolic links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()


@dataclass(frozen=True)
class Pin:
    """A pinned file on the loopback index, for fetch.py."""

    package: str
    version: str
    file: str
    sha256: str


def pin_of(content: bytes, name: str = "small") -> Pin:
    """The pin of these bytes as `<name>-1.0.tar.gz`."""
    return Pin(name, "1.0", f"{name}-1.0.tar.gz", hashlib.sha256(content).hexdigest())


@dataclass
class Index:
    """A package index on loopback: the files that it serves, and the requests that it got."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    cut: bool = False       # promise the whole file, send half of it, hang up
    as_json: bool = False   # tell hashes, sizes and dates, as PEP 691 and 700 say
    yanked: str = ""        # a file that was withdrawn

    def page(self, project: str, names: list[str]) -> dict[str, object]:
        """The project's page in JSON."""
        return {
            "meta": {"api-version": "1.1"}, "name": project, "versions": [],
            "files": [
                {
                    "filename": name, "url": f"/files/{name}", "yanked": name == self.yanked,
                    "hashes": {"sha256": hashlib.sha256(self.files[name]).hexdigest()},
                    "size": len(self.files[name]), "upload-time": "2026-11-20T01:02:03Z",
                }
                for name in names
            ],
        }


@contextmanager
def index() -> Iterator[Index]:
    """Serve an Index until the block ends."""
    state = Index()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            kind, _, rest = self.path.strip("/").partition("/")
            mine = [name for name in state.files
                    if name.replace("_", "-").startswith(rest + "-")]
            if kind == "simple" and mine and state.as_json:
                self.answer(json.dumps(state.page(rest, mine)).encode(),
                            "application/vnd.pypi.simple.v1+json")
            elif kind == "simple" and mine:
                links = "".join(f'<a href="/files/{name}">{name}</a>' for name in mine)
                self.answer(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(),
                            "text/html")
            elif kind == "files" and rest in state.files:
                self.answer(state.files[rest], "application/gzip")
            else:
                self.send_error(404)

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            half = state.cut and kind == "application/gzip"
            self.wfile.write(body[: len(body) // 2] if half else body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/simple/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def small_disk(folder: Path, megabytes: float) -> Iterator[Path]:
    """Mounts a file system of that size at `folder`. Skips the test if mounting is not allowed."""
    import pytest

    folder.mkdir(parents=True, exist_ok=True)
    size = f"size={int(megabytes * 1024)}k"
    mounted = shutil.which("mount") and os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)],
        capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("filling a real disk needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def live_cache(folder: Path) -> Path:
    """A new cache with WARM's downloads and sources: only compiling is left to do."""
    import build_ggml
    from vendor import identity

    identity.unpacked(releases.default(), seed(WARM), whole=False)
    build_ggml.openblas_dir(WARM)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("sources", "downloads"):
        (folder / part).symlink_to(WARM / part)
    return folder


def checkout(folder: Path) -> Path:
    """A copy of everything that a build reads from this repository, which keeps its own builds."""
    skip = shutil.ignore_patterns("__pycache__", "lib")
    for part in ("vendor", "ggml_py/native"):
        shutil.copytree(REPO / part, folder / part, ignore=skip)
    shutil.copy2(REPO / "build_ggml.py", folder)
    return folder
