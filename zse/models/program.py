"""Which program runs which family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.models import llama, mistral, qwen2, qwen3

if TYPE_CHECKING:
    from zse.models.decoder import Program

PROGRAMS: dict[str, Program] = {
    "llama": llama.run,
    "mistral": mistral.run,
    "qwen2": qwen2.run,
    "qwen3": qwen3.run,
}


def program_for(family: str) -> Program:
    """Return the program of a family.

    Raises:
        UnsupportedModelError: No program has this name.
    """
    if family not in PROGRAMS:
        raise UnsupportedModelError(
            f"model family {family!r} has no program",
            hint=f"Known families: {', '.join(PROGRAMS)}.",
        )
    return PROGRAMS[family]
