"""Compares a card of Vulkan with the real backend on the same device: Mesa's llvmpipe, a CPU.

    python benchmarks/vulkan.py --programs DIR     where the Vulkan build of upstream's programs is

`DIR` has `test-backend-ops` and the libraries, as `build_ggml.py --reference --backend cpu,vulkan`
makes them (docs/PROFILES_CHECKED.md says how). The card is given what `vulkaninfo` says of the
device. Then upstream's `test-backend-ops support` asks both about each of its cases in one process,
and `vulkan_card.cpp` prints what they say of their buffers, which ops they offload, and in which
order they put the nodes of 300 drawn graphs.

The record is `results/vulkan.json`. With `--sample FILE` some of the real answers are written for
the quick tests. Debian's packages for it: glslc, mesa-vulkan-drivers, vulkan-tools.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
import search  # noqa: E402

REPO = search.REPO
NATIVE = REPO / "ggml_py" / "native"
ABOUT = (
    "ggml_py/native/cards/card.h", "ggml_py/native/cards/cards.cpp",
    "ggml_py/native/cards/vulkan*", "vendor/card_backends.py", "vendor/cards.py",
    "vendor/cpp_source.py", "vendor/cut.py", "ggml_py/sim/profiles/vulkaninfo.py",
    "benchmarks/vulkan.py", "benchmarks/vulkan_card.cpp",
)  # fmt: skip
ENVIRONMENT = {"GGML_VK_VISIBLE_DEVICES": "0"}  # also a device that is a CPU
# The device as it is, as one with narrower or wider subgroups, and upstream's own switches.
VARIANTS: tuple[dict[str, str], ...] = (
    {}, {"LP_NATIVE_VECTOR_WIDTH": "128"}, {"LP_NATIVE_VECTOR_WIDTH": "512"},
    {"GGML_VK_DISABLE_F16": "1"}, {"GGML_VK_FORCE_MAX_BUFFER_SIZE": "1000000"},
    {"GGML_VK_FORCE_MAX_ALLOCATION_SIZE": "100000000"},
)  # fmt: skip
PER_OP = 12  # rows of an op in a sample, for each answer

Row = tuple[str, str, bool]  # op, parameters, supported


def run(programs: Path, compiler: str) -> tuple[dict[str, Any], list[Row]]:
    """The record, and the real device's answers."""
    from ggml_py.sim.card import card_properties
    from ggml_py.sim.profiles import vulkaninfo
    from vendor import identity, releases

    start = time.monotonic()
    release = releases.default()
    ggml = identity.unpacked(release, _cache(), whole=False) / "ggml"
    (program,) = programs.rglob("test-backend-ops")
    outcomes: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []
    kept: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        library = _compiled(ggml, Path(folder), programs, compiler)
        for variant in VARIANTS:
            device = vulkaninfo.read(_output(["vulkaninfo"], variant))
            values = [str(device.get(name, default or "")) for name, default in
                      card_properties("vulkan").items()]  # fmt: skip
            environment = {
                **ENVIRONMENT,
                **variant,
                "LD_PRELOAD": str(library),
                "GP_CARD": "|".join(["vulkan", *values]),
            }
            rows = _rows(_output([program, "support", "--output", "csv"], environment))
            facts = _facts(_output([program], {**environment, "GP_FACTS": "1"}))
            kept = kept or rows["real"]
            how = " ".join(f"{k}={v}" for k, v in variant.items())
            part, wrong = _compared(rows, facts, how)
            outcomes += part
            findings += wrong
    record = {
        **search.stamp("vulkan"),
        "builds": {release.label: outcomes.total()},
        "device": device["name"],
        "variants": list(VARIANTS),
        "cases": outcomes.total(),
        "seconds": round(time.monotonic() - start),
        "outcomes": dict(outcomes.most_common()),
        "findings": findings,
        "patterns": list(ABOUT),
        "code": search.code(ABOUT),
    }
    return record, kept


def _cache() -> Path:
    from vendor import cache

    return cache.default_folder()


