"""Samples the next token from logits, by libllama's samplers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import log as _log
from ..boundary.arguments import describe, integer
from ..boundary.ffi import NULL, ffi
from ..boundary.handle import Handle
from ..boundary.uses import in_use
from ..errors import ArgumentError, ModelError
from ..typed import typed
from .library import Library, library
from .likeliest import likeliest
from .sampling import FLT_MAX, INT_MAX, Sampling
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy.typing as npt

    Logits = npt.NDArray[np.float32]
    Rows = npt.NDArray[np.void]

_ROW = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
_SAMPLING = "sampling"


@dataclass(frozen=True, eq=False)
class Sampler(Sampling):
    """Samples a token when it is called with logits. Holds fixed settings and the tokens so far.

    The samplers are libllama's, in the order of llama.cpp's command line. They give its tokens for
    the same logits and seed. docs/CLI.md has a row for each setting. `seed` starts the random
    numbers: `None` (or llama.cpp's 2**32 - 1) picks a new seed for each `Sampler`, and afterwards
    the attribute `seed` is the one in use. `grammar`, DRY and Mirostat 1 read a vocabulary: give a
    `tokenizer`, too, for example `model.tokenizer`.

    `temperature` 0 takes the likeliest token, of equal ones the one with the lowest id. Without
    penalties and a grammar it needs no libllama, which is otherwise built on first use. One thread
    uses a sampler at a time: meanwhile, calls from others raise `BusyError`.

    Raises `ArgumentError` and `TypeError` for invalid settings.

    C: llama_sampler_apply, llama_sampler_accept. C++: common_sampler_sample
    """

    tokenizer: Tokenizer | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer is None:
            reads = {"grammar": self.grammar, "dry_multiplier": self.dry_multiplier,
                     "mirostat": self.mirostat == 1}  # fmt: skip
            for name in (name for name, value in reads.items() if value):
                raise ArgumentError(
                    f"{name}={getattr(self, name)!r} reads the vocabulary: give a tokenizer, too, "
                    "for example tokenizer=model.tokenizer"
                )
        elif not isinstance(self.tokenizer, Tokenizer):
            raise TypeError(f"tokenizer: expected a Tokenizer, got {describe(self.tokenizer)}")
        else:
            self._native  # noqa: B018  raises for a grammar that libllama does not parse

    def __call__(self, logits: Logits) -> int:
        """Samples a token from `logits` [n_vocab]. It then counts as a past token.

        Raises `ModelError` for logits without a finite largest one: NaN, inf, or all -inf.
        """
        logits = self._biased(logits)
        if self._is_greedy and not self._has_penalties and not self.grammar:
            return likeliest(logits)
        native = self._native
        with in_use(_SAMPLING, native):
            return native.sample(logits)

    @typed
    def accept(self, tokens: Iterable[int]) -> None:
        """Counts the tokens of a prompt as past tokens, so penalties apply to them, too."""
        ids = [integer("token", token, 0, INT_MAX) for token in tokens]
        if self._has_penalties:
            native = self._native
            with in_use(_SAMPLING, native):
                native.accept(ids)

    @typed
    def candidates(self, logits: Logits) -> tuple[npt.NDArray[np.int32], Logits]:
        """Token ids with a chance at the next call, and their probabilities; with a grammar, after
        a first choice that broke it. Changes nothing."""
        logits = self._biased(logits)
        native = self._native
        with in_use(_SAMPLING, native):
            return native.candidates(logits)

    def reset(self) -> None:
        """Forgets past tokens and restarts the random numbers from `seed`."""
        self.__dict__.pop("_native", None)

    @property
    def _has_penalties(self) -> bool:
        """Whether past tokens become less likely, or more."""
        rates = self.frequency_penalty or self.presence_penalty or self.dry_multiplier
        return bool(self.repeat_penalty != 1.0 or rates) and not self.mirostat

    @property
    def _is_greedy(self) -> bool:
        """Whether the likeliest token is taken, whatever the random numbers."""
        draws = self.dynatemp_range or self.xtc_probability or self.typical_p < 1.0 or self.mirostat
        return bool(np.float32(self.temperature) == 0 and not draws)

    @cached_property
    def _native(self) -> SamplerHandle:
        return SamplerHandle(library(), self)

    def _biased(self, logits: Logits) -> Logits:
        """The logits, checked, with biases."""
        try:
            logits = np.ascontiguousarray(logits, np.float32)
        except (TypeError, ValueError):
            raise TypeError(f"logits: expected numbers [n_vocab], got {describe(logits)}") from None
        if logits.ndim != 1 or not logits.size:
            raise ModelError(f"logits {list(logits.shape)}: expected those of one token, [n_vocab]")
        if self.grammar and logits.size > len(self.tokenizer or ()):
            raise ModelError(f"{logits.size} logits: {self.tokenizer!r} has no text for them all")
        likeliest(logits)  # raises
        if self.logit_bias:
            last = max(self.logit_bias)
            if last >= logits.size:
                raise ModelError(
                    f"logit_bias has token {last}: the vocabulary's ids are 0 to {logits.size - 1}"
                )
            logits = logits.copy()
            values = np.array(list(self.logit_bias.values()), np.float32)
            with np.errstate(over="ignore"):
                logits[list(self.logit_bias)] += values
        return logits


class SamplerHandle(Handle):
    """Owns libllama's samplers for some settings: a chain that chooses, which is its pointer, one
    for penalties, and a grammar. One call at a time uses it."""

    __slots__ = (
        "_grammar", "_is_greedy", "_kept", "_library", "_past", "_penalties", "_temperature",
    )  # fmt: skip

    def __init__(self, library: Library, settings: Sampler) -> None:
        """Raises `ArgumentError` for a grammar that libllama does not parse."""
        s, lib, tokenizer = settings, library.lib, settings.tokenizer
        self._library, self._kept = library, np.zeros(0, _ROW)
        self._past = deque[int](maxlen=max(s.repeat_last_n, s.dry_penalty_last_n))
        self._is_greedy, self._temperature = s._is_greedy, np.float32(s.temperature)
        # Its pointer keeps the model until it knows this child, whoever closes it meanwhile.
        model = None if tokenizer is None else tokenizer._model.ptr
        vocab = NULL if model is None else lib.llama_model_get_vocab(model)
        self._penalties = self._grammar = None
        if s._has_penalties:
            self._penalties = self._owned(_chain(lib, _penalties(library, s, vocab)))
        if s.grammar:
            self._grammar = self._owned(self._parsed(s.grammar, vocab))
        needs = () if tokenizer is None else (tokenizer._model,)
        super().__init__(_chain(lib, _choice(lib, s)), lib.llama_sampler_free, *needs)

    def sample(self, logits: Logits) -> int:
        """A drawn token, which is then a past one."""
        logits = self._penalised(logits)
        token = self._draw(logits)
        if self._grammar is not None:
            # The grammar looks at all tokens only if the first choice breaks it, as upstream.
            alone = np.array([(token, 1.0, 0.0)], _ROW)
            if self._apply(self._grammar, alone)[0]["logit"][0] == -np.inf:
                token = self._draw(self._fitting(logits))
            self._library.lib.llama_sampler_accept(self._grammar, token)
        self.accept([token])
        return token

    def accept(self, tokens: Iterable[int]) -> None:
        """Takes past tokens. The grammar does not see them."""
        if self._penalties is not None:
            for token in tokens:
                self._library.lib.llama_sampler_accept(self._penalties, token)
                self._past.append(token)

    def candidates(self, logits: Logits) -> tuple[npt.NDArray[np.int32], Logits]:
        """See `Sampler.candidates`."""
        logits = self._fitting(self._penalised(logits))
        if self._is_greedy:
            return np.array([likeliest(logits)], np.int32), np.ones(1, np.float32)
        clone = self._owned(self._library.lib.llama_sampler_clone(self.ptr))
        rows = self._apply(clone, self._rows(logits))[0]
        rows = rows[rows["p"] > 0]
        return rows["id"].copy(), rows["p"].copy()

    def _owned(self, ptr: Any) -> Any:
        return self._library.ffi.gc(ptr, self._library.lib.llama_sampler_free)

    def _parsed(self, grammar: str, vocab: Any) -> Any:
        mark = _log.mark()
        ptr = self._library.lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        if ptr == NULL:
            raise ArgumentError(
                f"grammar: llama.cpp does not take it: {'; '.join(_log.since(mark))} (it may have "
                "written where to standard error)"
            )
        return ptr

    def _draw(self, logits: Logits) -> int:
        if self._is_greedy:
            return likeliest(logits)
        rows, place = self._apply(self.ptr, self._rows(logits))
        if not isfinite(rows[place]["logit"]) or isnan(rows[place]["p"]):
            raise ModelError(
                f"the logits overflow at temperature={self._temperature}: 0 takes the likeliest "
                "token"
            )
        return int(rows[place]["id"])

    def _penalised(self, logits: Logits) -> Logits:
        """The logits with penalties. Only past tokens are looked up: libllama looks up each token
        that it is given, in 80 ns."""
        past = [token for token in set(self._past) if token < logits.size]
        if past:
            rows = np.zeros(len(past), _ROW)
            rows["id"], rows["logit"] = past, logits[past]
            logits = logits.copy()
            logits[past] = self._apply(self._penalties, rows)[0]["logit"]
        return logits

    def _fitting(self, logits: Logits) -> Logits:
        """The logits, -inf for tokens that break the grammar."""
        if self._grammar is None:
            return logits
        fitting: Logits = self._apply(self._grammar, self._rows(logits))[0]["logit"].copy()
        return fitting

    def _rows(self, logits: Logits) -> Rows:
        """A row for each token. Raises `ModelError` for NaN and inf, which no sort can order."""
        largest = logits[likeliest(logits)]
        if abs(float(largest)) > FLT_MAX * float(self._temperature) > 0:
            with np.errstate(over="ignore"):
                logits = logits - largest  # the quotients would overflow
        if len(self._kept) != len(logits):
            self._kept = np.zeros(len(logits), _ROW)
        self._kept["id"], self._kept["logit"] = _ids(len(logits)), logits
        return self._kept

    def _apply(self, samplers: Any, rows: Rows) -> tuple[Rows, int]:
        """The rows that are left, in the memory of `rows`, and the place of the selected one.
        C: llama_sampler_apply"""
        made = self._library.ffi
        array = made.new("llama_token_data_array *")
        start = made.cast("llama_token_data *", ffi.from_buffer(rows))
        array.data, array.size, array.selected = start, len(rows), -1
        self._library.lib.llama_sampler_apply(samplers, array)
        first = array.data - start
        return rows[first : first + array.size], array.selected


@lru_cache(maxsize=2)
def _ids(n: int) -> npt.NDArray[np.int32]:
    return np.arange(n, dtype=np.int32)


def _chain(lib: Any, samplers: Iterable[Any]) -> Any:
    """C: llama_sampler_chain_add"""
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in samplers:
        lib.llama_sampler_chain_add(chain, sampler)
    return chain


def _penalties(library: Library, s: Sampler, vocab: Any) -> list[Any]:
    made, lib = library.ffi, library.lib
    found = [
        lib.llama_sampler_init_penalties(
            0, s.repeat_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
        )
    ]
    if s.dry_multiplier:
        texts = [made.new("char[]", text.encode()) for text in s.dry_sequence_breakers]
        found.append(
            lib.llama_sampler_init_dry(
                vocab, s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n,
                made.new("const char *[]", texts), len(texts),
            )
        )  # fmt: skip
    return found


def _choice(lib: Any, s: Sampler) -> list[Any]:
    """As common_sampler_init."""
    if s.mirostat:
        end = (s.seed, s.mirostat_ent, s.mirostat_lr)
        n_vocab = len(s.tokenizer or ())
        return [
            lib.llama_sampler_init_temp(s.temperature),
            lib.llama_sampler_init_mirostat_v2(*end)
            if s.mirostat == 2
            else lib.llama_sampler_init_mirostat(n_vocab, *end, 100),
        ]
    return [
        lib.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        lib.llama_sampler_init_top_k(min(s.top_k, INT_MAX)),
        lib.llama_sampler_init_typical(s.typical_p, 0),
        lib.llama_sampler_init_top_p(s.top_p, 0),
        lib.llama_sampler_init_min_p(s.min_p, 0),
        lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 0, s.seed),
        lib.llama_sampler_init_temp_ext(s.temperature, s.dynatemp_range, s.dynatemp_exponent),
        lib.llama_sampler_init_dist(s.seed),
    ]
