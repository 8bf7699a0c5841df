"""Transcribes two seconds of silence with transcribe-cpp.

    python use_transcribe_cpp.py MODEL.bin

Prints the text.
"""

import sys

import numpy as np
import transcribe_cpp

options = transcribe_cpp.WhisperRunOptions(temperature=0.0, temperature_inc=0.0, seed=1)
with transcribe_cpp.Model(sys.argv[1]) as model, model.session() as session:
    print(session.run(np.zeros(32_000, np.float32), family=options).text)
