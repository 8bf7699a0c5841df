"""Upstream's own debug prints of small graphs."""

from pathlib import Path

TREE = str(Path(__file__).parents[2])
LLAMAS = [(1, False), (1, True), (64, False), (64, True)]  # n_tokens, flash_attn
# Run with a pristine build and GGML_SCHED_DEBUG=2: what upstream prints for each graph.
PRINT = """
import json, logging, sys
sys.path.append({tree!r})
from ggml_py.boundary.ffi import BUILD
from ggml_py.models import load
from tests.support import graphs
assert BUILD["pristine"], BUILD
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("ggml").setLevel(logging.DEBUG)
logging.getLogger("ggml").addHandler(Keep())
def last_print():
    text = [l for l in lines if l.startswith(("## SPLIT", "node #"))]
    starts = [i for i, l in enumerate(text) if l.startswith("## SPLIT #0:")]
    return text[starts[-1]:]
printed = {{}}
for name, make in graphs.CASES.items():
    case = make()
    case.scheduler.alloc_without_plan(case.graph)
    printed[name] = last_print()
    case.close()
for n_tokens, flash_attn in {llamas}:
    with load({model!r}, devices=("BLAS", "CPU"), flash_attn=flash_attn, repack=False) as m:
        m.eval([1] * n_tokens)
        printed[f"{{n_tokens}} {{flash_attn}}"] = last_print()
print(json.dumps(printed))
"""


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]
