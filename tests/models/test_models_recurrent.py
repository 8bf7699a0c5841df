"""Models whose layers carry a state: mamba and mamba2, against libllama, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ggml_py import ModelError
from ggml_py.models import Batch, Model
from ggml_py.models.cache.recurrent_cells import RecurrentCells

from ..support.arch_files import PROMPTS, RECURRENT, check, deeper, load
from ..support.oracle_programs import node_lines
from ..support.sequence_scripts import Command, Random, agree, execute, run, t
from ..support.stopped_models import stopped_after

ATTENTION_OPTIONS = [
    {"flash_attn": "off"},
    {"flash_attn": "on", "type_k": "q8_0", "type_v": "q4_0"},
    {"swa_full": True},
]


@pytest.mark.parametrize("options", ATTENTION_OPTIONS)
@pytest.mark.parametrize("name", RECURRENT)
def test_options_of_attention_change_nothing(oracle, arch_file, tmp_path, name, options):
    check(oracle, arch_file(name), PROMPTS[7], tmp_path, n_predict=4, **options)


@pytest.mark.parametrize("n_group", [1, 4])
def test_heads_and_groups(oracle, arch_file, tmp_path, n_group):
    """Eight heads, in one group or in four, where upstream's file has two in two."""
    path, n_head, d_state = tmp_path / "heads.gguf", 8, 32

    def edit(tensors):
        for name in [name for name in tensors if name.endswith("ssm_a")]:
            blk, random = name.removesuffix("ssm_a"), np.random.default_rng(int(name[4]))

            def new(part, *shape, blk=blk, random=random):
                values = random.standard_normal(shape).astype(np.float32) * 0.1
                tensors[blk + part] = values

            conv_dim = 512 + 2 * n_group * d_state
            new("ssm_in.weight", 512 + conv_dim + n_head, 256)
            new("ssm_conv1d.weight", conv_dim, 4)
            new("ssm_conv1d.bias", conv_dim)
            for part in ("ssm_a", "ssm_d"):
                new(part, n_head, 1)
            new("ssm_dt.bias", n_head)
            new("ssm_norm.weight", n_group, 512 // n_group)

    sizes = {"time_step_rank": n_head, "group_count": n_group, "state_size": d_state}
    changes = {f"ssm__{key}": value for key, value in sizes.items()}
    deeper(arch_file("mamba2"), path, 3, "q8_0", edit=edit, **changes)
    for n in (1, 64):
        check(oracle, path, PROMPTS[n], tmp_path)


def test_normed_steps(oracle, arch_file, tmp_path):
    """As FalconMamba has them."""
    path = tmp_path / "normed.gguf"
    deeper(arch_file("mamba"), path, 3, "f16", ssm__dt_b_c_rms=True)
    check(oracle, path, PROMPTS[64], tmp_path)


@pytest.mark.parametrize("name", RECURRENT)
def test_files_say_nothing_of_attention(arch_file, tmp_path, name):
    """Converted ones have no heads and no other network."""
    path, nothing = tmp_path / "bare.gguf", dict.fromkeys(("head_count", "head_count_kv"), 0)
    nothing = {f"attention__{key}": value for key, value in nothing.items()}
    deeper(arch_file(name), path, 2, "f32", feed_forward_length=0, **nothing)
    rows = []
    for file in (path, arch_file(name)):
        with load(file) as model:
            rows.append(model.eval(PROMPTS[7]))
            assert model.hparams.n_head == 0
    np.testing.assert_array_equal(*rows)


# --- sequences


@pytest.fixture
def model(arch_file):
    with load(arch_file("mamba2"), n_seq_max=4, n_ubatch=8) as model:
        yield model


class Walk(Random):
    """What can be done to states."""

    def change(self, model: Model) -> Iterator[Command]:
        rng = self.rng
        seq, other = (rng.randrange(model.n_seq_max) for _ in range(2))
        end = model.seq_pos_max(seq) + 1
        yield from rng.choice(
            [
                [("seq_cp", seq, other, 0, None)],
                [("seq_cp", seq, other, 0, None), ("seq_cp", other, rng.randrange(3), 0, None)],
                [("seq_rm", seq, 0, None)],
                [("seq_rm", seq, rng.randint(1, end), None)] if end > 1 else [],
                [("seq_keep", seq)] if rng.random() < 0.3 else [],
                [("seq_add", seq, 0, None, rng.randint(0, 9))],
                [("seq_div", seq, 0, None, rng.randint(1, 3))],
                [("clear",)] if rng.random() < 0.3 else [],
            ]
        )


@pytest.fixture
def same_cells(oracle, arch_file, tmp_path, monkeypatch):
    """`agree`, and that the cells are the same as far as graphs show them: how many there are, and
    whether one is zeroed."""
    take, ours = RecurrentCells.take, []

    def noted(self, seqs, last):
        take(self, seqs, last)
        ours.append((self.n_rs, self.rs_z >= 0))

    def check(name, commands, **options):
        nodes = tmp_path / "nodes.tsv"
        options |= {"n_ctx": 2048, "nodes": nodes}
        done = agree(oracle, arch_file(name), commands, tmp_path, **options)
        assert ours == list(cells_of(nodes.read_text()))
        return done

    monkeypatch.setattr(RecurrentCells, "take", noted)
    return check


@pytest.mark.parametrize(
    ("name", "seed"), [("mamba", 1), *(("mamba2", seed) for seed in range(5))]
)
def test_random_walks(same_cells, name, seed):
    n_seq_max, n_ubatch = [(3, 3), (4, 8), (5, 16), (8, 64), (4, 512)][seed]
    options = {"n_seq_max": n_seq_max, "n_ubatch": n_ubatch, "kv_unified": seed == 4}
    done = same_cells(name, Walk(seed, 16, unified=False), **options)
    assert {"decode", "seq_cp"} <= {command[0] for command in done}


def test_where_the_search_for_a_cell_begins(same_cells):
    """Far behind the few cells that are used it starts again; a state that was kept has one."""
    everyone = ("decode", *(t(seq, seq) for seq in range(8)))
    same_cells(
        "mamba2",
        [
            everyone,
            *(("seq_rm", seq, 0, None) for seq in (0, 1, 2, 3, 4, 6, 7)),
            ("decode", t(1, 5)),
            ("decode", t(2, 6)),
            ("decode", t(3, 5), t(4, 6)),
            *(("seq_cp", 5, seq, 0, None) for seq in (0, 1, 2)),
            ("seq_keep", 5),
            ("decode", t(5, 5)),
            everyone,
        ],
        n_seq_max=8,
    )


def cells_of(nodes):
    """Of each graph: the cells that its first layer gathers, and whether one is zeroed."""
    zeroed = None
    for line in nodes.splitlines():
        _name, _type, op, ne, sources = line.split("\t")
        ne = [int(n) for n in ne.split(",")]
        if op == "SCALE" and sources.startswith("cache_r_l0"):
            zeroed = ne[0] > 0
        elif op == "GET_ROWS" and sources.startswith("cache_r_l0"):
            yield ne[1], zeroed


@pytest.mark.parametrize("n_tokens", [1, 5])
@pytest.mark.parametrize("name", RECURRENT)
def test_the_graph_of_several_sequences(oracle, arch_file, tmp_path, name, n_tokens):
    """The nodes, with their names, ops, ne, sources and order."""
    options, rows = {"n_seq_max": 4}, tmp_path / "nodes.tsv"
    tokens = [token for seq in range(3) for token in run(seq, n_tokens, seq, last=True)]
    commands = [("decode", *tokens)]
    agree(oracle, arch_file(name), commands, tmp_path, nodes=rows, **options)
    with load(arch_file(name), **options) as model:
        assert node_lines(model.plan(n_tokens, 0, 3)) == rows.read_text().splitlines()


def test_sequences_do_not_see_each_other(arch_file):
    """Whatever is done to others, a sequence has the logits that it would have alone."""
    walk, tokens, n_compared = Walk(7, 12, unified=False), [[] for _ in range(4)], 0
    options = {"n_seq_max": 4, "n_ubatch": 8}
    with load(arch_file("mamba2"), **options) as model, load(arch_file("mamba2")) as alone:
        for command in walk(model):
            rows = execute(model, command)
            if rows is False:
                continue
            name, *arguments = command
            if name == "decode":
                wanted = []
                for token, _pos, (seq,), logits in arguments:
                    tokens[seq] = [*tokens[seq], token]
                    wanted += [tokens[seq]] if logits else []
                for row, expected in zip(rows, wanted, strict=True):
                    alone.reset()
                    np.testing.assert_allclose(row, alone.eval(expected), atol=1e-5)
                    n_compared += 1
            elif name == "seq_cp":
                tokens[arguments[1]] = tokens[arguments[0]]
            elif name == "seq_rm" and arguments[1] == 0:
                tokens[arguments[0]] = []
            elif name in ("seq_keep", "clear"):
                tokens = [seq if [i] == arguments else [] for i, seq in enumerate(tokens)]
    assert n_compared > 20


def test_a_part_of_a_state(model):
    """It is of all tokens: what a part of them gave cannot be told."""
    row = model.eval(PROMPTS[7])
    for p0, p1 in ((3, None), (0, 3), (2, 4), (6, 7)):
        end = 2**31 - 1 if p1 is None else p1
        message = f"cannot remove positions {p0} to {end} of sequence 0, which has 0 to 6"
        with pytest.raises(ModelError, match=message):
            model.seq_rm(0, p0, p1)
    with pytest.raises(ModelError, match="Copy the whole sequence"):
        model.seq_cp(0, 1, 0, 3)
    model.seq_rm(0, 7)  # nothing is there
    model.seq_rm(1, 3)
    assert (model.seq_pos_min(0), model.seq_pos_max(0), model.seq_pos_max(1)) == (6, 6, -1)
    model.seq_cp(0, 1, 0, 7)
    model.seq_rm(0, 0, 7)
    assert (model.seq_pos_max(0), model.seq_pos_max(1)) == (-1, 6)
    np.testing.assert_array_equal(model.eval(PROMPTS[7]), row)


def test_copying_nothing_empties_the_other(model):
    model.eval(PROMPTS[7], seq=1)
    model.seq_cp(0, 1)
    assert model.seq_pos_max(1) == -1


def test_positions_move_with_the_last_token(model):
    """The state knows none: the next tokens have the logits that they had."""
    rows = []
    for delta in (0, 5, -3):
        model.reset()
        model.eval(PROMPTS[7])
        model.seq_add(0, 0, None, delta)
        assert model.seq_pos_max(0) == 6 + delta
        rows.append(model.eval([5]))
        assert model.seq_pos_max(0) == 7 + delta
    model.seq_div(0, 0, None, 2)
    assert model.seq_pos_max(0) == 2
    with pytest.raises(ModelError, match="delta=-3: the last token of sequence 0 is at position 2"):
        model.seq_add(0, 0, None, -3)
    for row in rows[1:]:
        np.testing.assert_array_equal(row, rows[0])


def test_a_token_of_several_sequences(model):
    batch = Batch()
    batch.add(5, seq=(0, 1), logits=True)
    with pytest.raises(ModelError, match=r"each token has one sequence.* with seq_cp"):
        model.decode(batch)
    assert model.eval(PROMPTS[7]).any() and model.n_past == 7


def test_no_limit_but_the_positions(arch_file):
    """A state holds any number of tokens, in any context."""
    prompt = [(i * 31 + 5) % 97 for i in range(600)]
    rows = []
    for n_ctx in (256, 1024):
        with load(arch_file("mamba2"), n_ctx=n_ctx, n_ubatch=64) as model:
            rows.append(model.eval(prompt))
            model.plan(1, 100_000)
            assert model.n_past == 600
    np.testing.assert_array_equal(*rows)


def test_what_a_stopped_eval_leaves(model, monkeypatch):
    """What the graph could have written over is lost, and nothing else."""
    rows = [model.eval(PROMPTS[7], seq=seq) for seq in (0, 1, 2)]
    model.seq_cp(2, 3)
    for seq, left in ((0, -1), (2, 6)):  # 2 shares its state: its new one would be elsewhere
        with stopped_after(model, monkeypatch, 0):
            model.eval([5, 6], seq=seq)
        with stopped_after(model, monkeypatch, 0):
            model.eval([5], seq=seq)
        assert model.seq_pos_max(seq) == left
    after = model.eval([5], seq=1)
    for seq in (2, 3):
        np.testing.assert_allclose(model.eval([5], seq=seq), after, atol=1e-5)
    np.testing.assert_array_equal(model.eval(PROMPTS[7], seq=0), rows[0])


def test_a_plan_of_several_sequences(model):
    """One cell more per sequence; a first graph zeros a state."""
    plan = model.plan(2, n_seqs=3)
    assert plan.find("rs_s_copy")[0].ne[0] == 3
    assert plan.node("mamba_out-1").ne[:2] == (256, 6)
    zeroed = [n.ne[0] for n in plan.nodes if n.op == "SCALE"]
    assert all(zeroed) and len(zeroed) == 4
    assert not any(n.ne[0] for n in model.plan(2, n_past=5).nodes if n.op == "SCALE")


# --- devices


@pytest.mark.parametrize(
    ("lacks", "kept"),
    [
        ("SSM_SCAN", {"blk.0.ssm_a", "blk.1.ssm_a"}),
        ("SSM_CONV", {"blk.0.ssm_conv1d.weight", "blk.1.ssm_conv1d.weight"}),
        (None, set()),
    ],
)
def test_weights_that_a_gpu_has_no_op_for(sims, arch_file, lacks, kept):
    """They stay on the CPU, as llama.cpp has it; states are with their layers."""
    sims("gpu0", supports=lambda tensor: tensor.op.name != lacks)
    rows = []
    for options in ({}, {"devices": ("sim:gpu0", "CPU"), "n_gpu_layers": 99}):
        with load(arch_file("mamba2"), **options) as model:
            rows.append(model.eval(PROMPTS[7]))
            where = {t.name: t.buffer.name for t in model.weights._made.values()}
            caches = {t.buffer.name for t in (*model._memory.r, *model._memory.s)}
    np.testing.assert_array_equal(*rows)
    on_cpu = {name for name, buft in where.items() if not buft.startswith("gpu0")}
    assert on_cpu == kept | {"token_embd.weight"}
    assert all(name.startswith("gpu0") for name in caches)


# --- files


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mamba2", {"ssm__group_count": None}, "'mamba2.ssm.group_count' is missing"),
        ("mamba2", {"ssm__group_count": 3}, "group_count' is 3: expected a divisor of ssm.time_st"),
        ("mamba2", {"ssm__time_step_rank": 5}, "rank' is 5: expected a divisor of ssm.inner_size"),
        ("mamba2", {"ssm__conv_kernel": 1}, "conv_kernel' is 1: expected at least 2"),
        ("mamba2", {"ssm__conv_kernel": 3}, r"ssm_conv1d.weight' has ne \[4, 1024, 1, 1\], expect"),
        ("mamba2", {"ssm__state_size": 64}, r"ssm_in.weight' has ne \[256, 1538, 1, 1\], expected"),
        ("mamba2", {"ssm__time_step_rank": 4}, r"'blk.0.ssm_in.weight' has ne .* 1540, 1, 1\]"),
        ("mamba2", {"ssm__inner_size": "big"}, "inner_size' is 'big': expected int"),
        ("mamba", {"ssm__inner_size": 256}, "inner_size' is 256: expected twice the embedding_le"),
        ("mamba", {"ssm__dt_b_c_rms": 1}, "dt_b_c_rms' is 1: expected bool"),
        ("mamba", {"ssm__state_size": 0}, "state_size' is 0: expected at least 1"),
    ],
)
def test_sizes_that_do_not_fit(arch_file, tmp_path, name, changes, message):
    path = tmp_path / "changed.gguf"
    deeper(arch_file(name), path, 2, "f32", **changes)
    with pytest.raises(ModelError, match=message):
        load(path)


@pytest.mark.parametrize("missing", ["ssm_a", "ssm_dt.bias", "ssm_conv1d.bias", "ssm_norm.weight"])
def test_missing_tensors(arch_file, tmp_path, missing):
    path = tmp_path / "changed.gguf"
    deeper(arch_file("mamba2"), path, 2, "f32", edit=lambda t: t.pop(f"blk.1.{missing}"))
    with pytest.raises(ModelError, match=f"tensor 'blk.1.{missing}' .* is not among the file's"):
        load(path)


def test_another_type(arch_file, tmp_path, monkeypatch):
    """Convolution and scan take f32 only; libllama aborts."""
    monkeypatch.setattr("tests.support.arch_files.PLAIN", ())
    path = tmp_path / "changed.gguf"
    deeper(arch_file("mamba2"), path, 2, "f16")
    with pytest.raises(ModelError, match=r"'blk.0.ssm_conv1d.weight' is f16: expected f32"):
        load(path)
