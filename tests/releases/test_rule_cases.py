"""The cases that `compare` plans without a source: each rule makes a difference in one."""

import itertools
import re
from dataclasses import replace

import pytest

import ggml_py as ggml
from ggml_py.releases import Made, rule_cases, runs
from ggml_py.releases.attribution import _decided, explained, parting
from ggml_py.releases.compare import compared
from ggml_py.releases.drawn_at_random import draw
from ggml_py.releases.rule_changes import ChangedRule, changed_rules
from ggml_py.scheduler.as_recorded import AsRecorded
from ggml_py.scheduler.observed import ID_OF_GRAPH
from ggml_py.trace import reference
from ggml_py.trace.planning import CannotPlanError, Planning

RELEASES = ("0.26.0", "0.21.0", "0.17.0")  # between them they have all rules
# Changes of the reference that lead to the same plan of any graph, and why.
SAME = {
    r"place_by_memory had .*(viewed|b [!=]= NOBODY|VIEW_ALL|t.view_src > 0|nothing.*`return`)":
        "a tensor in memory through its view source was found by the line before",
    r"place_by_memory had .*(placed_in|t.buffer|buft = )":
        "it only leads to an abort, and a graph that cannot be planned is no case",
    r"reads_source had .*(buft <= 0|return False|`backend == NOBODY` in place)":
        "-1 means none, and 0 is the first buffer type, which a backend stands for",
    r"pass_1_weights_and_inputs had `for t in reversed": "no tensor's place depends on another's",
    r"follow_weight had .*(set_cause|id <= 0)":
        "a cause without a place is replaced later; no weight has id 0, as nodes come first",
    r"sweep had `nothing` in place of `carrier = t`": "only the steps name it",
    r"place_by_sources had `self.reads_source": "memory that is read has a place",
    r"pass_4_rest had .*(list\(self.sources|src.view_src > 0|viewed|`self.backend\[t.id\] == )":
        "views are nodes, which come before their readers; view 0 of a node is impossible",
    r"pass_5_split had .*(reversed|n_copies|graph_inputs_pass)":
        "copies are sorted, and with one copy of the graph none is made",
    r"reason_to_split had .*(reversed|`return None`|`nothing` in place of `continue`)":
        "any source will do, and a source in its place is read there",
    r"copy_sources had `self.reads_source\(current": "a backend reads what it has itself",
    r"keep_copies had .*(MAX_SPLIT_INPUTS|fixed)": "it only leads to an abort",
}  # fmt: skip


@pytest.fixture(scope="module")
def cases():
    return rule_cases()


@pytest.fixture(scope="module")
def decided(cases):
    """What the rules of each release decide about each capture, the smallest first."""
    found = []
    for release in RELEASES:
        for case in cases:
            settings = case.plan.settings._replace(upstream=release, build=f"{release}-0")
            capture = replace(case.plan.capture, settings=settings)
            try:
                found.append((capture, _decided(reference.plan(capture).outcome)))
            except CannotPlanError:  # more inputs than it has room for
                continue
    return sorted(found, key=lambda one: len(one[0].tensors))


def is_noticed(change, decided):
    for capture, target in decided:
        outcome = change.decides(capture)
        if outcome is None or _decided(outcome) != target:
            return True
    return False


def check(changes, decided):
    missed = [one.text for one in changes if not is_noticed(one, decided)]
    unknown = [text for text in missed if not any(re.search(key, text) for key in SAME)]
    assert not unknown
    return missed


def test_some_rules_of_the_reference_make_a_difference(decided):
    assert len(check(changed_rules()[::8], decided)) < 8


@pytest.mark.thorough("long")
def test_each_rule_of_the_reference_makes_a_difference(decided):
    missed = check(changed_rules(), decided)
    assert len(changed_rules()) > 200 and len(missed) < 40
    used = [key for key in SAME if any(re.search(key, text) for text in missed)]
    assert used == list(SAME)  # no reason outlives what it is about


def test_names_are_told_apart(cases):
    names = [case.name for case in cases]
    assert len(set(names)) == len(names) > 45
    assert draw(212).plan().capture == draw(212).plan().capture


@pytest.mark.thorough("cases", quick=6)
@pytest.mark.parametrize("index", range(len(rule_cases())))
def test_upstream_plans_it_as_the_reference(cases, index):
    case = cases[index]
    with AsRecorded(case.plan, 1024, 1) as scheduler:
        for earlier in case.earlier:
            scheduler.plan(earlier)
        again = scheduler.plan(case.plan)
        used = again.outcome.hash_set_used
        assert again.outcome == replace(case.plan.outcome, hash_set_used=used)
        seen = scheduler.observe(case.plan, case.reserve, case.in_depth)
    nothing = all(node.is_view_op for node in case.plan.nodes)  # gets no memory
    assert seen.layout or seen.left_out or nothing


def seen_of(cases, name):
    (case,) = [one for one in cases if one.name == name]
    with AsRecorded(case.plan, 1024, 1) as scheduler:
        return scheduler.observe(case.plan, case.reserve, case.in_depth)


