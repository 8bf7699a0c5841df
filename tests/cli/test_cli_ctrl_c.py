"""Ctrl-C in the command line from its first moment on: one word, exit status 130, no traceback."""

import json
import signal
import subprocess
import sys
import time

import pytest

from ggml_py import cli
from ggml_py.models.synthetic import LlamaSpec, write_llama

pytestmark = pytest.mark.thorough("long", quick=2)

START = "import ggml_py.__main__ as m; print('up', flush=True); m.main()"
SLOW_END = "import atexit, time; atexit.register(lambda: (print('up', flush=True), time.sleep(9)))"


def stopped(seconds, *arguments, start=START):
    """Exit status and output of a verb that gets SIGINT `seconds` after it prints "up"."""
    child = subprocess.Popen(
        [sys.executable, "-c", start, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "up\n"
    time.sleep(seconds)
    child.send_signal(signal.SIGINT)
    said, errors = child.communicate(timeout=60)
    return child.returncode, said, errors.lstrip()  # a line may be left half-written


@pytest.mark.parametrize("seconds", (0, 0.02, 0.05, 0.1, 0.2, 0.3))
def test_while_it_imports(seconds):
    """Whether it is over by then is the machine's affair."""
    code, _said, errors = stopped(seconds, "diff", "/nowhere", "/nowhere")
    assert (code, errors) == (130, "stopped\n") or errors.startswith(("Usage", "error"))
    assert "Traceback" not in errors
    if seconds < 0.05:
        assert code == 130


IN_A_FINALIZER = """
import sys, time, weakref
import ggml_py.cli.diff as diff
class Thing: pass
def final():
    print('up', flush=True)
    time.sleep(9)
def slow(*_a, **_k):
    thing = Thing()
    weakref.finalize(thing, final)
    del thing
    time.sleep(30)
diff.command.callback = slow
import ggml_py.__main__ as m; m.main()
"""


def test_inside_a_finalizer():
    """Python ignores an exception there; the verb would go on."""
    began = time.monotonic()
    code, _said, errors = stopped(0.5, "diff", "/nowhere", "/nowhere", start=IN_A_FINALIZER)
    assert (code, errors) == (130, "stopped\n")
    assert time.monotonic() - began < 25


def test_while_the_interpreter_ends():
    """An exception there is printed with its traceback, and nothing can catch it."""
    start = f"{SLOW_END}; import ggml_py.__main__ as m; m.main()"
    code, _said, errors = stopped(0.1, "diff", "/nowhere", "/nowhere", start=start)
    assert code == 130
    assert errors.startswith("error: ") and errors.endswith("\nstopped\n")
    assert "Traceback" not in errors


@pytest.mark.thorough("programs")
def test_bench_prints_a_list_without_rows(tmp_path):
    """Its first row takes minutes."""
    model = tmp_path / "m.gguf"
    write_llama(model, LlamaSpec(n_layer=2, n_vocab=512, n_head=4, n_head_kv=4))
    code, said, errors = stopped(3, "bench", model, "-p", 100000, "-n", 0, "-t", 1, "--json")
    assert (code, errors) == (130, "stopped\n")
    assert json.loads(said) == []


MEASURING = """
import ggml_py.calibrate as c
whole = c.calibrate
def shown(*given, progress, **more):
    return whole(*given, **more, progress=lambda what, share: print('up', flush=True))
c.calibrate = shown
import ggml_py.__main__ as m; m.main()
"""


@pytest.mark.thorough("long")
def test_calibrate_writes_nothing(tmp_path):
    path = tmp_path / "machine.json"
    code, _said, errors = stopped(
        1, "calibrate", "-d", "CPU", "-t", 1, "-o", path, start=MEASURING
    )
    assert code == 130 and f"stopped: {path} was not written" in errors
    assert list(tmp_path.iterdir()) == []


def test_an_import_that_makes_another_exception_of_it(monkeypatch, capsys):
    """Found once: "Error calling __set_name__", for Ctrl-C while a module was imported."""

    def stopped_in_an_import(**_options):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr(cli.cli, "main", stopped_in_an_import)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "stopped\n")
