"""What kernels count on is looked at: the table, the machine that searches for more, its eyes."""

import re
import subprocess
import sys

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.enums import Op

from ..support import (
    kernel_table,
    op_cases,
    op_metamorphosis,
    op_more_cases,  # noqa: F401  (its cases)
)
from ..support.op_layouts import LAYOUTS, Operand, World, place, write

BENCHMARKS = kernel_table.REPO / "benchmarks"
# Seeds that ended a process, did not end, or were findings, on the build before the rules.
BEFORE = {
    "add": 4558, "add1": 797, "add_id": 1790, "conv_2d": 818, "conv_2d_s1_ph": 30,
    "conv_transpose_1d": 6370, "conv_transpose_2d_p0": 233, "cpy": 5583,
    "cross_entropy_loss_back": 239, "flash_attn_ext": 11152, "gated_delta_net": 10165,
    "get_rel_pos": 282, "get_rows": 3055, "get_rows_back": 284, "group_norm": 3453,
    "im2col_back": 291, "mul_mat": 275324, "opt_step_adamw": 506, "opt_step_sgd": 111,
    "pool_2d": 67041, "rope": 4883, "rope_custom": 1914, "roll": 14980, "rwkv_wkv6": 3113,
    "set_rows": 1537,
    "soft_max_ext_back": 13429, "soft_max_ext_inplace": 12441, "ssm_conv": 2748,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def backends():
    """Those of the machine are closed behind it."""
    yield
    for n_threads in (1, 2):
        op_metamorphosis.backend(n_threads).close()
    op_metamorphosis.backend.cache_clear()


def test_the_page_of_the_kernels_is_fresh():
    stale = "python tests/support/kernel_table.py"
    assert kernel_table.PAGE.read_text() == kernel_table.page(), stale


def test_every_op_has_its_row_and_every_rule_is_of_an_op():
    others = {*kernel_table.VIEWS, *kernel_table.CUSTOM, kernel_table.COUNT}
    assert set(kernel_table.KERNELS) | others == {op.name for op in Op}
    assert set(kernel_table.rules()) - {"VIEW"} <= set(kernel_table.KERNELS)


@pytest.mark.parametrize("file", ["made_rules.h", "kernel_rules.h"])
def test_every_block_of_rules_is_in_its_table_and_on_the_page(file):
    text = (kernel_table.NATIVE / file).read_text()
    blocks = re.findall(r"^(?:MADE|KERNEL)\((\w+)\)", text, re.M)
    assert len(set(blocks)) == len(blocks) > 20
    assert sorted(re.findall(r"_RULES\((\w+)\)", text)) == sorted(blocks)
    read = sum(len(kernel_table._RULE.findall(b)) for _, _, b in kernel_table._BLOCK.findall(text))
    assert read == len(re.findall(r"\bRULE\(", text))


def test_every_op_that_computes_has_cases():
    made = set()
    for name in op_cases.CASES:
        for i in range(200):
            case = op_cases.CASES[name](op_cases.Draw(op_metamorphosis.random.Random(i), name))
            made |= _ops_of(case)
            if made & _ops_of(case):
                break
    others = {*kernel_table.VIEWS, *kernel_table.CUSTOM, kernel_table.COUNT, "FLASH_ATTN_BACK"}
    assert {op.name for op in Op} - others - made <= {"ARANGE"}


def _ops_of(case):
    try:
        with ggml.Context() as ctx:
            tensors = [o and ctx.new_tensor(o.type, *o.ne) for o in case.operands]
            case.call(ctx, *tensors)
            return {t.op.name for t in ctx}
    except op_metamorphosis.REFUSALS:
        return set()


@pytest.mark.parametrize("name", BEFORE)
def test_what_the_machine_found_first_is_refused(name):
    case = op_cases.draw(BEFORE[name])
    assert case.name == name
    assert op_metamorphosis.check(case, BEFORE[name]).startswith("refused")


def test_layouts_have_the_same_numbers():
    for seed in range(60):
        rng = op_metamorphosis.random.Random(seed)
        type_ = rng.choice(("f32", "f16", "q4_0"))
        operand = Operand.drawn(rng, type_, 64, 3, 2, rng.choice((1, 2)))
        world = World()
        for layout in LAYOUTS:
            if layout not in ("repeat", "odd"):  # one is other numbers, one is refused
                world.renew()
                t = place(world, operand, layout, seed)
                world.give_memory(list(world.context))
                world.fill(0xFF)
                write(world, t, operand.blocks)
                copy = world.bytes_of(t).reshape(-1)
                assert np.array_equal(copy, operand.blocks.view("u1").reshape(-1)), layout


def test_the_machine_would_notice(monkeypatch):
    """Cases whose op is another one, as a kernel would be that is wrong."""
    rng = op_metamorphosis.random.Random(1)

    def case(call, *types):
        return op_metamorphosis.Case("wrong", [Operand.drawn(rng, t, 8, 4) for t in types], call)

    # Memory that is no operand's: a row further than the view.
    beyond = case(lambda ctx, a: ctx.relu(_moved(ctx, a)), "f32")
    with pytest.raises(AssertionError, match="other bytes between the tensors"):
        op_metamorphosis.check(beyond, 3)
    # A byte that is not the result's: an operand changes, which the case does not say.
    written = case(lambda ctx, a, b: ctx.add(a, ctx.scale_inplace(b, 2.0)), "f32", "f32")
    with monkeypatch.context() as patch:
        patch.setattr(op_metamorphosis, "VIEWS", {*op_metamorphosis.VIEWS, Op.SCALE})
        with pytest.raises(AssertionError, match="bytes written beside the result"):
            op_metamorphosis.check(written, 3)
    # Strides that are not looked at.
    inline = case(lambda ctx, a: ctx.relu(_in_line(ctx, a)), "f32")
    seeds = [s for s in range(40) if _finds(inline, s)]
    assert seeds


def _finds(case, seed):
    try:
        op_metamorphosis.check(case, seed)
    except AssertionError as error:
        return "contiguous operands" in str(error) or "other bytes" in str(error)
    return False


def _moved(ctx, a):
    view = ctx.view_1d(a, 32, 0)
    view.ptr.view_offs = 4 * 16
    return view


def _in_line(ctx, a):
    """The same memory, read as if the tensor were in line."""
    root = a.view_src or a
    return ctx.view_1d(root, 32, a.view_offs) if root.nbytes >= 128 + a.view_offs else a


@pytest.mark.thorough("sample")
def test_a_sample_of_the_search_finds_nothing(tmp_path):
    command = [
        sys.executable, str(BENCHMARKS / "metamorphic.py"), "--cases", "4000",
        "--out", str(tmp_path / "metamorphic.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
