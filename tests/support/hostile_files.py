"""Files that end nowhere, lie or change: what each kind of source becomes in somebody else's hands.

`python -m tests.support.hostile_files READER FOLDER` gives them all to one reader. It prints a line
of JSON for each: its name, seconds, MiB at most, and the error. With a third argument, 8, the bombs
and the bounds of texts are eight times smaller.
"""

import contextlib
import gc
import gzip
import io
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import ggml_py as ggml
from ggml_py import models
from ggml_py.cli import main
from ggml_py.cost import Machine
from ggml_py.files import bounds
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.record.op_tests import read_op_tests
from ggml_py.releases.kept import kept_in

from . import drawn_plans, own_records
from .measured import machine, sample

SECONDS, MIB = 10, 1024
TERA = 1 << 40


# --- small files that are as they should be


def make_good(folder):
    """A small file of each kind."""
    plan = drawn_plans.smallest()
    plan.to_json(folder / "plan.json")
    plan.to_json(folder / "plan.json.gz")
    drawn_plans.ran(plan).to_json(folder / "run.json")
    (folder / "plan.txt").write_text(plan.snapshot())
    (folder / "plan.log").write_text(plan.text())
    own_records.recorded(folder / "r.ggrec")
    machine(sample("x", (1,), 1.0)).save(folder / "machine.json")
    spec = LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_head_kv=2, n_ff=32, n_vocab=300)
    write_llama(folder / "m.gguf", spec)
    (folder / "profile.csv").write_text(
        "op_name,op_params,supported\nADD,type=f32,ne=[1,1,1,1],1\n"
    )
    (folder / "vulkaninfo.txt").write_text("VULKANINFO\n")
    (folder / "ops.txt").write_text("")
    (folder / "cases.txt").write_text("# none\n")
    return folder


# --- readers


def verb(*words):
    """Reads with a verb; the file is FILE."""

    def read(path):
        sys.argv = ["ggml-py", *(str(path) if word == "FILE" else word for word in words)]
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            try:
                main()
            except SystemExit as error:
                if error.code:
                    raise ValueError(said.getvalue().strip()) from None

    return read


def _kept(name):
    def read(path):
        folder = path.parent / f"{path.name}.kept"
        folder.mkdir(exist_ok=True)
        inside = folder / name
        inside.unlink(missing_ok=True)
        try:
            os.link(path, inside, follow_symlinks=False)
        except OSError:
            inside.symlink_to(path)
        kept_in(folder)

    return read


def _load(path):
    models.load(path, n_threads=1).close()


READERS = {  # and the small file of the kind
    "Plan.from_json": ("plan.json.gz", ggml.Plan.from_json),
    "Run.from_json": ("run.json", ggml.Run.from_json),
    "Record.read": ("r.ggrec", ggml.Record.read),
    "Machine.load": ("machine.json", Machine.load),
    "Gguf.open": ("m.gguf", lambda path: ggml.Gguf.open(path).close()),
    "models.load": ("m.gguf", _load),
    "profile": ("profile.csv", ggml.load_profile),
    "read_op_tests": ("ops.txt", read_op_tests),
    "kept plan": ("plan.json.gz", _kept("a.json.gz")),
    "kept record": ("r.ggrec", _kept("a.ggrec")),
    "kept cases": ("cases.txt", _kept("cases.txt")),
    "view": ("plan.json", verb("view", "FILE")),
    "plan": ("m.gguf", verb("plan", "FILE", "--n-tokens", "1")),
    "plan of a log": ("plan.log", verb("plan", "FILE")),
    "plan of a snapshot": ("plan.txt", verb("plan", "FILE")),
    "cost of a record": ("r.ggrec", verb("view", "FILE")),
    "generate": ("m.gguf", verb("generate", "FILE", "--tokens", "1", "-n", "1", "-t", "1")),
    "cost --machine": ("machine.json", verb("cost", "plan.json", "--machine", "FILE")),
}


# --- what happens to them


def _zeros_into(path):
    def write():
        with contextlib.suppress(OSError), path.open("wb") as pipe:
            while True:
                pipe.write(bytes(1 << 16))

    threading.Thread(target=write, daemon=True).start()


