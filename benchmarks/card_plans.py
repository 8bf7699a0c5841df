"""Plans on cards under several releases: ours, and an unmodified build of the same release.

    python benchmarks/card_plans.py [--upstream 0.26.0,0.21.0,0.17.0] [--write]

For a card of each backend that is cut from the release × models (also with weights of other types),
and × options of one model, plans of 1, 31 and 64 tokens. The text of our plan must be what the
unmodified scheduler of the release prints (GGML_SCHED_DEBUG=2) for the same graph. Its devices
answer by the functions that were cut from the release, as ours do. What one build refuses the other
must refuse, too.

Both builds are made on first use (`--pristine` and without it, with all cards). The models are
upstream's small ones. `--write` puts the counts into benchmarks/results/card_plans.json. Exit
status 1 means that something differs. It takes two minutes for each release.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promises
import search
from arch_files import deeper
from models import reference
from oracle_programs import printed_plan

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.models import Model

REPO = Path(__file__).resolve().parent.parent
PATTERNS = (
    "ggml_py/sim/*.py", "ggml_py/scheduler/*.py", "ggml_py/native/sim_*", "ggml_py/native/cards/*",
    "vendor/card_backends.py", "vendor/instrument.py", "vendor/place_edits.py",
    "benchmarks/card_plans.py",
)  # fmt: skip
RELEASES = ("0.26.0", "0.21.0", "0.17.0")
N_TOKENS = (1, 31, 64)


# --- a process with one build


def planned(folder: Path) -> dict[str, dict[str, str]]:
    """The text of each plan, by card, and by model or option, and number of tokens."""
    text = Printed() if BUILD["pristine"] else _ours
    made: dict[str, dict[str, str]] = {}
    for card in promises.CARDS:
        plans = made.setdefault(card, {})
        for path in sorted(folder.glob("*.gguf")):
            cases = {path.stem: promises.ALL}
            if path.stem == "llama":
                cases |= promises.CARD_OPTIONS
            for name, options in cases.items():
                plans |= {f"{name} {n}": plan for n, plan in _plans(path, card, options, text)}
    return made


def _plans(
    path: Path, card: str, options: dict[str, Any], text: Callable[[Model, int], str]
) -> Iterator[tuple[int, str]]:
    """The number of tokens and the text of each plan, or the error in its place."""
    with promises.sims({"gpu0": {"card": card}}) as names:
        try:
            with promises.load(path, devices=names, **options) as model:
                for n in N_TOKENS:
                    try:
                        yield n, promises.blank(text(model, n))
                    except ggml.GgmlError as error:
                        yield n, f"{type(error).__name__}: {error}"
        except ggml.GgmlError as error:
            yield 0, f"{type(error).__name__}: {error}"


def _ours(model: Model, n_tokens: int) -> str:
    return model.plan(n_tokens).text()


class Printed(logging.Handler):
    """The plan that the scheduler prints for an evaluation in an empty context."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        log = logging.getLogger("ggml")
        log.setLevel(logging.DEBUG)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __call__(self, model: Model, n_tokens: int) -> str:
        model.reset()
        self.lines.clear()
        try:
            model.eval([1] * n_tokens)
        except ggml.AbortError as error:  # the plan, which was printed, loses a write on a card
            if "cannot reach it" not in str(error):
                raise
        return printed_plan("\n".join(self.lines))


# --- all builds


def write_models(folder: Path) -> None:
    """Upstream's small models, and those of other types made from them."""
    oracle = promises.Oracle(reference("test-llama-archs").parent)
    with tempfile.TemporaryDirectory() as made:
        for arch, name in promises.ARCHS.items():
            only = f"^{arch.removesuffix('-moe')}$"
            oracle.run("test-llama-archs", "-a", only, "-s", 42, "-o", made)
            path = Path(made) / f"{name}.gguf"
            for type_ in promises.TYPES.get(arch, ()):
                deeper(path, folder / f"{arch} {type_}.gguf", 2, type_)
            path.rename(folder / f"{arch}.gguf")


def plans_under(release: str, folder: Path, pristine: bool) -> dict[str, dict[str, str]]:
    """`planned` in a process with that build."""
    options = ["--pristine"] if pristine else []
    build = [sys.executable, REPO / "build_ggml.py", "--upstream", release, "--json", *options]
    done = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True)
    key = json.loads(done.stdout.splitlines()[-1])["key"]
    env = {**os.environ, "GGML_PY_UPSTREAM": key}
    if pristine:
        env["GGML_SCHED_DEBUG"] = "2"
    done = subprocess.run(
        [sys.executable, __file__, "--child", folder], env=env, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    plans: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return plans


def compared(
    ours: dict[str, dict[str, str]], theirs: dict[str, dict[str, str]]
) -> dict[str, dict[str, Any]]:
    """By card: how many plans are equal, how many both builds refuse, and which differ."""
    found: dict[str, dict[str, Any]] = {}
    for card, plans in ours.items():
        names = {**plans, **theirs[card]}
        kinds = {name: _kind(plans.get(name, ""), theirs[card].get(name, "")) for name in names}
        counts = Counter(kinds.values())
        different = [name for name, kind in kinds.items() if kind == "different"]
        found[card] = {
            "plans": len(kinds), "equal": counts["equal"], "refused": counts["refused"],
            "different": different,
        }  # fmt: skip
    return found


def _kind(ours: str, theirs: str) -> str:
    refused = [not text.startswith("## SPLIT") for text in (ours, theirs)]
    if all(refused):
        return "refused"
    return "equal" if ours == theirs else "different"


def main() -> int:
    """Prints a table for each release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", default=",".join(RELEASES))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(planned(args.child)))
        return 0
    releases: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        for release in args.upstream.split(","):
            ours, theirs = (plans_under(release, folder, pristine) for pristine in (False, True))
            releases[release] = compared(ours, theirs)
            print(f"\n| ggml {release} | plans | equal | refused by both | different |")
            print("| --- | ---: | ---: | ---: | --- |")
            for card, counts in releases[release].items():
                cells = (counts["plans"], counts["equal"], counts["refused"])
                print(f"| {card} | {' | '.join(map(str, cells))} | {counts['different']} |")
    held = not any(c["different"] for cards in releases.values() for c in cards.values())
    if args.write:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, check=True
        ).stdout.strip()
        record = {
            "command": "python benchmarks/card_plans.py --write",
            "date": str(datetime.date.today()), "commit": commit, "equal": held,
            "patterns": list(PATTERNS), "about": search.hashes(PATTERNS), "releases": releases,
        }  # fmt: skip
        target = REPO / "benchmarks" / "results" / "card_plans.json"
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
