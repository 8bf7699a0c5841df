"""Measures what a machine takes for the work that models give it: `calibrate` makes a
`ggml_py.cost.Machine`."""

from ..boundary import ffi as ffi  # first: without it the error says which wheel has it
from .calibrate import TYPES as TYPES
from .calibrate import calibrate as calibrate
