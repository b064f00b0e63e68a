"""How a start is asked for its first token: with which prompt, and when."""

from __future__ import annotations

from zse.deploy.measure.start import Dialogue

_FIRST_ID, _STEP, _MOST_IDS = 3, 31, 200
"""Ids that every vocabulary has; each is another than the one before."""


def dialogue_of(*, prompt_tokens: int = 0, is_at_once: bool = False) -> Dialogue:
    """Return what asks a server of ours.

    Args:
        prompt_tokens: Length of the prompt, of token ids; 0 is a short question of a chat.
        is_at_once: Ask from the first moment on until it is taken, while weights still arrive.
    """
    usual = Dialogue(asks="at-once" if is_at_once else "ready")
    if not prompt_tokens:
        return usual
    return Dialogue(
        path="/v1/completions",
        question={
            "model": "default",
            "prompt": [_FIRST_ID + _STEP * index % _MOST_IDS for index in range(prompt_tokens)],
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        },
        brings_text=bool,  # the first event is the token, whatever its text
        asks=usual.asks,
    )
