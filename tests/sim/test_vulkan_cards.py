"""Devices under Vulkan: what upstream derives from properties, the order of nodes, and the answers
of a real device (llvmpipe)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.sim.card import card_properties
from ggml_py.sim.profiles import vulkaninfo
from ggml_py.sim.profiles.cards import CARDS

from ..support.profile_cases import parsed
from ..support.profile_more_cases import ALL_CASES

pytestmark = pytest.mark.needs(release="default", why="what is supported differs by release")

HERE = Path(__file__).parent
NO_SHUFFLE = 0xFF & ~0x10  # VkSubgroupFeatureFlagBits


@pytest.fixture
def ctx():
    with ggml.Context() as context:
        yield context


def attention(ctx, type_="f16"):
    k = ctx.new_tensor(type_, 128, 256, 8)
    q, mask = ctx.new_tensor("f32", 128, 8, 32), ctx.new_tensor("f16", 256, 64)
    return ctx.flash_attn_ext(q, k, k, mask, 1.0, 0.0, 0.0)


def experts(ctx, type_):
    x, ids = ctx.new_tensor("f32", 256, 4, 32), ctx.new_tensor("i32", 4, 32)
    return ctx.mul_mat_id(ctx.new_tensor(type_, 256, 64, 8), x, ids)


# ---- what is derived from properties; the expected answers are read in upstream's source


def test_attention_needs_subgroups_or_matrices_of_workgroups(ctx):
    node = attention(ctx, "q8_0")
    for name in ("vulkan-rx6800xt", "vulkan-rtx4090"):
        assert ggml.load_profile(name).supports(node)
    without = {"subgroupSupportedOperations": NO_SHUFFLE}
    assert not ggml.load_profile("vulkan-rx6800xt", **without).supports(node)
    assert ggml.load_profile("vulkan-rtx4090", **without).supports(node)
    extensions = CARDS["vulkan-rtx4090"].properties["extensions"]
    without["extensions"] = extensions.replace("+VK_NV_cooperative_matrix2", "")
    assert not ggml.load_profile("vulkan-rtx4090", **without).supports(node)


def test_experts_need_shared_memory_for_the_tables_of_their_type(ctx):
    """64 rows of 33 halves, 8 KiB of IQ2_S' grid, 144 bytes for the experts."""
    needed = 64 * 33 * 2 + 8192 + 144
    for size, supported in ((needed, True), (needed - 1, False)):
        card = ggml.load_profile("vulkan-rx6800xt", maxComputeSharedMemorySize=size)
        assert card.supports(experts(ctx, "iq2_s")) == supported
        assert card.supports(experts(ctx, "q4_0"))
    small = ggml.load_profile("vulkan-rx6800xt", maxComputeSharedMemorySize=needed - 145)
    with pytest.raises(ggml.ArgumentError, match="Shared memory size too small for matrix"):
        small.supports(experts(ctx, "q4_0"))


@pytest.mark.parametrize(
    ("change", "supported"),
    [({}, True), ({"computeFullSubgroups": 0}, False), ({"subgroupSupportedOperations": 3}, False),
     ({"extensions": "VK_KHR_16bit_storage"}, False)],
)  # fmt: skip
def test_cumsum_needs_whole_subgroups_that_add(ctx, change, supported):
    node = ctx.cumsum(ctx.new_tensor("f32", 64, 4))
    assert ggml.load_profile("vulkan-rx6800xt", **change).supports(node) == supported


def test_a_tensor_is_in_one_binding_unless_indices_have_64_bits(ctx):
    wide = ctx.relu(ctx.new_tensor("f32", 1 << 16, 1 << 14))  # 4 GiB
    card = CARDS["vulkan-rtx4090"]
    assert not ggml.load_profile("vulkan-rtx4090").supports(wide)
    with_it = card.properties["extensions"] + "+VK_EXT_shader_64bit_indexing"
    assert ggml.load_profile("vulkan-rtx4090", extensions=with_it).supports(wide)
    assert not ggml.load_profile("vulkan-rx7900xtx", extensions=with_it).supports(wide)  # a buffer


def test_sorting_of_long_rows_needs_the_memory_model(ctx):
    card = ggml.load_profile("vulkan", vulkanMemoryModel=0)
    for n in (1024, 1025):
        node = ctx.argsort(ctx.new_tensor("f32", n, 2), 0)
        assert ggml.load_profile("vulkan").supports(node)
        assert card.supports(node) == (n == 1024)


