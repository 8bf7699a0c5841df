"""Searches for the flags with which a model runs quickest on a measured machine: `place`."""

from .evaluate import Way as Way
from .flags import Flags as Flags
from .place import Placed as Placed
from .place import place as place
from .workload import Workload as Workload
