"""The prompt of `ggml-py generate`, as text or as ids, and the printing of what comes."""

from __future__ import annotations

import codecs
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from ...llama import Tokenizer
    from ...models import Model

T = TypeVar("T", str, str | None)


class Prompt:
    """The tokens of a prompt. With a tokenizer, what is generated is printed as text."""

    def __init__(self, tokens: list[int], tokenizer: Tokenizer | None = None) -> None:
        self.tokens = tokens
        self.text = ""  # that was generated
        self._tokenizer = tokenizer
        # A character may be spread over several tokens.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n = 0

    def take(self, token: int, quiet: bool) -> None:
        """Takes a generated token, and prints it unless `quiet`."""
        if self._tokenizer is None:
            piece = f"{',' if self._n else ''}{token}"
        else:
            piece = self._decoder.decode(self._tokenizer.piece(token, special=False))
            self.text += piece
        self._n += 1
        if not quiet:
            click.echo(piece, nl=False)


def prompt_of(
    model: Model,
    text: str | None,
    tokens: list[int] | None,
    chat: bool,
    system_prompt: str | None,
) -> Prompt:
    """The prompt that the options describe. Raises a usage error."""
    if tokens is not None:
        if chat or system_prompt is not None:
            raise click.UsageError("--chat and --system-prompt need a text: -p TEXT")
        return Prompt(tokens)
    assert text is not None
    text, system_prompt = _in_utf8("-p", text), _in_utf8("--system-prompt", system_prompt)
    if system_prompt is not None and not chat:
        raise click.UsageError("--system-prompt is a part of the chat template: give --chat, too")
    tokenizer = model.tokenizer
    if chat:
        system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        text = tokenizer.chat([*system, {"role": "user", "content": text}])
    # Templates often begin with BOS themselves.
    bos = tokenizer.bos
    begins = bos is not None and text.startswith(tokenizer.piece(bos).decode("utf-8", "replace"))
    found = tokenizer.tokenize(text, add_special=not (chat and begins))
    if not found:
        raise click.UsageError("the prompt has no tokens")
    return Prompt(found, tokenizer)


def _in_utf8(flag: str, text: T) -> T:
    """A text of the command line, which Python reads in the locale's encoding. With LANG=C its
    bytes that are not ASCII became surrogates. Raises a usage error for bytes that are not UTF-8.
    """
    if text is None or text.isascii():
        return text
    with suppress(UnicodeEncodeError):
        text.encode()
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode()
    except UnicodeError as error:
        raise click.UsageError(f"{flag}: expected text in UTF-8: {error}") from None
