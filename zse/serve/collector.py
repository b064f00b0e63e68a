"""How the interpreter is set during a start.

A start makes a hundred thousand objects that all stay: looking through them again and again for
cycles took a twentieth of it, and found nothing. And its threads take short turns: one that opens
a GPU asks the driver two dozen things, and would wait behind imports for each.
"""

from __future__ import annotations

import gc

from zse.stream.turns import START_TURN_SECONDS, begin_turns, end_turns

_USUAL = gc.get_threshold()
_OBJECTS_OF_A_START = 1_000_000
"""Far more than are made; a conversion on first use, which makes more, is collected after."""
_held: list[float] = []
"""The turns that ``hold_off`` began."""


def hold_off() -> None:
    """Collect nothing until so many objects were made, or ``resume`` is called; take turns."""
    gc.set_threshold(_OBJECTS_OF_A_START, *_USUAL[1:])
    if not _held:
        _held.append(START_TURN_SECONDS)
        begin_turns(START_TURN_SECONDS)


def resume() -> None:
    """Collect as usual, and never look at what is there by now; turns are as long as ever."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
    while _held:
        end_turns(_held.pop())
