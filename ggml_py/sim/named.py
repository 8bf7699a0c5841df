"""Profiles by name: cards, upstream's records, and files of a user."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError, NotBuiltError, UnknownDeviceError
from . import rows
from .profile import Profile
from .profiles.cards import CARDS, OF_BACKEND

if TYPE_CHECKING:
    from .card import CardProfile

_RECORD = "record:"


def profiles() -> tuple[str, ...]:
    """The names that `load_profile` knows: cards, and the backends that upstream has a record of.

    C: gp_card_backend
    """
    from .card import card_names  # here: records can be read without the library

    try:
        recorded = rows.names()
    except NotBuiltError:
        recorded = ()
    cards = card_names()
    backends = (backend for backend, card in OF_BACKEND.items() if card in cards)
    return tuple(dict.fromkeys((*cards, *backends, *recorded)))


def load_profile(
    name: str | os.PathLike[str], /, strict: bool = False, **properties: object
) -> Profile | CardProfile:
    """Loads the profile of a device. `name` is one of

    - a card ("rtx4090", "mi300x") or a backend ("cuda", which means one named card): upstream's own
      `supports_op` answers. `properties` change those of the card;
    - "record:NAME": upstream's record of a backend (docs/ops), which may be older than its source.
      A backend's name alone means this, too, if the build lacks its functions;
    - the path of a CSV file that `test-backend-ops support --output csv` wrote on any machine;
    - the path of a text file (".txt") with what `vulkaninfo` prints there: a card of Vulkan.

    A `strict` profile from a record says no wherever no row gives a certain answer;
    docs/PROFILES.md has the rules. Raises `UnknownDeviceError` for an unknown name, `ArgumentError`
    for a file that is not a profile or an unknown property, and `NotBuiltError` if the build has no
    profiles.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(f"name: expected a str or a path, got {type(name).__name__}")
    text = os.fspath(name)
    if text.lower().endswith(".txt"):
        from .card import card_of_file  # here: records can be read without the library

        return card_of_file(Path(text), properties)
    is_record = text.startswith(_RECORD) or text.lower().endswith(".csv") or "/" in text
    if not is_record and (card := _card(text, properties)):
        return card
    if properties:
        raise ArgumentError(
            f"profile {text} is a record, which has no properties to change: expected a card, such "
            "as rtx4090"
        )
    try:
        return Profile(rows.record_of(text.removeprefix(_RECORD)), strict)
    except UnknownDeviceError as error:
        near = get_close_matches(text.lower(), (*CARDS, *OF_BACKEND), 3, 0.5)
        hint = f". Did you mean {' or '.join(near)}?" if near else ""
        raise UnknownDeviceError(f"{error}, or one of {', '.join(CARDS)}{hint}") from None


def _card(name: str, properties: dict[str, object]) -> CardProfile | None:
    """The card of that name; None if a record has to answer in its place."""
    if name.lower() not in (*CARDS, *OF_BACKEND):
        return None
    from .card import card_profile  # here: records can be read without the library

    try:
        return card_profile(name, properties)
    except NotBuiltError:
        if name.lower() in CARDS or name.lower() not in rows.names():
            raise
        return None
