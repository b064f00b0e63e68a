"""How the interpreter looks for cycles: during a start, and while it serves.

A start makes a hundred thousand objects that all stay: looking through them again and again for
cycles took a twentieth of it, and found nothing. And its threads take short turns: one that opens
a GPU asks the driver two dozen things, and would wait behind imports for each.

A step of 256 answers makes thousands of objects and lets go of all of them. By the usual numbers
each step was a reason to look, and each hundredth one to look through all texts that are being
made: 50 ms, in which every answer stood still. Only what stays for longer than a step is a reason.
"""

from __future__ import annotations

import gc

from zse.stream.turns import START_TURN_SECONDS, begin_turns, end_turns

_USUAL = gc.get_threshold()
_OBJECTS_OF_A_START = 1_000_000
"""Far more than are made; a conversion on first use, which makes more, is collected after."""
SERVING = (20_000, 20, 20)
"""Objects more than before, and how often that, before the young, the middling and all
are looked through: it takes requests that leave cycles, hundreds of them."""
_held: list[float] = []
"""The turns that ``hold_off`` began."""


def hold_off() -> None:
    """Collect nothing until so many objects were made, or ``resume`` is called; take turns."""
    gc.set_threshold(_OBJECTS_OF_A_START, *_USUAL[1:])
    if not _held:
        _held.append(START_TURN_SECONDS)
        begin_turns(START_TURN_SECONDS)


def resume() -> None:
    """Collect as a server does, and never look at what is there by now; turns are as ever."""
    gc.freeze()
    gc.set_threshold(*SERVING)
    while _held:
        end_turns(_held.pop())
