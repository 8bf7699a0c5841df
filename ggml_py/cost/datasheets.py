"""Devices that nobody measured: figures of their makers' data sheets.

A data sheet is an upper bound that programs do not reach. Predictions from it are of lower trust:
the interval goes from nearly the sheet's figures to less than half of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .curves import Read
from .estimate import BYTES, FLOPS, LATENCY, OVERHEAD, Estimate
from .machine import MeasuredDevice
from .work import ATTENTION, EXPERTS, PRODUCT, NodeWork


class DataSheet(NamedTuple):
    """The figures of one card."""

    bandwidth: float  # GB/s of its memory
    matrix: float  # TFLOPS of dense 16-bit products (tensor or matrix cores, where it has them)
    vector: float  # TFLOPS of 32-bit arithmetic
    link: float  # GB/s to the host, one direction; of unified memory its bandwidth


_PCIE3, _PCIE4, _PCIE5 = 15.8, 31.5, 63.0  # GB/s of 16 lanes
_HALF4 = 15.8  # 8 lanes of PCIe 4

# By the names of `ggml_py.profiles()`. Figures of the makers' data sheets, without sparsity.
DATASHEETS = {
    "rtx5090": DataSheet(1792, 209.5, 104.8, _PCIE5),
    "rtx5080": DataSheet(960, 112.6, 56.3, _PCIE5),
    "rtx4090": DataSheet(1008, 165.2, 82.6, _PCIE4), "rtx4080": DataSheet(717, 97.5, 48.7, _PCIE4),
    "rtx4070": DataSheet(504, 58.3, 29.1, _PCIE4), "rtx4060": DataSheet(272, 30.2, 15.1, _HALF4),
    "rtx3090": DataSheet(936, 71.2, 35.6, _PCIE4), "rtx3080": DataSheet(760, 59.5, 29.8, _PCIE4),
    "rtx3060": DataSheet(360, 25.5, 12.7, _PCIE4), "rtx2080ti": DataSheet(616, 53.8, 13.4, _PCIE3),
    "gtx1660": DataSheet(192, 10.0, 5.0, _PCIE3), "gtx1080ti": DataSheet(484, 11.3, 11.3, _PCIE3),
    "p40": DataSheet(347, 11.8, 11.8, _PCIE3), "v100": DataSheet(900, 125.0, 15.7, _PCIE3),
    "t4": DataSheet(320, 65.0, 8.1, _PCIE3), "a100": DataSheet(2039, 312.0, 19.5, _PCIE4),
    "l40s": DataSheet(864, 362.0, 91.6, _PCIE4), "h100": DataSheet(3350, 989.0, 67.0, _PCIE5),
    "h200": DataSheet(4800, 989.0, 67.0, _PCIE5), "b200": DataSheet(8000, 2250.0, 80.0, _PCIE5),
    "rx7900xtx": DataSheet(960, 122.8, 61.4, _PCIE4),
    "rx6800xt": DataSheet(512, 41.5, 20.7, _PCIE4),
    "rx9070xt": DataSheet(640, 195.0, 48.7, _PCIE5), "mi50": DataSheet(1024, 26.8, 13.4, _PCIE4),
    "mi100": DataSheet(1228, 184.6, 23.1, _PCIE4), "mi250x": DataSheet(3277, 383.0, 47.9, _PCIE4),
    "mi300x": DataSheet(5300, 1307.0, 163.4, _PCIE5),
    "arc-a770": DataSheet(560, 137.6, 19.7, _PCIE4),
    "arc-b580": DataSheet(456, 116.7, 14.6, _HALF4),
    "m1": DataSheet(68, 2.6, 2.6, 68), "m1max": DataSheet(400, 10.4, 10.4, 400),
    "m2": DataSheet(100, 3.6, 3.6, 100), "m2ultra": DataSheet(800, 27.2, 27.2, 800),
    "m3": DataSheet(100, 4.1, 4.1, 100), "m3max": DataSheet(400, 14.2, 14.2, 400),
    "m3ultra": DataSheet(819, 28.2, 28.2, 819), "m4": DataSheet(120, 4.3, 4.3, 120),
    "m4max": DataSheet(546, 18.4, 18.4, 546),
}  # fmt: skip

_VENDOR = re.compile(r"nvidia|geforce|tesla|amd|radeon|instinct|intel|apple|\(r\)|\(tm\)|graphics")
_SIZE = re.compile(r"[-\s]*(pcie|sxm\d*|hbm\d*e?|nvl|\d+ ?gb)\b")


def card_of(description: str) -> str | None:
    """The card, as a key of `DATASHEETS`, by a driver's description ("NVIDIA GeForce RTX 4090").
    None for any other card, like a laptop's or a "Ti" without a data sheet here."""
    name = _SIZE.sub(" ", _VENDOR.sub(" ", description.lower()))
    key = re.sub(r"[\s-]+", "", name)
    return next((card for card in DATASHEETS if card.replace("-", "") == key), None)


