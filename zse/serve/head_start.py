"""The model is opened in a thread of its own, before the rest of the server is imported.

A start waits for three things: the driver that opens the GPU, the memory that the weights come
from, and Python, which imports one module at a time. The first two need little of the third, so
they begin first, and run beside it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from zse.device.phases import Phases, no_phases
from zse.engine.opening import OpenedModel, open_model

if TYPE_CHECKING:
    from zse.quantize.locate import StageProgress
    from zse.settings import Settings


class HeadStart:
    """Opens the model that the settings name."""

    def __init__(
        self, settings: Settings, phases: Phases = no_phases, progress: StageProgress | None = None
    ) -> None:
        self._settings = settings
        self._phases = phases
        self._progress = progress
        self._opened: OpenedModel | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._open, name="zse-open", daemon=True)
        self._thread.start()

    def take(self) -> OpenedModel:
        """Wait for the model and hand it over.

        Raises:
            ZSEError: What opening it raised.
        """
        self._thread.join()
        if self._opened is None:
            raise self._error or RuntimeError("a model can be taken once")
        opened, self._opened = self._opened, None
        return opened

    def _open(self) -> None:
        try:
            self._opened = open_model(
                self._settings.serve.model,
                self._settings.serve.load,
                self._settings,
                phases=self._phases,
                progress=self._progress,
            )
        except BaseException as error:  # noqa: BLE001 - raised by ``take``
            self._error = error
