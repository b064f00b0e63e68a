"""Modules, functions, launches and their parameters on the stub driver."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from stub_libcuda import Stub, image

from zse.device.cuda.errors import CudaError, CudaRule

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu


def test_a_launch_hands_over_grid_block_and_every_parameter(gpu: Gpu, stub: Stub) -> None:
    types = ["*fp32", "i32", "i64", "fp32", "*u8"]
    module = gpu.load_module(image("mix=8,4,8,4,8"))
    kernel = module.kernel("mix", types, num_threads=128, shared_bytes=1024)
    kernel.launch((5, 6, 7), gpu.create_stream(), 2**47 + 16, -3, -(2**40), 0.5, 0)
    (launch,) = stub.launches()
    assert (launch.name, launch.grid, launch.block) == ("mix", (5, 6, 7), (128, 1, 1))
    assert launch.shared_bytes == 1024
    assert (launch.programmatic, launch.cooperative, launch.cluster) == (0, 0, (0, 0, 0))
    half = int.from_bytes(struct.pack("<f", 0.5), "little")
    assert launch.parameters == (2**47 + 16, 2**32 - 3, 2**64 - 2**40, half, 0)


def test_launch_attributes_are_those_that_were_asked_for(gpu: Gpu, stub: Stub) -> None:
    module, stream = gpu.load_module(image("none=")), gpu.create_stream()
    overlapping = module.kernel("none", [], num_threads=32, programmatic=True)
    overlapping.launch((3, 1, 1), stream)
    module.kernel("none", [], num_threads=32, cooperative=True).launch((3, 1, 1), stream)
    clusters = module.kernel("none", [], num_threads=32, num_ctas=4, programmatic=True)
    clusters.launch((3, 2, 1), stream)
    overlapping.launch((9, 1, 1), stream)
    pdl, cooperative, cluster, again = stub.launches()
    assert (pdl.programmatic, pdl.cooperative, pdl.cluster) == (1, 0, (0, 0, 0))
    assert (cooperative.programmatic, cooperative.cooperative) == (0, 1)
    assert (cluster.grid, cluster.cluster, cluster.scheduling) == ((12, 2, 1), (4, 1, 1), 1)
    assert cluster.programmatic == 1
    assert (again.grid, again.programmatic) == ((9, 1, 1), 1)


def test_more_shared_memory_than_usual_is_asked_for(gpu: Gpu, stub: Stub) -> None:
    module = gpu.load_module(image("big=8"))
    kernel = module.kernel("big", ["*u8"], num_threads=32, shared_bytes=100_000)
    kernel.launch((1, 1, 1), gpu.create_stream(), 0)
    assert stub.launches()[0].shared_bytes == 100_000
    with pytest.raises(CudaError, match=r"needs 300000 bytes of shared memory.* block 232448"):
        module.kernel("big", ["*u8"], num_threads=32, shared_bytes=300_000)


def test_an_image_for_another_gpu_names_the_remedy(gpu: Gpu) -> None:
    with breaks(CudaRule.WRONG_ARCHITECTURE, match="CUDA_ERROR_NO_BINARY_FOR_GPU") as caught:
        gpu.load_module(image("k=8", capability=80))
    assert "zse kernels build" in caught.value.hint


def test_a_damaged_image_is_refused(gpu: Gpu) -> None:
    with breaks(CudaRule.INVALID_IMAGE, match="kernel image is invalid"):
        gpu.load_module(b"not an image at all")


def test_a_kernel_that_is_not_in_the_image_is_named(gpu: Gpu) -> None:
    module = gpu.load_module(image("there=8"))
    with pytest.raises(CudaError, match=r"CUDA_ERROR_NOT_FOUND \(500\): no elsewhere"):
        module.kernel("elsewhere", [], num_threads=32)


def test_an_unloaded_module_takes_its_kernels_with_it(gpu: Gpu) -> None:
    module, stream = gpu.load_module(image("k=")), gpu.create_stream()
    kernel = module.kernel("k", [], num_threads=32)
    kernel.launch((1, 1, 1), stream)
    module.destroy()
    with breaks(CudaRule.RELEASED, match="kernel k was launched after its unloading"):
        kernel.launch((1, 1, 1), stream)


def test_a_refused_launch_is_the_drivers_error(gpu: Gpu) -> None:
    kernel = gpu.load_module(image("k=")).kernel("k", [], num_threads=32)
    with pytest.raises(CudaError, match="cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE"):
        kernel.launch((0, 1, 1), gpu.create_stream())


@pytest.mark.parametrize(
    ("types", "values"),
    [
        (["i32"], ()),
        (["i32"], (1, 2)),
        (["i32"], (2**31,)),
        (["i32"], (0.5,)),
        (["*u8"], (-1,)),
        (["fp32"], ("word",)),
    ],
)
def test_a_value_that_does_not_fit_its_parameter_never_reaches_the_driver(
    gpu: Gpu, stub: Stub, types: list[str], values: tuple[float, ...]
) -> None:
    kernel = gpu.load_module(image("k=8")).kernel("k", types, num_threads=32)
    with pytest.raises(CudaError, match="cannot be packed"):
        kernel.launch((1, 1, 1), gpu.create_stream(), *values)
    assert stub.launches() == []


def test_a_type_that_cannot_be_passed_is_refused(gpu: Gpu) -> None:
    with pytest.raises(CudaError, match="type 'tensordesc'"):
        gpu.load_module(image("k=8")).kernel("k", ["tensordesc"], num_threads=32)
