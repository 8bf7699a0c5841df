"""A division by zero that is an exception is no fault: faulthandler, in whatever order it comes,
has nothing to say; of a fault that nobody catches it does."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough("long", quick=3)

DIVIDE = """
import ggml_py as ggml

def divide():
    with ggml.Context() as ctx:
        empty, full = ctx.new_tensor("f32", 8, 4, 0), ctx.new_tensor("f32", 8, 4, 2)
        for _ in range(3):
            try:
                ctx.mul_mat(empty, full)
            except ggml.AbortError as error:
                assert "integer division by zero at ggml.c" in str(error)
            else:
                raise AssertionError("it did not divide")

"""
ON_THREADS = """
import threading
threads = [threading.Thread(target=divide) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
ORDERS = {
    "before": "import faulthandler; faulthandler.enable()\n" + DIVIDE,
    "after": DIVIDE + "import faulthandler; faulthandler.enable()\n",
    "again": "from faulthandler import enable, disable\nenable()\n"
    + DIVIDE
    + "disable(); enable()\n",
}


def run(*args):
    ended = subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=120, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_dumped(order):
    assert run("-c", ORDERS[order] + "divide()\n" + ON_THREADS) == (0, "")


def test_nothing_is_dumped_under_x_faulthandler():
    assert run("-X", "faulthandler", "-c", DIVIDE + "divide()\n") == (0, "")


def test_nothing_is_dumped_by_pytest(tmp_path):
    (tmp_path / "test_divide.py").write_text(DIVIDE + "def test_it():\n    divide()\n")
    code, said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
    assert code == 0 and "1 passed" in said
    assert "Fatal" not in said and "Current thread" not in said


@pytest.mark.parametrize("order", ORDERS)
def test_a_fault_that_nobody_catches_is_dumped(order):
    fault = "import signal; signal.raise_signal(signal.SIGFPE)\n"
    code, said = run("-c", ORDERS[order] + "divide()\n" + fault)
    assert code < 0
    assert said.startswith("Fatal Python error: Floating") and said.count("Fatal") == 1
