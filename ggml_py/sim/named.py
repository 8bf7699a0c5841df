"""Profiles by name: cards, and files of a user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError, UnknownDeviceError
from ..files.similar import meant, one_of
from .profile import Profile
from .profiles.cards import CARDS, OF_BACKEND

if TYPE_CHECKING:
    from .card import CardProfile


def profiles() -> tuple[str, ...]:
    """The names that `load_profile` knows: cards, and backends that stand for one of them.

    C: gp_card_backend
    """
    from .card import card_names  # here: records can be read without the library

    cards = card_names()
    return (*cards, *(backend for backend, card in OF_BACKEND.items() if card in cards))


def load_profile(name: str | os.PathLike[str], /, **properties: object) -> Profile | CardProfile:
    """Loads the profile of a device. `name` is one of

    - a card ("rtx4090", "mi300x") or a backend ("cuda", which means one named card): upstream's own
      `supports_op` answers. `properties` change the card's properties.
    - the path of a CSV file that `test-backend-ops support --test-file OPS --output csv` wrote on
      any machine.
    - the path of a text file (".txt") with the output of `vulkaninfo` there: a card of Vulkan.

    A CSV file answers for exactly the ops in it; any other op is "not on record". Raises
    `UnknownDeviceError` for an unknown name, `ArgumentError` for a file that is not a profile or an
    unknown property, and `NotBuiltError` if the build lacks the card's backend.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(f"name: expected a str or a path, got {type(name).__name__}")
    text = os.fspath(name)
    if text.lower().endswith(".txt"):
        from .card import card_of_file  # here: records can be read without the library

        return card_of_file(Path(text), properties)
    if text.lower().endswith(".csv") or "/" in text:
        if properties:
            raise ArgumentError(
                f"profile {text} is a record, which has no properties to change: expected a card, "
                "such as rtx4090"
            )
        return Profile(text)
    if text.lower() not in (*CARDS, *OF_BACKEND):
        hint = meant(text, (*CARDS, *OF_BACKEND), 0.5)
        raise UnknownDeviceError(
            f"no device profile {text!r}: expected one of {', '.join(OF_BACKEND)}, a card "
            f"({one_of(text, tuple(CARDS))}), or a CSV file of `test-backend-ops support`{hint}"
        )
    from .card import card_profile  # here: records can be read without the library

    return card_profile(text, properties)
