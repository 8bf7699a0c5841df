"""Datasets, epochs and whole trainings."""

import io
import math
import sys

import numpy as np
import pytest

import ggml_py as ggml

from ..support.training import N_IN, Model, Numpy, gradients

ARGUMENT = ggml.ArgumentError
DATA = (16 * np.arange(6)[:, None] + np.arange(2)).astype(np.float32)
LABELS = 16 * DATA[:, :1]


@pytest.fixture
def opt():
    with Model() as model, model.opt() as context:
        yield context


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("shard", "n"), [(1, 1), (1, 2), (1, 3), (2, 2), (2, 6), (3, 3), (6, 6)])
def test_batches_have_every_datapoint_once_with_its_label(shard, n, shuffled, opt):
    with ggml.Dataset(DATA, LABELS, shard) as dataset, ggml.Context() as ctx:
        data, labels = ctx.new_tensor("f32", 2, n), ctx.new_tensor("f32", 1, n)
        ctx.alloc("CPU")
        if shuffled:
            dataset.shuffle(opt)
        seen = []
        for ibatch in range(6 // n):
            dataset.get_batch(data, labels, ibatch)
            on_host, labels_on_host = dataset.get_batch_host(n, ibatch)
            assert np.array_equal(data.get().reshape(n, 2), on_host)
            assert np.array_equal(labels.get().reshape(n, 1), labels_on_host)
            assert np.array_equal(16 * on_host[:, :1], labels_on_host)
            assert np.array_equal(on_host[:, 1], on_host[:, 0] + 1)
            seen += (on_host[:, 0] / 16).astype(int).tolist()
        assert sorted(seen) == list(range(6))
        assert shuffled or seen == list(range(6))
        for shard_of in range(0, 6, shard):  # shards stay together
            assert seen[shard_of : shard_of + shard] == list(
                range(seen[shard_of], seen[shard_of] + shard)
            )
        assert np.array_equal(dataset.data.get(), DATA)  # shuffling moves nothing


def test_shuffling_changes_the_order_of_the_first(opt):
    with ggml.Dataset(np.arange(100)) as dataset:
        dataset.shuffle(opt, 50)
        order = dataset.get_batch_host(100, 0)[0][:, 0]
        assert sorted(order[:50]) == list(range(50)) and list(order[50:]) == list(range(50, 100))
        assert list(order[:50]) != list(range(50))
        assert dataset.labels is None and dataset.get_batch_host(1, 0)[1] is None


def test_datasets_of_other_types():
    with ggml.Dataset.empty("f16", "i32", 4, 1, 3) as dataset:
        dataset.data.set(np.ones((3, 4)))
        dataset.labels.set([[1], [2], [3]])
        data, labels = dataset.get_batch_host(1, 2)
        assert (data.dtype, data.tolist()) == (np.float16, [[1, 1, 1, 1]])
        assert (labels.dtype, labels.tolist()) == (np.int32, [[3]])
        assert repr(dataset) == "<Dataset 3 datapoints>" and dataset.ndata == 3
        dataset.data.set(np.full(4, 5), offset=8)
        assert dataset.get_batch_host(1, 2)[0].tolist() == [[5, 5, 5, 5]]
    with ggml.Dataset(np.linspace(-1, 1, 64).reshape(2, 32), type_data="q8_0") as dataset:
        np.testing.assert_allclose(
            dataset.get_batch_host(2, 0)[0], np.linspace(-1, 1, 64).reshape(2, 32), atol=0.01
        )


def test_a_dataset_in_a_graph_outlives_its_handle():
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        dataset = ggml.Dataset(DATA)
        total = ctx.sum(dataset.data)
        graph = ctx.new_graph(16)
        graph.build_forward_expand(total)
        ctx.alloc(cpu)
        cpu.compute(graph)
        assert total.get() == DATA.sum()
        dataset.close()
        assert ctx.closed


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((3.0,), "expected at least one datapoint"),
        ((np.ones((0, 3)),), "expected at least one datapoint"),
        ((DATA, LABELS[:5]), "same number of each"),
        ((DATA, LABELS[:, :0]), "expected None for no labels"),
        ((DATA, None, 4), "in shards of 4"),
        ((DATA, None, 0), "ndata_shard=0"),
        ((DATA, None, 1, "q8_0"), "in blocks of q8_0"),
    ],
)
def test_datasets_that_cannot_be(args, said):
    with pytest.raises(ARGUMENT, match=said):
        ggml.Dataset(*args)


