"""A model whose tokens are hashes of all before them, and what a request to it answers."""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

from grammar_walks import allowed_by

from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zse.engine.request import SamplingParams
    from zse.text.grammar.state import Grammar


def next_token(
    history: Sequence[int],
    row: SamplingRow,
    vocab_size: int,
    allowed: Collection[int] | None = None,
) -> int:
    """The model: a hash of the history, of the random draw, and of nothing else."""
    draw = (row.seed, row.step) if row.temperature > 0 else ()
    digest = hashlib.blake2b(repr((list(history), draw)).encode(), digest_size=8).digest()
    token = int.from_bytes(digest, "little") % vocab_size
    while token in row.banned_token_ids or (allowed is not None and token not in allowed):
        token = (token + 1) % vocab_size
    return token


def logprob_of(history: Sequence[int]) -> float:
    """Of the last token after those before it."""
    return -zlib.crc32(repr(list(history)).encode()) / 2**32


def hidden_of(history: Sequence[int]) -> list[float]:
    """Two numbers that depend on all tokens."""
    return [float(len(history)), logprob_of(history)]


def expected_tokens(
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    index: int = 0,
    vocab_size: int = 97,
    eos: Sequence[int] = (),
    grammar: Grammar | None = None,
) -> list[int]:
    """What a request answers when nothing else runs, computed without any engine."""
    from zse.engine.sequence import seed_of_choice

    state = None if grammar is None else grammar.begin()
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    output: list[int] = []
    assert params.max_tokens is not None
    while len(output) < params.max_tokens:
        is_early = len(output) < params.min_tokens
        banned = ends if is_early else set()
        allowed = None
        if state is not None:
            allowed = allowed_by(
                state, vocab_size, [*banned, *({*eos} - (set() if is_early else ends))]
            )
            banned = set()
        row = SamplingRow(
            temperature=params.temperature,
            seed=seed_of_choice(params.seed or 0, index),
            step=len(output),
            banned_token_ids=banned,
        )
        output.append(next_token([*prompt, *output], row, vocab_size, allowed))
        if state is not None:
            state.advance(output[-1])
            if state.is_complete:
                break
        if output[-1] in ends and len(output) > params.min_tokens:
            break
    return output