def _sparse(path, head=b""):
    with path.open("wb") as file:
        file.write(head)
        file.truncate(TERA)
    return path


def _gz(path, head, n, piece=b" " * (1 << 20)):
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(n):
            file.write(piece)
    return path


def _long(path, begin, piece, n, end):
    with path.open("wb") as file:
        file.write(begin)
        for _ in range(n // 100_000):
            file.write(piece * 100_000)
        file.write(end)
    return path


def header(n_tensors, n_kv, rest):
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv) + rest


def _key(name, type_, rest):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", type_) + rest


def _headers():
    """Headers that claim more than any model has, by their name; each goes on as zeros."""
    yield "tensors", header(1 << 40, 1, b"")
    yield "keys", header(1, 1 << 40, b"")
    yield "a string", header(1, 1, _key(b"a", 8, struct.pack("<Q", 1 << 39)))
    yield "an array", header(1, 1, _key(b"a", 9, struct.pack("<IQ", 0, 1 << 39)))
    yield "strings", header(1, 1, _key(b"a", 9, struct.pack("<IQ", 8, 1 << 36)))


def _many_strings(path):
    """Sixty thousand strings of 256 MiB, in a sparse file."""
    at = 24
    with path.open("wb") as file:
        file.write(header(0, 1 << 12, b""))
        for i in range(1 << 12):
            file.seek(at)
            head = _key(b"k%d" % i, 8, struct.pack("<Q", 1 << 28))
            file.write(head)
            at += len(head) + (1 << 28)
        file.truncate(at)
    return path


def _many_arrays(path):
    """Arrays of a million empty strings each, and of four million numbers."""
    at = 24
    with path.open("wb") as file:
        file.write(header(0, 200, b""))
        for i in range(200):
            type_, n, size = (8, 1 << 20, 8) if i % 2 else (0, 1 << 22, 1)
            head = _key(b"k%d" % i, 9, struct.pack("<IQ", type_, n))
            file.seek(at)
            file.write(head)
            at += len(head) + n * size
        file.truncate(at)
    return path


