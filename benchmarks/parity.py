"""Compares logits and greedy tokens of every architecture with libllama of the same release.

    python benchmarks/parity.py [--quick] [--only llama,gpt2,…] [--types q4_0,…] [--json]

The models are upstream's small ones with random tensors (`test-llama-archs`), made five layers deep
and written in each type. A cell is one setting, over prompts of 1, 7, 64 and 300 tokens, each
followed by the same number of greedy tokens on both sides. "exact" means that every bit of every
logit is equal, a number is the largest difference divided by the largest logit, "tokens" means that
the tokens differ. The bar is the same tokens everywhere, and at most 1e-4 where bits differ. Exit
status 1 means that it was missed.

Everything takes eight minutes on a quiet machine, --quick one minute. Two threads on a busy machine
take many times as long. The reference programs are built on first use (three minutes).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import reference
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ggml_py import models

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.arch_files import ARCHS, OURS, deeper
from tests.support.oracle_programs import Oracle

TYPES = ("f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k")
N_LAYER, N_CTX, BAR = 5, 512, 1e-4
N_PROMPT, N_PREDICT = (1, 7, 64, 300), 64
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"flash_attn": "off"},
    "flash": {"flash_attn": "on"},
    "q8_0 cache": {"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
    "ubatch 16": {"flash_attn": "on", "n_ubatch": 16},
    "repacked": {"flash_attn": "on", "repack": True},
    "2 threads": {"flash_attn": "on", "n_threads": 2},
}
QUICK = {
    "types": ("f16", "q4_0"), "settings": ("plain", "repacked"), "n_prompt": (7,), "n_predict": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """The result of one setting, up to the first token that differs. `delta` is 0.0 if every bit is
    the same."""

    architecture: str
    type: str
    setting: str
    n_prompt: list[int]
    n_predict: int
    exact: bool
    delta: float
    tokens_equal: bool

    @property
    def good(self) -> bool:
        """Whether the bar is met."""
        return self.tokens_equal and self.delta <= BAR

    @property
    def text(self) -> str:
        """The cell's text in a table."""
        if not self.tokens_equal:
            return "tokens"
        return "exact" if self.exact else f"{self.delta:.1e}"


def logits(path: Path, prompt: list[int], n: int, options: dict[str, Any]) -> Any:
    """Our n greedy tokens, and the logits of the prompt's tokens and of all greedy tokens but the
    last."""
    with models.load(path, n_ctx=N_CTX, **options) as model:
        rows = [model.eval(prompt, all_logits=True)]
        tokens = [int(rows[0][-1].argmax())]
        while len(tokens) < n:
            rows.append(model.eval(tokens[-1:])[None])
            tokens.append(int(rows[-1].argmax()))
    return tokens, np.concatenate(rows)


def cell(
    oracle: Oracle, path: Path, name: str, type_: str, setting: str, lengths: tuple[int, ...],
    n_predict: int, scratch: Path,
) -> Cell:  # fmt: skip
    """Compares one setting over all prompts."""
    options = {"n_threads": 1, "repack": False, **SETTINGS[setting]}
    theirs = {"threads" if k == "n_threads" else k: v for k, v in options.items() if v is not False}
    exact, delta, equal = True, 0.0, True
    for n in lengths:
        prompt = [(i * 7919 + 11) % 97 for i in range(n)]
        tokens, expected = oracle.logits(path, prompt, n_predict, scratch, n_ctx=N_CTX, **theirs)
        mine, found = logits(path, prompt, n_predict, options)
        same = next((i for i in range(n_predict) if mine[i] != tokens[i]), n_predict - 1)
        expected, found = expected[: n + same], found[: n + same]
        exact &= expected.tobytes() == found.tobytes()
        delta = max(delta, float(np.abs(expected - found).max() / np.abs(expected).max()))
        equal &= mine == tokens
    return Cell(name, type_, setting, list(lengths), n_predict, exact, delta, equal)


