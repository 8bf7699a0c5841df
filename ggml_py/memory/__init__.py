"""What a plan holds in memory: every buffer, tensor by tensor, before anything is allocated."""

from .compute_buffer import ComputeBuffer as ComputeBuffer
from .plan_memory import HeldTensors as HeldTensors
from .plan_memory import PlanMemory as PlanMemory
from .tensor_bytes import MemoryBlock as MemoryBlock
