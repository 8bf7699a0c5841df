"""Measurements of a machine: seconds of one node, for a kind of work at some sizes.

A sample's `key` names the kind of work as `work.work_of` names that of a node, and `at` has the
coordinates of that kind. A prediction looks up samples with the same key and coordinates.
"""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

# Kinds of work that no node has: costs of computing itself.
SPLIT = "split"  # a backend's time for a split besides its nodes
SYNCHRONIZE = "synchronize"  # a wait with nothing to wait for
COLD_NODE = "cold node"  # extra time of a small node after others have filled the caches
# The same three products, every few seconds between other measurements. With one column a product
# waits for memory. With one column and matrices in a cache its threads wait for each other. With
# many columns it waits for the cores.
DRIFT, HOT_DRIFT, WIDE_DRIFT = "drift", "drift in the cache", "drift of many columns"
DRIFTS = (DRIFT, HOT_DRIFT, WIDE_DRIFT)
WORKING_SET = "working set"  # one matrix of many, by the bytes of all of them
COPY_FROM, COPY_TO = "copy from ", "copy to "  # + the other device; at: bytes of the tensor
# + behind it: the kind of the host's memory, if it is not the backend's usual one.
PINNED = " pinned"  # locked by the device
MAPPED = " mapped"  # of a mapped file, which is in no cache of the processor
# SHAPES: (k, m) of the matrices of measured products with one column. MANY_ROWS: end of the key of
# a product with few or with many rows of the same number of elements, at (rows, elements).
SHAPES = ((512, 128), (768, 768), (2048, 1024), (2048, 6144))
MANY_ROWS = " many rows"

_QUARTILE = 0.6745  # standard deviations from the middle of a normal distribution to its quartiles


class Sample(NamedTuple):
    """The seconds that one node took, in each repetition."""

    key: str
    at: tuple[float, ...]
    seconds: tuple[float, ...]
    bytes: int = 0  # that one node reads and writes
    flops: int = 0

    @property
    def usual(self) -> float:
        """The median of `seconds`."""
        return self._quartiles()[1]

    @property
    def spread(self) -> float:
        """How far repetitions are apart: half of the distance between their quartiles, as a part of
        the median."""
        low, middle, high = self._quartiles()
        return (high - low) / 2 / middle if middle > 0 else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of `seconds` by their quartiles, as a part of the median: one
        that was disturbed does not count."""
        return self.spread / _QUARTILE

    def _quartiles(self) -> list[float]:
        if len(self.seconds) < 2:
            return [*self.seconds] * 3
        return statistics.quantiles(self.seconds, n=4, method="inclusive")

    def to_dict(self) -> dict[str, Any]:
        """As JSON data. Seconds keep four digits: repetitions differ in the third."""
        rounded = [float(f"{s:.4g}") for s in self.seconds]
        return {
            "key": self.key, "at": list(self.at), "seconds": rounded, "bytes": self.bytes,
            "flops": self.flops,
        }  # fmt: skip
