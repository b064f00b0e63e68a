"""The launcher over kernel packs, on the stub driver: what reaches the driver, and what does not."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from sample_packs import PROVENANCE, stub_kernel
from stub_libcuda import DEVICE_KIND, Stub, gpu, stub

from zse.backends.gpu.launcher import PackLauncher
from zse.device.cuda.gpu import Gpu
from zse.errors import DeviceError
from zse.kernels.build.writer import pack_bytes
from zse.kernels.errors import KernelRule
from zse.kernels.launcher import Launch
from zse.kernels.pack import KernelPack
from zse.kernels.targets import TARGETS
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

if TYPE_CHECKING:
    from zse.device.cuda.stream import Stream

__all__ = ["gpu", "stub"]

KERNEL = Kernel(
    name="test.scale",
    module="none",
    function="scale",
    arguments=(
        pointer("values", "fp32"),
        number("rows"),
        number("columns", aligned=True),
        number("factor", "fp32"),
    ),
)
SCALE = variant(KERNEL, num_warps=8, BLOCK=64)
HALF = int.from_bytes(struct.pack("<f", 0.5), "little")


def make_pack(made: Variant = SCALE, **changes: object) -> KernelPack:
    """Return a pack of one kernel, whose code the stub driver can load."""
    kernels = [stub_kernel(made, **changes)]
    data = pack_bytes(TARGETS["sm_90"], kernels, provenance=PROVENANCE, skipped={})
    return KernelPack.open(data)


@pytest.fixture
def stream(gpu: Gpu) -> Stream:
    return gpu.create_stream()


def make_launcher(gpu: Gpu, stream: Stream, **changes: object) -> PackLauncher:
    return PackLauncher(gpu, make_pack(**changes), stream)


def test_arguments_arrive_with_two_addresses_of_scratch_behind_them(
    gpu: Gpu, stub: Stub, stream: Stream
) -> None:
    launcher = make_launcher(gpu, stream)
    launcher.launch(SCALE, (3, 4, 5), 4096, -7, 64, 0.5)
    (launch,) = stub.launches()
    assert (launch.name, launch.grid, launch.block) == ("scale_kernel", (3, 4, 5), (256, 1, 1))
    assert launch.parameters == (4096, 2**32 - 7, 64, HALF, 0, 0)
    assert launch.programmatic == launch.cooperative == 0


def test_what_the_pack_says_of_a_kernel_decides_how_it_is_launched(
    gpu: Gpu, stub: Stub, stream: Stream
) -> None:
    launcher = make_launcher(
        gpu,
        stream,
        num_warps=4,
        num_ctas=2,
        shared_bytes=70_000,
        programmatic=True,
        cooperative=True,
    )
    launcher.launch(SCALE, (3, 1, 1), 4096, 1, 64, 0.5)
    (launch,) = stub.launches()
    assert (launch.grid, launch.block, launch.cluster) == ((6, 1, 1), (128, 1, 1), (2, 1, 1))
    assert (launch.shared_bytes, launch.programmatic, launch.cooperative) == (70_000, 1, 1)


def test_code_is_loaded_once_and_only_when_it_is_used(gpu: Gpu, stub: Stub, stream: Stream) -> None:
    before = stub.live()
    launcher = make_launcher(gpu, stream)
    assert stub.live() == before
    launcher.prepare(SCALE)
    for rows in range(3):
        launcher.launch(SCALE, (1, 1, 1), 0, rows, 64, 0.5)
    launcher.prepare(SCALE)
    assert stub.live() == before + 1
    assert [launch.parameters[1] for launch in stub.launches()] == [0, 1, 2]


def test_a_variant_that_the_pack_lacks_is_the_packs_error(gpu: Gpu, stream: Stream) -> None:
    with breaks(KernelRule.VARIANT_MISSING):
        make_launcher(gpu, stream).launch(variant(KERNEL, BLOCK=1), (1, 1, 1), 0, 1, 64, 0.5)


def test_a_pack_for_another_gpu_is_refused_before_anything_is_launched(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_CAPABILITY", "89")
    with (
        Gpu.open(driver=stub.driver()) as other,
        breaks(KernelRule.PACK_MISMATCH, match="Stub GPU"),
    ):
        make_launcher(other, other.create_stream())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((4100, 1, 64, 0.5), "values = 4100 is not a multiple of 16"),
        ((4096, 1, 65, 0.5), "columns = 65 is not a multiple of 16"),
        ((4096,), "are no arguments for values, rows, columns, factor"),
        ((4096, 1, 64), "cannot be packed"),
        ((4096, 1, 64, 0.5, 1), "cannot be packed"),
        ((4096.0, 1, 64, 0.5), "are no arguments for"),
        ((4096, 2**31, 64, 0.5), "cannot be packed"),
    ],
)
def test_arguments_that_break_a_promise_never_reach_the_driver(
    gpu: Gpu, stub: Stub, stream: Stream, arguments: tuple[float, ...], words: str
) -> None:
    with pytest.raises(DeviceError, match=words):
        make_launcher(gpu, stream).launch(SCALE, (1, 1, 1), *arguments)
    assert stub.launches() == []


def test_a_pack_that_describes_other_arguments_is_refused(gpu: Gpu, stream: Stream) -> None:
    launcher = make_launcher(gpu, stream, arguments=[["values", "*fp16"]], aligned=["values"])
    with pytest.raises(DeviceError, match="the pack's kernel takes") as caught:
        launcher.launch(SCALE, (1, 1, 1), 0, 1, 64, 0.5)
    assert "build it again" in caught.value.hint


def test_scratch_is_allocated_for_every_block_and_never_moves_under_a_graph(
    gpu: Gpu, stub: Stub, stream: Stream
) -> None:
    launcher = make_launcher(
        gpu, stream, global_scratch_bytes=256, profile_scratch_bytes=64, num_ctas=2
    )
    with gpu.capture(stream) as capture:
        launcher.launch(SCALE, (4, 1, 1), 0, 1, 64, 0.5)
    small = stub.bytes_of(DEVICE_KIND)
    assert small == 4 * 2 * (256 + 64)
    launcher.launch(SCALE, (2, 1, 1), 0, 2, 64, 0.5)
    launcher.launch(SCALE, (5, 1, 1), 0, 3, 64, 0.5)
    assert stub.bytes_of(DEVICE_KIND) == small + 4096 + 1024
    capture.graph.instantiate().launch(stream)
    first, larger, captured = stub.launches()
    assert first.parameters[4:] == captured.parameters[4:]
    assert larger.parameters[4] not in (0, first.parameters[4])


def test_the_device_facts_are_those_of_the_gpu(gpu: Gpu, stream: Stream) -> None:
    device = make_launcher(gpu, stream).device
    assert (device.name, device.target, device.multiprocessors) == ("Stub GPU", "sm_90", 132)
    assert device.bandwidth_bytes_per_second == gpu.info.bandwidth_bytes_per_second


def test_a_gpu_of_wider_warps_gets_blocks_of_as_many_warps(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_WARP", "64")
    with Gpu.open(driver=stub.driver()) as wide:
        make_launcher(wide, wide.create_stream()).launch(SCALE, (1, 1, 1), 0, 1, 64, 0.5)
    assert stub.launches()[0].block == (8 * 64, 1, 1)


def test_rounds_are_the_launches_that_each_of_them_would_be_scratch_included(
    gpu: Gpu, stub: Stub, stream: Stream
) -> None:
    launcher = make_launcher(gpu, stream, global_scratch_bytes=256)
    addresses = (64, 128, 4096)
    for address in addresses:
        launcher.launch(SCALE, (2, 3, 1), address, 5, 64, 0.5)
    repeated = launcher.repeated([SCALE], [(0, 0)], [(address,) for address in addresses])
    repeated.launch([Launch(SCALE, (2, 3, 1), (64, 5, 64, 0.5))], range(3))
    found = stub.launches()
    assert found[:3] == found[3:]
    assert found[0].parameters[4]  # the scratch


def test_a_round_that_breaks_a_promise_is_refused_when_it_is_laid_out(
    gpu: Gpu, stub: Stub, stream: Stream
) -> None:
    launcher = make_launcher(gpu, stream)
    with pytest.raises(DeviceError, match="columns = 72 is not a multiple of 16"):
        launcher.repeated([SCALE], [(0, 2)], [(64,), (72,)])
    assert not stub.launches()
