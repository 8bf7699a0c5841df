"""Whether devices compute right: op by op with upstream's own program, and in a model."""

from ..boundary import ffi as ffi  # first: without it the error says which wheel has it
from .backend_ops import check_ops as check_ops
from .diverge import ModelSide as ModelSide
from .diverge import diverge as diverge
from .divergence import Divergence as Divergence
from .divergence import NodeError as NodeError
from .op_results import CaseChange as CaseChange
from .op_results import OpCase as OpCase
from .op_results import OpResults as OpResults
from .op_results import OpResultsDiff as OpResultsDiff
from .op_results import OpRow as OpRow
