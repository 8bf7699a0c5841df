"""The conditions of `bisect`, on plain data."""

import pytest

from ggml_py.releases import Made, rule_cases
from ggml_py.releases.conditions import check_names, condition
from ggml_py.scheduler.observed import Observed, RunCopy

CASES = {case.name: case.plan for case in rule_cases()}
PINS = CASES["a reserve with pins"]
RUN = Observed({"gpu0": 1}, {"gpu0": 5, "CPU": 2}, ("grew",), 4, (RunCopy("x", "gpu0", 100),))
SEEN = Made(PINS, "", RUN)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("splits > 2", True), ("splits > 3", False), ("splits<=3", True), ("splits == 3", True),
        ("splits != 3", False), ("copies >= 3", True), ("copy_bytes < 49152", False),
        ("nodes < 4", True), ("waits > 3", True), ("waits > 4", False),
        ("copied_bytes == 100", True), ("reallocations >= 1", True), ("buffer_bytes == 7", True),
        ("pinned on CPU", True), ("pinned not on CPU", False), ("pinned on gpu0", False),
        ("nothing on CPU", False), ("fallback", False), ("", False),
    ],
)  # fmt: skip
def test_what_holds(text, holds):
    assert condition(text)(SEEN, SEEN) is holds


def test_a_node_that_falls_back():
    sinks = Made(CASES["attention sinks in host memory"])  # on the CPU, and there is a GPU
    assert condition("fallback of FLASH_ATTN_EXT")(sinks, SEEN)
    assert not condition("fallback of FLASH_ATTN_EXT")(SEEN, SEEN)
    assert condition("fallback of ADD")(SEEN, SEEN)  # one of them is on the CPU
    assert not condition("fallback")(SEEN, SEEN)  # because it is pinned there


def test_nothing_holds_without_a_plan():
    for text in ("splits >= 0", "waits >= 0", "fallback", "pinned on CPU"):
        assert not condition(text)(Made(None, "no such op"), SEEN)


def test_a_run_that_was_not_seen_is_an_error():
    large = RUN._replace(waits=None, copies=(), left_out="not computed: 9 GiB of data")
    for what in ("waits", "copied_bytes"):
        with pytest.raises(ValueError, match=f"{what} is not known: not computed: 9 GiB"):
            condition(f"{what} > 3")(Made(PINS, "", large), SEEN)
    assert condition("buffer_bytes == 7")(Made(PINS, "", large), SEEN)
    for made in (Made(PINS), Made(PINS, "", Observed({}, {}, (), None, (), "no memory"))):
        with pytest.raises(ValueError, match="buffer_bytes is not known"):
            condition("buffer_bytes > 3")(made, SEEN)


@pytest.mark.parametrize(
    "text", ["fast", "speed > 3", "splits > many", "fallback on", "splits > -1"]
)
def test_what_means_nothing(text):
    with pytest.raises(ValueError, match="is no condition: expected one such as"):
        condition(text)


def test_names_that_no_plan_has():
    with pytest.raises(ValueError, match="no plan has a node 'ffn'"):
        check_names("ffn on CPU", [PINS])
    with pytest.raises(ValueError, match="no backend 'gpu9', only gpu0, CPU"):
        check_names("pinned on gpu9", [PINS])
    with pytest.raises(ValueError, match="no plan has an op CONV_2D"):
        check_names("fallback of ADD,CONV_2D", [PINS])
    check_names("fallback of ADD", [PINS])
    check_names("splits > 3", [PINS])
