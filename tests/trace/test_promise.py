"""Whose promise a plan is: what every output says of it."""

from __future__ import annotations

import pickle

import pytest

from ggml_py import Plan
from ggml_py.export.json import plan_file as to_json
from ggml_py.trace.promise import MemoryRow, Promise, as_texts

ROW = MemoryRow("gpu0", "gpu0", 1 << 20, 2 << 20, None)


@pytest.mark.parametrize(
    ("promise", "whose", "headline"),
    [
        (Promise(), "", ""),
        (Promise("llama.cpp"), "llama.cpp", ""),
        (Promise("", (), ("op_offload=no",)), "scheduler",
         "what if op_offload=no"),
        (Promise("", (), tuple("abcde")), "scheduler", "what if a, b, c and 2 more"),
        (Promise("llama.cpp", ("drop=gpu1",)), "llama.cpp",
         "what if drop=gpu1 (llama.cpp's promise)"),
        (Promise("llama.cpp", (), ("pin:x=CPU",)), "scheduler",
         "what if pin:x=CPU (the scheduler's promise alone)"),
        (Promise("llama.cpp", ("drop=gpu1",), ("pin:x=CPU",)), "scheduler",
         "what if drop=gpu1, pin:x=CPU (the scheduler's promise alone)"),
    ],
)  # fmt: skip
def test_words(promise, whose, headline):
    assert (promise.whose, promise.headline) == (whose, headline)
    assert bool(promise.text) == bool(headline)
    assert ("anew" in promise.text) == (whose == "llama.cpp" and bool(headline))


def test_changes_are_written_as_the_command_line_takes_them():
    assert as_texts({
        "pins": {"a": "CPU", "b": None}, "supports": {("gpu0", "MUL_MAT"): False},
        "offload": {("gpu0", "*"): 64}, "move_weights": {"blk.*": "CPU"}, "drop": "BLAS",
        "op_offload": True, "parallel": None, "profiles": {"gpu0": "cuda"},
    }) == (
        "pin:a=CPU", "pin:b=none", "supports:gpu0/MUL_MAT=no", "offload:gpu0/*=64",
        "move:blk.*=CPU", "drop=BLAS", "op_offload=yes", "profile:gpu0=cuda",
    )  # fmt: skip


def test_a_what_if_is_the_schedulers_promise(mlp):
    plan = mlp.what_if(op_offload=False)
    assert plan.promise == Promise("", (), ("op_offload=no",))
    assert plan.headline().startswith("what if op_offload=no: ")
    loaded = mlp.promised(Promise("llama.cpp"), [ROW])
    alone = loaded.what_if(op_offload=False)
    assert alone.promise == Promise("llama.cpp", (), ("op_offload=no",)) and not alone.breakdown
    assert alone == plan  # a promise is no part of what is compared


def test_files_keep_it(mlp, tmp_path):
    promise = Promise("llama.cpp", ("drop=gpu1",), ("pin:x=CPU",), n_past=7)
    plan = mlp.promised(promise, [ROW])
    data = plan.to_json(tmp_path / "plan.json")
    assert data["promise"]["whose"] == "scheduler" and data["promise"]["text"] == promise.text
    for again in (Plan.from_json(tmp_path / "plan.json"), pickle.loads(pickle.dumps(plan))):
        assert (again, again.promise, again.breakdown) == (plan, promise, (ROW,))
    for key in ("promise", "memory", "pins"):
        del data[key]  # as in an older file
    older = to_json.plan_of(data, "older")
    assert (older.promise, older.breakdown) == (Promise(), ())


def test_a_negative_number_of_tokens_is_damage(mlp):
    data = mlp.promised(Promise("llama.cpp", n_past=7)).to_json()
    data["promise"]["n_past"] = -1
    with pytest.raises(ValueError, match=r"promise.n_past is -1, expected 0 or more"):
        to_json.plan_of(data, "a file")
