"""Datasets and results of training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import enums
from ..boundary.arguments import integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib
from ..boundary.handle import Handle, within
from ..errors import AllocError, ArgumentError
from ..tensors.convert import DTYPES, TypeLike, decode, type_of
from ..tensors.tensor import Tensor
from ..trace.names import counted
from ..typed import typed

if TYPE_CHECKING:
    import numpy.typing as npt

    from .opt_context import OptContext


class Dataset(Handle):
    """Datapoints with or without labels, in host memory. C: ggml_opt_dataset_init

    They are shuffled and copied in shards of `ndata_shard` neighbours.
    """

    __slots__ = ("_ndata", "ndata_shard")

    @typed
    def __init__(
        self,
        data: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        ndata_shard: int = 1,
        type_data: TypeLike = "f32",
        type_label: TypeLike = "f32",
    ) -> None:
        """The first axis of `data` and `labels` counts the datapoints; the others are flattened.

        Raises `ArgumentError` if the counts differ or are not a multiple of `ndata_shard`.
        """
        values = np.asarray(data)
        given = None if labels is None else np.asarray(labels)
        if values.ndim == 0 or values.size == 0:
            raise ArgumentError(f"data of shape {values.shape}: expected at least one datapoint")
        if given is not None and given.shape[:1] != values.shape[:1]:
            raise ArgumentError(
                f"data of shape {values.shape} and labels of shape {given.shape}: expected the "
                "same number of each (the first axis counts them)"
            )
        if given is not None and given.size == 0:
            raise ArgumentError(f"labels of shape {given.shape}: expected None for no labels")
        ndata = values.shape[0]
        ne_label = 0 if given is None else given.size // ndata
        self._open(type_data, type_label, values.size // ndata, ne_label, ndata, ndata_shard)
        self.data.set(values.reshape(ndata, -1))
        if given is not None and self.labels is not None:
            self.labels.set(given.reshape(ndata, -1))

    @classmethod
    @typed
    def empty(
        cls,
        type_data: TypeLike,
        type_label: TypeLike,
        ne_datapoint: int,
        ne_label: int,
        ndata: int,
        ndata_shard: int = 1,
    ) -> Dataset:
        """A dataset to fill through `data` and `labels`; with ne_label=0 it has no labels.

        Raises `ArgumentError`, `AllocError`. C: ggml_opt_dataset_init
        """
        dataset = cls.__new__(cls)
        dataset._open(type_data, type_label, ne_datapoint, ne_label, ndata, ndata_shard)
        return dataset

    def _open(
        self,
        type_data: TypeLike,
        type_label: TypeLike,
        ne_datapoint: int,
        ne_label: int,
        ndata: int,
        ndata_shard: int,
    ) -> None:
        types = type_of(type_data), type_of(type_label)
        ne_datapoint = integer("ne_datapoint", ne_datapoint, 1)
        ne_label = integer("ne_label", ne_label)
        ndata, ndata_shard = integer("ndata", ndata, 1), integer("ndata_shard", ndata_shard, 1)
        if ndata % ndata_shard:
            raise ArgumentError(
                f"{counted(ndata, 'datapoint')} in shards of {ndata_shard}: expected a multiple "
                "(upstream would leave the rest out)"
            )
        for type_, ne, what in zip(
            types, (ne_datapoint, ne_label), ("data", "labels"), strict=True
        ):
            block = lib.ggml_blck_size(type_)
            if block == 0 or ne % block:
                raise ArgumentError(
                    f"{what}: {counted(ne, 'element')} each, in blocks of {type_.name.lower()} "
                    f"({counted(block, 'element')}): expected a multiple"
                )
            if ne * lib.ggml_type_size(type_) * ndata * ndata_shard >= 1 << 62:
                raise ArgumentError(
                    f"{what}: {ndata:,} x {ne:,} elements are more than ggml can count"
                )
        ptr = lib.ggml_opt_dataset_init(*types, ne_datapoint, ne_label, ndata, ndata_shard)
        if lib.ggml_opt_dataset_data(ptr).data == NULL:  # upstream does not check
            lib.ggml_opt_dataset_free(ptr)
            raise AllocError(
                f"no memory for {ndata:,} x {ne_datapoint:,} elements of {types[0].name.lower()}"
            )
        super().__init__(ptr, lib.ggml_opt_dataset_free)
        self._ndata, self.ndata_shard = ndata, ndata_shard

    def __repr__(self) -> str:
        return (
            "<Dataset closed>" if self.closed else f"<Dataset {counted(self._ndata, 'datapoint')}>"
        )

    @property
    def ndata(self) -> int:
        """Number of datapoints. C: ggml_opt_dataset_ndata"""
        return int(lib.ggml_opt_dataset_ndata(self.ptr))

    @property
    def data(self) -> Tensor:
        """All datapoints, ne = [ne_datapoint, ndata]. `set` them at any time. Shuffling does not
        move them. C: ggml_opt_dataset_data"""
        ptr = self.ptr
        return Tensor(within(lib.ggml_opt_dataset_data(ptr), ptr), self)

    @property
    def labels(self) -> Tensor | None:
        """All labels, ne = [ne_label, ndata]; None if it has none. C: ggml_opt_dataset_labels"""
        ptr = self.ptr
        raw = lib.ggml_opt_dataset_labels(ptr)
        return None if raw == NULL else Tensor(within(raw, ptr), self)

    def shuffle(self, opt: OptContext, idata: int | None = None) -> None:
        """Shuffles the first `idata` datapoints (default: all) with the random numbers of `opt`. A
        fresh OptContext always has the same ones.

        Raises `ArgumentError` for an idata that is not a multiple of `ndata_shard`.
        C: ggml_opt_dataset_shuffle
        """
        from .opt_context import OptContext

        ptr, raw = self.ptr, ptr_of(OptContext, opt)
        n = -1 if idata is None else integer("idata", idata, 0, self._ndata)
        if n > 0 and n % self.ndata_shard:
            raise ArgumentError(f"idata={n}: expected a multiple of ndata_shard={self.ndata_shard}")
        lib.ggml_opt_dataset_shuffle(raw, ptr, n)

    def get_batch(self, data_batch: Tensor, labels_batch: Tensor | None, ibatch: int) -> None:
        """Copies batch number `ibatch` into tensors, whose size is the number of datapoints.

        Raises `ArgumentError` for tensors of another type or size and for a number out of range,
        `NoDataError` before allocation. C: ggml_opt_dataset_get_batch
        """
        ptr, data, labels = self.ptr, self.data, self.labels
        if (labels_batch is None) != (labels is None):
            raise ArgumentError(
                f"labels_batch is {labels_batch!r}: expected "
                + ("None, the dataset has no labels" if labels is None else "a tensor for labels")
            )
        n = _n_batch("data_batch", data_batch, data)
        if labels_batch is not None and labels is not None:
            n_labels = _n_batch("labels_batch", labels_batch, labels)
            if n_labels != n:
                raise ArgumentError(
                    f"data_batch takes {counted(n, 'datapoint')}, labels_batch {n_labels}"
                )
        self._check_batch(n, ibatch)
        raw = NULL if labels_batch is None else labels_batch.ptr
        lib.ggml_opt_dataset_get_batch(ptr, data_batch.ptr, raw, ibatch)

    def get_batch_host(
        self, ndata_batch: int, ibatch: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Copies of data [ndata_batch, ne_datapoint] and labels of batch number `ibatch`.

        Types that numpy lacks are converted to float32. Raises `ArgumentError` for a number out of
        range.
        C: ggml_opt_dataset_get_batch_host
        """
        ptr, data, labels = self.ptr, self.data, self.labels
        self._check_batch(ndata_batch, ibatch)
        raw = np.empty((ndata_batch, data.nb[1]), np.uint8)
        raw_labels = None if labels is None else np.empty((ndata_batch, labels.nb[1]), np.uint8)
        target = NULL if raw_labels is None else ffi.from_buffer(raw_labels)
        lib.ggml_opt_dataset_get_batch_host(ptr, ffi.from_buffer(raw), raw.nbytes, target, ibatch)
        if labels is None or raw_labels is None:
            return _decoded(raw, data), None
        return _decoded(raw, data), _decoded(raw_labels, labels)

    def _check_batch(self, n: int, ibatch: int) -> None:
        n = integer("datapoints in a batch", n, 1, self._ndata)
        if n % self.ndata_shard:
            raise ArgumentError(
                f"a batch of {counted(n, 'datapoint')}: expected a multiple of "
                f"ndata_shard={self.ndata_shard}"
            )
        integer(f"ibatch, of batches of {n},", ibatch, 0, self._ndata // n - 1)


def _n_batch(name: str, batch: Tensor, integer: Tensor) -> int:
    """How many datapoints a batch tensor takes."""
    ptr_of(Tensor, batch)
    batch._data()
    ne = integer.ne[0]
    if batch.type != integer.type or not batch.is_contiguous or batch.n_elements % ne:
        raise ArgumentError(
            f"{name} is {batch!r}: expected contiguous {integer.type.name.lower()} with a multiple "
            f"of {ne} elements, as in the dataset"
        )
    return batch.n_elements // ne


def _decoded(raw: npt.NDArray[np.uint8], like: Tensor) -> npt.NDArray[Any]:
    dtype = DTYPES.get(like.type)
    if dtype is not None:
        return raw.view(dtype)
    n, ne = len(raw), like.ne[0]
    return decode(raw, like.type, n * ne).reshape(n, ne)


class OptResult(Handle):
    """The summed-up results of evaluating batches of one kind. C: ggml_opt_result_init"""

    __slots__ = ("_like",)

    def __init__(self) -> None:
        self._like: tuple[int, int, int] | None = None  # loss type, opt_period, batch size
        super().__init__(lib.ggml_opt_result_init(), lib.ggml_opt_result_free)

    def __repr__(self) -> str:
        if self.closed:
            return "<OptResult closed>"
        return f"<OptResult {counted(self.ndata, 'datapoint')}, loss {self.loss:.5g}>"

    def reset(self) -> None:
        """Forgets everything. C: ggml_opt_result_reset"""
        lib.ggml_opt_result_reset(self.ptr)
        self._like = None

    def _take(self, like: tuple[int, int, int]) -> Any:
        """The pointer, for an evaluation of the same kind as those before."""
        ptr = self.ptr
        if self._like is not None and self._like != like:
            was, now = (
                f"{enums.OptLossType(loss).name.lower()} loss, opt_period={period}, "
                f"{counted(n, 'datapoint')}"
                for loss, period, n in (self._like, like)
            )
            raise ArgumentError(
                f"this result holds batches with {was}; this one has {now}: reset() it, or use "
                "another"
            )
        self._like = like
        return ptr

    @property
    def ndata(self) -> int:
        """Number of datapoints. C: ggml_opt_result_ndata"""
        ndata = ffi.new("int64_t *")
        lib.ggml_opt_result_ndata(self.ptr, ndata)
        return int(ndata[0])

    def _pair(self, get: Any) -> tuple[float, float]:
        value, unc = ffi.new("double *"), ffi.new("double *", math.nan)
        get(self.ptr, value, unc)
        return float(value[0]), float(unc[0])

    @property
    def loss(self) -> float:
        """Mean over the batches, or their sum for loss type "sum"; 0 without data.

        C: ggml_opt_result_loss
        """
        return self._pair(lib.ggml_opt_result_loss)[0]

    @property
    def loss_unc(self) -> float:
        """Standard error of `loss`; NaN for fewer than two batches. C: ggml_opt_result_loss"""
        return self._pair(lib.ggml_opt_result_loss)[1]

    @property
    def accuracy(self) -> float:
        """Share of datapoints whose largest output and largest label coincide; NaN without data
        and for loss types other than "cross_entropy". C: ggml_opt_result_accuracy
        """
        return self._pair(lib.ggml_opt_result_accuracy)[0]

    @property
    def accuracy_unc(self) -> float:
        """Standard error of `accuracy`; NaN for fewer than two datapoints.

        C: ggml_opt_result_accuracy
        """
        return self._pair(lib.ggml_opt_result_accuracy)[1]

    @property
    def pred(self) -> npt.NDArray[np.int32]:
        """The index of each datapoint's largest output, in the order of evaluation. Empty for loss
        types other than "cross_entropy". C: ggml_opt_result_pred
        """
        ptr = self.ptr
        has = self._like is not None and self._like[0] == enums.OptLossType.CROSS_ENTROPY
        pred = np.zeros(self.ndata if has else 0, np.int32)
        if has:
            lib.ggml_opt_result_pred(ptr, ffi.cast("int32_t *", ffi.from_buffer(pred)))
        return pred
