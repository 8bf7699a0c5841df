"""The promise of a plan, by the scheduler or by llama.cpp, and the memory that goes with it.

A plan that a live scheduler made for a graph promises only its own content. The plan of a model is
what llama.cpp would do: its loader chose the places of the weights, and pinned norms. A what-if is
llama.cpp's promise if the model was loaded again under the change. Otherwise it is the scheduler's
promise alone, with everything else as llama.cpp left it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .fields import Count

_SHOWN = 3  # changes in a headline


class MemoryRow(NamedTuple):
    """Bytes of a context's buffers of one type. C: llama_memory_breakdown_data"""

    buft: str  # the buffer type
    device: str  # whose memory it is: a GPU's buffers in host memory are the CPU's
    weights: int
    cache: int  # of keys and values, or of recurrent states
    compute: int | None  # None: this release of ggml cannot measure it
    outputs: int = 0  # of logits and embeddings, when the context begins

    @property
    def nbytes(self) -> int:
        """Bytes in all; without `compute` if that is not known."""
        return self.weights + self.cache + (self.compute or 0) + self.outputs


class Promise(NamedTuple):
    """The promise of a plan: by whom it is made, and under which changes."""

    loader: str = ""  # "llama.cpp" for a model; "": somebody built the graph
    reloaded: tuple[str, ...] = ()  # changes under which the loader loaded the model again
    changes: tuple[str, ...] = ()  # further changes, known only to the scheduler
    graphs: str = ""  # "libllama" if it built the graph; "": ggml_py or its user did
    # Tokens that the cache of a model has before its graph; None: not known, or several sequences.
    n_past: Count | None = None

    @property
    def whose(self) -> str:
        """ "llama.cpp", "scheduler"; "" if nothing was assumed and nobody loaded a model."""
        return "scheduler" if self.changes else self.loader

    @property
    def assumed(self) -> tuple[str, ...]:
        """All changes, as `ggml-py plan --what-if` takes them."""
        return (*self.reloaded, *self.changes)

    @property
    def headline(self) -> str:
        """A few words in front of a headline; "" if nothing was assumed about a graph of ours."""
        graph = f"{self.graphs}'s graph" if self.graphs else ""
        return ", ".join(words for words in (graph, self._assumption) if words)

    @property
    def _assumption(self) -> str:
        if not self.assumed:
            return ""
        more = len(self.assumed) - _SHOWN
        shown = ", ".join(self.assumed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        alone = "the scheduler's promise alone" if self.changes else f"{self.loader}'s promise"
        return f"what if {shown}" + (f" ({alone})" if self.loader else "")

    @property
    def text(self) -> str:
        """What may be relied on, in a sentence; "" if nothing was assumed."""
        if not self.assumed:
            return ""
        if not self.changes:
            return (
                f"This is what {self.loader} would do: the model was loaded again under the change,"
                " which decides anew where weights are and which nodes are pinned."
            )
        if not self.loader:
            return "This is what ggml's scheduler would do with this graph."
        again = f" with {' and '.join(self.reloaded)}" if self.reloaded else ""
        return (
            f"This is what ggml's scheduler alone would do: weights, pins and the graph are as "
            f"{self.loader} made them{again}. Loading the model under the change might place "
            "weights elsewhere or pin other nodes."
        )


NOTHING = Promise()


def as_texts(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments of `Plan.what_if`, written as `ggml-py plan --what-if` takes them."""
    texts: list[str] = []
    for argument, value in arguments.items():
        if argument == "drop":
            texts += [f"drop={name}" for name in ([value] if isinstance(value, str) else value)]
        elif argument in KINDS:
            for key, answer in (value or {}).items():
                which = "/".join(map(str, key)) if isinstance(key, tuple) else key
                texts.append(f"{KINDS[argument]}:{which}={_as_text(answer)}")
        elif value is not None:
            texts.append(f"{argument}={_as_text(value)}")
    return tuple(texts)


# The arguments of `Plan.what_if` that are dicts, as changes are written.
KINDS = {
    "pins": "pin", "move_weights": "move", "supports": "supports", "offload": "offload",
    "profiles": "profile",
}  # fmt: skip


def _as_text(value: str | bool | int | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
