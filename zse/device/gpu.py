"""What a GPU does here, whoever made it: memory, streams, events, graphs, kernels. Types alone.

``zse.device.open`` opens one; ``zse.device.cuda`` has this shape, and so have the tests' own.
Everything that a GPU hands out is given back by its own ``free`` or ``destroy``, or by ``close``
of the GPU. What goes wrong is a ``DeviceError``; what work failed with is raised where it is
waited for. Other threads run while one waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from zse.device.facts import GpuInfo, GpuLink
    from zse.device.loader.library import CopyFunctions

Grid: TypeAlias = tuple[int, int, int]
"""Programs along x, y and z."""


class Block(Protocol):
    """Device memory, 256-byte aligned. Work in flight that may use it ends before it is freed."""

    @property
    def address(self) -> int: ...
    @property
    def length_bytes(self) -> int: ...
    def free(self) -> None: ...


class Pool(Block, Protocol):
    """Device memory that grows in place: its address never changes."""

    def grow(self, to_bytes: int) -> int:
        """Make it hold at least so many bytes; return how many it holds."""


class SharedBlock(Block, Protocol):
    """Device memory that other processes of the host map."""

    def export(self) -> int:
        """Return a file descriptor by which another process maps it; the caller closes it."""


class HostBlock(Block, Protocol):
    """Pinned host memory; its address is a multiple of 4096."""

    @property
    def view(self) -> memoryview:
        """Its bytes, writable; invalid after ``free``, which no copy may outlive."""


class Stream(Protocol):
    """Work that is done in order."""

    @property
    def handle(self) -> int:
        """The driver's number for it."""

    def synchronize(self) -> None: ...
    def destroy(self) -> None: ...


class Event(Protocol):
    """A mark in a stream."""

    def record(self, stream: Stream) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_ms(self, since: Self) -> float:
        """Return the milliseconds between two marks that were reached; both with timing."""

    def destroy(self) -> None: ...


class GraphExec(Protocol):
    """Recorded work, ready to be repeated."""

    def launch(self, stream: Stream) -> None: ...
    def upload(self, stream: Stream) -> None:
        """Bring it to the GPU before its first launch, so that the launch does not wait for it."""

    def destroy(self) -> None: ...


class Graph(Protocol):
    """Recorded work, described; what is instantiated of it outlives it."""

    def instantiate(self) -> GraphExec: ...
    def destroy(self) -> None: ...


class Capture(Protocol):
    """What a ``with`` block puts into a stream is recorded, not executed."""

    @property
    def graph(self) -> Graph:
        """What was recorded, once the block has ended."""


class Kernel(Protocol):
    """A kernel of which only the grid and the arguments are open. For one thread at a time."""

    def launch(self, grid: Grid, stream: Stream, *values: float) -> None:
        """Put it into a stream; the values are copied before this returns."""


class Repetition(Protocol):
    """Kernels that are launched in rounds. For one thread at a time, while their modules stay."""

    def launch(
        self, stream: Stream, calls: Sequence[tuple[Grid, Sequence[float]]], rounds: range
    ) -> None:
        """Put rounds into a stream, with a grid and the arguments of each kernel of a round.

        Of the arguments those that change have any value here.
        """


class Module(Protocol):
    """Code on the GPU."""

    def kernel(
        self,
        entry: str,
        types: Sequence[str],
        *,
        num_threads: int,
        shared_bytes: int = 0,
        num_ctas: int = 1,
        programmatic: bool = False,
        cooperative: bool = False,
    ) -> Kernel:
        """Return a kernel; it lives as long as the module.

        Args:
            types: Of its arguments: ``*fp32`` and the like for addresses, ``i32 i64 fp32``.
            shared_bytes: Dynamic shared memory of a block.
            num_ctas: Blocks of a cluster along x; a program of the grid is one cluster.
            programmatic: May start while the kernel before it in the stream still runs.
            cooperative: All blocks must be resident at once.
        """


class Gpu(Protocol):
    """An open GPU. A thread calls ``make_current`` before it uses it.

    New memory holds anything. Copies and fills are put into a stream; those from and to the host
    do not wait where the host's memory is pinned.
    """

    @property
    def name(self) -> str:
        """As it is asked for: ``cuda:0``."""

    @property
    def info(self) -> GpuInfo: ...
    def close(self) -> None:
        """Give everything back that is still held; twice does nothing."""

    def make_current(self) -> None: ...
    def memory(self) -> tuple[int, int]:
        """Return free and total bytes, now."""

    def limit_stack(self, length_bytes: int) -> None:
        """Set the stack that is kept for every thread that can be resident."""

    def allocate(self, length_bytes: int) -> Block: ...
    def allocate_host(self, length_bytes: int) -> HostBlock: ...
    def create_pool(self, reserve_bytes: int) -> Pool:
        """Return device memory that grows, up to ``reserve_bytes``; it holds none yet."""

    def allocate_shared(self, length_bytes: int) -> SharedBlock: ...
    def open_shared(self, descriptor: int, length_bytes: int) -> Block:
        """Map the memory of another process's GPU; the descriptor stays the caller's to close."""

    def map_host(self, host_address: int, length_bytes: int) -> Block:
        """Let kernels see whole pages of the host's memory, at the address of what is returned."""

    def link_to(self, ordinal: int) -> GpuLink:
        """Return how kernels here reach another GPU's memory; a ``DeviceError`` if they do not."""

    def create_stream(self) -> Stream: ...
    def create_event(self, timing: bool = False) -> Event: ...
    def load_module(self, image: bytes) -> Module: ...
    def repetition(
        self,
        kernels: Sequence[Kernel],
        places: Sequence[tuple[int, int]],
        rounds: Sequence[Sequence[float]],
    ) -> Repetition:
        """Return what launches kernels, one after the other, in rounds.

        Args:
            places: Of the arguments that change: which kernel's, and which of its arguments.
            rounds: The values of each round, one for each place.
        """

    def capture(self, stream: Stream) -> AbstractContextManager[Capture]: ...
    def copy_to_device(
        self, destination: int, source: int, length_bytes: int, stream: Stream
    ) -> None: ...
    def copy_to_host(
        self, destination: int, source: int, length_bytes: int, stream: Stream
    ) -> None: ...
    def copy_on_device(
        self, destination: int, source: int, length_bytes: int, stream: Stream
    ) -> None: ...
    def wait_for_value(self, address: int, value: int, stream: Stream) -> None:
        """Have a stream wait until the uint32 at an address has come to a value, or gone past it.

        The address is one of ``map_host``. Gone past is what is less than 2**31 further on.
        """

    def write_value(self, address: int, value: int, stream: Stream) -> None:
        """Write a uint32 when all work before in the stream is done, and seen by everybody."""

    def copy_functions(self) -> CopyFunctions | None:
        """Return what threads without Python copy by; None where there is nothing of the kind."""

    def fill(self, address: int, byte: int, length_bytes: int, stream: Stream) -> None: ...