def test_a_device_without_16_bit_storage_is_refused():
    profile = ggml.load_profile("vulkan", storageBuffer16BitAccess=0)
    with pytest.raises(ggml.ArgumentError, match="card vulkan-rx7900xtx: Unsupported device"):
        ggml.sim_device("gpu0", profile=profile)


@pytest.mark.parametrize("shapes", ["16x16", "16x16x16/f16", "16x16x16/f16/f99", "x/f16/f16"])
def test_shapes_of_matrices_that_cannot_be_read(shapes):
    profile = ggml.load_profile("vulkan", cooperativeMatrix=shapes)
    with pytest.raises(ggml.ArgumentError, match=f"cooperativeMatrix={shapes}: expected shapes"):
        ggml.sim_device("gpu0", profile=profile)


def test_it_has_what_the_backend_has(ctx):
    with ggml.sim_device("gpu0", profile="vulkan-rtx4090") as gpu:
        caps = gpu.props.caps
        assert caps.async_ and caps.events and caps.host_buffer and caps.mmap_support
        assert gpu.settings["alignment"] == 32 and gpu.settings["max_size"] == 1 << 30
        assert gpu.host_buffer_type.name == "gpu0_Host"
        x = ctx.new_tensor("f32", 512, 32)
        assert gpu.offload_op(ctx.mul_mat(ctx.new_tensor("q4_0", 512, 64), x))
    with ggml.sim_device("gpu0", profile="vulkan-890m") as gpu:
        assert gpu.type.name == "IGPU" and not gpu.props.caps.mmap_support


def test_there_is_room_for_fifteen():
    """Upstream has room for 16; the first is what its type of host memory belongs to."""
    devices = []
    try:
        with pytest.raises(ggml.ArgumentError, match="at most 16"):
            for i in range(16):
                devices.append(ggml.sim_device(f"vk{i}", profile="vulkan-steam-deck"))
        assert len(devices) == 15
        kinds = [device.buffer_type for device in devices]
        assert [devices[3].supports_buft(kind) for kind in kinds] == [i == 3 for i in range(15)]
    finally:
        for device in devices:
            device.close()


# ---- the order of nodes


def two_branches(ctx):
    """Upstream computes what does not depend on each other side by side."""
    x = ctx.new_tensor("f32", 64, 8)
    made = [ctx.soft_max(ctx.mul_mat(ctx.new_tensor("f32", 64, 64), x)) for _ in range(2)]
    out = ctx.add(*made)
    graph = ctx.new_graph()
    graph.build_forward_expand(out)
    return graph


@pytest.mark.parametrize(
    ("settings", "order"),
    [({}, [0, 2, 1, 3, 4]), ({"graph_optimize": "none"}, [0, 1, 2, 3, 4])],
)
def test_nodes_are_ordered_as_upstream_does(ctx, settings, order):
    graph = two_branches(ctx)
    with ggml.sim_device("gpu0", profile="vulkan", **settings) as device:
        assert device.settings["graph_optimize"] == settings.get("graph_optimize", "card")
        with device.init() as gpu, ggml.device("CPU").init() as cpu:
            plan = ggml.Scheduler([gpu, cpu]).plan(graph)
    ids = [node.id for node in plan.nodes]
    assert [ids.index(node.id) for node in plan.order] == order


def test_a_card_whose_backend_does_not_order_them():
    with ggml.sim_device("gpu0", profile="m3max") as device:
        assert device.settings["graph_optimize"] is None  # upstream's for Metal is another setting
    with pytest.raises(ggml.ArgumentError, match="expected a card whose backend orders nodes"):
        ggml.sim_device("gpu0", profile="m3max", graph_optimize="card")


# ---- a real device: llvmpipe, asked by benchmarks/vulkan.py


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("part", range(4))
def test_the_card_answers_as_the_real_device(part):
    """The card, and the simulated device that it is."""
    card = ggml.load_profile("vulkan-llvmpipe")
    lines = (HERE / "llvmpipe_answers.tsv").read_text(encoding="utf-8").splitlines()
    n = {"yes": 0, "no": 0}
    with ggml.sim_device("gpu0", profile=card) as device:
        for line in lines[part::4]:
            op, params, answer = line.split("\t")
            if op not in ALL_CASES:
                continue
            with ggml.Context() as scratch:
                try:
                    tensor = ALL_CASES[op](scratch, parsed(params))
                except ggml.GgmlError:
                    continue  # by checks of ours (vendor/op_edits.py)
                found, yes = card.decide(tensor), answer == "yes"
                assert found.supported == yes == device.supports_op(tensor), (op, params)
                n[answer] += 1
    assert sum(n.values()) > 300 and n["no"] > 50


