"""What a form of calls is: the script that reads it, and the control tokens it is written with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from zse.records import record

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.grammar import CallGrammar

Offered: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Names of the tools that may be called: anything else stays text. Each has the JSON schema of its
arguments, which forms without types of their own need."""
Script: TypeAlias = "Callable[[Scanner, Offered], Reading[None]]"

NAME = re.compile(r"[A-Za-z0-9_.-]*")
"""What the name of a tool may be made of."""


@record
class CallFormat:
    """A form of calls."""

    name: str
    """What ``--tool-parser`` calls it."""
    read: Script
    """Reads an answer to its end."""
    markers: tuple[str, ...] = ()
    """Control tokens that the form is written with: they stay in the text for the script, and
    nobody else is shown them."""
    tags: tuple[str, ...] = ()
    """Texts that are control tokens in some vocabularies: they stay too, and where they are no call
    they are shown as they are."""
    grammar: CallGrammar | None = None
    """How calls are written, where they must be; None where that cannot be enforced."""
    text_opener: str = ""
    """What text begins with, where it has a header."""
    thinking: tuple[str, str] | None = None
    """What opens and closes reasoning, where the form itself has a place for it."""
    call_id_characters: int = 0
    """How long ids of calls are, where the model's template insists."""

    @property
    def texts(self) -> tuple[str, ...]:
        """What the script must find in an answer's text."""
        return self.markers + self.tags