def test_what_a_scheduler_does_besides_planning_is_seen(cases):
    later = seen_of(cases, "a reserve with pins").later
    assert later[:2] == ("reserve: wait synchronize gpu0", "reserve: wait synchronize CPU")
    ids = [line for line in later if line.startswith(ID_OF_GRAPH)]
    assert len(ids) == 12 and all(line.endswith("has a new one") for line in ids)
    assert "usage of compute buffers: gpu0 compute" in later
    at_once = [line for line in later if line.startswith("computed at once: nodes")]
    assert at_once == ["computed at once: nodes CPU nodes 0 to 3"]  # the pins are dropped


def test_weights_without_an_address_take_no_compute_buffer(cases):
    seen = seen_of(cases, "weights in host memory without offload")
    sizes = [f"reserved without addresses: {name} {n} B" for name, n in seen.allocated.items()]
    assert sizes == [line for line in seen.later if line.startswith("reserved without addr")]


def test_a_graph_is_laid_out_again_only_if_it_must_be(cases):
    again = {
        case.name: (seen.reallocations, [x for x in seen.later if "laid out again" in x])
        for case in cases
        if case.reserve and (seen := seen_of(cases, case.name)).later
    }
    assert again["smaller than reserved"] == ((), [])
    assert not any(later for _first, later in again.values())
    (text,) = again["no view, reserved as one"][0]
    assert "the one before had its own memory" in text
    assert again["the last source without memory, reserved in some"][0]


def test_what_one_release_lacks_is_no_difference():
    lines = [f"{ID_OF_GRAPH}: split 0 has a new one", "compute 2: compute", "copy callback: 'w'"]
    for lacking in (lines[1:], lines[:2], lines[1:2]):
        assert runs._later(lines, lacking)[0] == runs._later(lines, lacking)[1]
    other = [f"{ID_OF_GRAPH}: split 0 has none", *lines[1:]]
    assert runs._later(lines, other) == (lines, other)


def under(cases, change):
    """What a scheduler with a changed rule would make of the cases."""
    found = []
    for case in cases:
        outcome = change.decides(case.plan.capture)
        plan = None if outcome is None else ggml.Plan(case.plan.capture, outcome)
        found.append(Made(plan, "" if plan else "it aborts"))
    return found


# Eight changes of one rule; a set of six cases found three of them.
RULES = {
    "ROPE follows its weights in pass 1 again": r"ROPE follows its weights in pass 1 again",
    "no upgrade in pass 3": r"pass 3: .*(upgrade|self.backend)",
    "the last of the best backends": r"pass 3: .*(readable >= best|reversed)",
    "no split for weights": r"pass 5: .*(reason_to_split|pass_5_split)",
    "the first sweep stops at no CPU": r"pass 2: .*sweep",
}


@pytest.mark.parametrize("name", RULES)
def test_a_changed_rule_is_found_and_named(cases, name):
    change = {
        "ROPE follows its weights in pass 1 again": ChangedRule(
            "", Planning, "ignore_weights", frozenset({"FLASH_ATTN_EXT"})
        ),
        "no upgrade in pass 3": with_method("upgrade", lambda self, t: None),
        "the last of the best backends": of("readable >= best"),
        "no split for weights": with_method("reason_to_split", lambda self, t, b, n: None),
        "the first sweep stops at no CPU": of("sweep had `b != skip`"),
    }[name]
    before = [Made(case.plan) for case in cases]
    found = compared("0.26.0", "changed", cases, before, under(cases, change))
    assert found.different
    for row in found.different:
        assert row.diff is None or row.changes, row
    said = str(found)
    assert re.search(RULES[name], said), said
    assert "unknown" not in said
    assert "the plans part in pass" in said and " → " in said


def of(words):
    return next(one for one in changed_rules() if words in one.text)


def with_method(name, function):
    return ChangedRule("", type("Planning", (Planning,), {name: function}))


def test_a_rule_that_some_release_had_is_named_as_such(cases):
    """A checkout in which FLASH_ATTN_EXT follows its weights again, as before 0.18."""
    again = ChangedRule("", Planning, "ignore_weights", frozenset({"ROPE"}))
    before = [Made(case.plan) for case in cases]
    found = compared("0.26.0", "checkout", cases, before, under(cases, again))
    (row,) = found.different
    assert row.case == "attention sinks in host memory"
    assert [(c.kind, c.what) for c in row.changes] == [("pass", "1"), ("rule", "ignore_weights")]
    said = str(found)
    assert "rule: FLASH_ATTN_EXT follows its weights in pass 1 again" in said
    assert "on another backend: fattn (FLASH_ATTN_EXT): CPU 3.best → gpu0 1.off" in said or (
        "fattn (FLASH_ATTN_EXT): CPU" in said and "gpu0 1.off" in said
    )


def test_what_no_single_rule_explains_is_unknown(cases):
    """Two rules at once: the pass where plans part is all that is said."""

    def pass_4(self):
        Planning.pass_4_rest(self)
        self.backend[0] = self.last

    both = with_method("pass_4_rest", pass_4)
    some = cases[:8]
    found = compared("a", "b", some, [Made(c.plan) for c in some], under(some, both))
    assert any(c.kind == "unknown" for row in found.different for c in row.changes)
    assert not explained([(c.plan, m.plan) for c, m in zip(some, under(some, both), strict=True)])


def test_nothing_parts_the_same_plan(cases):
    for case in itertools.islice(cases, 10):
        assert parting(case.plan, case.plan) is None
