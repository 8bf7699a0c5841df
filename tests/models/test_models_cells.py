"""Batches, their parts, and the cells of a cache, without a model."""

from __future__ import annotations

import numpy as np
import pytest

from ggml_py.boundary.ffi import lib
from ggml_py.models.cache.cells import Cells
from ggml_py.models.cache.ubatch import Tokens, split_equal, split_seq, split_simple


def tokens(*seqs):
    n = len(seqs)
    ids = np.arange(n, dtype=np.int32)
    return Tokens(ids, ids, [s if isinstance(s, tuple) else (s,) for s in seqs], np.ones(n, bool))


def idxs(ubatches):
    return [ubatch.batch_idxs.tolist() for ubatch in ubatches]


class TestSplits:
    """What llama_batch_allocr's splits give, worked out by hand of its source."""

    def test_simple(self):
        assert idxs(split_simple(tokens(0, 1, 0, 1, 0), 2)) == [[0, 1], [2, 3], [4]]

    def test_equal_takes_as_many_of_each(self):
        ubatches = split_equal(tokens(0, 0, 1, 0, 1, 0), 512, True)
        assert idxs(ubatches) == [[0, 1, 2, 4], [3, 5]]
        assert [(u.n_seqs, u.n_seq_tokens, u.seq_ids) for u in ubatches] == [
            (2, 2, (0, 1)),
            (1, 2, (0,)),
        ]

    def test_equal_takes_numbers_that_follow_each_other(self):
        assert idxs(split_equal(tokens(0, 2, 1, 2, 3), 512, True)) == [[0, 2, 1, 4], [3]]
        assert idxs(split_equal(tokens(1, 0, 1), 512, True)) == [[0, 2], [1]]
        assert idxs(split_equal(tokens(1, 0, 1), 512, False)) == [[0, 1], [2]]

    def test_equal_within_n_ubatch(self):
        assert idxs(split_equal(tokens(0, 0, 0, 1, 1, 1), 5, True)) == [[0, 1, 3, 4], [2, 5]]

    def test_equal_with_more_sequences_than_fit(self):
        """One more than n_ubatch, and one token of each: so upstream has it."""
        assert idxs(split_equal(tokens(0, 1, 2, 3), 2, True)) == [[0, 1, 2], [3]]

    def test_equal_keeps_coupled_sequences_apart(self):
        assert idxs(split_equal(tokens((0, 1), 2, 0, 1), 512, False)) == [[0, 1], [2, 3]]

    def test_seq(self):
        assert idxs(split_seq(tokens(0, 1, 0, 1, 1), 2)) == [[0, 2], [1, 3], [4]]
        assert idxs(split_seq(tokens((0, 1), 0, 1, 0), 512)) == [[0, 1, 3], [2]]


def put(cells, n, seq=0):
    idxs = cells.find(n)
    start = cells.last(seq) + 1
    pos = np.arange(start, start + n, dtype=np.int32)
    cells.put(idxs, pos, [((seq,), slice(None))])
    return idxs.tolist()


class TestCells:
    def test_the_search_goes_on_where_it_ended(self):
        cells = Cells(8, 2)
        assert put(cells, 3) == [0, 1, 2]
        assert put(cells, 3, seq=1) == [3, 4, 5]
        cells.rm(0, 1, 2)
        assert cells.head == 1 and put(cells, 3, seq=1) == [1, 6, 7]
        assert cells.find(1) is None and cells.n_used == 8

    def test_it_starts_again_where_enough_is_empty_before(self):
        cells = Cells(16, 1)
        put(cells, 12)
        cells.rm(0, 0, 12)
        cells.head = 12
        assert put(cells, 2) == [0, 1]

    @pytest.mark.parametrize(("head", "found"), [(10, 10), (11, 2)])
    def test_how_much_is_enough(self, head, found):
        """More than the used ones and two for each token: 6 and 4."""
        cells = Cells(16, 2)
        put(cells, 2)
        put(cells, 6, seq=1)
        cells.rm(1, 0, 2)
        cells.head = head
        assert put(cells, 2)[0] == found

    @pytest.mark.parametrize("seed", range(4))
    def test_one_token_as_many(self, seed):
        """What is done in C is what `find` and `put` do, whatever was asked before."""
        rng = np.random.default_rng(seed)
        for n_swa in (0, 4):
            one, many = Cells(12, 2, n_swa), Cells(12, 2, n_swa)
            for _ in range(40):
                seq = int(rng.integers(2))
                idxs = many.find(1)
                idx = lib.gp_kv_find(one.native)
                assert idx == (-1 if idxs is None else idxs[0])
                if idxs is None:
                    p0 = int(rng.integers(4))
                    for cells in (one, many):
                        cells.rm(seq, p0, 1 << 30)
                    continue
                pos = many.last(seq) + 1
                many.put(idxs, np.array([pos], np.int32), [((seq,), slice(None))])
                lib.gp_kv_put(one.native, idx, seq, pos)
                np.testing.assert_array_equal(one.pos, many.pos)
                np.testing.assert_array_equal(one.has, many.has)
                for name in ("head", "n_used", "end"):
                    assert getattr(one, name) == getattr(many, name)
                for s in range(2):
                    assert (one.first(s), one.last(s)) == (many.first(s), many.last(s))

    @pytest.mark.parametrize("dtype", [np.float16, np.float32])
    @pytest.mark.parametrize("n_swa", [0, 3])
    def test_masks(self, dtype, n_swa):
        """Each token sees the tokens of its sequence up to itself, of a window the last ones."""
        cells = Cells(12, 2, n_swa)
        put(cells, 3)
        put(cells, 2, seq=1)
        put(cells, 3)  # 0 1 2, 0 1, 3 4 5
        mask = np.empty((3, 10), dtype)
        cells.fill_mask(mask, 0, np.array([3, 4, 5], np.int32))
        seen = ["...  #    ", "...  ##   ", "...  ###  "] if not n_swa else None
        seen = seen or [" ..  #    ", "  .  ##   ", "     ###  "]
        np.testing.assert_array_equal(
            mask, [[-np.inf if c == " " else 0.0 for c in row] for row in seen]
        )
