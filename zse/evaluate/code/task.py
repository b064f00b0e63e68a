"""From a model's file to its figures: what is not answered yet is written, then all is run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from zse.engine.llm import LLM
from zse.engine.requirements import facts_of
from zse.errors import TemplateError, UsageError
from zse.evaluate.code.answers import AnswersFile, read_answers
from zse.evaluate.code.form import beginning, question
from zse.evaluate.code.problems import Problem, digest_of
from zse.evaluate.code.run import Graded, grade
from zse.evaluate.code.writing import Asked, Writer
from zse.format.reader import ZSEReader
from zse.option import with_values
from zse.options import load_fields
from zse.records import record
from zse.text.template import load_chat_template

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.evaluate.code.form import Form
    from zse.options import LoadOptions
    from zse.quantize.locate import StageProgress

_TEMPLATE_TOKENS = 512
"""Of a chat template and a system message of its own, at most."""


@record
class Written:
    """A model's answers, run."""

    graded: Graded
    num_tokens: int
    num_ended: int
    """Answers that came to their end before the most tokens they may have."""


@record
class CodeTask:
    """Problems, and how a model is asked."""

    problems: tuple[Problem, ...]
    how: Asked

    def of_model(
        self, path: Path, options: LoadOptions, kept: Path | None, show: StageProgress
    ) -> Written:
        """Have a .zse file's model write what is not in ``kept`` yet, and run all answers.

        Raises:
            UsageError: The file of answers is about something else.
            ContextLengthError: A problem and its answer are longer than the model takes.
            SandboxError: Programs cannot be held here.
        """
        form = _form_of(path)
        answers = AnswersFile(kept, self._about(path, options, form))
        wanted = [one for one in self._all(self.how.samples) if _key(*one) not in answers.found]
        total = len(self.problems) * self.how.samples
        if wanted:
            options = with_values(options, {"max_context": self._context_of(path)})
            with LLM(path, **load_fields(options)) as llm:
                together = options.batch.max_sequences
                writer = Writer(llm, form, self.how, num_together=together)
                show("writing", total - len(wanted), total)
                for answer in writer.answers(wanted):
                    answers.add(answer)
                    show("writing", len(answers.found), total)
        return self._graded(answers.found, form, self.how.samples, show)

    def of_file(self, path: Path, show: StageProgress) -> Written:
        """Run the answers that another run kept.

        Raises:
            UsageError: They are answers to other problems, or not to all.
        """
        about, answers = read_answers(path)
        if about.get("problems") != digest_of(self.problems):
            raise UsageError(f"{path} has answers to other problems")
        found = {(one.task_id, one.sample): one for one in answers}
        samples, form = about.get("samples"), about.get("form")
        if not isinstance(samples, int) or form not in ("chat", "completion"):
            raise UsageError(f"{path} does not say how its model was asked")
        lacking = sum(_key(*one) not in found for one in self._all(samples))
        if lacking or samples < 1:
            raise UsageError(
                f"{path} lacks {lacking} answers",
                hint="Let the run that writes it come to its end.",
            )
        return self._graded(found, form, samples, show)

    def _graded(
        self, found: dict[tuple[str, int], Any], form: Form, samples: int, show: StageProgress
    ) -> Written:
        def progress(done: int, total: int) -> None:
            show("running", done, total)

        return Written(
            graded=grade(self.problems, found, form, samples=samples, progress=progress),
            num_tokens=sum(answer.num_tokens for answer in found.values()),
            num_ended=sum(answer.was_ended for answer in found.values()),
        )

    def _all(self, samples: int) -> Iterator[tuple[Problem, int]]:
        return ((problem, sample) for problem in self.problems for sample in range(samples))

    def _about(self, path: Path, options: LoadOptions, form: Form) -> dict[str, Any]:
        """Return all that makes answers others."""
        return {
            "model": _digest_of(path),
            "problems": digest_of(self.problems),
            "form": form,
            "kv_dtype": options.cache.kv_dtype,
            "exact_activations": options.device.exact_activations,
            **asdict(self.how),
        }

    def _context_of(self, path: Path) -> int:
        """Return the tokens that suffice for each problem: no text has more tokens than bytes."""
        longest = max(len(question(problem).encode()) for problem in self.problems)
        needed = longest + len(beginning()) + _TEMPLATE_TOKENS + self.how.max_tokens
        with ZSEReader(path) as reader:
            return min(needed, facts_of(reader.header).spec.max_position)


def _key(problem: Problem, sample: int) -> tuple[str, int]:
    return problem.task_id, sample


def _form_of(path: Path) -> Form:
    with ZSEReader(path) as reader:
        try:
            load_chat_template(reader)
        except TemplateError:
            return "completion"
    return "chat"


def _digest_of(path: Path) -> str:
    """Return the digest of the header, in which those of all weights stand."""
    with path.open("rb") as file:
        return file.read(48)[16:].hex()
