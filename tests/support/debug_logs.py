"""Debug prints of plans, as logs hold them."""

import re
from dataclasses import replace

from ggml_py.export import to_text

from .upstream_prints import lines_of  # noqa: F401  fixtures


def printed(plan, upstream="0.26.0", causes=False):
    """As that release prints it."""
    as_of = plan.settings._replace(upstream=upstream)
    return to_text.render(replace(plan, capture=replace(plan.capture, settings=as_of)), causes)


DUMP = """\
## SPLIT #0: CPU # 0 inputs
node #  0 (  GET_ROWS):             inp_embd (   3M) [  CPU         ] use=2,c=1:    token_embd.weight ( 512M) [  CPU         ]           inp_tokens (   0K) [  CPU         ]

## SPLIT #1: CUDA0 # 2 inputs: [inp_embd (   3M)] [inp_pos (   0K)]\x20
node #  1 (  RMS_NORM):               norm-0 (   3M) [CUDA0         ] use=1,c=1:     CUDA0#inp_embd#0 (   3M) [ NULL         ]
node #  2 (   MUL_MAT):               Qcur-0 (   3M) [CUDA0         ] use=1,c=1:  blk.0.attn_q.weight (  18M) [CUDA0         ]               norm-0 (   3M) [CUDA0         ]
node #  4 (      ROPE):               Qcur-0 (   3M) [CUDA0         ] use=1,c=1:    Qcur-0 (reshaped) (   3M) [CUDA0         ]      CUDA0#inp_pos#0 (   0K) [ NULL         ]

## SPLIT #2: CPU # 1 inputs: [Qcur-0 (   3M)]\x20
node #  5 (     TOP_K):             selected (  12K) [  CPU         ] use=0,c=1:         CPU#Qcur-0#0 (   3M) [ NULL         ]
"""  # noqa: E501
MESSAGES = [
    "llama_context: graph nodes  = 1030",
    "load_tensors: offloaded 33/33 layers to GPU (  16M)",
    "srv  update_slots: all slots are idle [ok]",
    "ggml_backend_sched_reserve: something # 3 inputs",
    "",
    "....................",
]
PREFIXES = {
    "none": "",
    "llama.cpp": "0.00.123.456 D ",
    "level only": "D ",
    "journald": "Nov 20 20:17:01 host llama-server[123]: ",
    "docker": "llama-1  | 2026-11-20T20:17:01.123456789Z ",
    "colours": "\x1b[34m0.00.123.456\x1b[0m \x1b[33mD ",
    "ollama": "time=2026-11-20T20:17:01.123Z level=DEBUG source=ggml.go:1 msg=",
}


def pieces_of(text):
    """As ggml writes it: the split, each input; the node, each source; the ends of lines."""
    made = []
    for line in text.splitlines():
        if line.startswith("##"):
            head, colon, rest = line.partition(" inputs: ")
            made.append(f"\n{head} inputs" if colon else f"\n{head}")
            made += [": "] * bool(colon) + re.findall(r"\[.*? \(.{5}\)\] ", rest)
        elif line:
            head, rest = re.fullmatch(r"(node #.*? use=\d+(?:,c=\d)?:)(.*)", line).groups()
            made += [head, *re.findall(r" .{20} \(.{5}\) \[.{5} .{8}\]", rest)]
        else:
            continue
        made.append("\n")
    return made