def _compiled(ggml: Path, folder: Path, programs: Path, compiler: str) -> Path:
    from vendor import cards

    (cut,) = cards.generate(ggml, NATIVE, folder, cards.command(compiler), ["vulkan"])
    if cut.file is None:
        sys.exit(f"ggml-vulkan cannot be cut: {cut.why}")
    (libraries,) = {path.parent for path in programs.rglob("libggml-base.so")}
    folders = [NATIVE, folder, ggml / "include", ggml / "src"]
    made = folder / "vulkan_card.so"
    # What begins when the library is loaded begins in this order.
    subprocess.run(
        [compiler, "-std=c++17", "-DNDEBUG", "-w", "-shared", "-fPIC", "-o", made,
         "-fsanitize=integer-divide-by-zero",
         NATIVE / "cards" / "cards.cpp", cut.file, REPO / "benchmarks" / "vulkan_card.cpp",
         *(f"-I{path}" for path in folders), f"-L{libraries}", "-lggml", "-lggml-base"],
        check=True,
    )  # fmt: skip
    return made


def _output(command: list[Any], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{command[0]} exited with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _rows(output: str) -> dict[str, list[Row]]:
    """The rows of the card ("card") and of the device that it is compared with ("real")."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in csv.DictReader(output.splitlines()):
        name = row["backend_name"]
        if row["supported"] in ("0", "1", "yes", "no"):
            which = "card" if name == "card" else "real"
            yes = row["supported"] in ("1", "yes")
            found[which].append((row["op_name"], row["op_params"], yes))
    return found


def _facts(output: str) -> dict[str, list[str]]:
    parts = output.split("== ")
    return {name: rest.splitlines() for name, _, rest in (p.partition("\n") for p in parts[1:])}


def _kind(one: Row | str) -> str:
    """Which answers are equal."""
    if isinstance(one, tuple):
        return ", yes" if one[2] else ", no"
    order = one.partition(":")[2].split()
    return ", moved" if order != sorted(order, key=int) else ""


def _compared(
    rows: dict[str, list[Row]], facts: dict[str, list[str]], how: str
) -> tuple[Counter[str], list[dict[str, Any]]]:
    outcomes: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []

    def count(what: str, real: Iterable[Any], card: Iterable[Any]) -> None:
        for seed, (one, other) in enumerate(zip(real, card, strict=True)):
            if one == other:
                outcomes[f"{what}: equal{_kind(one)}"] += 1
            else:
                outcomes[f"{what}: differs"] += 1
                said = f"real {one}, card {other}"
                findings.append({"seed": seed, "how": f"{what} {how}", "text": said})

    count("support", rows["real"], rows["card"])
    for what, is_of in (("order of nodes", True), ("buffers and offload", False)):
        real, card = ([line for line in facts[which] if line.startswith("order.") == is_of]
                      for which in ("real", "card"))  # fmt: skip
        count(what, real, card)
    return outcomes, findings


def sample(rows: list[Row]) -> list[Row]:
    """Some rows of each op and answer, evenly spread, whose parameters no other row has."""
    often = Counter((op, params) for op, params, _yes in rows)
    groups: dict[tuple[str, bool], list[Row]] = defaultdict(list)
    for row in rows:
        if often[row[:2]] == 1:
            groups[row[0], row[2]].append(row)
    return [row for group in groups.values() for row in group[:: -(-len(group) // PER_OP)]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--programs", type=Path, required=True, help="folder of the Vulkan build")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--out", type=Path, default=search.RESULTS / "vulkan.json")
    parser.add_argument("--sample", type=Path, help="write real answers to this file")
    options = parser.parse_args()
    record, rows = run(options.programs, options.compiler)
    search.write(options.out, record)
    if options.sample:
        lines = (f"{op}\t{params}\t{'yes' if yes else 'no'}\n" for op, params, yes in sample(rows))
        options.sample.write_text("".join(lines), encoding="utf-8")
    print(f"{record['cases']:,} cases on {record['device']}: {record['outcomes']}")
    for finding in record["findings"][:20]:
        print(finding["how"], finding["text"])
    return bool(record["findings"])


if __name__ == "__main__":
    sys.exit(main())
