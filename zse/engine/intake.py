"""From a request to the sequences that answer it: one for each choice, ranked as it arrives."""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING

from zse.engine.reading import PromptReading
from zse.engine.sequence import Sequence, seed_of_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.engine.drafting.token_states import TokenStates
    from zse.engine.request import Request


def rank_of(*, priority: int, arrival: int, step: int, aging_steps: int) -> tuple[int, int]:
    """Return the fixed rank of an arrival; larger goes first.

    Waiting raises everybody's priority by one each ``aging_steps`` steps. As all age alike, the
    order between two requests never changes and can be written down at arrival: in which step, and
    as which arrival of all.
    """
    return (priority * aging_steps - step, -arrival)


class Intake:
    """Makes sequences of requests, in the order in which they come.

    Args:
        end_token_ids: Tokens that end an answer unless ``ignore_eos`` is set.
        aging_steps: Steps of waiting that weigh as much as one unit of priority.
        collect_states: What makes the place of a sequence's states, where whoever guesses reads
            them.
    """

    def __init__(
        self,
        end_token_ids: tuple[int, ...],
        aging_steps: int,
        collect_states: Callable[[], TokenStates] | None,
    ) -> None:
        self._end_token_ids = end_token_ids
        self._aging_steps = aging_steps
        self._collect_states = collect_states
        self._arrivals = itertools.count()

    def sequences_of(self, request: Request, max_tokens: int, *, step: int) -> list[Sequence]:
        """Return the sequences of a request; those behind the first share its prompt's blocks.

        Args:
            request: The request.
            max_tokens: Most tokens of each answer.
            step: The number of the step that comes next.
        """
        params = request.params
        seed = secrets.randbits(63) if params.seed is None else params.seed
        end_of_answer = () if params.ignore_eos else self._end_token_ids
        sequences: list[Sequence] = []
        for index in range(params.n):
            rank = rank_of(
                priority=request.priority,
                arrival=next(self._arrivals),
                step=step,
                aging_steps=self._aging_steps,
            )
            sequence = Sequence(
                request=request,
                index=index,
                seed=seed_of_choice(seed, index),
                max_tokens=max(max_tokens, 1),  # a prompt without an answer ends with one, too
                end_token_ids=frozenset((*end_of_answer, *params.stop_token_ids)),
                rank=rank,
                leader=sequences[0] if sequences else None,
                grammar=request.grammar.begin() if request.grammar is not None else None,
                prompt_token_ids=list(request.prompt_token_ids),
                token_ids=list(request.prompt_token_ids),
                reading=PromptReading.of(request) if index == 0 else None,
                states=self._collect_states() if self._collect_states is not None else None,
            )
            sequences.append(sequence)
        return sequences
