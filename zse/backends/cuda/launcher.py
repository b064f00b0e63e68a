"""Runs the kernels of a pack in one stream.

A kernel is loaded when it is first used. After that a launch is a dictionary look-up, one packing
of the arguments and one call of the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from zse.device.cuda import CudaError, LaunchSite, ParameterBlock, WrongArchitectureError
from zse.kernels.launcher import DeviceFacts

if TYPE_CHECKING:
    from zse.device.cuda import DeviceBlock, Gpu, Stream
    from zse.kernels.launcher import Grid, Value
    from zse.kernels.variant import Variant

WARP_THREADS = 32
_ALIGNMENT_MASK = 15
_ONLY_ITS_OWN_MINOR = 9
"""From sm_90 on kernels are compiled for one architecture (sm_90a), not for its successors."""


class PackedKernel(Protocol):
    """One kernel of a pack: what a launch needs to know of it."""

    @property
    def entry(self) -> str:
        """Symbol in the image."""

    @property
    def image(self) -> memoryview:
        """The cubin."""

    @property
    def num_warps(self) -> int:
        """Warps of a block."""

    @property
    def num_ctas(self) -> int:
        """Blocks of a cluster; a program is one cluster."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""

    @property
    def global_scratch_bytes(self) -> int:
        """Scratch memory of a block, for the compiler's own use."""

    @property
    def profile_scratch_bytes(self) -> int:
        """Scratch memory of a block, for the compiler's profiler."""

    @property
    def programmatic(self) -> bool:
        """Whether it may start while the kernel before it still runs."""

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the run-time arguments, in order."""


class Pack(Protocol):
    """Compiled kernels for one architecture."""

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability that they were compiled for."""

    def entry(self, key: str) -> PackedKernel:
        """Return a kernel by the key of its variant.

        Raises:
            KernelPackError: The pack holds no such variant.
        """


class PackLauncher:
    """See ``zse.kernels.launcher.Launcher``. For one thread: arguments are packed in place.

    Args:
        gpu: Where the stream is; its context is current in the thread that launches.
        pack: The kernels.
        stream: Where launches go.

    Raises:
        WrongArchitectureError: The pack is for another GPU.
    """

    def __init__(self, gpu: Gpu, pack: Pack, stream: Stream) -> None:
        check_capability(pack.capability, gpu)
        self._gpu = gpu
        self._pack = pack
        self._stream = stream
        self._sites: dict[str, _Site] = {}
        self.device = DeviceFacts(
            name=gpu.info.name,
            capability=gpu.info.capability,
            multiprocessors=gpu.info.multiprocessors,
            bandwidth_bytes_per_second=gpu.info.bandwidth_bytes_per_second,
        )

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        """Enqueue one kernel; the first time of a variant its code is loaded.

        Raises:
            KernelPackError: The pack holds no such variant.
            CudaError: An argument breaks the variant's promise, or the driver refused the launch.
        """
        site = self._sites.get(variant.key)
        if site is None:
            site = self.prepare(variant)
        for index in site.aligned:
            if arguments[index] & _ALIGNMENT_MASK:  # type: ignore[operator]
                raise CudaError(
                    f"{variant.key}: {variant.arguments[index].name} = {arguments[index]} is not "
                    "a multiple of 16, which the kernel relies on"
                )
        scratch = site.scratch(grid) if site.needs_scratch else (0, 0)
        pointers = site.block.pack(*arguments, *scratch)
        site.launch_site.launch(grid, self._stream.handle, pointers)

    def prepare(self, variant: Variant) -> _Site:
        """Load the code of a variant before its first launch.

        Raises:
            KernelPackError: The pack holds no such variant.
            CudaError: The driver refused the code, or the pack describes other arguments.
        """
        kernel = self._pack.entry(variant.key)
        site = self._sites[variant.key] = _Site(self._gpu, kernel, variant)
        return site


class _Site:
    """A loaded variant, ready to be launched."""

    def __init__(self, gpu: Gpu, kernel: PackedKernel, variant: Variant) -> None:
        expected = tuple((argument.name, argument.type) for argument in variant.arguments)
        if tuple(map(tuple, kernel.arguments)) != expected:
            raise CudaError(
                f"{variant.key}: the pack's kernel takes {kernel.arguments}; expected {expected}",
                hint="The pack was built by another version of zse: build it again.",
            )
        module = gpu.load_module(bytes(kernel.image))
        function = module.function(kernel.entry, kernel.shared_bytes)
        self._gpu = gpu
        self._kernel = kernel
        self._blocks: dict[int, list[DeviceBlock]] = {0: [], 1: []}
        # A pointer of 0 is a multiple of 16 too: "not there" passes.
        self.aligned = tuple(i for i, a in enumerate(variant.arguments) if a.aligned)
        self.needs_scratch = bool(kernel.global_scratch_bytes or kernel.profile_scratch_bytes)
        # Triton appends two addresses to every signature, scratch or no scratch.
        self.block = ParameterBlock([kind for _, kind in expected] + ["*u8", "*u8"])
        self.launch_site = LaunchSite(
            gpu.owner.driver,
            function,
            num_threads=kernel.num_warps * WARP_THREADS,
            shared_bytes=kernel.shared_bytes,
            num_ctas=kernel.num_ctas,
            programmatic=kernel.programmatic,
        )

    def scratch(self, grid: Grid) -> tuple[int, int]:
        """Return the addresses of both scratch memories for a grid."""
        programs = grid[0] * grid[1] * grid[2] * self._kernel.num_ctas
        sizes = (self._kernel.global_scratch_bytes, self._kernel.profile_scratch_bytes)
        global_address, profile_address = (
            self._scratch_address(kind, size * programs) for kind, size in enumerate(sizes)
        )
        return global_address, profile_address

    def _scratch_address(self, kind: int, length_bytes: int) -> int:
        if not length_bytes:
            return 0
        blocks = self._blocks[kind]
        if not blocks or blocks[-1].length_bytes < length_bytes:
            # Smaller blocks stay: a captured graph may hold their addresses. Doubling bounds them.
            blocks.append(self._gpu.allocate(1 << (length_bytes - 1).bit_length()))
        return blocks[-1].address


def check_capability(capability: tuple[int, int], gpu: Gpu) -> None:
    """Check that code for an architecture runs on a GPU.

    Raises:
        WrongArchitectureError: It does not.
    """
    major, minor = gpu.info.capability
    runs = (
        capability == (major, minor)
        if capability[0] >= _ONLY_ITS_OWN_MINOR
        else capability[0] == major and capability[1] <= minor
    )
    if not runs:
        raise WrongArchitectureError(
            f"the kernel pack is for sm_{capability[0]}{capability[1]}; "
            f"GPU {gpu.info.ordinal} ({gpu.info.name}) is sm_{major}{minor}",
            hint=f"Build one for it: zse kernels build --gpu sm_{major}{minor} -o PACK (needs the "
            "kernels extra, no GPU), or run on a GPU that the pack was built for.",
        )
