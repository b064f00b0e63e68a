"""A step that is computed when it is waited for, behind those that were handed over before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from zse.backends.types import Answers


class LaterStep:
    """See ``zse.backends.operations.PendingStep``.

    Args:
        work: Computes it.
        line: Of steps that are to be computed in their order, this one among them.
    """

    def __init__(self, work: Callable[[], Answers], line: deque[LaterStep]) -> None:
        self._work, self._line = work, line
        self._answers: Answers | None = None
        self._error: BaseException | None = None

    def sample(self) -> None:
        """Its tokens are chosen when it is computed."""

    def compute(self) -> None:
        """Do it; what goes wrong is raised where it is waited for."""
        try:
            self._answers = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for this step is told
            self._error = error

    def wait(self) -> Answers:
        while self._answers is None and self._error is None:
            self._line.popleft().compute()
        if self._error is not None:
            raise self._error
        assert self._answers is not None
        return self._answers
