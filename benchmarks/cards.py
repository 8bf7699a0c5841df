"""Asks simulated devices about every op of upstream's records (docs/ops).

    python benchmarks/cards.py --jobs 2           the default release, one card of each backend
    GGML_PY_UPSTREAM=0.21.0 python benchmarks/cards.py --out benchmarks/results/cards-0.21.0.json

A case is a card and a row of its backend's record. The device's answer must be that of upstream's
function on the card, live and as a recorded call; anything else is a finding. The record is older
than the source, so a difference to it is only counted, by op. Rows that a check of ours refuses are
counted, too. `tests/house/record_tables.py` shows the counts in docs/PROFILES_CHECKED.md.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import search

sys.path.append(str(search.REPO))

# Cards of backends without a record of their own are asked about the rows of another.
_RECORD = {"hip": "cuda", "musa": "cuda", "cann-310p": "cann"}


@cache
def cases() -> tuple[tuple[str, str, str, bool | None], ...]:
    """Card, op, parameters, and what the record says; None if it is another backend's."""
    from ggml_py.sim.card import card_backends
    from ggml_py.sim.profiles.cards import OF_BACKEND
    from tests.support.docs_ops import answers

    found = []
    for backend in card_backends():
        record = answers(_RECORD.get(backend, backend))
        for op in sorted(record):
            for params, supported in record[op]:
                said = None if backend in _RECORD else supported
                found.append((OF_BACKEND[backend], op, params, said))
    return tuple(found)


@cache
def device_of(card: str) -> Any:
    """The simulated device that is this card, and its profile."""
    import ggml_py as ggml

    profile = ggml.load_profile(card)
    return ggml.sim_device(card, profile=profile), profile


def case(seed: int) -> str:
    """The backend, and how its answer compares with its record."""
    import ggml_py as ggml
    from ggml_py.tensors.live_call import call_of
    from tests.support.profile_cases import parsed
    from tests.support.profile_more_cases import ALL_CASES

    name, op, params, recorded = cases()[seed]
    device, profile = device_of(name)
    backend = profile.card.backend
    if op not in ALL_CASES:
        return f"{backend}: {op} is not built"
    with ggml.Context() as ctx:
        try:
            tensor = ALL_CASES[op](ctx, parsed(params))
            call = call_of(tensor)
        except (ggml.GgmlError, AttributeError) as error:
            return f"{backend}: refused by {type(error).__name__}"
        found = profile.decide(tensor)
        answers = (found.supported, device.supports_op(tensor), profile.supports(call))
        if len(set(answers)) > 1:
            raise AssertionError(f"{op} {params}: card, device, recorded call: {answers}")
    if not found.row:
        raise AssertionError(f"{op} {params}: {found.text} names no line")
    if recorded is None:
        return f"{backend}: no record"
    if found.supported == recorded:
        return f"{backend}: as on record"
    return f"{backend}: {op} is now {'supported' if found.supported else 'not supported'}"


SEARCH = search.Search(
    "cards",
    ("ggml_py/sim/*.py", "ggml_py/sim/profiles/c*.py", "ggml_py/native/cards/*",
     "ggml_py/native/sim_card.*", "vendor/cut.py", "vendor/cpp_source.py", "vendor/card*.py",
     "tests/support/profile_*cases.py"),
    case, per_process=4000, count=lambda: len(cases()),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))
