"""A model's vocabulary: text to tokens and back, and its chat template, by libllama."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..boundary.arguments import c_text, integer, utf8
from ..boundary.ffi import NULL, text
from ..boundary.uses import reading
from ..errors import ModelError
from ..gguf.header_file import whole
from ..gguf.reader import Gguf
from ..typed import typed
from .chat_template import rendered
from .library import Library, library
from .native import LlamaHandle, load_model

_NONE = 0  # LLAMA_VOCAB_TYPE_NONE


@typed
class Tokenizer:
    """Tokenizes and detokenizes as llama.cpp does. Made by `Tokenizer.open`, and what
    `Model.tokenizer` is."""

    def __init__(self, library: Library, model: LlamaHandle) -> None:
        self._library = library
        self._model = model
        with self._asking() as (lib, vocab):
            self._n = int(lib.llama_vocab_n_tokens(vocab))  # the model's, also without a tokenizer
            self._is_there = int(lib.llama_vocab_type(vocab)) != _NONE

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, build: bool = True) -> Tokenizer:
        """Reads only the vocabulary of a model. Raises `ModelError`, `GgufError`, `NotBuiltError`.
        C: llama_model_params.vocab_only"""
        found = library(build)
        params = found.ffi.new(
            "struct llama_model_params *", found.lib.llama_model_default_params()
        )
        params.vocab_only = True
        with Gguf.open(path, header_only=True) as gguf, whole(gguf) as file:
            try:
                return cls(found, load_model(found, file, params, []))
            except ModelError as error:
                raise ModelError(f"{gguf.path}: {error}") from None

    def __repr__(self) -> str:
        return f"<Tokenizer of {self._n:,} tokens>"

    def __len__(self) -> int:
        return self._n

    @contextmanager
    def _asking(self) -> Iterator[tuple[Any, Any]]:
        """libllama and the native vocabulary. Meanwhile another thread's `close` waits."""
        with reading(self._model):
            lib = self._library.lib
            yield lib, lib.llama_model_get_vocab(self._model.ptr)

    def tokenize(
        self, text: str, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The tokens of a text.

        With `add_special` the model's first and last tokens (BOS, EOS) are added if it wants them.
        With `parse_special` names of control tokens in the text stand for these.
        C: llama_tokenize
        """
        self._check_there()
        data = utf8("text", text)
        room = len(data) + 8
        with self._asking() as (lib, vocab):
            while True:
                ids = self._library.ffi.new("llama_token[]", room)
                n = lib.llama_tokenize(
                    vocab, data, len(data), ids, room, add_special, parse_special
                )
                if n >= 0:
                    return list(ids[0:n])
                room = -n

    def detokenize(
        self, tokens: Iterable[int], remove_special: bool = False, unparse_special: bool = True
    ) -> str:
        """The text of tokens. `remove_special` leaves out the first and last tokens that `tokenize`
        adds; without `unparse_special` control tokens have no text. Bytes that are not UTF-8 become
        "\\ufffd". C: llama_detokenize"""
        self._check_there()
        given = [integer("tokens", token, 0, self._n - 1) for token in tokens]
        ffi = self._library.ffi
        ids, room = ffi.new("llama_token[]", given), 16 * len(given) + 16
        with self._asking() as (lib, vocab):
            while True:
                out = ffi.new("char[]", room)
                n = lib.llama_detokenize(
                    vocab, ids, len(given), out, room, remove_special, unparse_special
                )
                if n >= 0:
                    return bytes(ffi.buffer(out, n)).decode("utf-8", "replace")
                room = -n

    def piece(self, token: int, special: bool = True) -> bytes:
        """The bytes of one token: a part of a character may be a token. C: llama_token_to_piece"""
        self._check_there()
        token = integer("token", token, 0, self._n - 1)
        ffi, room = self._library.ffi, 64
        with self._asking() as (lib, vocab):
            while True:
                out = ffi.new("char[]", room)
                n = lib.llama_token_to_piece(vocab, token, out, room, 0, special)
                if n >= 0:
                    return bytes(ffi.buffer(out, n))
                room = -n

    @property
    def eog(self) -> frozenset[int]:
        """The tokens that end a generation. C: llama_vocab_is_eog"""
        with self._asking() as (lib, vocab):
            is_eog = lib.llama_vocab_is_eog
            return frozenset(token for token in range(self._n) if is_eog(vocab, token))

    @property
    def bos(self) -> int | None:
        """The token at the beginning of a text, if there is one. C: llama_vocab_bos"""
        return self._token("bos")

    @property
    def eos(self) -> int | None:
        """The token at the end of a text, if there is one. C: llama_vocab_eos"""
        return self._token("eos")

    def _token(self, name: str) -> int | None:
        with self._asking() as (lib, vocab):
            token = int(getattr(lib, f"llama_vocab_{name}")(vocab))
        return token if token >= 0 else None

    @property
    def chat_template(self) -> str | None:
        """The model's chat template, jinja. C: llama_model_chat_template"""
        return self._template(NULL)

    def _template(self, name: Any) -> str | None:
        with self._asking() as (lib, _vocab):
            found = lib.llama_model_chat_template(self._model.ptr, name)
            return None if found == NULL else text(found)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt that the model's chat template, or `template`, makes of messages
        {"role": "user", "content": "..."}. A model without a template gets ChatML, as in llama.cpp.

        Raises `ModelError` for a template that fails. C++: common_chat_templates_apply
        """
        texts: list[bytes] = []
        for i, message in enumerate(messages):
            if not {"role", "content"} <= set(message):
                raise ModelError(f'a message is {{"role": ..., "content": ...}}, got {message!r}')
            names = {key: f"{key} of message {i}" for key in ("role", "content")}
            texts += (c_text(name, message[key]) for key, name in names.items())
        with self._asking() as (lib, vocab):
            adds = lib.llama_vocab_get_add_bos(vocab), lib.llama_vocab_get_add_eos(vocab)
        own = self.chat_template or self._template(b"tool_use") or "chatml"
        ends = (b"" if token is None else self.piece(token) for token in (self.bos, self.eos))
        return rendered(
            self._library.folder,
            (add_generation_prompt, *adds),
            (c_text("template", template or own), *ends, *texts),
        )

    def _check_there(self) -> None:
        if not self._n or not self._is_there:
            raise ModelError(
                "this model has no vocabulary (tokenizer.ggml.model is none), so it takes no text: "
                "expected token ids (--tokens 1,2,3)"
            )

    def close(self) -> None:
        """Frees the model that it belongs to."""
        self._model.close()

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
