"""What a plan costs: the time of each node, copy and split on a machine that was measured.

Plain data: neither a machine's file nor a prediction needs the native library.
"""

from .cost import Cost as Cost
from .machine import Machine as Machine
