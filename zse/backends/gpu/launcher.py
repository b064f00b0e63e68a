"""Runs the kernels of a pack in one stream.

A kernel is loaded when it is first used. After that a launch is a dictionary look-up, one packing
of the arguments and one call of the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Block, Gpu, Grid, Kernel, Repetition, Stream
    from zse.kernels.launcher import Launch, Value
    from zse.kernels.pack import KernelPack, PackEntry
    from zse.kernels.variant import Variant

_ALIGNMENT_MASK = 15


class PackLauncher:
    """See ``zse.kernels.launcher.Launcher``. For one thread: arguments are packed in place.

    The GPU's context is current in the thread that launches.

    Raises:
        KernelPackError: The pack is for another GPU.
    """

    def __init__(self, gpu: Gpu, pack: KernelPack, stream: Stream) -> None:
        pack.require(gpu.info.target, gpu.info.name)
        self._gpu = gpu
        self._pack = pack
        self._stream = stream
        self._sites: dict[str, _Site] = {}
        self.device: DeviceFacts = gpu.info

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        """Enqueue one kernel; the first time of a variant its code is loaded.

        Raises:
            KernelPackError: The pack holds no such variant.
            DeviceError: An argument breaks the variant's promise, or the driver refused the launch.
        """
        site = self._sites.get(variant.key)
        if site is None:
            site = self._load(variant)
        site.launch(grid, self._stream, arguments)

    def prepare(self, *variants: Variant) -> None:
        """Load the code of variants before their first launch; fails as ``launch`` does."""
        for variant in variants:
            if variant.key not in self._sites:
                self._load(variant)

    def repeated(
        self,
        variants: Sequence[Variant],
        places: Sequence[tuple[int, int]],
        rounds: Sequence[Sequence[Value]],
    ) -> RepeatedLaunches:
        """See ``zse.kernels.launcher.Repeating``."""
        self.prepare(*variants)
        sites = [self._sites[variant.key] for variant in variants]
        for values in rounds:
            for (call, argument), value in zip(places, values, strict=True):
                sites[call].check(argument, value)
        kernels = [site.kernel for site in sites]
        return RepeatedLaunches(sites, self._gpu.repetition(kernels, places, rounds), self._stream)

    def _load(self, variant: Variant) -> _Site:
        site = _Site(self._gpu, self._pack.entry(variant.key), variant)
        self._sites[variant.key] = site
        return site


class RepeatedLaunches:
    """See ``zse.kernels.launcher.Repeated``."""

    def __init__(self, sites: Sequence[_Site], repetition: Repetition, stream: Stream) -> None:
        self._sites = sites
        self._repetition = repetition
        self._stream = stream

    def launch(self, calls: Sequence[Launch], rounds: range) -> None:
        pairs = zip(self._sites, calls, strict=True)
        laid_out = [
            (call.grid, (*call.arguments, *site.trailing(call.grid))) for site, call in pairs
        ]
        self._repetition.launch(self._stream, laid_out, rounds)


class _Site:
    """A loaded variant, ready to be launched."""

    def __init__(self, gpu: Gpu, kernel: PackEntry, variant: Variant) -> None:
        expected = tuple((argument.name, argument.type) for argument in variant.arguments)
        if kernel.arguments != expected:
            raise DeviceError(
                f"{variant.key}: the pack's kernel takes {kernel.arguments}; expected {expected}",
                hint="The pack was built by another version of zse: build it again.",
            )
        # Triton appends addresses of scratch memory to a signature, scratch or no scratch.
        self._num_trailing = kernel.trailing_pointers
        self.kernel: Kernel = gpu.load_module(bytes(kernel.image)).kernel(
            kernel.entry,
            [kind for _, kind in expected] + ["*u8"] * self._num_trailing,
            num_threads=kernel.num_warps * gpu.info.warp_threads,
            shared_bytes=kernel.shared_bytes,
            num_ctas=kernel.num_ctas,
            programmatic=kernel.programmatic,
            cooperative=kernel.cooperative,
        )
        self._gpu = gpu
        self._variant = variant
        self._aligned = tuple(i for i, a in enumerate(variant.arguments) if a.aligned)
        self._zeros = (0,) * self._num_trailing
        self._scratch_bytes = tuple(
            size * kernel.num_ctas
            for size in (kernel.global_scratch_bytes, kernel.profile_scratch_bytes)
        )
        self._needs_scratch = any(self._scratch_bytes)
        self._scratch: tuple[list[Block], list[Block]] = ([], [])

    def launch(self, grid: Grid, stream: Stream, arguments: tuple[Value, ...]) -> None:
        """Check what the kernel relies on, and put it into a stream."""
        try:
            for index in self._aligned:
                if arguments[index] & _ALIGNMENT_MASK:  # type: ignore[operator]
                    self._refuse(index, arguments[index])
        except (IndexError, TypeError) as error:
            raise DeviceError(
                f"{self._variant.key}: {arguments} are no arguments for "
                f"{', '.join(a.name for a in self._variant.arguments)}"
            ) from error
        self.kernel.launch(grid, stream, *arguments, *self.trailing(grid))

    def check(self, index: int, value: Value) -> None:
        """Refuse an argument that is not what the kernel relies on."""
        if index in self._aligned and value & _ALIGNMENT_MASK:  # type: ignore[operator]
            self._refuse(index, value)

    def trailing(self, grid: Grid) -> tuple[int, ...]:
        """Return what stands behind the arguments of a launch."""
        if not self._needs_scratch:
            return self._zeros
        return self._find_scratch(grid)[: self._num_trailing]

    def _refuse(self, index: int, value: Value) -> None:
        raise DeviceError(
            f"{self._variant.key}: {self._variant.arguments[index].name} = {value} is not a "
            "multiple of 16, which the kernel relies on"
        )

    def _find_scratch(self, grid: Grid) -> tuple[int, ...]:
        programs = grid[0] * grid[1] * grid[2]
        return tuple(
            self._scratch_address(blocks, size * programs)
            for blocks, size in zip(self._scratch, self._scratch_bytes, strict=True)
        )

    def _scratch_address(self, blocks: list[Block], length_bytes: int) -> int:
        if not length_bytes:
            return 0
        if not blocks or blocks[-1].length_bytes < length_bytes:
            # Smaller blocks stay: a captured graph may hold their addresses. Doubling bounds them.
            blocks.append(self._gpu.allocate(1 << (length_bytes - 1).bit_length()))
        return blocks[-1].address
