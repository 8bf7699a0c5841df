"""What a plan holds in memory: every buffer, tensor by tensor, before anything is allocated."""

from .blocks import MemoryBlock as MemoryBlock
from .compute_buffer import ComputeBuffer as ComputeBuffer
from .plan_memory import HeldTensors as HeldTensors
from .plan_memory import PlanMemory as PlanMemory
