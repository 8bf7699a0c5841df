"""Every case of `test-backend-ops support`, answered four times: by upstream's program, by the
device on the tensor that we build, by a card with the device's own properties, and by the card
that is named after it.

Without a GPU the program and the device are the CPU's, and cards are compared with the simulated
device that is made of them.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_part import Doing, main
from machine import ATTRIBUTES

import ggml_py as ggml
from ggml_py.sim.profiles.cards import CARDS

TREE = Path(__file__).resolve().parents[2]
sys.path.append(str(TREE))
from tests.support.profile_cases import parsed  # noqa: E402
from tests.support.profile_more_cases import ALL_CASES  # noqa: E402

SHOWN = 400  # disagreements of each kind that are listed; all are counted
SIM = "kit-card"
SIZES = ((64, 8), (96, 3), (544, 3), (4096, 1), (4100, 7))  # for sizes of tensors in memory


def cases(doing: Doing, name: str) -> list[tuple[str, str, bool]]:
    """(op, parameters, supported), as upstream's program prints them for a device."""
    printed = doing.run(
        doing.programs / "test-backend-ops", "support", "--output", "csv", "-b", name,
        **doing.pristine,
    )  # fmt: skip
    lines = printed[printed.index('"backend_name","op_name"') :]
    return [
        (row["op_name"], row["op_params"], row["supported"] in ("1", "true", "yes"))
        for row in csv.DictReader(io.StringIO(lines))
        if row["backend_name"] == name
    ]


def properties(doing: Doing, gpu: dict[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """The card that is named after the device, and the device's own properties."""
    if gpu is None:
        return "h100", {}
    tokens = gpu["name"].lower().replace("-", " ").split()
    named = next((name for name in CARDS if name in tokens or name in "".join(tokens)), "h100")
    return named, {name: gpu[name] for name in ("totalGlobalMem", *ATTRIBUTES)}


class Table:
    """Comparisons: counts by op, and those that differ."""

    def __init__(self) -> None:
        self.equal: Counter[str] = Counter()
        self.n: Counter[str] = Counter()
        self.different: list[dict[str, Any]] = []
        self.not_built: Counter[str] = Counter()

    def add(self, op: str, params: str, one: bool, other: bool, said: str = "") -> None:
        """One case."""
        self.n[op] += 1
        self.equal[op] += one == other
        if one != other and len(self.different) < SHOWN:
            self.different.append({"op": op, "params": params, "here": one, "there": other,
                                   "said": said})  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Counts by op: [equal, all]."""
        return {
            "cases": self.n.total(),
            "equal": self.equal.total(),
            "ops": {op: [self.equal[op], n] for op, n in sorted(self.n.items())},
            "different": self.different,
        }


def compared(doing: Doing, device: Any, real: Any, own: Any, named: Any) -> dict[str, Any]:
    """All cases. `device` has the program's answers, `real` is what cards are compared with."""
    tables = {name: Table() for name in ("program", "card", "named card")}
    not_built: Counter[str] = Counter()
    for op, params, supported in cases(doing, device.name):
        if op not in ALL_CASES:
            not_built[f"{op}: no rule to build it"] += 1
            continue
        with ggml.Context() as context:
            try:
                tensor = ALL_CASES[op](context, parsed(params))
            except ggml.GgmlError as error:
                not_built[f"{op}: {str(error).splitlines()[0][:80]}"] += 1
                continue
            tables["program"].add(op, params, device.supports_op(tensor), supported)
            answer = real.supports_op(tensor)
            for name, card in (("card", own), ("named card", named)):
                found = card.decide(tensor)
                tables[name].add(op, params, found.supported, answer, found.row)
    return {**{name: table.as_dict() for name, table in tables.items()},
            "not_built": dict(not_built.most_common())}  # fmt: skip


def described(device: Any) -> dict[str, Any]:
    """What a device says of itself and its memory, apart from what it supports."""
    kind = device.buffer_type
    found: dict[str, Any] = {
        "alignment": kind.alignment,
        "max_size": kind.max_size,
        "is_host": kind.is_host,
        "has_host_buffer": device.host_buffer_type is not None,
        "type": device.type.name,
        "caps": device.props.caps._asdict(),
    }
    found["reads_cpu_memory"] = device.supports_buft(ggml.device("CPU").buffer_type)
    with ggml.Context() as c, kind.alloc(4096) as buffer:
        for type_ in ("f32", "f16", "q4_0", "q8_0", "q4_k", "q6_k", "iq4_xs", "mxfp4"):
            for ne in SIZES:
                block = ggml.lib.ggml_blck_size(c.new_tensor(type_, 256).ptr.type)
                if ne[0] % block == 0:
                    size = buffer.alloc_size(c.new_tensor(type_, *ne))
                    found[f"alloc_size {type_} {ne[0]}x{ne[1]}"] = size
        for n in (1, 2, 8, 31, 32, 33, 512):
            product = c.mul_mat(c.new_tensor("q4_0", 512, 64), c.new_tensor("f32", 512, n))
            found[f"offload MUL_MAT {n}"] = device.offload_op(product)
            ids = c.new_tensor("i32", n)
            got = c.get_rows(c.new_tensor("q4_0", 512, 64), ids)
            found[f"offload GET_ROWS {n}"] = device.offload_op(got)
    return found


def work(doing: Doing) -> str:
    """Compares the answers, then what the devices say of themselves."""
    said = json.loads((doing.work / "machine.json").read_text(encoding="utf-8"))
    gpu = said["gpus"][0] if said["gpus"] else None
    name, own_properties = properties(doing, gpu)
    named = ggml.load_profile(name)
    own = ggml.load_profile(name, **own_properties)
    doing.found |= {"named": name, "properties": {
        key: [named.properties.get(key), own.properties.get(key)] for key in own.properties
    }}  # fmt: skip
    with ggml.sim_device(SIM, profile=own) as sim:
        real = sim if doing.dry_run else doing.device
        doing.found |= compared(doing, doing.device, real, own, named)
        doing.save()
        here, there = described(sim), described(real)
    doing.found["described"] = {key: [here[key], there.get(key)] for key in here}
    different = [f"{key}: the card {a}, the device {b}"
                 for key, (a, b) in doing.found["described"].items() if a != b]  # fmt: skip
    for text in different:
        doing.fail(text)
    parts = []
    for kind in ("program", "card", "named card"):
        table = doing.found[kind]
        parts.append(f"{kind} {table['equal']:,} of {table['cases']:,}")
        if table["equal"] != table["cases"] and kind != "named card":
            doing.fail(f"{kind}: {table['cases'] - table['equal']} cases are answered otherwise")
    n = sum(doing.found["not_built"].values())
    return f"equal: {', '.join(parts)}; {n} not built; {len(different)} other properties differ"


if __name__ == "__main__":
    sys.exit(main(work))
