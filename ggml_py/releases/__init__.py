"""The same work under several releases of ggml: what a new release plans differently, and why."""

from ..boundary import ffi as ffi  # first: without it the error says which wheel has it
from .attribution import Attribution as Attribution
from .attribution import changes as changes
from .bisect import Bisection as Bisection
from .bisect import bisect as bisect
from .compare import Compared as Compared
from .compare import Comparison as Comparison
from .compare import compare as compare
from .listing import listing as listing
from .rule_cases import rule_cases as rule_cases
from .tasks import Made as Made
from .tasks import Work as Work