# A host that nobody measured, by the name that `SheetEstimator` takes: two channels of DDR5, eight
# cores with AVX2. Desktops with DDR4 read half as much, servers with eight channels four times.
HOST = "usual host"
_HOST = DataSheet(100, 1.6, 0.8, 100)

_PART = 0.6  # of the sheet's figures is taken as reached,
_ERROR = 0.35  # with this relative error: nine of ten between the sheet's figures and a quarter
_HOST_ERROR = 0.45  # the same of a host: 34 to 230 GB/s
_LAUNCH = 4e-6  # seconds to start a kernel; of the order that all vendors' drivers have
_TRANSFER = 10e-6  # seconds before the first byte of a copy


class SheetEstimator:
    """Predicts like `Estimator`, from a data sheet."""

    def __init__(self, name: str, card: str) -> None:
        """`card` is a key of `DATASHEETS`, or `HOST`."""
        self.is_host = card == HOST
        kind = "CPU" if self.is_host else "GPU"
        self.device = MeasuredDevice(name, f"data sheet of {card}", kind, not self.is_host, ())
        self.card, self.sheet = card, _HOST if self.is_host else DATASHEETS[card]
        self._error = _HOST_ERROR if self.is_host else _ERROR
        self.cold_node = Read(0.0, 0.0, ())
        self.bandwidth = _PART * self.sheet.bandwidth * 1e9
        self.speed = _PART * self.sheet.vector * 1e12
        self.slow = self.bandwidth, self.speed
        self.drift = 0.0

    def coldness(self, _nbytes: int) -> float:
        """Caches count for nothing."""
        return 1.0

    def split(self, _work: float) -> Read:
        """The time to start a kernel is in that of each node."""
        return Read(0.0, 0.0, ())

    def estimate(self, work: NodeWork, _coldness: float) -> Estimate:
        """The larger of the times for its bytes and for its operations, after it was started."""
        matrix = work.key.startswith((PRODUCT, EXPERTS, ATTENTION))
        speed = _PART * (self.sheet.matrix if matrix else self.sheet.vector) * 1e12
        by_bytes, by_flops = work.bytes / self.bandwidth, work.flops / speed
        seconds = max(by_bytes, by_flops) + _LAUNCH
        bound = BYTES if by_bytes >= by_flops else FLOPS
        return Estimate(seconds, self._error, OVERHEAD if seconds / 2 < _LAUNCH else bound, ())

    def copy(self, _key: str, nbytes: int) -> Estimate | None:
        """The seconds over its link, in either direction. A host has no link of its own: None."""
        if self.is_host:
            return None
        by_bytes = nbytes / (_PART * self.sheet.link * 1e9)
        bound = LATENCY if by_bytes < _TRANSFER else BYTES
        return Estimate(by_bytes + _TRANSFER, _ERROR, bound, ())
