"""The error by which upstream's tests compare results."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def nmse(tested: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """The normalised mean squared error as test-backend-ops computes it: the squared differences
    over the squares of the tested values. Equal values, infinite ones and NaN included, differ by
    nothing; a value that only one side has as NaN or infinity makes it infinite."""
    a, b = (np.asarray(one, np.float64).ravel() for one in (tested, expected))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.isfinite(a[~same]).all() or not np.isfinite(b[~same]).all():
        return float("inf")
    difference = float(np.sum(np.square(a[~same] - b[~same])))
    finite = a[np.isfinite(a)]
    if difference == 0.0:
        return 0.0
    size = float(np.sum(np.square(finite)))
    return difference / size if size else float("inf")
