"""Transcribes two seconds of silence with pywhispercpp.

    python use_pywhispercpp.py MODEL.bin

Prints the texts of the segments. whisper.cpp before 1.8 refuses less than a second.
"""

import sys

import numpy as np
from pywhispercpp.model import Model

model = Model(
    sys.argv[1], n_threads=2, redirect_whispercpp_logs_to=None, print_progress=False,
    print_realtime=False, single_segment=True, max_tokens=4, temperature_inc=0.0,
)  # fmt: skip
print([segment.text for segment in model.transcribe(np.zeros(32_000, np.float32))])
