"""What the driver hands out and wants back once: blocks, streams, events, modules, graphs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

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
                rest.callback(resource.destroy)


class Resource:
    """One thing of the driver's, known by a number that is invalid after ``destroy``."""

    noun: ClassVar[str]
    taken_back_by: ClassVar[str]
    """The driver's function that it is given back to."""

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

    def destroy(self) -> None:
        """Give it back; the second time does nothing."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._owner.resources.pop(self, None)
            self._give_back(handle)

    def _give_back(self, handle: int) -> None:
        self._driver.release(self.taken_back_by, handle)


class Memory(Resource):
    """A resource that is known by its address."""

    length_bytes: int

    @property
    def address(self) -> int:
        return self.handle

    def free(self) -> None:
        """Give the memory back; the driver waits for work in flight that may use it."""
        self.destroy()