def file_of(oracle: Oracle, name: str, type_: str, folder: Path) -> Path:
    """A model of the architecture, with a context large enough for the prompts."""
    made, path = folder / f"{ARCHS[name]}.gguf", folder / f"{name}-{type_}.gguf"
    if not made.exists():
        arch = name.removesuffix("-moe")
        oracle.run("test-llama-archs", "-a", f"^{arch}$", "-s", 42, "-o", folder)

    def longer(tensors: dict[str, Any]) -> None:
        if "position_embd.weight" in tensors:  # learned positions
            tensors["position_embd.weight"] = np.tile(tensors["position_embd.weight"], (2, 1))

    deeper(made, path, N_LAYER, type_, edit=longer, context_length=N_CTX)
    return path


def cells(
    oracle: Oracle, names: list[str], types: list[str], settings: list[str],
    n_prompt: tuple[int, ...], n_predict: int,
) -> Iterator[Cell]:  # fmt: skip
    """All cells."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for type_ in types:
                path = file_of(oracle, name, type_, Path(folder))
                for setting in settings:
                    yield cell(
                        oracle, path, name, type_, setting, n_prompt, n_predict, Path(folder)
                    )
                path.unlink()


def show(found: list[Cell], settings: list[str], by_type: bool, markdown: bool) -> None:
    """Prints the worst cells: a line per architecture, or per type of it, a column per setting."""
    by_row: dict[tuple[str, ...], dict[str, Cell]] = {}
    for one in found:
        row = by_row.setdefault((one.architecture, one.type)[: 1 + by_type], {})
        row[one.setting] = max(row.get(one.setting, one), one, key=_badness)
    lines = [
        (*row, *(cells[s].text if s in cells else "" for s in settings))
        for row, cells in by_row.items()
    ]
    headings = ("architecture", "type")[: 1 + by_type] + tuple(settings)
    if markdown:
        for line in (headings, ("---",) * len(headings), *lines):
            print("|", " | ".join(line), "|")
    else:
        table = Table(*headings)
        for line in lines:
            table.add_row(*line)
        Console(width=None if sys.stdout.isatty() else 120).print(table)
    n, worst = sum(one.exact for one in found), max(found, key=_badness)
    print(f"\n{n} of {len(found)} exact; the worst: {worst.text} ({worst.architecture}, ", end="")
    print(f"{worst.type}, {worst.setting})")


def _badness(one: Cell) -> tuple[bool, bool, float]:
    return not one.tokens_equal, not one.exact, one.delta


def _words(known: Any) -> Any:
    def split(text: str) -> list[str]:
        unknown = [word for word in text.split(",") if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}: expected some of {', '.join(known)}")
        return text.split(",")

    return split


def main() -> None:
    """Compares one cell after the other."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", type=_words(OURS), default=list(OURS))
    options.add_argument("--types", type=_words(TYPES))
    options.add_argument("--settings", type=_words(SETTINGS))
    options.add_argument("--quick", action="store_true", help="fewer types, settings and tokens")
    options.add_argument("--by-type", action="store_true", help="print a line for each type")
    options.add_argument("--json", action="store_true")
    options.add_argument("--markdown", action="store_true")
    args = options.parse_args()
    types = args.types or list(QUICK["types"] if args.quick else TYPES)
    settings = args.settings or list(QUICK["settings"] if args.quick else SETTINGS)
    lengths, n_predict = (
        (QUICK["n_prompt"], QUICK["n_predict"]) if args.quick else (N_PROMPT, N_PREDICT)
    )
    oracle = Oracle(reference("llama_logits").parent)
    found = []
    total = len(args.only) * len(types) * len(settings)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        for one in cells(oracle, args.only, types, settings, lengths, n_predict):
            found.append(one)
            progress.update(task, advance=1, description=f"{one.architecture} {one.type}")
    if args.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        show(found, settings, args.by_type, args.markdown)
    sys.exit(not all(one.good for one in found))


if __name__ == "__main__":
    main()
