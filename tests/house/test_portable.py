"""Plans, records and logs can be read on every system. The modules that read them import neither
the native part's packages nor modules of Unix. They check for functions that Windows lacks, and
open text files with an encoding.

tests/builds/test_pure_wheel.py runs it without these modules and functions. This looks at every
line, whether a test comes there or not."""

import ast
import os
import re
import subprocess
import sys
import textwrap

import pytest

from ggml_py import pytest_plugin

from ..support import elsewhere, imports
from ..support.elsewhere import NATIVE, OF_OS, OF_SIGNAL, UNIX

# What reads. Modules that these import inside functions only may need the native part.
_FOLDERS = (*imports.PLAIN, "files", "builds")
READERS = (
    "", "plan", "run", "checks", "record.session", "cli", "pytest_plugin", "__main__",
    *(n for n in imports.modules() if n.startswith(_FOLDERS) and n != "trace.capture"),
)  # fmt: skip
# By module and function: why it may be there.
ALLOWED = {
    ("cli.shared.this_machine", "os.sched_getaffinity"): "after the devices: with the native part",
}


def readers():
    """The modules that are loaded when those of READERS are imported, where only Python is."""
    names = [f"ggml_py.{name}".rstrip(".") for name in READERS]
    done = subprocess.run(
        [sys.executable, elsewhere.__file__, "tests.support.loaded", *names], text=True,
        env={**os.environ, "PYTHONPATH": str(imports.REPO)}, capture_output=True, check=True,
    )  # fmt: skip
    loaded = {name.partition(".")[2] for name in done.stdout.split()}
    return {name: path for name, path in imports.modules().items() if name in loaded}


def _imported(tree):
    """Top-level modules that are imported when the module is; those under `if TYPE_CHECKING` are
    not."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, str(node.module).partition(".")[0]
        elif isinstance(node, ast.Try):
            yield from _imported(node)


def _asked(tree):
    """What of `os` and `signal` the module asks for by `hasattr` or `getattr`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("hasattr", "getattr"):
            yield ast.unparse(node.args[0]), getattr(node.args[1], "value", "")


def _opens(node):
    """Whether a call opens a text file and does not say its encoding."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    place = {"open": 2, "fdopen": 3, "read_text": 0, "write_text": 1}.get(name)
    words = [getattr(a, "value", None) for a in (*node.args, *(k.value for k in node.keywords))]
    if place is None or any(isinstance(w, str) and "b" in w and len(w) < 4 for w in words):
        return False
    owner = getattr(getattr(node.func, "value", None), "id", "")
    of_other = owner in ("os", "webbrowser", "llama", "formatter") or owner[:1].isupper()
    of_other |= isinstance(getattr(node.func, "value", None), ast.Call) and name == "write_text"
    given = len(node.args) > place or any(k.arg == "encoding" for k in node.keywords)
    return not (given or (of_other and owner != "Path"))


def faults(source):
    tree = ast.parse(source)
    for line, name in _imported(tree):
        if name in (*NATIVE, *UNIX):
            yield f"{line}: imports {name}"
    asked = {*_asked(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            known = {"os": OF_OS, "signal": OF_SIGNAL}.get(node.value.id, ())
            if node.attr in known and (node.value.id, node.attr) not in asked:
                yield f"{node.lineno}: uses {node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call) and _opens(node):
            yield f"{node.lineno}: no encoding: {ast.unparse(node)[:60]}"


def test_what_reads_runs_on_every_system():
    looked = readers()
    assert len(looked) > 130 and "boundary.ffi" not in looked
    found = [
        f"{path.name}:{fault}"
        for name, path in looked.items()
        for fault in faults(path.read_text("utf-8"))
        if (name, fault.rpartition(" ")[2]) not in ALLOWED
    ]
    assert not found, "\n".join(found)


def test_pages_that_tests_keep_have_names_that_windows_allows():
    for name in ('t[<>:"/\\|?*]', "t[\0\x1f\n]", "t[ü 漢]", "t[" + 300 * "a" + "]", "Class::t. "):
        stem = pytest_plugin._stem(f"tests/test_x.py::{name}") + pytest_plugin.SUFFIX
        assert not re.search(r'[<>:"/\\|?*\x00-\x1f]', stem) and stem[-1] not in ". "
        assert len(stem.encode()) < 255


@pytest.mark.parametrize(("source", "fault"), [
    ("import fcntl", "1: imports fcntl"),
    ("from numpy.typing import NDArray", "1: imports numpy"),
    ("try:\n    import resource\nexcept ImportError:\n    pass", "2: imports resource"),
    ("if TYPE_CHECKING:\n    import numpy as np", None),
    ("def f():\n    import requests", None),
    ("os.uname()", "1: uses os.uname"),
    ("if hasattr(os, 'uname'):\n    os.uname()", None),
    ("signal.SIGKILL", "1: uses signal.SIGKILL"),
    ("Path(x).read_text()", "1: no encoding: Path(x).read_text()"),
    ("Path(x).read_text('utf-8')", None),
    ("open(x)", "1: no encoding: open(x)"),
    ("open(x, 'rb')", None),
    ("path.open('w', encoding='utf-8')", None),
    ("p.write_text(x)", "1: no encoding: p.write_text(x)"),
])  # fmt: skip
def test_the_check_finds_faults(source, fault):
    assert [*faults(textwrap.dedent(source))] == ([] if fault is None else [fault])
