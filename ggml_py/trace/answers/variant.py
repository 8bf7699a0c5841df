"""The answer of `nearest`: changes to a node that make a device support it. Plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# The order of variants. First come changes that keep the values, then changes that round them, then
# changes that compute something else, then several changes together.
KINDS = ("buffer", "contiguous", "type", "op_param", "dimension", "together")


@dataclass(frozen=True, slots=True)
class Variant:
    """One change to a node that the device supports."""

    kind: str  # one of KINDS
    source: int | None  # index in src; None for the result, a parameter, several changes
    name: str  # the constructor's argument: "K", "mask", "scale"; "src[1]" if it is not known
    dim: int | None  # of kind dimension: 0 is ne0
    before: str | int | float | None
    after: str | int | float | None
    limit: int | None  # of kind dimension: the last supported size on the way back to `before`
    rule: str  # what the device seems to require: "ne0 ≤ 1024"; "" if the answers show no rule
    tied: tuple[str, ...]  # dimensions that must change with it: "b ne0"
    also: tuple[str, ...]  # of kind type: other types that work, farther away
    parts: tuple[Variant, ...]  # of kind together: the changes, all of them needed
    text: str  # "K f16 instead of q5_1"

    def __repr__(self) -> str:
        return f"<Variant {self.text}>"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Nearest:
    """Whether a device supports a node, and if not, what must change."""

    op: str
    node: str  # its name; may be ""
    device: str
    supported: bool
    variants: tuple[Variant, ...]  # the smallest change first
    tried: int  # number of supports_op queries
    constructor: str  # that made the variants: "flash_attn_ext"; "": they were made field by field

    def __repr__(self) -> str:
        return f"<Nearest {self.text}>"

    @property
    def text(self) -> str:
        """The answer in one sentence: its first variant."""
        if self.supported:
            return f"{self.op}: {self.device} supports it as it is"
        if self.variants:
            return f"{self.op}: {self.variants[0].text}"
        return f"{self.op}: {self.device} supports none of the {self.tried:,} variants tried"

    def render(self) -> str:
        """For a terminal: the node, then a line per variant."""
        node = f" '{self.node}'" if self.node else ""
        if self.supported:
            return f"{self.op}{node} on {self.device}: supported as it is"
        if not self.variants:
            return (
                f"{self.op}{node} on {self.device}: not supported, nor is any of the "
                f"{self.tried:,} variants tried"
            )
        lines = [f"{self.op}{node} on {self.device}: not supported, but would be with:"]
        for variant in self.variants:
            also = f" (or {', '.join(variant.also)})" if variant.also else ""
            lines.append(f"  {variant.kind:<10}  {variant.text}{also}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data, with the sentence."""
        return {**asdict(self), "text": self.text}
