"""The parts of a run on a machine with a GPU, in the order in which they run.

Plain data for the standard library alone: the machine that runs the kit may have nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_S = 8 * 60  # for one part
ALL_S = 32 * 60  # for all parts, with what comes before them
UNFINISHED = 3  # exit status of a part that had no time for all of it
SETUP_S = 150  # to unpack the kit and install the wheels


@dataclass(frozen=True)
class Part:
    """One part: the program `part_NAME.py`, and one file of results.

    `what` says what a result of it shows. It is stopped after `limit_s` and not begun with less
    than `least_s` left; what it had found until then is kept. `about` are globs: the files that its
    result is about, besides its own program.
    """

    name: str
    what: str
    limit_s: int
    least_s: int
    about: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The part's program in this folder."""
        return f"part_{self.name}.py"

    @property
    def patterns(self) -> tuple[str, ...]:
        """All files that a result is about."""
        return (*self.about, f"benchmarks/gpu/{self.program}")


_OBJECTS = ("ggml_py/boundary/*.py", "ggml_py/backends/*.py", "ggml_py/native/*.[ch]*")
_CARDS = ("ggml_py/sim/*.py", "ggml_py/sim/profiles/cards.py", "ggml_py/native/cards/*",
          "vendor/card_backends.py", "vendor/cards.py", "vendor/cut.py")  # fmt: skip
_MODELS = ("ggml_py/scheduler/*.py", "ggml_py/models/**/*.py")

_COST = ("ggml_py/calibrate/*.py", "ggml_py/cost/*.py", "benchmarks/cost_models.py")

PARTS = (
    Part("tests", "the suite's tests marked `gpu`, and `ggml-py demo`", 240, 60,
         (*_OBJECTS, *_MODELS, "tests/backends/test_gpu.py", "tests/models/test_models_gpu.py")),
    Part("supports", "every case of `test-backend-ops support`: upstream's program, the device, "
         "and a card with the device's properties", 180, 60, (*_OBJECTS[1:], *_CARDS)),
    Part("speed", "prompt and decode beside `llama-bench` on the same libraries", 300, 120,
         (*_OBJECTS, *_MODELS)),
    Part("offload", "partial offload, op offload: plans, results, speed, times of the copies", 200,
         90, (*_OBJECTS, *_MODELS, *_CARDS)),
    Part("pipeline", "several graphs in flight (`parallel`): results and overlap", 80, 30,
         (*_OBJECTS, *_MODELS)),
    Part("cost", "what `ggml-py calibrate` measures, and `llama-bench`'s rows to compare "
         "predictions with", 400, 150, (*_OBJECTS, *_COST)),
    Part("conformance", "`test-backend-ops test` with the kit's library of the GPU", 350, 60,
         _OBJECTS),
)  # fmt: skip


def named(names: str) -> tuple[Part, ...]:
    """The parts with these names, separated by commas; all of them for "". Raises `ValueError`."""
    wanted = [name for name in names.replace(" ", ",").split(",") if name]
    known = [part.name for part in PARTS]
    for name in wanted:
        if name not in known:
            raise ValueError(f"no part {name!r}: expected some of {', '.join(known)}")
    return tuple(part for part in PARTS if part.name in wanted or not wanted)
