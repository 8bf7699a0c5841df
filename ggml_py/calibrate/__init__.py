"""Measures what a machine takes for the work that models give it: `calibrate` makes a
`ggml_py.cost.Machine`."""

from .calibrate import TYPES as TYPES
from .calibrate import calibrate as calibrate
