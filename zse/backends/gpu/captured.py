"""The steps of a model that were captured: which are, from when on, and how one is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.graphs import (
    ENTRY_ROOMS,
    MAX_BUCKET,
    CapturedStep,
    GraphKey,
    bucket_of,
    room_for,
    tile_room,
)
from zse.backends.gpu.step import shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.forward import Step
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.step import StepPlan
    from zse.backends.gpu.step_maker import StepMaker
    from zse.backends.operations import Forward
    from zse.device.gpu import Stream
    from zse.kernels.launcher import Launcher


class CapturedSteps(dict[GraphKey, CapturedStep]):
    """Steps by what decides which kernels run; one is captured when it first comes up.

    ``receive`` has the stream of a step come from the stage before, if there is one.
    """

    def __init__(
        self,
        stream: Stream,
        launcher: Launcher,
        model: DeviceModel,
        maker: StepMaker,
        receive: Callable[[int, StepPlan], None],
    ) -> None:
        super().__init__()
        self._stream = stream
        self._launcher = launcher
        self._model = model
        self._maker = maker
        self._receive = receive
        self._is_first = True
        """Whether no decode step was asked for yet."""

    @property
    def begin_first(self) -> bool:
        """Whether steps must be captured before the first one: by all ranks, or with streams."""
        return self._model.collectives is not None or not self._model.passes.looks_ahead

    def repeats(self, plan: StepPlan) -> bool:
        """Whether a step is one that is repeated from a graph, and graphs have begun to be."""
        takes_states = self._model.plans.takes_states  # which no graph waits for
        return not takes_states and self.can_repeat(plan) and self._is_due()

    @staticmethod
    def can_repeat(plan: StepPlan) -> bool:
        """Whether a graph can hold a step: each row is one of its own, and gets a successor."""
        fits = plan.single_rows <= MAX_BUCKET and len(plan.entries.rows) <= ENTRY_ROOMS[-1]
        all_sampled = plan.kind != "prefill" and len(plan.sampled) == plan.single_rows
        return fits and all_sampled and not plan.wants_hidden

    def _is_due(self) -> bool:
        """Whether steps are captured by now: where none is, the first one is launched as it is.

        It stands in the stream behind the first prompt, whose token would wait for the capture.
        """
        is_first, self._is_first = self._is_first, False
        return bool(self) or not is_first or self.begin_first

    def repeat(
        self,
        plan: StepPlan,
        work: Callable[[Step], object],
        choose: Callable[[Step], object],
        guess: Forward | None = None,
    ) -> CapturedStep:
        """Launch a step that a graph can hold; captured first where none of its kind was yet.

        ``guess`` is what ``work`` launches where that is not the model's own pass.
        """
        bucket = bucket_of(plan.single_rows)
        room = room_for(len(plan.entries.rows))
        tiles = tile_room(plan.adapter_tiles, bucket)
        key = GraphKey(plan.kind, bucket, plan.sampling_kind, room, tiles, guess)
        captured = self.captured(key, work, choose)
        if captured.is_turned:  # perhaps of a model that has come since
            self._model.prepare_turned(self._launcher)
        self._model.passes.before_head()
        limits = self._maker.limits
        shape = shape_of(plan, limits, bucket=bucket, entry_room=room, adapter_room=tiles)
        self._maker.send(plan, shape, captured.inputs.address)
        self._receive(captured.residual, plan)
        captured.graph.launch(self._stream)
        return captured

    def captured(
        self, key: GraphKey, work: Callable[[Step], object], choose: Callable[[Step], object]
    ) -> CapturedStep:
        """Return a step of one kind; it is not launched."""
        if key not in self:
            self[key] = self._maker.capture(key, work, choose)
        return self[key]

    def forget(self) -> None:
        """Give all back: memory that they read is no longer theirs. None is in flight."""
        self._maker.patterns.forget()
        for captured in self.values():
            captured.free()
        self.clear()
