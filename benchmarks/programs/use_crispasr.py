"""Transcribes two seconds of silence with crispasr.

    python use_crispasr.py MODEL.bin

Prints the texts of the segments.
"""

import sys

import crispasr
import numpy as np

model = crispasr.CrispASR(sys.argv[1])
found = model.transcribe_pcm(np.zeros(32_000, np.float32), sample_rate=16_000)
print([segment.text for segment in found])
model.close()
