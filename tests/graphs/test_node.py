"""Nodes made again from plain data: equal to what a constructor made, or refused."""

import json
from dataclasses import replace

import pytest

import ggml_py as ggml
from ggml_py.graphs.node import N_SOURCES, node_of_call
from ggml_py.scheduler.as_recorded import AsRecorded, replay_as_recorded
from ggml_py.scheduler.replay import replay
from ggml_py.tensors.live_call import call_of

from ..support import op_samples

DEFAULT = pytest.mark.needs(release="default", why="the samples are of the default pin")


@pytest.fixture(scope="module")
def gpu():
    """A simulated device that supports everything."""
    with ggml.sim_device("node0", supports=lambda _t: True) as device, device.init() as backend:
        yield backend


def planned(context, node, gpu):
    graph = context.new_graph(64)
    graph.build_forward_expand(node)
    with ggml.device("CPU").init() as cpu, ggml.Scheduler([gpu, cpu]) as scheduler:
        return scheduler.plan(graph)


@DEFAULT
@pytest.mark.parametrize("method", op_samples.NAMES)
def test_a_node_made_from_data_equals_the_constructors(method, gpu):
    """As a call, and as a tensor of a plan's graph with flags and views."""
    for sample in op_samples.samples_of(method):
        with ggml.Context(reserve=4 << 20) as context, ggml.Context() as scratch:
            node, _given = op_samples.call(context, method, sample)
            call = call_of(node)
            assert call_of(node_of_call(scratch, call)) == call
            plan = planned(context, node, gpu)
            assert replay_as_recorded(plan).capture.tensors == plan.capture.tensors


@DEFAULT
def test_devices_read_as_many_sources_as_every_constructor_sets():
    least = {}
    for method in op_samples.NAMES:
        with ggml.Context(reserve=4 << 20) as context:
            sample = op_samples.samples_of(method)[0]
            call = call_of(op_samples.call(context, method, sample, optional=False)[0])
            least[call.kind] = min(least.get(call.kind, 9), (*call.places, -1).index(-1))
    assert least == {op: N_SOURCES.get(op, 1) for op in least}


# ---- what came from a file


def plan_data(kind, gpu):
    """The JSON of a small plan."""
    with ggml.Context() as context:
        a, b = context.new_tensor("f32", 64, 8), context.new_tensor("f32", 64, 4)
        for leaf in (a, b):
            leaf.set_input()
        node = {
            "product": lambda: context.mul_mat(a, b),
            "view": lambda: context.relu(context.view_2d(a, 32, 4, 256, 0)),
            "custom": lambda: context.map_custom1(a, lambda dst, a, ith, nth: None, 1),
        }[kind]()
        return json.loads(json.dumps(planned(context, node, gpu).to_json()))


def read(data, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    return ggml.Plan.from_json(path)


MAX = (1 << 64) - 1
CHANGES = {
    "no sources": ("product", {"src": []}, "MUL_MAT with 0 of its sources: .* has 2"),
    "a gap": ("product", {"src": [-1, 2]}, "MUL_MAT with 0 of its sources"),
    "16 sources": ("product", {"src": [1, 2] * 8}, "has 16 sources: expected at most 10"),
    "40 words": ("product", {"op_params": [1] * 40}, "has 40 op_params: expected at most 16"),
    "a large word": ("product", {"op_params": [1 << 40]}, r"op_params\[0\]=1099511627776"),
    "large sizes": ("product", {"ne": [1 << 62] * 4}, "tensor that a machine can address"),
    "unsigned sizes": ("product", {"ne": [1 << 63, 1, 1, 1]}, "a machine can address"),
    "large strides": ("product", {"nb": [MAX] * 4}, "tensor that a machine can address"),
    "many readers": ("product", {"use_count": 1 << 40}, "use_count of 'node_0'"),
    "a far view": ("view", {"view_offs": MAX}, "view_offs of ' .view.'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_node_that_no_constructor_makes_is_refused(change, gpu, tmp_path):
    """Several of these ended the process."""
    kind, fields, message = CHANGES[change]
    data = plan_data(kind, gpu)
    data["tensors"][0].update(fields)
    plan = read(data, tmp_path)
    with pytest.raises(ggml.ArgumentError, match=message):
        replay_as_recorded(plan)
    with pytest.raises(ggml.ArgumentError, match=message):
        replay(plan, [ggml.device("CPU")])
    if kind == "product" and "use_count" not in fields:
        with pytest.raises(ggml.ArgumentError, match=message):
            ggml.nearest(plan.nodes[0], ggml.device("CPU"))


@pytest.mark.parametrize("fields", [{"view_offs": 1 << 40}, {"ne": [1 << 20, 1 << 10, 1, 1]}])
def test_memory_outside_the_viewed_tensor_is_not_computed_with(fields, gpu, tmp_path):
    data = plan_data("view", gpu)
    data["tensors"][0].update(fields)
    plan = read(data, tmp_path)
    with AsRecorded(plan) as recorded, pytest.raises(ggml.ArgumentError, match="beyond the 2,048"):
        recorded.observe(plan)


@pytest.mark.parametrize(
    "fields",
    [
        {"ne": [64, 4, 1, 1]}, {"ne": [8, 1 << 12, 1, 1], "nb": [4, 32, 1 << 17, 1 << 17]},
        {"nb": [0, 0, 0, 0]}, {"type": "f16", "nb": [2, 16, 64, 64]}, {"op": "ADD"},
        {"view_src": 1}, {"src": [2, 1]},
    ],
)
def test_what_no_constructor_makes_is_not_computed(fields, gpu, tmp_path):
    """Kernels check only a part of what constructors ensure."""
    data = plan_data("product", gpu)
    with AsRecorded(read(data, tmp_path)) as recorded:
        assert recorded.observe(read(data, tmp_path)).left_out == ""
    data["tensors"][0].update(fields)
    plan = read(data, tmp_path)
    with AsRecorded(plan) as recorded:
        assert "no constructor of ggml" in recorded.observe(plan).left_out
        with pytest.raises(ggml.ArgumentError, match=r"no constructor of ggml makes 'node_0'"):
            recorded.median_seconds(plan)


def test_a_leaf_is_contiguous_where_it_is_computed_with(gpu, tmp_path):
    data = plan_data("product", gpu)
    data["tensors"][1]["nb"] = [4, 16, 64, 64]
    plan = read(data, tmp_path)
    with AsRecorded(plan) as recorded:
        assert f"makes '{data['tensors'][1]['name']}'" in recorded.observe(plan).left_out


def test_the_address_in_a_file_is_not_called(gpu, tmp_path):
    data = plan_data("custom", gpu)
    data["tensors"][0]["op_params"] = [0x41414141] * 8
    plan = read(data, tmp_path)
    with AsRecorded(plan) as recorded:
        assert "MAP_CUSTOM1 calls a function" in recorded.observe(plan).left_out
        with pytest.raises(ggml.ArgumentError, match="MAP_CUSTOM1 calls a function"):
            recorded.median_seconds(plan)
    assert replay_as_recorded(plan).capture.tensors[0].op_params == ()


def test_a_kind_goes_by_its_name(gpu):
    """Its number differs between releases: a card is asked about the op that was recorded."""
    with ggml.Context() as context, ggml.Context() as scratch:
        call = call_of(context.gelu_erf(context.new_tensor("f32", 8)))
        again = node_of_call(scratch, replace(call, params=(99, *call.params[1:])))
        assert call_of(again) == call
