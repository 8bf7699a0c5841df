"""The work of a server: requests with tokens of a prompt and tokens generated after it."""

from __future__ import annotations

from dataclasses import dataclass, fields

_NAMES = {"prompt": "n_prompt", "gen": "n_gen", "depth": "n_depth", "parallel": "n_parallel",
          "weight": "weight"}  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """Requests that are alike. `weight` says how often they come, beside those of other workloads.

    Raises ValueError for a request without tokens, or numbers that are too small.
    """

    n_prompt: int = 512  # tokens of the prompt of each sequence
    n_gen: int = 128  # tokens that are generated after it
    n_depth: int = 0  # tokens that the sequence has before
    n_parallel: int = 1  # sequences that generate together
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name, attribute in _NAMES.items():
            value, least = getattr(self, attribute), 1 if attribute == "n_parallel" else 0
            if value < least:
                raise ValueError(f"{name}={value}: expected at least {least}")
        if not self.n_prompt + self.n_gen:
            raise ValueError("prompt=0,gen=0: expected tokens to evaluate")
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight={self.weight}: expected a number above 0")

    @property
    def n_tokens(self) -> int:
        """Cells of the cache that one of its sequences needs."""
        return self.n_depth + self.n_prompt + self.n_gen

    @staticmethod
    def parse(text: str) -> Workload:
        """Reads "prompt=2000,gen=300,depth=0,parallel=1,weight=2"; what is left out has its
        default. Raises ValueError for anything else."""
        values: dict[str, float] = {}
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if name not in _NAMES or not equals or _NAMES[name] in values:
                raise ValueError(
                    f"{text!r}: expected each of {', '.join(_NAMES)} at most once, as in "
                    "prompt=2000,gen=300,parallel=4"
                )
            try:
                values[_NAMES[name]] = float(value) if name == "weight" else int(value)
            except ValueError:
                raise ValueError(f"{text!r}: {part}: expected a number") from None
        return Workload(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return ",".join(
            f"{name}={value:g}"
            for name, attribute in _NAMES.items()
            if (value := getattr(self, attribute)) != _DEFAULTS[attribute] or name in _ALWAYS
        )


_DEFAULTS = {f.name: f.default for f in fields(Workload)}
_ALWAYS = ("prompt", "gen")