def test_the_card_is_what_vulkaninfo_says():
    """`vulkaninfo` of Debian 12, without the lines that upstream does not look at."""
    read = vulkaninfo.read((HERE / "llvmpipe_vulkaninfo.txt").read_text(encoding="utf-8"))
    values = ggml.load_profile("vulkan-llvmpipe").properties
    assert not set(values["extensions"].split("+")) - set(read["extensions"].split("+"))
    known = (card_properties("vulkan").keys() & read.keys()) - {"extensions"}
    assert {k: str(read[k]) for k in known} == {k: values[k] for k in known}
    unknown = values.keys() - read.keys()  # of other drivers
    assert {values[k] for k in unknown} == {"", "0"} and len(unknown) < 8


def test_a_file_of_vulkaninfo_is_a_card(ctx, tmp_path):
    path = HERE / "llvmpipe_vulkaninfo.txt"
    card, named = ggml.load_profile(path), ggml.load_profile("vulkan-llvmpipe")
    assert {k: v for k, v in card.properties.items() if named.properties[k] != v}.keys() == {
        "extensions"
    }
    node = attention(ctx)
    assert card.decide(node) == named.decide(node) and card.memory == 2 << 30
    assert not ggml.load_profile(path, subgroupSupportedOperations=3).supports(node)
    with ggml.sim_device("gpu0", profile=path) as device:
        assert "llvmpipe (LLVM 15.0.6, 256 bits)" in device.description
    (tmp_path / "other.txt").write_text("no such thing")
    with pytest.raises(ggml.ArgumentError, match=r"other\.txt: .*what `vulkaninfo` prints"):
        ggml.load_profile(tmp_path / "other.txt")


def test_a_file_without_a_line_or_with_another_value(tmp_path):
    """Errors of ours, not Python's about the program."""
    lines = (HERE / "llvmpipe_vulkaninfo.txt").read_text().splitlines()
    path, refused = tmp_path / "vk.txt", set()
    for i, line in enumerate(lines):
        for other in ([], [re.sub(r"= .*", "= \x1b]0;x", line)]):
            path.write_text("\n".join([*lines[:i], *other, *lines[i + 1 :]]))
            try:
                ggml.load_profile(path)
            except ggml.ArgumentError as error:
                assert str(path) in str(error) and "tuple.index" not in str(error)
                refused.add(i)
    assert len(refused) > 3


@pytest.mark.parametrize(("text", "device"), [("", 0), ("GPU0:\n\tx = 1\n", 0), ("GPU0:\n", 1)])
def test_what_is_not_of_vulkaninfo(text, device):
    with pytest.raises(ggml.ArgumentError, match=re.escape(f"no device {device} with its limits")):
        vulkaninfo.read(text, device)


def test_without_maintenance4_the_largest_buffer_is_the_largest_allocation():
    """Found wrong: "maxBufferSize: expected a value". C: ggml_vk_get_device"""
    text = (HERE / "llvmpipe_vulkaninfo.txt").read_text()
    whole = vulkaninfo.read(text)
    lines = [
        line for line in text.splitlines()
        if not re.search(r"VK_KHR_maintenance4|maxBufferSize", line)
    ]  # fmt: skip
    read = vulkaninfo.read("\n".join(lines))
    assert read["maxBufferSize"] == read["maxMemoryAllocationSize"]
    assert whole["maxBufferSize"] != 0
    # a size that upstream does not ask for does not count
    lines = [line for line in text.splitlines() if "VK_KHR_maintenance4" not in line]
    assert vulkaninfo.read("\n".join(lines))["maxBufferSize"] == read["maxMemoryAllocationSize"]


def test_such_a_device_is_a_card(ctx, tmp_path):
    text = (HERE / "llvmpipe_vulkaninfo.txt").read_text()
    path = tmp_path / "old.txt"
    path.write_text(re.sub(r".*(VK_KHR_maintenance4|maxBufferSize).*\n", "", text))
    card = ggml.load_profile(path)
    assert card.properties["maxBufferSize"] == card.properties["maxMemoryAllocationSize"]
    assert card.supports(attention(ctx))


@pytest.mark.parametrize(
    "line",
    ["Backend 1/2: Vulkan0", "  MUL_MAT(type_a=q4_K,type_b=f32,m=16,n=1,k=256): OK"],
)
def test_the_table_of_test_backend_ops_gets_a_hint(line, tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(f"{line}\n")
    with pytest.raises(ggml.ArgumentError, match="test-backend-ops support --output csv"):
        ggml.load_profile(path)
