"""Files that are whole under their name, or not there; and what is no file."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ggml_py.files.writing import whole_file


def write(path, content=b"new", **options):
    with whole_file(path, **options) as out:
        out.write(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_has_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        with whole_file(path) as out:
            out.write(b"new")
            out.flush()
            assert path.read_bytes() == b"old" and len(names(tmp_path)) == 2
        assert path.read_bytes() == b"new" and names(tmp_path) == ["f"]
        assert reader.read() == b"old"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(error), whole_file(path) as out:
        out.write(b"half")
        raise error
    assert path.read_bytes() == b"old" and names(tmp_path) == ["f"]


@pytest.mark.parametrize("hard_links", [True, False])
def test_what_is_there_stays_unless_it_may_be_replaced(tmp_path, monkeypatch, hard_links):
    if not hard_links:
        monkeypatch.setattr(Path, "hardlink_to", _no_hard_links)
    path = tmp_path / "f"
    write(path, b"first", replace=False)
    with pytest.raises(FileExistsError, match="already exists: force=True replaces it"):
        write(path, replace=False)
    assert path.read_bytes() == b"first" and names(tmp_path) == ["f"]


def _no_hard_links(self, target):
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one(tmp_path, there):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if there:
        target.write_bytes(b"old")
    link.symlink_to("folder/target")
    write(link)
    assert link.readlink() == Path("folder/target") and target.read_bytes() == b"new"
    assert names(tmp_path) == ["folder", "link"] and names(tmp_path / "folder") == ["target"]
    with pytest.raises(FileExistsError):
        write(link, replace=False)


def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    assert read == [b"new"] and pipe.is_fifo() and names(tmp_path) == ["pipe"]
    with pytest.raises(FileExistsError):
        write(pipe, replace=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
def test_a_device_is_written_to_and_says_that_it_is_full(tmp_path):
    link = tmp_path / "link"  # were the device replaced, it would be gone for good
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write(link)
    assert Path("/dev/full").is_char_device() and link.is_symlink()


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write(tmp_path / "folder")
    assert names(tmp_path) == ["folder"] and names(tmp_path / "folder") == []


def test_threads_that_write_the_same_file(tmp_path):
    path = tmp_path / "f"
    contents = [bytes([i]) * 100_000 for i in range(8)]
    threads = [threading.Thread(target=write, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents and names(tmp_path) == ["f"]


FULL = """
import resource, sys
import numpy as np
import ggml_py as ggml
from tests.support import drawn_plans
from ggml_py.models import load
from ggml_py.models.synthetic import write_llama

data = np.zeros(4096, np.float32)
plan = drawn_plans.llama(40)
run = drawn_plans.ran(plan)
write_llama("m.gguf")
model = load("m.gguf", graphs="libllama")
model.eval([1, 2, 3])
ctx = ggml.Context()
graph = ctx.new_graph()
t = ctx.new_tensor("f32", 8)
for i in range(100):
    t = ctx.sqr(t)
graph.build_forward_expand(t)
sys.dont_write_bytecode = True  # Python 3.11 keeps what it wrote of one, and cannot read it
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
for name, write in {
    "p.json": plan.to_json, "p.json.gz": plan.to_json, "r.json": run.to_json,
    "p.html": plan.export, "p.csv": plan.export, "p.dot": plan.export, "r.html": run.export,
    "w.gguf": lambda path: ggml.write_gguf(path, {}, [("x", data, "f32", (4096,))]),
    "s.bin": lambda path: model.save_seq(path, 0, [1, 2, 3]),
    "g.dot": graph.to_dot,
}.items():
    try:
        write(name)
    except OSError as error:
        print(name, "refused")
    else:
        print(name, "written")
"""


@pytest.mark.thorough("long")
def test_every_writer_where_there_is_no_room(tmp_path):
    """Nothing is left behind, whole or not."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FULL], cwd=tmp_path, env=env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["refused"] * 10, done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
