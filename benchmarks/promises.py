"""What a plan promises about llama.cpp, checked against libllama with the same simulated devices.

    python benchmarks/promises.py [--only llama,gpt2,…] [--oracle DIR] [--write]

Four tables. Cards: for a card of each backend × models (also with weights of other types), and ×
options of one model, plans of 1, 31 and 64 tokens, to the node, and bytes of weights, cache and
compute buffers. Memory: for models ×
settings, bytes of weights, cache and compute buffers of each buffer type. Programs: the same for
what each program of llama.cpp asks for. What-ifs: nodes on the same backend as in a real load with
a device that lacks the op, for a model that was loaded again (`Model.what_if`) and for the
scheduler's promise alone (`Plan.what_if`). The models are upstream's small ones. `--write` puts the
figures into benchmarks/results/promises.json, with date and commit. Exit status 1 means that
something differs. It takes seven minutes on a quiet machine; the reference programs are built on
first use.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import search
from models import reference

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.llama.overrides import parse_overrides
from ggml_py.llama.programs import PROGRAMS
from ggml_py.sim.card import card_backends
from ggml_py.sim.profiles.cards import OF_BACKEND

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support import arch_headers
from tests.support.arch_files import ARCHS, OURS, deeper, load
from tests.support.oracle_programs import Oracle
from tests.support.placements import (
    CARD_OPTIONS,
    Theirs,
    asked_by,
    backends_of,
    blank,
    memory_of,
    sims_text,
)  # fmt: skip

REPO = Path(__file__).resolve().parent.parent
# The files that the record is about.
PATTERNS = (
    "ggml_py/models/*.py", "ggml_py/models/*/*.py", "ggml_py/sim/*.py", "ggml_py/scheduler/*.py",
    "ggml_py/native/assume.*", "ggml_py/native/cards/*",
    "vendor/card_backends.py", "benchmarks/promises.py",
)  # fmt: skip
ONE: dict[str, dict[str, Any]] = {"gpu0": {}}
HOST: dict[str, dict[str, Any]] = {"gpu0": {"host_buffer": 1}}
TWO: dict[str, dict[str, Any]] = {"gpu0": {"memory": 4 << 30}, "gpu1": {"memory": 2 << 30}}
ALL = {"n_gpu_layers": 99}
SETTINGS: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
    "CPU": ({}, {}),
    "-ngl 99": (ONE, ALL),
    "-ngl 1": (ONE, {"n_gpu_layers": 1}),
    "-ngl 1, host buffer": (HOST, {"n_gpu_layers": 1}),
    "-fa on": (ONE, {**ALL, "flash_attn": "on"}),
    "-fa off": (ONE, {**ALL, "flash_attn": "off"}),
    "-ctk q8_0 -ctv q8_0": (
        ONE, {**ALL, "flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
    ),
    "-nkvo": (ONE, {**ALL, "offload_kqv": False}),
    "-nr -lm none": (ONE, {"n_gpu_layers": 1, "load_mode": "none"}),
    "-c 1000 -b 100 -ub 64": (ONE, {**ALL, "n_ctx": 1000, "n_batch": 100, "n_ubatch": 64}),
    "-c 100": (ONE, {**ALL, "n_ctx": 100}),
    "2 GPUs": (TWO, ALL),
    "-ot ffn=CPU": (ONE, {**ALL, "overrides": "ffn_=CPU"}),
    "rtx4090": ({"gpu0": {"card": "rtx4090"}}, ALL),
    "m3max": ({"gpu0": {"card": "m3max"}}, ALL),
}  # fmt: skip
CARDS = tuple(OF_BACKEND[backend] for backend in card_backends())
# Types of weights. Upstream's small models have f32.
TYPES = {
    "llama": ("q4_0", "q4_k", "bf16"), "qwen3": ("q5_1",), "llama-moe": ("q4_k",),
    "gpt-oss": ("mxfp4",)
}  # fmt: skip
LACKING = ("MUL_MAT", "RMS_NORM", "FLASH_ATTN_EXT", "ROPE", "MUL", "ADD", "GET_ROWS", "SWIGLU")
SHAPES = (1, 64)  # tokens
_SIM = {"host_buffer": "host_buffer", "memory": "memory", "card": "profile"}


@contextmanager
def sims(devices: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The simulated devices, by name."""
    made = [
        ggml.sim_device(name, **{_SIM[key]: value for key, value in settings.items()})
        for name, settings in devices.items()
    ]
    try:
        yield tuple(devices)
    finally:
        for device in made:
            device.close()


def ours(options: dict[str, Any]) -> dict[str, Any]:
    """Options of llama_place as `load` takes them."""
    options = dict(options)
    if "overrides" in options:
        options["tensor_overrides"] = parse_overrides(options.pop("overrides"))
    return options


def memory(oracle: Oracle, path: Path, setting: str) -> bool:
    """Whether all bytes are equal."""
    devices, options = SETTINGS[setting]
    theirs = Theirs(oracle, path, (1,), sims=sims_text(devices), **options)
    with sims(devices) as names, load(path, devices=names, **ours(options)) as model:
        return memory_of(model) == theirs.memory


