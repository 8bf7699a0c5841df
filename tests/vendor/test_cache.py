"""The user's cache folder (vendor/cache.py)."""

import subprocess
import sys
from pathlib import Path

from vendor import cache as caches


def test_what_is_being_made_is_not_swept_away(tmp_path: Path) -> None:
    """A cache may share folders with another, whose lock is not the one that is held."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stages = {
        pid: tmp_path / "sources" / f"{caches.TEMPORARY}0.26.0-whole-{pid}"
        for pid in (ended.pid, living.pid)
    }
    for stage in stages.values():
        (stage / "common").mkdir(parents=True)
    nameless = tmp_path / f"{caches.TEMPORARY}nobody"
    nameless.touch()
    try:
        caches.sweep(tmp_path)
        assert not stages[ended.pid].exists() and not nameless.exists()
        assert (stages[living.pid] / "common").is_dir()
    finally:
        living.communicate()
    caches.sweep(tmp_path)
    assert not stages[living.pid].exists()
