"""`Scheduler.state` read by threads while another plans and computes."""

import threading
import time

from test_sched_view import small  # noqa: F401  a fixture

import ggml_py as ggml


def test_who_looks_on_disturbs_nobody(small):  # noqa: F811
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
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            small.sched.alloc_graph(small.graph)
            small.sched.compute(small.graph)
            small.sched.reset()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong and seen
