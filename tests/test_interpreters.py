"""Which Pythons can have the native module, and what a fork keeps; the others are told clearly."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ggml_py as ggml
from ggml_py import _interpreter


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )


def test_a_free_threaded_python_is_refused_before_anything_is_loaded():
    done = run(
        "import sys; sys.abiflags = 't'\n"
        "import ggml_py\n"
        "try:\n"
        "    ggml_py.devices()\n"
        "except ggml_py.LoadError as error:\n"
        "    print(error)\n"
        "print('numpy' in sys.modules, '_cffi_backend' in sys.modules)"
    )
    message, loaded = done.stdout.splitlines()
    assert message.startswith("ggml_py does not run on a free-threaded Python"), done.stderr
    assert "Use the usual Python of the same version" in message
    assert loaded == "False False"


# How to make a sub-interpreter and run code in it, for every Python since 3.10.
IN_A_SUB_INTERPRETER = """
import sys
try:
    import _interpreters as interpreters
    kinds = {"isolated": interpreters.create, "legacy": lambda: interpreters.create("legacy")}
except ImportError:
    import _xxsubinterpreters as interpreters
    kinds = {"isolated": lambda: interpreters.create(isolated=True),
             "legacy": lambda: interpreters.create(isolated=False)}
code = '''
import ggml_py
try:
    print(PROGRAM)
except ImportError as error:
    print(type(error).__name__, error, flush=True)
'''
interpreter = kinds[KIND]()
interpreters.run_string(interpreter, f"import sys; sys.path[:] = {sys.path!r}\\n" + code)
interpreters.destroy(interpreter)
import ggml_py
print([device.name for device in ggml_py.devices()])
"""


@pytest.mark.parametrize("kind", ["isolated", "legacy"])
@pytest.mark.parametrize("program", ["ggml_py.devices()", "ggml_py.Context()", "ggml_py.enums"])
def test_a_sub_interpreter_is_refused_and_the_main_one_goes_on(kind, program):
    done = run(IN_A_SUB_INTERPRETER.replace("PROGRAM", program).replace("KIND", repr(kind)))
    assert done.returncode == 0, done.stderr
    said, devices = done.stdout.splitlines()
    assert said.startswith("LoadError ggml_py cannot be used in a sub-interpreter"), said
    assert "CPU" in devices
    assert done.stderr == ""  # numpy would warn, were it loaded first


def test_plans_can_be_read_in_a_sub_interpreter():
    done = run(IN_A_SUB_INTERPRETER.replace("PROGRAM", "ggml_py.Plan").replace("KIND", "'legacy'"))
    assert done.stdout.splitlines()[0] == "<class 'ggml_py.trace.plan.Plan'>", done.stderr


def test_the_check_passes_here():
    _interpreter.check()
    assert issubclass(ggml.LoadError, ImportError)
