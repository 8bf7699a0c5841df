"""Our programs on libllama: each text of them has a folder of its own, whole or not there."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from vendor import oracles
from vendor.report import BuildError

from ..support.build_support import REPO

# Stands in for a compiler: what it makes is the sources. "slow" waits with half of it written.
COMPILER = """#!/bin/sh
case "$*" in *--version*) exit;; esac
while [ $# -gt 0 ]; do
    case $1 in -o) shift; out=$1;; *.cpp) sources="$sources $1";; esac
    shift
done
echo "$out" >> "{log}"
if grep -q broken $sources; then echo "a.cpp:1: error: broken" >&2; exit 1; fi
echo half > "$out"
if grep -q slow $sources; then sleep 60; fi
cat $sources > "$out"
"""


class World:
    """A checkout with two programs, a reference build without ours, and a compiler."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder / "log"
        self.reference = folder / "cache" / "reference" / "1.0-abc"
        for path in ("tests/oracle", "native", "cache/reference/1.0-abc/bin", "source"):
            (folder / path).mkdir(parents=True)
        (self.reference / "bin" / "llama-bench").write_text("theirs")
        (self.reference / "build.json").write_text("{}")
        (self.reference / "lib").mkdir()
        self.write("one.cpp", "one")
        self.write("two.cpp", 'two #include "sim_device.h"')
        (folder / "native" / "sim_device.cpp").write_text(" sim")
        (folder / "native" / "guard.h").write_text("")
        compiler = folder / "c++"
        compiler.write_text(COMPILER.format(log=self.log))
        compiler.chmod(0o755)
        self.tools = SimpleNamespace(cxx=str(compiler), launcher=None)

    def write(self, name, text):
        (self.folder / "tests" / "oracle" / name).write_text(text)

    def build(self):
        programs = [self.reference / "bin" / "llama-bench"]
        return oracles.build(self.reference, programs, self.folder / "source", self.tools)

    def compiled(self):
        """Names of what was compiled since the last time."""
        names = [Path(line).name for line in self.log.read_text().split()]
        self.log.write_text("")
        return names


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(oracles, "ROOT", tmp_path)
    monkeypatch.setattr(oracles, "NATIVE", tmp_path / "native")
    return World(tmp_path)


def read(folder):
    names = ("one", "two", "llama-bench")
    return {name: (folder / "bin" / name).read_text() for name in names}


def test_each_text_has_its_folder(world):
    before = world.build()
    assert world.compiled() == ["one", "two"]
    world.write("one.cpp", "another")
    after = world.build()
    assert world.compiled() == ["one"]  # the other is the same text
    whole = {"two": 'two #include "sim_device.h" sim', "llama-bench": "theirs"}
    assert read(before) == {"one": "one", **whole}
    assert read(after) == {"one": "another", **whole}
    world.write("one.cpp", "one")
    assert world.build() == before
    assert world.compiled() == []


def test_what_is_included_counts(world):
    first = world.build()
    world.compiled()
    world.write("session.h", "shared")
    second = world.build()
    assert world.compiled() == ["one", "two"]
    (world.folder / "native" / "guard.h").write_text("otherwise")
    third = world.build()
    assert world.compiled() == ["two"]
    assert len({first, second, third}) == 3


def test_one_that_does_not_compile(world):
    before = world.build()
    world.write("two.cpp", "broken")
    with pytest.raises(BuildError, match=r"two\.cpp does not compile: a\.cpp:1: error: broken"):
        world.build()
    assert sorted(before.parent.iterdir()) == [before]
    assert read(before)["one"] == "one"


def test_a_killed_build_is_not_taken_for_whole(world):
    world.write("two.cpp", "slow")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from types import SimpleNamespace; from vendor import oracles\n"
        "oracles.ROOT = root = Path(sys.argv[2]); oracles.NATIVE = root / 'native'\n"
        "reference = root / 'cache/reference/1.0-abc'\n"
        "oracles.build(reference, (), root / 'source',\n"
        "              SimpleNamespace(cxx=str(root / 'c++'), launcher=None))\n"
    )
    command = [sys.executable, "-c", program, REPO, world.folder]
    killed = subprocess.Popen(command, start_new_session=True)
    half = list[Path]()
    while not half:
        assert killed.poll() is None
        time.sleep(0.02)
        half = [p for p in world.folder.glob("cache/oracles/.*/bin/two") if p.stat().st_size]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert half[0].read_text() == "half\n"
    world.write("two.cpp", "two")
    folder = world.build()
    assert read(folder) == {"one": "one", "two": "two", "llama-bench": "theirs"}
    assert sorted(folder.parent.iterdir()) == [folder]


def test_those_that_nobody_asked_for_lately_go(world):
    folders = []
    for text in ("a", "b", "c"):
        world.write("one.cpp", text)
        folders.append(world.build())
    for folder in folders:
        os.utime(folder, (0, 0))
    assert world.build() == folders[2]  # asked for again
    world.write("one.cpp", "d")
    newest = world.build()
    assert sorted(newest.parent.iterdir()) == sorted([folders[2], newest])


def test_the_links_hold_where_the_cache_is_moved_to(world):
    folder = world.build()
    moved = shutil.move(world.folder / "cache", world.folder / "elsewhere")
    again = moved / folder.relative_to(world.folder / "cache")
    assert read(again)["llama-bench"] == "theirs"
    assert (again / "lib").is_dir() and (again / "build.json").read_text() == "{}"