def hostile(folder, good, scale=1):
    """All of them: (name, function that returns the path)."""
    content = good.read_bytes()
    suffix = "".join(good.suffixes)

    def written(name, data):
        path = folder / f"{name}{suffix}"
        path.write_bytes(data)
        return path

    def fifo(name, endless):
        path = folder / f"{name}{suffix}"
        if not path.exists():
            os.mkfifo(path)
        if endless:
            _zeros_into(path)
        return path

    def link(name, to):
        path = folder / f"{name}{suffix}"
        path.unlink(missing_ok=True)
        path.symlink_to(to)
        return path

    def at_socket():
        path = folder / f"s{suffix}"
        path.unlink(missing_ok=True)
        socket.socket(socket.AF_UNIX).bind(str(path))
        return path

    def directory():
        path = folder / f"d{suffix}"
        path.mkdir(exist_ok=True)
        return path

    def growing(name, step):
        path = written(name, content)

        def change():
            for i in range(2000):
                with contextlib.suppress(OSError):
                    os.truncate(path, (len(content) + (i % 50) * step) if step > 0
                                else (len(content) * (i % 7) // 7))  # fmt: skip
        threading.Thread(target=change, daemon=True).start()
        return path

    yield "empty", lambda: written("empty", b"")
    yield "missing", lambda: folder / "missing"
    yield "directory", directory
    yield "/dev/zero", lambda: Path("/dev/zero")
    yield "link to /dev/zero", lambda: link("z", "/dev/zero")
    yield "/dev/full", lambda: Path("/dev/full")
    yield "/dev/stdin", lambda: Path("/dev/stdin")
    yield "link to itself", lambda: link("loop", f"loop{suffix}")
    yield "socket", at_socket
    yield "FIFO", lambda: fifo("fifo", False)
    yield "FIFO without an end", lambda: fifo("endless", True)
    yield "/proc/kmsg", lambda: Path("/proc/kmsg")
    yield "/proc/self/mem", lambda: Path("/proc/self/mem")
    yield "sparse", lambda: _sparse(folder / f"sparse{suffix}")
    yield "sparse, begins well", lambda: _sparse(folder / f"well{suffix}", content)
    yield "900 MiB of spaces", lambda: _spaces(folder / f"spaces{suffix}")
    yield "grows", lambda: growing("grows", 1)
    yield "shrinks", lambda: growing("shrinks", 0)
    yield "gzip bomb", lambda: _gz(folder / f"bomb{suffix}", b"", 3000 // scale)
    yield "gzip bomb, begins well", lambda: _gz(
        folder / f"bomb2{suffix}", b'{"kind":', 3000 // scale)
    yield "twice gzip", lambda: written("twice", gzip.compress(gzip.compress(content)))
    head = b'{"kind": "ggml_py plan", "schema": 6, "x": '
    for name, begin, piece, n, end in (
        ("deep", head, b"[", 5_000_000, b""),
        ("deep objects", head, b'{"a":', 3_000_000, b""),
        ("most lists", head + b"[", b"[],", 8_000_000, b"[]]}"),
        ("many lists", head + b"[", b"[],", 30_000_000, b"[]]}"),
        ("most numbers", head + b"[", b"9999,", 16_000_000, b"0]}"),
        ("a long number", head, b"9", 50_000_000, b"}"),
        ("lines", content, b"\n", 100_000_000, b""),
        ("words", content, b"a ", 50_000_000, b""),
        ("zeros", content, b"\0", 100_000_000, b""),
        ("UTF-16", b"\xff\xfe", b"a\0", 20_000_000, b""),
        ("faces", b"", "\N{GRINNING FACE}".encode(), 30_000_000, b""),
        ("no UTF-8", b"", b"\xff", 100_000_000, b""),
    ):
        yield name, lambda a=(begin, piece, n // scale, end): _long(folder / f"long{suffix}", *a)
    yield "a gzip of many lists", lambda: _gz(
        folder / f"lists{suffix}", head + b"[", 600 // scale, b"[]," * (1 << 19))
    if good.suffix == ".gguf":
        for name, begin in _headers():
            yield f"header claims {name}", lambda n=name, b=begin: _sparse(folder / f"{n}.gguf", b)
        yield "header of 1 TiB", lambda: _many_strings(folder / "strings.gguf")
        yield "header of many arrays", lambda: _many_arrays(folder / "arrays.gguf")


def _spaces(path):
    with path.open("wb") as file:
        for _ in range(900):
            file.write(b" " * (1 << 20))
    return path


def answer(read, path):
    """What reading gives: (error's type, its text); ("", "") without an error."""

    def too_slow(*_):
        raise BaseException(f"hangs for {SECONDS} s")  # nobody catches it

    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(SECONDS + 5)
    try:
        read(path)
    except BaseException as error:
        return type(error).__name__, str(error)[:400]
    finally:
        signal.alarm(0)
        gc.collect()
    return "", ""


def most_mib():
    """The most memory that this program had. Its ru_maxrss may be the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) >> 10


def run(reader, folder, scale=1):
    """All hostile files for one reader, a line of JSON for each."""
    for name in ("TEXT", "VALUES", "LINES"):
        setattr(bounds, name, getattr(bounds, name) // scale)
    name, read = READERS[reader]
    good = folder / name
    now = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (now + 2 * (MIB << 20),) * 2)
    for what, make in hostile(folder, good, scale):
        path = make()
        sys.stderr.write(f"{what}\n")
        began = time.monotonic()
        kind, said = answer(read, path)
        line = {
            "what": what, "seconds": round(time.monotonic() - began, 2), "error": kind,
            "said": said, "path": str(path),
            "mib": most_mib(),
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        if path.is_file() and path.is_relative_to(folder) and path != good:
            path.unlink()


if __name__ == "__main__":
    place = Path(sys.argv[2])
    if not (place / "m.gguf").exists():
        make_good(place)
    os.chdir(place)
    run(sys.argv[1], place, *map(int, sys.argv[3:]))
