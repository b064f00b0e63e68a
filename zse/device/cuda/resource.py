"""What the driver hands out and wants back once: blocks, streams, events, modules, graphs."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from zse.device.cuda.errors import CudaRule

if TYPE_CHECKING:
    from zse.device.cuda.library import Driver


class Owner:
    """Keeps what is not yet given back, in the order it was made."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.resources: dict[Resource, None] = {}

    def release_all(self) -> None:
        """Give everything back, the youngest first; an error is raised when all were tried."""
        with contextlib.ExitStack() as rest:
            for resource in self.resources:
                rest.callback(resource.release)


class Resource(ABC):
    """One thing of the driver's, known by a number that is invalid after ``release``."""

    noun = "a resource"

    def __init__(self, owner: Owner, handle: int) -> None:
        self._owner = owner
        self._driver = owner.driver
        self._handle: int | None = handle
        owner.resources[self] = None

    @property
    def handle(self) -> int:
        """The driver's number for it.

        Raises:
            CudaError: It was given back.
        """
        if self._handle is None:
            raise CudaRule.RELEASED(f"{self.noun} was used after it had been released")
        return self._handle

    def release(self) -> None:
        """Give it back; the second time does nothing."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._owner.resources.pop(self, None)
            self._give_back(handle)

    @abstractmethod
    def _give_back(self, handle: int) -> None: ...
