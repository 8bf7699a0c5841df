"""What a finding says would be is what ggml plans once its advice is followed."""

from contextlib import ExitStack

import pytest

from ggml_py.trace.facts import Facts

from ..support.advice_world import (
    World,
    attention,
    biased,
    embedded,
    gpu,
    layers,
    net,
    no_quantised_cache,
    residual,
)  # fmt: skip


def fallback(w, followed):
    device = w.backend("gpu0").device
    if followed:
        device.configure(supports=True)
    return w.plan(attention(w, "q8_0"))


def dragged(w, followed):
    return w.plan(biased(w, "gpu0" if followed else "CPU"))


def pinned(w, followed):
    relu, out = net(w)
    return w.plan(out, pins=[] if followed else [(relu, "CPU")])


def by_turns(w, followed):
    places = ["CPU"] * 4 + ["gpu0"] * 4 if followed else ["CPU", "gpu0"] * 4
    return w.plan(layers(w, places))


def embedding(w, followed):
    return w.plan(embedded(w, ["gpu0", "gpu1"], "gpu0" if followed else "CPU"))


def border(w, followed):
    out = residual(w, "CPU")
    return w.plan(out, op_offload=False, pins=[(out.src[1], "CPU")] if followed else [])


def cache(w, followed):
    out = attention(w, kv="CPU")
    return w.plan(out, pins=[(out.src[1].view_src, "CPU")] if followed else [])


def a_large_input(w, followed):
    x = w.input("x", 256, 64)
    out = w.op("mul_mat", w.tensor("a", 256, 64, on="gpu0"), x, name="out")
    return w.plan(out, pins=[(x, "gpu0")] if followed else [])


def blas(w, followed):
    backends = w.backends
    h = w.op("mul_mat", w.tensor("a", 64, 64, on="gpu0"), w.input("x", 64, 64), name="h")
    out = w.op("mul_mat", w.tensor("b", 64, 64, on="CPU"), h, name="out")
    w.backends = [b for b in backends if not (followed and b.name == "BLAS")]
    return w.plan(out)


ONE = (gpu(), "CPU")
STORIES = {
    "GP101": (fallback, (gpu(supports=no_quantised_cache), "CPU")),
    "GP104": (cache, ONE),
    "GP105": (blas, (gpu(), "BLAS", "CPU")),
    "GP107": (dragged, ONE),
    "GP108": (pinned, ONE),
    "GP109": (a_large_input, ONE),
    "GP113": (by_turns, ONE),
    "GP114": (embedding, (gpu("gpu0"), gpu("gpu1"), "CPU")),
    "GP116": (border, ONE),
}


@pytest.mark.parametrize("id", STORIES)
def test_advice_that_is_followed(id):
    story, devices = STORIES[id]
    plans = []
    for followed in (False, True):
        with ExitStack() as stack:
            plans.append(story(World(stack, *devices), followed))
    before, after = plans
    (finding,) = [f for f in before.advice(min_bytes=1) if f.id == id]
    assert before.planner == after.planner == "native"
    assert [n.backend for n in after.nodes] != [n.backend for n in before.nodes] or id == "GP109"
    assert Facts(before, 1).compared(after) in finding.text
    assert id not in [f.id for f in after.advice(min_bytes=1)]
