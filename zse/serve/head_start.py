"""The model is opened in a thread of its own, before the rest of the server is imported.

A start waits for three things: the driver that opens the GPU, the memory that the weights come
from, and Python, which imports one module at a time. The first two need little of the third, so
they begin first, and run beside it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from zse.device.phases import Phases, no_phases
from zse.engine.opening import OpenedModel, open_file, send_weights

if TYPE_CHECKING:
    from zse.backends.gpu.retained import Retained
    from zse.engine.ranks.processes import RankProcesses
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec
    from zse.quantize.locate import StageProgress
    from zse.settings import Settings


class HeadStart:
    """Opens the model that the settings name.

    Args:
        phases: Told what takes the time.
        progress: Told how far a conversion or a download is.
        retained: What another model of the same shape has left, if one has: it is taken over at
            once then, for there is nothing to wait for beside it.
    """

    def __init__(
        self,
        settings: Settings,
        phases: Phases = no_phases,
        progress: StageProgress | None = None,
        retained: Retained | None = None,
    ) -> None:
        self._settings = settings
        self._phases = phases
        self._progress = progress
        self._retained = retained
        self._file: ModelFile | None = None
        self._has_file = threading.Event()
        self._opened: OpenedModel | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if retained is not None:
            self._open()
            return
        self._thread = threading.Thread(target=self._open, name="zse-open", daemon=True)
        self._thread.start()

    @property
    def known_spec(self) -> ModelSpec | None:
        """What the model is, where another one of the same shape has left its place to it."""
        return None if self._retained is None else self._retained.backend.spec

    def file(self) -> ModelFile:
        """Wait until the model's file is open, the GPU perhaps not yet; raises as ``take``."""
        self._has_file.wait()
        if self._file is None:
            raise self._error or RuntimeError("the file was not opened")
        return self._file

    def take(self) -> OpenedModel:
        """Wait for the model and hand it over.

        Raises:
            ZSEError: What opening it raised.
        """
        self._wait()
        if self._opened is None:
            raise self._error or RuntimeError("a model can be taken once")
        opened, self._opened = self._opened, None
        return opened

    def abandon(self) -> None:
        """Give back what was opened, if nobody took it."""
        self._wait()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.abandon()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _open(self) -> None:
        settings, options = self._settings, self._settings.serve.load
        processes: RankProcesses | None = None
        try:
            if options.ranks.num_devices > 1:
                from zse.engine.ranks.processes import begin_processes

                processes = begin_processes(options)
            self._file = open_file(
                settings.serve.model,
                options,
                settings,
                phases=self._phases,
                progress=self._progress,
            )
            self._has_file.set()
            self._opened = send_weights(
                self._file,
                options,
                self._phases,
                cache_dir=settings.cache_dir,
                retained=self._retained,
                peering=settings.serve.peering,
                processes=processes,
            )
        except BaseException as error:  # noqa: BLE001 - raised by ``take``
            if processes is not None and self._file is None:
                processes.close()  # nobody has taken them over
            self._error = error
        finally:
            self._has_file.set()
