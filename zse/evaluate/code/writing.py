"""The engine writes the answers: all problems share its batches, in this process."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from zse.engine.request import SamplingParams
from zse.evaluate.code.answers import Answer
from zse.evaluate.code.form import beginning, question, stops
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.engine.llm import LLM
    from zse.engine.output import Delta
    from zse.evaluate.code.form import Form
    from zse.evaluate.code.problems import Problem


@record
class Asked:
    """How answers are drawn."""

    samples: int = 1
    """Of each problem."""
    temperature: float = 0.0
    """0 takes the likeliest token each time."""
    top_p: float = 0.95
    max_tokens: int = 512
    seed: int = 0


class Writer:
    """Writes answers with a model.

    Args:
        llm: The model.
        form: How it is asked.
        asked: How its tokens are drawn.
        num_together: Answers that are written at once.
    """

    def __init__(self, llm: LLM, form: Form, asked: Asked, *, num_together: int) -> None:
        self._llm = llm
        self._form: Form = form
        self._asked = asked
        self._num_together = num_together

    def answers(self, wanted: Sequence[tuple[Problem, int]]) -> Iterator[Answer]:
        """Yield the answer to each problem and sample, whichever is done first.

        When one is done, the next begins: the batch stays full.
        """
        waiting = iter(wanted)
        running = [self._answer(*one) for one in itertools.islice(waiting, self._num_together)]
        while running:
            for _place, answer in enumerate(list(running)):
                found = next(answer)
                if found is None:
                    continue
                yield found
                following = next(waiting, None)
                if following is None:
                    running.remove(answer)
                else:
                    running[running.index(answer)] = self._answer(*following)

    def _answer(self, problem: Problem, sample: int) -> Iterator[Answer | None]:
        """Yield None while an answer grows, and then the answer."""
        deltas: list[Delta] = []
        params = SamplingParams(
            max_tokens=self._asked.max_tokens,
            temperature=self._asked.temperature,
            top_p=self._asked.top_p,
            seed=self._asked.seed + sample,
            stop=stops(self._form),
        )
        for delta in self._llm.stream(self._prompt(problem), params):
            deltas.append(delta)
            if not delta.finish_reason:
                yield None
        yield Answer(
            task_id=problem.task_id,
            sample=sample,
            text="".join(delta.text for delta in deltas),
            num_tokens=sum(len(delta.token_ids) for delta in deltas),
            was_ended=deltas[-1].finish_reason == "stop",
        )

    def _prompt(self, problem: Problem) -> list[int]:
        tokenizer = self._llm.tokenizer
        if self._form == "completion":
            return tokenizer.encode(problem.prompt.rstrip())
        begun = tokenizer.encode_within(beginning())
        return [*self._llm.chat_prompt(question(problem)), *begun]
