"""The size of a graph that a plan is made for."""

from __future__ import annotations

from ..boundary.arguments import integer
from ..errors import ModelError


def check_shape(
    n_tokens: int, n_past: int, n_seqs: int, *, n_ubatch: int, n_ctx_seq: int, n_seq_max: int
) -> None:
    """Raises `ModelError` for more tokens than `n_ubatch` or the context takes, and for more than
    `n_seq_max` sequences. Raises TypeError for values other than whole numbers."""
    for name, value in (("n_tokens", n_tokens), ("n_past", n_past), ("n_seqs", n_seqs)):
        integer(name, value, -(1 << 63))
    if not 1 <= n_seqs <= n_seq_max:
        raise ModelError(f"n_seqs={n_seqs}: expected 1 to {n_seq_max} sequences (n_seq_max)")
    if not 1 <= n_tokens <= n_ubatch // n_seqs:
        each = f" in each of {n_seqs} sequences" if n_seqs > 1 else ""
        raise ModelError(
            f"n_tokens={n_tokens}{each}: one graph takes 1 to {n_ubatch} tokens (n_ubatch, -ub)"
        )
    if n_past < 0 or n_past + n_tokens > n_ctx_seq:
        raise ModelError(
            f"n_past={n_past} and n_tokens={n_tokens}: expected n_past=0 or more, and at most "
            f"{n_ctx_seq} tokens together, the size of the context"
        )
