"""What `nearest` answers: changes to a node that make a device take it. Plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# The order of variants: a change that keeps the values first, then one that rounds them, then
# one that computes something else; what takes several changes last.
KINDS = ("buffer", "contiguous", "type", "op_param", "dimension", "together")


@dataclass(frozen=True, slots=True)
class Variant:
    """One change to a node that the device supports."""

    kind: str  # one of KINDS
    source: int | None  # index in src; None for the result, a parameter, several changes
    name: str  # the constructor's argument: "K", "mask", "scale"; "src[1]" where none is known
    dim: int | None  # of kind dimension: 0 is ne0
    before: str | int | float | None
    after: str | int | float | None
    limit: int | None  # of kind dimension: the last size on the way back that is supported
    rule: str  # what the device seems to want: "ne0 ≤ 1024"; "" where the answers show none
    tied: tuple[str, ...]  # dimensions that must change with it: "b ne0"
    also: tuple[str, ...]  # of kind type: other types that would do, farther away
    parts: tuple[Variant, ...]  # of kind together: the changes, each of which is needed
    text: str  # "K f16 instead of q5_1"

    def __repr__(self) -> str:
        return f"<Variant {self.text}>"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Nearest:
    """Whether a device supports a node, and if not, what would have to change."""

    op: str
    node: str  # its name; may be ""
    device: str
    supported: bool
    variants: tuple[Variant, ...]  # the smallest change first
    tried: int  # how often supports_op was asked
    constructor: str  # what the variants were made with: "flash_attn_ext"; "" if field by field

    def __repr__(self) -> str:
        return f"<Nearest {self.text}>"

    @property
    def text(self) -> str:
        """The answer in one sentence: its first variant."""
        if self.supported:
            return f"{self.op}: {self.device} supports it as it is"
        if self.variants:
            return f"{self.op}: {self.variants[0].text}"
        return f"{self.op}: {self.device} supports none of {self.tried:,} variants that were tried"

    def render(self) -> str:
        """For a terminal: the node, then a line per variant."""
        node = f" '{self.node}'" if self.node else ""
        if self.supported:
            return f"{self.op}{node} on {self.device}: supported as it is"
        if not self.variants:
            return (
                f"{self.op}{node} on {self.device}: not supported, nor any of {self.tried:,} "
                "variants that were tried"
            )
        lines = [f"{self.op}{node} on {self.device}: not supported; it would be with"]
        for variant in self.variants:
            also = f" (or {', '.join(variant.also)})" if variant.also else ""
            lines.append(f"  {variant.kind:<10}  {variant.text}{also}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data, with the sentence."""
        return {**asdict(self), "text": self.text}