def test_a_dataset_larger_than_memory():
    with pytest.raises((ggml.AllocError, ARGUMENT)):
        ggml.Dataset.empty("f32", "f32", 1 << 30, 0, 1 << 20)
    with pytest.raises(ARGUMENT, match="more than ggml can count"):
        ggml.Dataset.empty("f32", "f32", 1 << 40, 0, 1 << 30)


def test_batches_that_cannot_be(opt):
    with ggml.Dataset(DATA, LABELS, 2) as dataset, ggml.Context() as ctx:
        data, labels = ctx.new_tensor("f32", 2, 2), ctx.new_tensor("f32", 1, 2)
        three, half = ctx.new_tensor("f32", 3, 1), ctx.new_tensor("f16", 2, 2)
        four = ctx.new_tensor("f32", 1, 4)
        with pytest.raises(ggml.NoDataError):
            dataset.get_batch(data, labels, 0)
        ctx.alloc("CPU")
        for args, said in (
            ((data, labels, 3), "0 to 2"),
            ((data, labels, -1), "0 to 2"),
            ((data, None, 0), "expected a tensor for labels"),
            ((three, labels, 0), "multiple of 2 elements"),
            ((half, labels, 0), "expected contiguous f32"),
            ((data, four, 0), "data_batch takes 2 datapoints, labels_batch 4"),
            ((ctx.view_2d(data, 2, 1, 8, 0), ctx.view_2d(labels, 1, 1, 4, 0), 0), "ndata_shard=2"),
        ):
            with pytest.raises(ARGUMENT, match=said):
                dataset.get_batch(*args)
        for args, said in (((3, 0), "ndata_shard=2"), ((8, 0), "=8"), ((2, 3), "=3")):
            with pytest.raises(ARGUMENT, match=said):
                dataset.get_batch_host(*args)
        for idata, said in ((3, "multiple of ndata_shard=2"), (8, "=8"), (-1, "=-1")):
            with pytest.raises(ARGUMENT, match=said):
                dataset.shuffle(opt, idata)
        with pytest.raises(TypeError, match="OptContext"):
            dataset.shuffle(dataset)


def test_an_epoch_trains_in_front_and_evaluates_behind():
    optimizer = ggml.SGD(alpha=0.1)
    with (
        Model() as model,
        model.opt(optimizer=optimizer) as opt,
        ggml.Dataset(model.data, model.labels) as dataset,
        ggml.OptResult() as train,
        ggml.OptResult() as val,
    ):
        seen = []
        ggml.epoch(opt, dataset, train, val, 16, seen.append)
        reference, losses = Numpy(model.start, optimizer), []
        for i in range(4):
            x, y = model.data[4 * i : 4 * i + 4], model.labels[4 * i : 4 * i + 4]
            value, _out, grads = gradients(reference.p, x, y, "cross_entropy")
            losses.append(value)
            reference.step(grads)
        for name, value in model.values().items():
            np.testing.assert_allclose(value, reference.p[name], rtol=1e-4, atol=1e-5)
        value, out, _grads = gradients(
            reference.p, model.data[16:], model.labels[16:], "cross_entropy"
        )
        assert (train.ndata, val.ndata) == (16, 8)
        assert train.loss == pytest.approx(np.mean(losses), rel=1e-4)
        assert val.loss == pytest.approx(value, rel=1e-4)
        assert val.pred.tolist() == np.argmax(out, 1).tolist()
        assert [(p.train, p.ibatch, p.ibatch_max) for p in seen] == [
            *((True, i, 4) for i in range(1, 5)), (False, 1, 2), (False, 2, 2),
        ]  # fmt: skip
        assert all(p.seconds >= 0 for p in seen) and seen[-1].seconds_left == 0


def test_an_exception_in_a_callback_ends_the_epoch():
    with (
        Model() as model,
        model.opt() as opt,
        ggml.Dataset(model.data, model.labels) as dataset,
    ):
        def stop(progress):
            if progress.ibatch == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ggml.epoch(opt, dataset, callback=stop)
        ggml.epoch(opt, dataset)  # goes on
        with pytest.raises(TypeError, match=r"function of \(progress\)"):
            ggml.epoch(opt, dataset, callback=3)


