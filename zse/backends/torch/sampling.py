"""From one row of logits to one token.

Each row is sampled alone. The random number is a hash of (seed, step), so an answer with a seed is
the same in every batch and after a preemption.

Order: penalties, logit bias, bans and a mask on the logits; greedy if the temperature is 0;
otherwise temperature, min_p, top_k, top_p, then a draw. Reported log-probabilities are those of the
model itself, before all of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.backends.types import SampledToken
from zse.kernels.lm_head_sample.row import uniform

if TYPE_CHECKING:
    from zse.kernels.lm_head_sample.row import SamplingRow


def sample(
    logits: torch.Tensor, row: SamplingRow, mask: torch.Tensor | None = None
) -> SampledToken:
    """Choose one token by logits float32 [vocab], which stay as they are.

    ``mask`` is int32 [ceil(vocab / 32)]: a bit for each token that may be chosen.
    """
    token_id = row.known_token_id
    if token_id is None:
        adjusted = _adjust(logits, row)
        if mask is not None:
            adjusted = adjusted.masked_fill(forbidden(mask, logits.shape[0]), float("-inf"))
        token_id = int(adjusted.argmax()) if row.is_greedy else _draw(adjusted, row)
    if row.logprobs is None:
        return SampledToken(token_id=token_id)
    return _with_logprobs(logits, token_id, row.logprobs)


def forbidden(mask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return bool [vocab]: whether the token's bit in ``mask`` is 0."""
    bits = (mask.unsqueeze(1) >> torch.arange(32, dtype=torch.int32)) & 1  # [words, 32]
    return bits.view(-1)[:vocab_size] == 0


def _adjust(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """Return logits after penalties, bias and bans; the same tensor when there are none."""
    repeats = row.repetition_penalty != 1.0
    counts = (row.presence_penalty != 0.0 or row.frequency_penalty != 0.0) and row.output_token_ids
    if not (repeats or counts or row.logit_bias or row.banned_token_ids):
        return logits
    logits = logits.clone()
    if repeats:
        seen = torch.tensor([*row.prompt_token_ids, *row.output_token_ids], dtype=torch.int64)
        seen = torch.unique(seen)
        values = logits[seen]
        penalty = row.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if counts:
        tokens = torch.tensor(list(row.output_token_ids), dtype=torch.int64)
        used, times = torch.unique(tokens, return_counts=True)
        logits[used] -= row.presence_penalty + row.frequency_penalty * times
    for token_id, bias in row.logit_bias.items():
        if 0 <= token_id < logits.shape[0]:
            logits[token_id] += bias
    if row.banned_token_ids:
        logits[torch.tensor(sorted(row.banned_token_ids))] = float("-inf")
    return logits


def _draw(logits: torch.Tensor, row: SamplingRow) -> int:
    probabilities = torch.softmax(logits.double() / row.temperature, 0)
    if row.min_p > 0.0:
        floor = probabilities.max() * row.min_p
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    truncated = 0 < row.top_k < logits.shape[0] or row.top_p < 1.0
    ids = None
    if truncated:
        probabilities, ids = probabilities.sort(descending=True, stable=True)
        if row.top_k > 0:
            probabilities = probabilities[: row.top_k]
    cumulative = probabilities.cumsum(0)
    if row.top_p < 1.0:
        # Keep the shortest prefix that reaches top_p; at least one token.
        kept = int(torch.searchsorted(cumulative, row.top_p * cumulative[-1])) + 1
        cumulative = cumulative[:kept]
    target = uniform(row.seed, row.step) * cumulative[-1]
    place = int(torch.searchsorted(cumulative, target, right=True))
    place = min(place, cumulative.shape[0] - 1)
    return place if ids is None else int(ids[place])


def _with_logprobs(logits: torch.Tensor, token_id: int, count: int) -> SampledToken:
    logprobs = torch.log_softmax(logits, 0)
    top: list[tuple[int, float]] = []
    if count > 0:
        values, ids = logprobs.topk(min(count, logprobs.shape[0]))
        top = list(zip(ids.tolist(), values.tolist(), strict=True))
    return SampledToken(token_id=token_id, logprob=float(logprobs[token_id]), top=top)
