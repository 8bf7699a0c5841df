"""The user's cache folder: its layout, its lock, and folders that are created atomically.

Layout: `downloads/` files as downloaded · `sources/` unpacked, by hash · `cards/` what is cut of
them · `trees/` CMake build trees, kept to speed up the next build · `builds/` finished builds ·
`reference/` upstream's own programs · `oracles/` those plus our programs · `logs/`. Only `trees/`
is changed in place. Everything else is made under a temporary name and renamed, so whatever exists
is complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from vendor.report import ANOTHER, BuildError, say, writing

TEMPORARY = ".tmp-"


def default_folder() -> Path:
    """The cache folder when the user names none: from platformdirs, or from XDG without it."""
    try:
        import platformdirs
    except ImportError:
        home = Path.home()
        if sys.platform == "darwin":
            return home / "Library" / "Caches" / "ggml_py"
        return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "ggml_py"
    return Path(platformdirs.user_cache_dir("ggml_py", appauthor=False))


class Lock:
    """The lock of a folder: held on a cache for a whole build, on the package's folder for a copy.

    It uses flock, which the kernel releases however the holder dies. Compilers inherit `fd`: if a
    build is killed and its compiler keeps running, the next build waits for that compiler too.
    """

    def __init__(
        self, cache: Path, doing: str = "making the cache folder", hint: str = ANOTHER
    ) -> None:
        with writing(doing, cache, hint):
            cache.mkdir(parents=True, exist_ok=True)
            self.file = (cache / "lock").open("a+", encoding="utf-8")
        self.fd = self.file.fileno()
        self.cache = cache
        self.hint = hint

    def __enter__(self) -> Lock:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise BuildError(
                    f"cannot lock {self.cache / 'lock'} ({error.strerror}): its file system "
                    f"supports no locks: {ANOTHER}"
                ) from error
            start = time.monotonic()
            say(f"another build holds {self.cache}: waiting for {self._holder()} ...")
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            say(f"waited {time.monotonic() - start:.1f} s for the other build")
        with writing("taking the lock", self.cache, self.hint):
            self.file.seek(0)
            self.file.truncate()
            self.file.write(f"process {os.getpid()}, {' '.join(sys.argv)[:200]}")
            self.file.flush()
        return self

    def _holder(self) -> str:
        self.file.seek(0)
        return self.file.read().strip() or "an unnamed process"

    def __exit__(self, *exception: object) -> None:
        # Not LOCK_UN: that would also release the lock of a compiler that inherited the fd.
        self.file.close()


@contextlib.contextmanager
def staged(final: Path) -> Iterator[Path]:
    """A new empty folder that becomes `final` when the block succeeds and vanishes otherwise.

    A folder already called `final` is replaced. Call it with the lock held.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    stage = final.parent / f"{TEMPORARY}{final.name}-{os.getpid()}"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    try:
        yield stage
        if final.exists():
            old = final.parent / f"{TEMPORARY}{final.name}-{os.getpid()}-old"
            final.rename(old)
            stage.rename(final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            stage.rename(final)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def sweep(folder: Path) -> None:
    """Remove partial files that killed builds left. Hold the lock: then nothing in the cache is in
    use, unless a folder of it is a link to another's, where somebody may be unpacking just now."""
    for parent in (folder, *(child for child in folder.glob("*") if child.is_dir())):
        for stale in parent.glob(f"{TEMPORARY}*"):
            if _is_in_use(stale):
                continue
            shutil.rmtree(stale, ignore_errors=True) if stale.is_dir() else stale.unlink()


def _is_in_use(stage: Path) -> bool:
    """Whether the process that makes it (`staged`) still runs, as far as this one can see."""
    made_by = re.search(r"-(\d+)(-old)?$", stage.name)
    if made_by is None or int(made_by[1]) == os.getpid():
        return False
    try:
        os.kill(int(made_by[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
