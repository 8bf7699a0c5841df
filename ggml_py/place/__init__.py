"""Searches for the flags with which a model runs quickest on a measured machine: `place`."""

from ..boundary import ffi as ffi  # first: without it the error says which wheel has it
from .evaluate import Way as Way
from .place import Placed as Placed
from .place import place as place
from .placing_flags import Flags as Flags
from .workload import Workload as Workload
