"""A step with masks: through the layers at once, to its tokens when the masks are known.

Which tokens may come next depends on the token before, so masks are the one input that the host
cannot send ahead. A step reads them at its very end. By then it has been computing for long, so the
host has had time to write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.transfers import PendingResults
    from zse.backends.types import Answers


class MaskedStep:
    """See ``zse.backends.operations.PendingStep``.

    Args:
        choose: Sends the masks and enqueues what chooses by them.
    """

    def __init__(self, choose: Callable[[], PendingResults]) -> None:
        self._choose = choose
        self._results: PendingResults | None = None

    def sample(self) -> None:
        if self._results is None:
            self._results = self._choose()

    def wait(self) -> Answers:
        self.sample()
        assert self._results is not None
        return self._results.wait()
