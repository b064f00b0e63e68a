"""The ways in which models mark their reasoning: an opening and a closing text around it.

An answer's reasoning stands at its beginning. Where the template has opened it already, which its
prompt shows, only the closing text comes; where it was closed there, none comes at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from zse.text.scanner import Reading, Scanner


@record
class ReasoningFormat:
    """Where reasoning begins and ends."""

    name: str
    """What ``--reasoning-parser`` calls it."""
    openers: tuple[str, ...]
    closers: tuple[str, ...]

    def is_opened_by(self, prompt: str) -> bool:
        """Whether a rendered prompt ends within reasoning."""
        return prompt.rstrip().endswith(self.openers)

    def is_closed_by(self, prompt: str) -> bool:
        """Whether a rendered prompt has closed the reasoning: none comes."""
        return prompt.rstrip().endswith(self.closers)

    @property
    def texts(self) -> tuple[str, ...]:
        return self.openers + self.closers

    def read(self, scanner: Scanner, *, is_open: bool) -> Reading[None]:
        """Read the reasoning at the beginning of an answer, if there is any."""
        if not is_open:
            scanner.keep()
            yield from scanner.skip_space()
            if not (yield from self._read_opener(scanner)):
                scanner.say_kept()
                return
            scanner.drop_kept()
        scanner.is_thinking = True
        scanner.think("")
        yield from scanner.until(self.closers, scanner.think)
        scanner.is_thinking = False

    def _read_opener(self, scanner: Scanner) -> Reading[bool]:
        for opener in self.openers:
            if (yield from scanner.match(opener)):
                return True
        return False


TAGS = ReasoningFormat(name="think", openers=("<think>",), closers=("</think>",))
"""Qwen 3, DeepSeek R1, GLM, SmolLM 3 and most others."""
MISTRAL = ReasoningFormat(name="mistral", openers=("[THINK]",), closers=("[/THINK]",))
SEED = ReasoningFormat(name="seed", openers=("<seed:think>",), closers=("</seed:think>",))
GRANITE = ReasoningFormat(
    name="granite",
    openers=("Here is my thought process:", "Here's my thought process:"),
    closers=("Here is my response:", "Here's my response:"),
)
FORMATS = {each.name: each for each in (TAGS, MISTRAL, SEED, GRANITE)}
