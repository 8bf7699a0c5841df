"""Why two releases plan the same graph differently, on plain data: no native library."""

from dataclasses import replace

import pytest

from ggml_py.plan import Plan
from ggml_py.releases import changes, rule_cases
from ggml_py.releases.attribution import agrees
from ggml_py.trace import reference
from ggml_py.trace.rules import find_release

CASES = {case.name: case.plan for case in rule_cases()}


def under(plan, release, **changed):
    """The plan by the rules of a release; tensors by id with other fields."""
    label = find_release(release).label
    settings = plan.settings._replace(upstream=find_release(release).ggml, build=f"{label}-0")
    capture = replace(plan.capture, settings=settings, **changed)
    return Plan(capture, reference.plan(capture).outcome)


def with_tensor(plan, id, **fields):
    tensors = list(plan.capture.tensors)
    tensors[id] = tensors[id]._replace(**fields)
    return {"tensors": tuple(tensors)}


@pytest.mark.parametrize(
    ("case", "before", "after", "rule", "text"),
    [
        ("attention sinks in host memory", "0.17.0", "0.18.0", "ignore_weights",
         "FLASH_ATTN_EXT no longer follows its weights in pass 1"),
        ("attention sinks in host memory", "0.26.0", "0.9.4", "ignore_weights",
         "FLASH_ATTN_EXT follows its weights in pass 1 again"),
        ("a split with 70 inputs", "0.9.4", "0.26.0", "input_limit",
         "a split has any number of inputs; before, a split ends at 30 inputs"),
        ("graph inputs of a pipeline", "0.24.0", "0.25.3", "graph_inputs_pass",
         "graph inputs are copied for pipeline parallelism in pass 6, not in pass 5"),
    ],
)  # fmt: skip
def test_the_rule_that_changed_is_named(case, before, after, rule, text):
    a, b = (under(CASES[case], release) for release in (before, after))
    (change,) = changes(a, b)
    assert (change.kind, change.what, change.text, change.decides) == ("rule", rule, text, True)


@pytest.mark.parametrize("case", CASES)
def test_equal_plans_have_no_changes_though_rules_differ(case):
    plan = CASES[case]
    assert changes(plan, plan) == ()
    newer = {"attention sinks in host memory": ("0.18.0", "0.26.0"),
             "a split with 70 inputs": ("0.24.0", "0.26.0"),
             }.get(case, ("0.25.3", "0.26.0"))  # fmt: skip
    assert changes(*(under(plan, release) for release in newer)) == ()


def test_an_answer_that_changed_is_told_from_a_rule():
    sinks = CASES["attention sinks in host memory"]
    old = under(sinks, "0.17.0")
    new = under(sinks, "0.17.0", **with_tensor(sinks, 0, offload=0))
    (change,) = changes(old, new)
    assert (change.kind, change.decides) == ("answer", True)
    assert change.text == "gpu0 no longer offloads FLASH_ATTN_EXT (1 node)"
    (back,) = changes(new, old)
    assert back.text == "gpu0 offloads FLASH_ATTN_EXT (1 node)"


def both():
    """The chain with 70 inputs, and attention with sinks in host memory after it."""
    chain = CASES["a split with 70 inputs"]
    sinks = CASES["attention sinks in host memory"].capture
    n = chain.capture.n_nodes
    moved = [
        t._replace(id=t.id + (t.id >= n), src=tuple(i + (i >= n) for i in t.src))
        for t in chain.capture.tensors
    ]
    last = len(moved)
    attention = sinks.tensors[0]._replace(id=n, src=tuple(last + i for i in sinks.tensors[0].src))
    leafs = [t._replace(id=last + t.id) for t in sinks.tensors[1:]]
    tensors = (*moved[:n], attention, *moved[n:], *leafs)
    assert [t.id for t in tensors] == list(range(len(tensors)))
    ids = tuple(t.id for t in tensors if t.kind == "leaf")
    return Plan(
        replace(chain.capture, tensors=tensors, leaf_ids=ids, buffers=sinks.buffers), chain.outcome
    )


def test_rules_that_only_together_lead_there_are_all_named_and_no_other():
    plan = both()
    found = changes(under(plan, "0.17.0"), under(plan, "0.26.0"))
    assert [(c.kind, c.what, c.decides) for c in found] == [
        ("rule", "ignore_weights", True), ("rule", "input_limit", True),
    ]  # fmt: skip
    (one,) = changes(under(plan, "0.17.0"), under(plan, "0.18.0"))
    assert one.what == "ignore_weights"


def test_a_rule_and_a_pin_that_only_together_lead_there_are_named():
    plan = both()
    new = under(plan, "0.26.0", **with_tensor(plan, 0, pin=1))
    kinds = [c.kind for c in changes(under(plan, "0.18.0"), new)]
    assert kinds == ["rule", "memory"]


def test_settings_that_changed_are_named():
    pipeline = CASES["graph inputs of a pipeline"]
    alone = replace(pipeline.capture, settings=pipeline.settings._replace(n_copies=1))
    (change,) = changes(pipeline, Plan(alone, reference.plan(alone).outcome))
    assert (change.kind, change.text) == ("settings", "n_copies 1, not 4")


def test_other_backends_are_named():
    sinks = CASES["attention sinks in host memory"]
    other = sinks.what_if(drop=["gpu0"])
    (change,) = changes(under(sinks, "0.17.0"), other)
    assert (change.kind, change.text) == ("devices", "backends CPU, not gpu0, CPU")


def test_another_graph_is_said_to_be_one():
    sinks = CASES["attention sinks in host memory"]
    other = under(sinks, "0.26.0", **with_tensor(sinks, 0, op="SOFT_MAX", op_desc="SOFT_MAX"))
    (change,) = changes(sinks, other)
    assert change.kind == "graph"
    shown = "the first difference is 'fattn' (SOFT_MAX f32 [64, 4, 64, 1]), before 'fattn' (FLASH_"
    assert shown in change.text


def test_what_nothing_explains_is_called_unknown():
    sinks = CASES["attention sinks in host memory"]
    (placed, *rest) = sinks.outcome.placements
    wrong = Plan(
        sinks.capture, replace(sinks.outcome, placements=(placed._replace(backend=0), *rest))
    )
    assert [change.kind for change in changes(sinks, wrong)] == ["unknown"]
    (back,) = changes(wrong, sinks)
    assert (back.kind, back.text) == (
        "unknown", "the plan before is not the one that its release's rules lead to"
    )  # fmt: skip
    assert agrees(sinks)
    assert not agrees(wrong)
