"""Upstream's own programs, unmodified, to compare our results with."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggml_py.plan import Plan

_IN_PLAN = re.compile(r"## SPLIT #|node #|$")


def command_line(options: dict[str, object]) -> list[object]:
    """--name value for each option; --name alone for True, nothing for False."""
    words: list[object] = []
    for name, value in options.items():
        if value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(value)
    return words


def printed_plan(said: str) -> str:
    """The last plan in a log; earlier ones are from reservations."""
    graph = said[said.rindex("## SPLIT #0") :]
    return "\n".join(line for line in graph.splitlines() if _IN_PLAN.match(line)).strip()


@dataclass(frozen=True)
class Sampled:
    """The drawn token, and the candidates that it was drawn from, in libllama's order."""

    token: int
    ids: npt.NDArray[np.int32]
    p: npt.NDArray[np.float32]


_CELLS = re.compile(
    r"find_slot: stream\[(\d+)\], n = +\d+, used = +(\d+), head = +(\d+), .*n_swa = +(\d+)\n"
    r"\n([^a-z]+?)\n\n((?:[ .*\d]+\n)+)"
)


@dataclass(frozen=True)
class Cells:
    """The cells of one stream: sequences ("." none, "M" several) and positions (-1 if empty)."""

    stream: int
    n_used: int
    head: int
    n_swa: int
    seqs: str
    pos: list[int]


def _cells(stream: str, used: str, head: str, n_swa: str, seqs: str, pos: str) -> Cells:
    shown = "".join(re.findall(r"[\dM.]", seqs))
    positions = [-1 if p == "." else int(p) for p in pos.replace("*", " ").split()]
    return Cells(int(stream), int(used), int(head), int(n_swa), shown, positions)


@dataclass(frozen=True)
class Oracle:
    """The programs in a folder: llama-bench, test-llama-archs, …, and ours on libllama."""

    bin: Path

    def run(self, program: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a program, with `env` added to our environment. If it fails, shows its output."""
        # Keep our build of ggml from replacing theirs.
        usual = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
        command = [str(self.bin / program), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=usual | env, timeout=300
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done

    def logits(
        self, model: Path, prompt: list[int], n_predict: int, scratch: Path, **options: object
    ) -> tuple[list[int], npt.NDArray[np.float32]]:
        """libllama's greedy tokens, and logits [prompt + n_predict - 1, n_vocab]."""
        out = scratch / "logits.bin"
        tokens = ",".join(map(str, prompt))
        done = self.run("llama_logits", model, tokens, n_predict, out, *command_line(options))
        answer = json.loads(done.stdout)
        return answer["tokens"], np.fromfile(out, np.float32).reshape(-1, answer["n_vocab"])

    def sequences(
        self, model: Path, script: str, scratch: Path, **options: object
    ) -> tuple[list[dict[str, Any]], npt.NDArray[np.float32]]:
        """libllama's output for each line of a script (see llama_sequences.cpp), and all logits
        [n_outputs, n_vocab]."""
        file, out = scratch / "script.txt", scratch / "sequences.bin"
        file.write_text(script)
        done = self.run("llama_sequences", model, file, out, *command_line(options))
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        return answers, np.fromfile(out, np.float32).reshape(-1, answers[0]["n_vocab"])

    def cells(
        self, model: Path, script: str, scratch: Path, **options: object
    ) -> list[dict[tuple[int, int], Cells]]:
        """For each "decode" of a script, the cells of libllama's cache with that window and stream
        when it first looks for free cells."""
        file, out = scratch / "script.txt", scratch / "sequences.bin"
        file.write_text(script)
        named = command_line({**options, "log": True})
        said = self.run(
            "llama_sequences", model, file, out, *named, LLAMA_KV_CACHE_DEBUG="3"
        ).stderr
        found = []
        for part in said.split("\ncommand ")[1:]:
            if part.startswith("decode\n"):
                printed = [_cells(*match) for match in _CELLS.findall(part)]
                found.append({(c.n_swa, c.stream): c for c in reversed(printed)})
        return found

    def reuses(
        self, model: Path, script: str, scratch: Path, **options: object
    ) -> list[list[bool]]:
        """For each "decode" of a script, whether libllama reused the graph for each ubatch. The
        very first ubatch is not included."""
        file, out = scratch / "script.txt", scratch / "sequences.bin"
        file.write_text(script)
        named = command_line({**options, "log": True})
        said = self.run(
            "llama_sequences", model, file, out, *named, LLAMA_GRAPH_RESULT_DEBUG="2"
        ).stderr
        return [
            [f == "1" for f in re.findall(r"can reuse graph = (\d)|cannot reuse graph due", part)]
            for part in said.split("\ncommand ")[1:]
            if part.startswith("decode\n")
        ]

    def nodes(
        self, model: Path, prompt: list[int], scratch: Path, **options: object
    ) -> list[str]:
        """A line for each node of libllama's graph that evaluates `prompt`, as from `node_lines`
        for our graphs."""
        rows = scratch / "nodes.tsv"
        self.logits(model, prompt, 1, scratch, last=True, nodes=rows, **options)
        return rows.read_text().splitlines()

    def plan(self, model: Path, prompt: list[int], scratch: Path, **options: object) -> str:
        """The debug print of libllama's scheduler for the graph that evaluates `prompt`."""
        said = self.logs(model, prompt, scratch, **options)
        return printed_plan(said)

    def logs(self, model: Path, prompt: list[int], scratch: Path, **options: object) -> str:
        """The whole log of libllama and ggml while `prompt` is evaluated, including splits."""
        tokens, out = ",".join(map(str, prompt)), scratch / "logits.bin"
        named = command_line({**options, "last": True, "log": True})
        return self.run(
            "llama_logits", model, tokens, 1, out, *named, GGML_SCHED_DEBUG="2"
        ).stderr

    def samples(
        self, model: Path, logits: npt.NDArray[np.float32], scratch: Path, past: list[int],
        words: list[object],
    ) -> list[Sampled]:  # fmt: skip
        """The result of llama.cpp's samplers for each row of `logits`, after `past` tokens. `words`
        are options of its command line."""
        rows, out = scratch / "rows.bin", scratch / "samples.bin"
        logits.astype(np.float32).tofile(rows)
        accept = ",".join(map(str, past))
        self.run("llama_sampler", model, rows, out, "--accept", accept, "--", *words)
        data, found, at = np.fromfile(out, np.int32), [], 0
        while at < len(data):
            token, n = data[at], data[at + 1]
            ids, p = data[at + 2 : at + 2 + n], data[at + 2 + n : at + 2 + 2 * n]
            found.append(Sampled(int(token), ids, p.view(np.float32)))
            at += 2 + 2 * n
        return found

    def generate(
        self, model: Path, tokens: list[int], n: int, sampling: tuple[object, ...] = (),
        **options: object,
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """The tokens that libllama generates after `tokens`, and the tokens in a loaded file.
        `sampling` are options of llama.cpp's command line."""
        prompt, after = ",".join(map(str, tokens)) or "-", ("--", *sampling)
        done = self.run("llama_generate", model, prompt, n, *command_line(options), *after)
        answer = json.loads(done.stdout)
        return answer["tokens"], answer["known"]


def node_lines(plan: Plan) -> list[str]:
    """The name, type, op, ne and source names of each node, in order."""
    return [
        f"{n.name}\t{n.type}\t{n.record.op_desc}\t{','.join(map(str, n.ne))}\t"
        + ",".join(src.name for src in n.srcs)
        for n in plan.nodes
    ]
