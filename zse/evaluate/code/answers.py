"""Answers that were written, a line each, kept in a file so that a stopped run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from zse.errors import UsageError
from zse.evaluate.code.problems import MOST_BYTES
from zse.records import record

if TYPE_CHECKING:
    from pathlib import Path


@record
class Answer:
    """What a model wrote for one problem."""

    task_id: str
    sample: int
    """Which of the answers to this problem, from 0."""
    text: str
    num_tokens: int
    was_ended: bool
    """It came to its end, not to the most tokens that it may have."""


class AnswersFile:
    """Answers on disk; the first line says what they are answers to.

    Args:
        path: The file, made when the first answer comes; None keeps them for this run only.
        about: The model, the problems and how it was asked: what makes answers others.

    Raises:
        UsageError: The file holds answers to something else, or is no such file.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self._path = path
        self._about = about
        self.found: dict[tuple[str, int], Answer] = {}
        if path is not None and path.exists():
            written_about, answers = read_answers(path)
            for name, value in about.items():
                if written_about.get(name) != value:
                    raise UsageError(
                        f"{path} has answers where {name} is {written_about.get(name)!r}, not "
                        f"{value!r}",
                        hint="Name another file; this one is kept as it is.",
                    )
            self.found = {(one.task_id, one.sample): one for one in answers}
            path.write_text(_lines(about, answers), encoding="utf-8")  # without half a line

    def add(self, answer: Answer) -> None:
        """Keep one more answer; it is in the file when this returns."""
        is_first = not self.found
        self.found[answer.task_id, answer.sample] = answer
        if self._path is not None:
            line = json.dumps(asdict(answer)) + "\n"
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_lines(self._about, []) + line if is_first else line)


def read_answers(path: Path) -> tuple[dict[str, Any], list[Answer]]:
    """Return what a file says its answers are to, and the answers; half a last line is left out.

    Raises:
        UsageError: It is no such file.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} has more than {MOST_BYTES:,} bytes")
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        about: Any = json.loads(lines[0]) if lines else {}
        answers = [_answer(json.loads(line)) for line in lines[1:]]
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} holds no answers of `zse eval`: {error}") from error
    if not isinstance(about, dict):
        raise UsageError(f"{path} holds no answers of `zse eval`: its first line says of what")
    return about, answers


def _answer(found: Any) -> Answer:
    kinds = {"task_id": str, "sample": int, "text": str, "num_tokens": int, "was_ended": bool}
    if not isinstance(found, dict) or found.keys() != kinds.keys():
        raise TypeError(f"a line has other fields than {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not isinstance(found[name], kind):
            raise TypeError(f"{name} is {found[name]!r}")
    return Answer(**found)


def _lines(about: dict[str, Any], answers: list[Answer]) -> str:
    return "".join(json.dumps(one) + "\n" for one in (about, *map(asdict, answers)))