def test_epochs_that_do_not_fit():
    with Model() as model:
        good = ggml.Dataset(model.data, model.labels)
        with model.opt() as opt, model.opt("sum") as unlabelled, model.opt(opt_period=4) as four:
            wide = ggml.Dataset(np.ones((24, N_IN + 1)), model.labels)
            for o, dataset, split, said in (
                (opt, ggml.Dataset(model.data), None, "has no labels, loss type 'cross_entropy'"),
                (unlabelled, good, None, "has labels, loss type 'sum' takes none"),
                (opt, wide, None, r"expected the same ne\[0\]"),
                (opt, ggml.Dataset(model.data[:22], model.labels[:22]), None, "whole batches of 4"),
                (opt, ggml.Dataset(model.data, model.labels, 8), None, "shards of 8"),
                (opt, good, 6, "split at 6"),
                (opt, good, 28, "idata_split=28"),
                (four, good, None, "6 batches with opt_period=4"),
            ):
                with pytest.raises(ARGUMENT, match=said):
                    ggml.epoch(o, dataset, idata_split=split)
        with model.opt(build_type="forward") as opt:
            with pytest.raises(ARGUMENT, match="idata_split=0"):
                ggml.epoch(opt, good)
            ggml.epoch(opt, good, idata_split=0)
    with Model(static=False) as model, model.opt() as opt, pytest.raises(ARGUMENT, match="static"):
        ggml.epoch(opt, good)


def test_a_fit_learns_and_validates():
    with Model(n=4) as model, ggml.Dataset(model.data, model.labels) as dataset:
        epochs = []

        def schedule(number):
            epochs.append(number)
            return ggml.AdamW(alpha=0.05)

        history = ggml.fit(
            model.scheduler, model.inputs, model.outputs, dataset, "cross_entropy", schedule,
            nepoch=30, nbatch_logical=8, val_split=1 / 3,
        )  # fmt: skip
        assert len(history) == 30 and set(epochs) == set(range(1, 31))
        assert history[-1].loss < 0.2 * history[0].loss and history[-1].accuracy == 1
        assert 0 <= history[-1].val_accuracy <= 1 and history[-1].val_loss > 0
        assert model.scheduler._graph is None  # given back


def test_a_fit_to_a_line_finds_it(capsys):
    """Mean squared error, labels of f32, no validation: y = 3 x - 1."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Scheduler([cpu]) as scheduler:
        weights, ctx = ggml.Context(), ggml.Context()
        a, b = weights.from_numpy(np.zeros((1, 1)), "a", "f32"), weights.new_tensor("f32", 1)
        for param in (a, b):
            param.set_param()
        x = weights.new_tensor("f32", 1, 10, name="x")
        y = ctx.add(ctx.mul_mat(a, x), b)
        weights.alloc(cpu)
        b.set([0])
        xs = np.linspace(-1, 1, 50).reshape(-1, 1)
        with ggml.Dataset(xs, 3 * xs - 1) as dataset:
            history = ggml.fit(
                scheduler, x, y, dataset, "mean_squared_error", ggml.SGD(alpha=0.3),
                nepoch=20, nbatch_logical=10, callback=ggml.progress_bar,
            )  # fmt: skip
        assert (a.get().item(), b.get().item()) == pytest.approx((3, -1), abs=1e-3)
        assert history[-1].loss < 1e-6 and math.isnan(history[-1].val_loss)
        assert math.isnan(history[-1].accuracy)
        lines = capsys.readouterr().err.split("\n")
        assert len(lines) == 21 and "[####################] data=0000050" in lines[0]
        ctx.close()
        weights.close()


def test_fits_that_cannot_be():
    with Model(n=4) as model, ggml.Dataset(model.data, model.labels) as dataset:

        def fit(**options):
            usual = {"nepoch": 1, "nbatch_logical": 8, **options}
            return ggml.fit(
                model.scheduler, model.inputs, model.outputs, dataset, "cross_entropy", **usual
            )

        for options, said in (
            ({"nbatch_logical": 7}, "divisor of the dataset.s size, 24"),
            ({"nbatch_logical": 6}, "multiple of 4"),
            ({"nbatch_logical": 0}, "nbatch_logical=0"),
            ({"val_split": 1.0}, "less than 1"),
            ({"val_split": 0.9}, "leaves none to train"),
            ({"nepoch": -1}, "nepoch=-1"),
        ):
            with pytest.raises(ARGUMENT, match=said):
                fit(**options)
        assert fit(nepoch=0) == []
        assert len(fit(val_split=1 / 3)) == 1


def test_the_progress_bar_is_one_line(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with ggml.OptResult() as result:
        for i in (1, 2):
            ggml.progress_bar(ggml.Progress(False, result, i, 2, 1.5))
    first, second = out.getvalue().split("\r")[1:]
    assert first.startswith("val   [##########..........]") and "ETA=1.5s" in first
    assert second.endswith("\n") and "ETA=0.0s" in second
