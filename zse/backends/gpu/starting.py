"""A GPU backend's start: what is made ready while weights arrive, and who waits for them."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from zse.backends.gpu.operations import GPUOperations
from zse.backends.gpu.plans import TURNED_ROWS
from zse.backends.gpu.step_maker import GREEDY
from zse.errors import DeviceError, ZSEError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.backends.gpu.arriving import RestOfStart
    from zse.backends.gpu.captured import CapturedSteps
    from zse.backends.gpu.forward import Residual, Step
    from zse.backends.gpu.passes import Passes
    from zse.backends.gpu.step_maker import StepMaker
    from zse.backends.operations import Forward
    from zse.device.gpu import Gpu, Stream
    from zse.models.spec import HeadSpec

_LOG = logging.getLogger("zse.backends")


class StartingBackend(GPUOperations):
    """See ``zse.backends.operations.Backend``, of which this is what concerns starts."""

    _gpu: Gpu
    _stream: Stream
    _passes: Passes
    _graphs: CapturedSteps
    _maker: StepMaker
    lm_head: Callable[[Step, Residual, HeadSpec], bytes]
    rest_of_start: RestOfStart | None = None
    """What is left of it; None where nothing is."""
    _is_asked = False
    """Whether any step was."""
    _prepares_no_more = False
    """Whether a step to come could not be prepared, as where memory ran out."""

    @property
    def begins_with_capture(self) -> bool:
        """Whether steps must be captured before the first one: by all ranks, or with streams."""
        return self._graphs.begin_first

    def warm(self, forward: Forward) -> None:
        """Capture the step of a single greedy sequence, so that the first answer finds it.

        The weights need not be there yet.
        """
        self._gpu.make_current()
        self._graphs.captured(GREEDY, partial(forward, self), self.choose)
        self._stream.synchronize()

    def prepare_more(self) -> bool:
        """Prepare a little of a first request, unless one has come; whether there was anything."""
        rest = self.rest_of_start
        return rest is not None and not self._is_asked and rest.prepare()

    def settle(self) -> None:
        """Wait until all weights are there: passes until then wait for what they need.

        Raises:
            FormatError, StoreError, DeviceError: What kept them from it.
        """
        if self.rest_of_start is not None:
            self.rest_of_start.settle(self._passes)
            self.rest_of_start = None

    def stop_settling(self) -> None:
        """Let no more weights come; who waits for them gets ``LoadCancelledError``."""
        if self._passes.is_arriving:
            self._passes.close()

    def prepare_prompt(self, forward: Forward, rows: int) -> Iterator[None]:
        """Load the kernels that a first prompt of about so many tokens goes through, one by one.

        All is done by the thread that begins.
        """
        self._gpu.make_current()
        yield from self._maker.rehearse_prompt(rows, partial(forward, self), self.choose)

    def prepare_expected(self, ends: Forward, forward: Forward, rows: int) -> None:
        """Begin with what a prompt of about so many tokens needs, which comes at once.

        Args:
            ends: The pass of the model without its layers.
        """
        self._gpu.make_current()
        try:
            self._maker.expect_prompt(rows, partial(ends, self), partial(forward, self))
        except DeviceError as error:  # the step finds out what it can do without
            if not error.is_out_of_memory:
                raise

    def prepare_idle(self, forward: Forward) -> bool:
        """Prepare one of the steps that are likely to come; whether there was one to prepare.

        For a device that has nothing to do, behind its first answer: some milliseconds each.
        """
        is_alone = not self.begins_with_capture and self._model.flow is None
        if not is_alone or self._passes.is_arriving or self._prepares_no_more:
            return False
        self._gpu.make_current()
        try:
            return self._prepare_one(partial(forward, self))
        except ZSEError as error:  # a step that comes is computed without, or says it itself
            _LOG.warning("no further steps are prepared: %s", error)
            self._prepares_no_more = True
            return False

    def _prepare_one(self, work: Callable[[Step], object]) -> bool:
        from zse.backends.gpu import idle  # no start needs it

        options, maker = self._model.options.batch, self._maker
        most = options.max_sequences
        if maker.reads_prompts:
            for answers, rows in idle.steps_to_rehearse(maker.patterns, options):
                maker.patterns.rehearsed.add((answers, rows))
                for fewer in idle.UNLIKE_ROWS:
                    if maker.rehearse_beside(answers, rows - fewer, work):
                        break  # its pattern is known
                return True
        elif not self._model.plans.turns_all:
            # More rows read weights that are kept turned, which short prompts never need.
            most = min(most, TURNED_ROWS)
        for key in idle.keys_to_capture(self._graphs, most):
            self._graphs.captured(key, work, self.choose)
            return True
        return False