def on_card(oracle: Oracle, path: Path, card: str, options: dict[str, Any]) -> bool | str:
    """Whether all plans and all bytes are equal with such a card; "refused" if libllama ends and we
    raise."""
    devices = {"gpu0": {"card": card}}
    try:
        theirs = Theirs(oracle, path, (1, 31, 64), sims=sims_text(devices), **options)
    except AssertionError as error:  # of the program, with all that it printed
        why = re.findall(r"^\S+\.cpp:\d+: (.*)", str(error), re.M)
        if not why:
            raise
        theirs = None
    with sims(devices) as names:
        try:
            with load(path, devices=names, **options) as model:
                plans = {n: blank(model.plan(n).text()) for n in (1, 31, 64)}
                if theirs is None:
                    return False
                same = plans == {n: blank(plan) for n, plan in theirs.plans.items()}
                return same and memory_of(model) == theirs.memory
        except ggml.GgmlError as error:
            print(f"{card} {options}: {why if theirs is None else 'they do'}; ours: {error}",
                  file=sys.stderr)  # fmt: skip
            return "refused" if theirs is None else False


def programs(oracle: Oracle, path: Path, program: str) -> bool:
    """Whether all bytes are equal for what the program asks for."""
    with sims(ONE) as names, load(path, devices=names, program=program, **ALL) as model:
        asked = asked_by(program, model.hparams.n_ctx_train)
        theirs = Theirs(oracle, path, (1,), sims=sims_text(ONE), **ALL, **asked)
        return memory_of(model) == theirs.memory


def what_ifs(oracle: Oracle, path: Path, op: str) -> tuple[int, int, int]:
    """Nodes that are where a load with a device without `op` has them: after loading again, by the
    scheduler alone, and of how many."""
    theirs = Theirs(oracle, path, SHAPES, sims=f"gpu0,no={op}", **ALL)
    found = [0, 0, 0]
    with sims(ONE) as names, load(path, devices=names, **ALL) as model:
        for n_tokens in SHAPES:
            real = backends_of(theirs.plans[n_tokens])
            try:
                again = model.what_if(n_tokens, supports={("gpu0", op): False})
            except KeyError:
                continue  # the graph has no such op
            alone = model.plan(n_tokens).what_if(supports={("gpu0", op): False})
            for i, plan in enumerate((again, alone)):
                on = backends_of(plan.text())
                found[i] += sum(a == b for a, b in zip(on, real, strict=False))
            found[2] += len(real)
    return found[0], found[1], found[2]


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(OURS))
    parser.add_argument("--oracle", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    oracle = Oracle(args.oracle or reference("llama_place").parent)
    archs = args.only.split(",")
    tables: dict[str, dict[str, Any]] = {"cards": {}, "memory": {}, "programs": {}, "what-ifs": {}}
    with tempfile.TemporaryDirectory() as folder:
        for arch in archs:
            path = Path(folder) / f"{ARCHS[arch]}.gguf"
            if (oracle.bin / "test-llama-archs").is_file():
                only = f"^{arch.removesuffix('-moe')}$"
                oracle.run("test-llama-archs", "-a", only, "-s", 42, "-o", folder)
            else:  # ours with the same header: no weight is read
                arch_headers.write(path, arch, 42)
            for card in CARDS:
                table = tables["cards"].setdefault(card, {})
                table[arch] = on_card(oracle, path, card, ALL)
                if arch == "llama":
                    table |= {option: on_card(oracle, path, card, options)
                              for option, options in CARD_OPTIONS.items()}  # fmt: skip
            for type_ in TYPES.get(arch, ()):
                typed = Path(folder) / f"{arch}-{type_}.gguf"
                deeper(path, typed, 2, type_)
                for card in CARDS:
                    tables["cards"][card][f"{arch} {type_}"] = on_card(oracle, typed, card, ALL)
            for setting in SETTINGS:
                tables["memory"].setdefault(setting, {})[arch] = memory(oracle, path, setting)
            for program in PROGRAMS:
                tables["programs"].setdefault(program, {})[arch] = programs(oracle, path, program)
            for op in LACKING:
                same = what_ifs(oracle, path, op)
                if same[2]:
                    tables["what-ifs"].setdefault(op, {})[arch] = same
            print(f"{arch} done", file=sys.stderr)
    held = show(tables)
    if args.write:
        search.keep(
            "promises", "python benchmarks/promises.py --write", PATTERNS, build=BUILD["key"],
            equal=held, **tables,
        )
    return 0 if held else 1


def show(tables: dict[str, dict[str, Any]]) -> bool:
    """Prints the tables; whether all is equal."""
    held = True
    columns = {
        "cards": ("models and options", "equal plans and bytes"),
        **dict.fromkeys(("memory", "programs"), ("models", "equal in every byte")),
    }
    for what, (n, equal) in columns.items():
        print(f"\n| {what} | {n} | {equal} | not |\n| --- | ---: | ---: | --- |")
        for name, cells in tables[what].items():
            wrong = [arch for arch, same in cells.items() if not same]
            held = held and not wrong
            same = f"{len(cells) - len(wrong)}"
            if refused := [*cells.values()].count("refused"):
                same += f" ({refused} end libllama and raise here)"
            print(f"| {name} | {len(cells)} | {same} | {', '.join(wrong)} |")
    head = "what if gpu0 lacks | models | nodes | loaded again: equal | scheduler alone: equal"
    print(f"\n| {head} |\n| --- | ---: | ---: | ---: | ---: |")
    for op, cells in tables["what-ifs"].items():
        again, alone, n = (sum(column) for column in zip(*cells.values(), strict=True))
        held = held and again == n
        print(f"| {op} | {len(cells)} | {n:,} | {again:,} | {alone:,} |")
    return held


if __name__ == "__main__":
    sys.exit(main())
