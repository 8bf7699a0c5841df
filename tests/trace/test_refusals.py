"""Whether a "no" of a backend is about the op or about memory; upstream's cards say which."""

from __future__ import annotations

import gzip
import json

import pytest

import ggml_py as ggml
from ggml_py.export.json import plan_file as to_json
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec
from ggml_py.trace.refusals import MEMORY, OP, UNKNOWN, refused

pytestmark = pytest.mark.needs(release="default", why="what is supported differs by release")

CARDS = ("cuda", "vulkan", "metal", "sycl", "cann", "opencl")


@pytest.fixture(scope="module")
def path(model_file):
    """Its heads of 32 have no attention op on CUDA."""
    return model_file(LlamaSpec(n_layer=4, n_embd=128, n_head=4, n_head_kv=2, n_ff=256))


def planned(path, *devices):
    with load(path, devices=(*devices, "CPU"), n_gpu_layers=99, flash_attn="on") as model:
        return model.plan(4)


@pytest.fixture(scope="module", params=CARDS)
def plans(request, path):
    """The plans of a model on one card, and on two equal ones."""
    card = f"profile={request.param}"
    one = planned(path, f"sim:refused0,{card}")
    two = planned(path, f"sim:refused0,{card}", f"sim:refused1,{card}")
    return one, two


def test_an_op_that_one_card_supports_is_refused_for_memory_only(plans):
    one, two = plans
    assert [n.name for n in one.nodes] == [n.name for n in two.nodes]
    seen = set()
    for alone, node in zip(one.nodes, two.nodes, strict=True):
        for b in (0, 1):
            found = refused(node, b)
            seen.add(found and found.kind)
            if found is None:
                assert alone.record.supports & 1, node
            else:
                assert found.kind == (MEMORY if alone.record.supports & 1 else OP), node
            if found is not None and found.kind == MEMORY:
                assert found.source in node.srcs
                assert not found.source.buft.readers >> b & 1
    assert UNKNOWN not in seen


def test_on_two_cards_of_cuda_the_other_cards_memory_is_named(path):
    two = planned(path, "sim:refused0,profile=cuda", "sim:refused1,profile=cuda")
    answer = two.why_not("ffn_up-3", "refused0")
    assert [reason.id for reason in answer.reasons] == ["op.memory"]
    assert answer.reasons[0].witness.name == "blk.3.ffn_up.weight"
    assert "'blk.3.ffn_up.weight' is in refused1 memory, which refused0 cannot read" in str(answer)
    assert "does not support" not in str(answer)
    assert answer.reasons[0].changes[0].is_there
    assert "cannot compute" not in answer.pin.then  # a pinned node gets a copy of its weight
    why = two.why_not(next(n for n in two.nodes if n.op == "FLASH_ATTN_EXT"), "refused0")
    assert why.reasons[0].id == "op"


def test_moved_weights_change_the_answer(path):
    two = planned(path, "sim:refused0,profile=cuda", "sim:refused1,profile=cuda")
    b = 0
    assert refused(two.node("ffn_up-3"), b).kind == MEMORY
    moved = two.what_if(move_weights={"blk.3.ffn_up.weight": "refused0"})
    assert refused(moved.node("ffn_up-3"), b) is None
    assert refused(moved.node("ffn_out-3"), b).kind == MEMORY
    without = two.what_if(drop=["refused1"], move_weights={"*": "refused0"})
    assert refused(without.node("ffn_up-3"), b) is None and without.capture.refusals == ()
    told = two.what_if(supports={("refused0", "ffn_up-3"): False})
    assert refused(told.node("ffn_up-3"), b).kind == OP


def test_a_file_keeps_them_and_an_older_one_says_that_it_does_not_know(path, tmp_path):
    two = planned(path, "sim:refused0,profile=cuda", "sim:refused1,profile=cuda")
    two.to_json(tmp_path / "two.json")
    again = ggml.Plan.from_json(tmp_path / "two.json")
    assert again.capture.refusals == two.capture.refusals != ()
    data = json.loads((tmp_path / "two.json").read_bytes())
    del data["refusals"]
    old = ggml.Plan(*_parts(to_json.parse(gzip.compress(json.dumps(data).encode()), "old")))
    assert old.capture.refusals is None
    found = refused(old.node("ffn_up-3"), 0)
    assert found.kind == UNKNOWN
    reason = old.why_not("ffn_up-3", "refused0").reasons[0]
    assert reason.id == "op.unknown"
    assert "this plan does not say which" in reason.text
    attention = next(n for n in old.nodes if n.op == "FLASH_ATTN_EXT")
    assert refused(attention, 0).kind == OP  # all of its memory is refused0's own


def _parts(plan):
    return plan.capture, plan.outcome, plan.planner


@pytest.mark.parametrize("bad", [
    {"tensor": -1}, {"backend": 9}, {"srcs": 1 << 20},
])  # fmt: skip
def test_a_damaged_table_is_refused(path, bad):
    two = planned(path, "sim:refused0,profile=cuda", "sim:refused1,profile=cuda")
    data = two.to_json()
    data["refusals"][0] |= bad
    with pytest.raises(ValueError, match=next(iter(bad))):
        to_json.parse(json.dumps(data).encode(), "bad")
