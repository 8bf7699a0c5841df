"""In a Python shell an answer is a line: what it is of, and what it says. str() is the text."""

import pytest

from ggml_py.advice.finding import Finding
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.trace.answers.sweep import Sweep, sweep
from ggml_py.trace.answers.variant import Nearest, Variant
from ggml_py.trace.answers.why_splits import why_splits

from ...support.worlds import attention_with_sinks


@pytest.fixture(scope="module", name="plans")
def _plans(tmp_path_factory):
    path = tmp_path_factory.mktemp("reprs") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=4))
    with load(path, devices=["CPU"], repack=False) as model:
        return model.plan(n_tokens=1), model.plan(n_tokens=64)


def test_an_explanation_and_its_links():
    found = attention_with_sinks().explain("fa")
    assert repr(found) == f"<Explanation of fa: {found.headline}>"
    assert repr(found.links[0]) == f"<Link {found.links[0]}>"


def test_why_not_names_its_reasons():
    plan = attention_with_sinks()
    there = plan.explain("fa").subject.backend
    other = next(b.name for b in plan.backends if b.name != there)
    found = plan.why_not("fa", other)
    ids = ", then ".join(reason.id for reason in found.reasons)
    assert ids
    assert repr(found) == f"<WhyNot fa on {other}: {ids}>"
    assert repr(plan.why_not("fa", there)) == f"<WhyNot fa on {there}: it is there>"
    assert repr(found.reasons[0]) == f"<Reason {found.reasons[0]}>"
    for change in found.reasons[0].changes:
        assert repr(change) == f"<TriedChange {change.call}: {change.then}>"


def test_a_finding():
    found = Finding("GP101", "cost", "Copies of weights", "A long text.", "Do this.", (), 4096)
    assert repr(found) == "<Finding GP101, cost: Copies of weights>"


def test_a_diff_and_why_splits(plans):
    before, after = plans
    assert repr(before.diff(after)) == f"<Diff: {before.diff(after).headline()}>"
    assert repr(why_splits(before)).startswith("<WhySplits: 1 split, 0 reasons, main backend ")


def test_a_sweep(plans):
    small, large = plans
    found = sweep(lambda n: small if n < 8 else large, n=[1, 64])
    n = len(found.thresholds)
    assert repr(found) == f"<Sweep of n: 2 plans, {n} threshold{'s' * (n != 1)}>"
    assert all(repr(one) == f"<Threshold {one.headline()}>" for one in found.thresholds)
    assert repr(Sweep({"n": (1,)}, found.points[:1], (), 1)) == "<Sweep of n: 1 plan, 0 thresholds>"


def test_the_nearest_variant():
    variant = Variant("type", 1, "K", None, "q5_1", "f16", None, "", (), (), (), "K f16, not q5_1")
    found = Nearest("FLASH_ATTN_EXT", "fa", "gpu0", False, (variant,), 9, "flash_attn_ext")
    assert repr(variant) == "<Variant K f16, not q5_1>"
    assert repr(found) == "<Nearest FLASH_ATTN_EXT: K f16, not q5_1>"
