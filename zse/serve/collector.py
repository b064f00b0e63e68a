"""The collector of cycles during a start, which makes a hundred thousand objects that all stay.

Looking through them again and again took a twentieth of a start, and found nothing.
"""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_OBJECTS_OF_A_START = 1_000_000
"""Far more than are made; a conversion on first use, which makes more, is collected after."""


def hold_off() -> None:
    """Collect nothing until so many objects were made, or ``resume`` is called."""
    gc.set_threshold(_OBJECTS_OF_A_START, *_USUAL[1:])


def resume() -> None:
    """Collect as usual, and never look at what is there by now."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
