"""`Scheduler.state` read by threads while another plans and computes."""

import threading
import time

import numpy as np
import pytest

import ggml_py as ggml

from ..support.pauses import switching


@pytest.mark.parametrize("how", ["often", "at any line"])
def test_who_looks_on_disturbs_nobody(small, how):
    """Only the one that looks is told to wait."""
    done, wrong, seen = threading.Event(), [], 0

    def look():
        nonlocal seen
        while not done.is_set():
            try:
                state = small.sched.state
                str(state), state.hash_id(small.x), [list(s.inputs) for s in state.splits]
                seen += 1
                time.sleep(0.0002)  # else they take turns with each other only
            except (ggml.BusyError, ggml.ClosedError):
                pass  # computing just now, or a plan of before
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    end = time.monotonic() + 20
    try:
        with switching(how):
            for thread in threads:
                thread.start()
            rounds = 0
            while rounds < 12 or (not seen and time.monotonic() < end):
                small.sched.alloc_graph(small.graph)
                small.x.set(np.ones(small.x.shape, np.float32))
                small.sched.compute(small.graph)
                small.sched.reset()
                rounds += 1
                time.sleep(0.001)  # else they would never find it idle
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong and seen
