"""Upstream's own programs, unmodified: what our results are compared with."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Oracle:
    """A folder with llama-bench, test-llama-archs, …, and our programs on libllama."""

    bin: Path

    def run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Runs one of them and fails with what it said when it fails."""
        # Not our build of ggml in place of theirs.
        env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
        command = [str(self.bin / program), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=env, timeout=300
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done

    def logits(
        self, model: Path, prompt: list[int], n_predict: int, scratch: Path, **options: object
    ) -> tuple[list[int], npt.NDArray[np.float32]]:
        """libllama's greedy tokens, and logits [prompt + n_predict - 1, n_vocab]."""
        out = scratch / "logits.bin"
        named: list[object] = []
        for name, value in options.items():
            named.append(f"--{name.replace('_', '-')}")
            if value is not True:  # else a flag
                named.append(value)
        tokens = ",".join(map(str, prompt))
        done = self.run("llama_logits", model, tokens, n_predict, out, *named)
        answer = json.loads(done.stdout)
        return answer["tokens"], np.fromfile(out, np.float32).reshape(-1, answer["n_vocab"])
