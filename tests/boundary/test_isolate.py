"""`isolate`: what ends the child is an exception here, and nothing is left behind."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import errors

from ..support.drawn_plans import smallest

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="deaths are signals"),
    pytest.mark.thorough("long", quick=6),
]


def double(values, plus=0):
    return values * 2 + plus


def pid() -> int:
    return os.getpid()


def say_a_line_and_die(n: int) -> None:
    sys.stderr.write("x" * (n - 1) + "y")
    sys.stderr.flush()
    os._exit(3)


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


def hang(file: str = "") -> None:
    if file:
        Path(file).write_text(str(os.getpid()))
    time.sleep(600)


def null_read() -> object:
    print("about to read", file=sys.stderr)
    return ggml.ffi.cast("int *", 8)[0]  # cffi looks at 0 itself


def abort() -> None:
    os.abort()


def exhaust() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    np.ones(1 << 34)


def fail() -> None:
    with ggml.Context() as c:
        c.add(c.new_tensor("f32", 8), c.new_tensor("f32", 7))


def leave(status: int) -> None:
    os._exit(status)


def exit_politely() -> None:
    sys.exit(7)


def close_everything() -> None:
    os.closerange(3, 64)
    time.sleep(600)


def result_of_no_use() -> object:
    return ggml.Context()


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def odd() -> None:
    raise Odd(1, 2)


def talk() -> None:
    print("to stdout")
    print("to stderr", file=sys.stderr)


def stdin() -> str:
    return sys.stdin.read()


def nested() -> int:
    return ggml.isolate(pid)


def say_much_and_die() -> None:
    for i in range(50_000):
        print("line", i, file=sys.stderr)
    os.abort()


def outlived() -> int:
    """The child starts a process that keeps its pipes open, and dies."""
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_result_comes_back_from_another_process():
    assert ggml.isolate(double, 4, plus=1) == 9
    assert ggml.isolate(pid) not in (os.getpid(), os.getppid())


def test_large_arrays_both_ways():
    values = np.arange(20_000_000, dtype="f4")
    assert np.array_equal(ggml.isolate(double, values), values * 2)


@pytest.mark.parametrize(
    ("how", "args", "name"),
    [
        (kill, (signal.SIGKILL,), "SIGKILL"),
        (kill, (signal.SIGTERM,), "SIGTERM"),
        (null_read, (), "SIGSEGV"),
        (abort, (), "SIGABRT"),
    ],
)
def test_deaths(how, args, name):
    with pytest.raises(ggml.IsolatedDeath) as caught:
        ggml.isolate(how, *args)
    error = caught.value
    assert (error.call, error.signal) == (how.__name__, name)
    assert error.exitcode == -getattr(signal, name)
    assert 0 < error.seconds < 60
    assert f"{how.__name__}: its process was killed by {name} after" in str(error)
    assert isinstance(error, RuntimeError)


def test_the_last_lines_tell_where_it_died(capfd):
    with pytest.raises(ggml.IsolatedDeath) as caught:
        ggml.isolate(null_read)
    lines = caught.value.lines
    assert lines[0] == "about to read"
    assert "Fatal Python error: Segmentation fault" in lines
    assert any("in null_read" in line for line in lines)
    assert "about to read" in str(caught.value)
    assert "about to read" in capfd.readouterr().err  # as it was said


@pytest.mark.parametrize(("how", "status"), [(leave, 3), (leave, 0)])
def test_an_exit_without_a_result(how, status):
    with pytest.raises(ggml.IsolatedDeath, match=f"exited with status {status}") as caught:
        ggml.isolate(how, status)
    assert (caught.value.exitcode, caught.value.signal) == (status, None)


def test_sys_exit_is_an_end_and_not_ours():
    with pytest.raises(ggml.IsolatedDeath, match="exited with status 7"):
        ggml.isolate(exit_politely)


@pytest.mark.parametrize("how", [hang, close_everything])
def test_a_hang_has_an_end(how):
    start = time.monotonic()
    with pytest.raises(ggml.IsolatedTimeout, match="timeout=3 s") as caught:
        ggml.isolate(how, timeout=3)
    assert 3 <= time.monotonic() - start < 10
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.call, caught.value.timeout) == (how.__name__, 3)


def test_out_of_memory_is_what_the_child_says():
    with pytest.raises(MemoryError):
        ggml.isolate(exhaust)


def test_its_exception_is_raised_here_with_its_traceback():
    with pytest.raises(ggml.AbortError) as caught:
        ggml.isolate(fail)
    error = caught.value
    assert (error.call, error.file) == ("ggml_add", "ggml.c")
    assert len(error.operands) == 2
    assert "in fail" in str(error.__cause__)


def test_an_exception_that_cannot_be_sent_is_told():
    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
        ggml.isolate(odd)


@pytest.mark.parametrize(
    ("function", "args", "match"),
    [
        (lambda: 1, (), "cannot be sent to another process"),
        (double, (threading.Lock(),), "cannot be sent to another process"),
        (result_of_no_use, (), "result, a Context, cannot be sent back"),
    ],
)
def test_what_cannot_be_pickled(function, args, match):
    with pytest.raises(ggml.ArgumentError, match=match):
        ggml.isolate(function, *args)


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_that_is_none(timeout):
    with pytest.raises(ggml.ArgumentError, match="more than 0"):
        ggml.isolate(pid, timeout=timeout)


def test_streams(capfd):
    ggml.isolate(talk)
    said = capfd.readouterr()
    assert (said.out, said.err) == ("to stdout\n", "to stderr\n")
    assert ggml.isolate(stdin) == ""


def test_a_line_of_megabytes_is_cut_and_says_so(capfd):
    with pytest.raises(ggml.IsolatedDeath, match=r"\(after 2,998,000 characters\) x+y$") as caught:
        ggml.isolate(say_a_line_and_die, 3_000_000)
    assert max(map(len, caught.value.lines)) < 2100
    assert len(capfd.readouterr().err) == 3_000_000, "all of it is relayed"


def test_much_is_said_and_the_last_of_it_is_kept(capfd):
    with pytest.raises(ggml.IsolatedDeath) as caught:
        ggml.isolate(say_much_and_die)
    assert "line 49999" in caught.value.lines
    assert len(caught.value.lines) <= 21
    assert "line 0\n" in capfd.readouterr().err


def test_in_one_another():
    assert ggml.isolate(nested) != os.getpid()


def test_a_process_that_the_child_leaves_behind_does_not_hold_us_up():
    start = time.monotonic()
    with pytest.raises(ggml.IsolatedDeath):
        ggml.isolate(outlived)
    assert time.monotonic() - start < 30


def test_from_several_threads():
    found = []
    threads = [
        threading.Thread(target=lambda i=i: found.append(ggml.isolate(double, i))) for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 2, 4]


def test_nothing_is_left_open():
    def state():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))  # noqa: PTH208

    ggml.isolate(pid)
    before = state()
    ggml.isolate(pid)
    for how, args in [(kill, (9,)), (odd, ())]:
        with pytest.raises(RuntimeError):
            ggml.isolate(how, *args)
    assert state() == before


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start(program: str, *args: str, folder: Path) -> subprocess.Popen:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.Popen(
        [sys.executable, str(script), *args],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


HANGING = """
    import sys, ggml_py as ggml
    from tests.boundary import test_isolate
    if __name__ == "__main__":
        ggml.isolate(test_isolate.hang, sys.argv[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("whom", ["caller", "both"])
def test_the_child_ends_with_its_caller(tmp_path, whom):
    file = tmp_path / "pid"
    caller = start(HANGING, str(file), folder=tmp_path)
    wait_for(lambda: file.is_file() and file.read_text())
    child = int(file.read_text())
    assert alive(child)
    if whom == "caller":
        caller.kill()
        caller.communicate()
    else:
        os.killpg(caller.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
        said = caller.communicate(timeout=60)[1]
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert said.count("Traceback") == 1
    wait_for(lambda: not alive(child))


def wait_for(what) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_script_s_own_functions(tmp_path):
    program = """
        import ggml_py as ggml
        def three(): return 3
        if __name__ == "__main__":
            print(ggml.isolate(three))
    """
    done = start(program, folder=tmp_path)
    assert done.communicate(timeout=60) == ("3\n", "")


def test_a_script_without_a_guard_is_told_so(tmp_path):
    program = """
        import ggml_py as ggml
        def three(): return 3
        print(ggml.isolate(three))
    """
    done = start(program, folder=tmp_path)
    said = done.communicate(timeout=60)
    assert said[0] == "" and done.returncode == 1
    assert "if __name__ == '__main__':" in said[1]


def test_an_interactive_function_is_told_so():
    program = "import ggml_py as g\ndef f(): return 1\ng.isolate(f)\n"
    done = subprocess.run(
        [sys.executable, "-"], input=program, capture_output=True, text=True, check=False
    )
    assert "ArgumentError: isolate: the new process does not find the function" in done.stderr


@pytest.mark.parametrize(
    "error",
    [
        ggml.AbortError("cond", "call", "a: 1\nb: 2", "f.c", 3),
        ggml.IsolatedDeath("f", -9, 1.5, ["last"]),
        ggml.IsolatedTimeout("f", 2.0, []),
        ggml.RpcError("no server"),
        ggml.NotBuiltError("no library"),
        ggml.UnknownDeviceError("no device"),
        ggml.PlacementError("not there", smallest()),
    ],
)
def test_errors_survive_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_every_kind_of_error_can_be_pickled():
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    kinds = [kind for kind in classes if issubclass(kind, ggml.GgmlError)]
    special = (ggml.AbortError, ggml.IsolatedDeath, ggml.IsolatedTimeout, ggml.PlacementError)
    for kind, given in (
        (errors.ServerLostError, ("it went", "ggml_x", "host:1")),
        (errors.LeftError, ("it went", "ggml_x", "host:1")),
        (errors.DamagedFileError, ("a.gguf", "it was cut")),
    ):
        error, special = kind(*given), (*special, kind)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))
    for kind in kinds:
        if kind not in special:
            assert str(pickle.loads(pickle.dumps(kind("text")))) == "text"
