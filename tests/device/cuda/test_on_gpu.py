"""The device layer on real hardware: what the stub driver can only pretend."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks

from zse.device.cuda.errors import CudaError, CudaRule, OutOfDeviceMemoryError
from zse.device.cuda.gpu import Gpu
from zse.device.survey import survey_cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.device.cuda.stream import Stream

pytestmark = pytest.mark.gpu

TEMPLATE = """
.version 7.8
.target {target}
.address_size 64
.visible .entry ramp(.param .u64 out, .param .u32 count, .param .f32 factor)
{{
  .reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
  {wait}
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [count]; ld.param.f32 %f1, [factor];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.s32 %p1, %r5, %r1;
  @%p1 bra done;
  cvt.rn.f32.s32 %f2, %r5; mul.f32 %f3, %f2, %f1;
  cvta.to.global.u64 %rd2, %rd1; mul.wide.s32 %rd3, %r5, 4; add.s64 %rd2, %rd2, %rd3;
  st.global.f32 [%rd2], %f3;
done:
  ret;
}}
"""
PTX = TEMPLATE.format(target="sm_80", wait="")
OVERLAPPING_PTX = TEMPLATE.format(target="sm_90", wait="griddepcontrol.wait;")
TYPES = ["*fp32", "i32", "fp32"]
COUNT = 1000
LENGTH = 4 * COUNT


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with Gpu.open() as opened:
        yield opened


@pytest.fixture
def stream(gpu: Gpu) -> Iterator[Stream]:
    made = gpu.create_stream()
    yield made
    made.synchronize()
    made.destroy()


def read(gpu: Gpu, address: int, length_bytes: int, stream: Stream) -> bytes:
    host = gpu.allocate_host(length_bytes)
    gpu.copy_to_host(host.address, address, length_bytes, stream)
    stream.synchronize()
    data = bytes(host.view)
    host.free()
    return data


def is_before_sm_90(gpu: Gpu) -> bool:
    return int(gpu.info.target.removeprefix("sm_")) < 90


def ramp(factor: float) -> bytes:
    return struct.pack(f"<{COUNT}f", *(index * factor for index in range(COUNT)))


def test_the_gpu_says_what_it_is(gpu: Gpu) -> None:
    info = gpu.info
    assert info.name
    assert info.target.startswith("sm_")
    assert info.warp_threads == 32
    assert 0 < info.free_bytes <= info.total_bytes
    assert info.driver_version >= 12030
    assert info.uuid.startswith("GPU-")
    assert info.shared_memory_optin_bytes >= 48 * 1024
    assert info.bandwidth_bytes_per_second > 1e11
    survey = survey_cuda()
    assert survey.problem is None
    assert survey.gpus[0].info.uuid == info.uuid


def test_a_smaller_stack_leaves_more_memory_free(gpu: Gpu) -> None:
    gpu.limit_stack(1024)
    before, _ = gpu.memory()
    gpu.limit_stack(256)
    assert gpu.memory()[0] > before


def test_bytes_come_back_as_they_went(gpu: Gpu, stream: Stream) -> None:
    length = (8 << 20) + 13
    host = gpu.allocate_host(length)
    host.view[:] = bytes(range(256)) * (length // 256) + bytes(range(length % 256))
    first, second = gpu.allocate(length), gpu.allocate(length)
    gpu.copy_to_device(first.address, host.address, length, stream)
    gpu.copy_on_device(second.address, first.address, length, stream)
    gpu.fill(second.address + 1, 0xAB, 7, stream)
    data = read(gpu, second.address, length, stream)
    assert data[:9] == b"\0" + b"\xab" * 7 + b"\x08"
    assert data[8:] == bytes(host.view[8:])
    for block in (host, first, second):
        block.free()


def test_threads_copy_at_the_same_time_on_streams_of_their_own(gpu: Gpu) -> None:
    length, threads = 4 << 20, 4
    block = gpu.allocate(length * threads)
    errors: list[Exception] = []

    def work(index: int) -> None:
        try:
            gpu.make_current()
            own = gpu.create_stream()
            host = gpu.allocate_host(length)
            host.view[:] = bytes([index + 1]) * length
            gpu.copy_to_device(block.address + index * length, host.address, length, own)
            own.synchronize()
            host.free()
            own.destroy()
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []
    own = gpu.create_stream()
    data = read(gpu, block.address, length * threads, own)
    own.destroy()
    block.free()
    assert data == b"".join(bytes([index + 1]) * length for index in range(threads))


def test_events_measure_work(gpu: Gpu, stream: Stream) -> None:
    block = gpu.allocate(256 << 20)
    start, end = gpu.create_event(timing=True), gpu.create_event(timing=True)
    start.record(stream)
    gpu.fill(block.address, 5, block.length_bytes, stream)
    end.record(stream)
    end.synchronize()
    assert end.elapsed_ms(start) > 0
    assert read(gpu, block.address, 2, stream) == b"\x05\x05"
    block.free()


@pytest.mark.parametrize(
    "attributes",
    [{}, {"programmatic": True}, {"cooperative": True}],
    ids=["plain", "programmatic", "cooperative"],
)
def test_a_kernel_gets_its_parameters(
    gpu: Gpu, stream: Stream, attributes: dict[str, bool]
) -> None:
    if is_before_sm_90(gpu) and "programmatic" in attributes:
        pytest.skip("programmatic dependent launch needs sm_90")
    code = OVERLAPPING_PTX if "programmatic" in attributes else PTX
    module = gpu.load_module(code.encode())
    kernel = module.kernel("ramp", TYPES, num_threads=128, **attributes)
    block = gpu.allocate(LENGTH)
    for factor in (0.25, 0.5):  # the second overwrites the block that the first was packed into
        kernel.launch((8, 1, 1), stream, block.address, COUNT, factor)
    assert read(gpu, block.address, LENGTH, stream) == ramp(0.5)
    block.free()
    module.destroy()


@pytest.mark.parametrize("programmatic", [False, True])
def test_a_graph_repeats_kernels_copies_and_fills(
    gpu: Gpu, stream: Stream, programmatic: bool
) -> None:
    if programmatic and is_before_sm_90(gpu):
        pytest.skip("programmatic dependent launch needs sm_90")
    module = gpu.load_module((OVERLAPPING_PTX if programmatic else PTX).encode())
    kernel = module.kernel("ramp", TYPES, num_threads=128, programmatic=programmatic)
    first, second = gpu.allocate(LENGTH), gpu.allocate(LENGTH)
    gpu.fill(first.address, 1, LENGTH, stream)
    with gpu.capture(stream) as capture:
        gpu.fill(second.address, 0, LENGTH, stream)
        gpu.copy_on_device(first.address, second.address, LENGTH, stream)
        for factor in (2.0, 0.5):
            kernel.launch((8, 1, 1), stream, first.address, COUNT, factor)
    assert read(gpu, first.address, 4, stream) == b"\1\1\1\1"
    assert capture.graph.num_nodes == 4
    ready = capture.graph.instantiate()
    capture.graph.destroy()
    ready.upload(stream)
    for _ in range(3):
        gpu.fill(first.address, 9, LENGTH, stream)
        ready.launch(stream)
        assert read(gpu, first.address, LENGTH, stream) == ramp(0.5)
    ready.destroy()
    module.destroy()
    first.free()
    second.free()


def test_waiting_for_a_recorded_stream_spoils_the_recording_and_not_the_stream(
    gpu: Gpu, stream: Stream
) -> None:
    with breaks(CudaRule.CAPTURE), gpu.capture(stream):
        stream.synchronize()
    stream.synchronize()
    with gpu.capture(stream) as capture:
        pass
    assert capture.graph.num_nodes == 0


def test_a_pool_grows_in_place(gpu: Gpu, stream: Stream) -> None:
    pool = gpu.create_pool(gpu.info.total_bytes * 2)
    address, piece = pool.address, pool.granularity_bytes
    free = gpu.memory()[0]
    assert pool.grow(1) == piece
    gpu.fill(address, 3, piece, stream)
    assert pool.grow(64 << 20) == 64 << 20
    assert pool.address == address
    assert gpu.memory()[0] < free
    gpu.fill(address + piece, 4, pool.length_bytes - piece, stream)
    assert read(gpu, address + piece - 2, 4, stream) == b"\3\3\4\4"
    with pytest.raises(OutOfDeviceMemoryError):
        pool.grow(gpu.info.total_bytes + (1 << 30))
    assert pool.length_bytes == 64 << 20
    pool.free()


def test_too_much_memory_is_refused_with_both_numbers(gpu: Gpu) -> None:
    with pytest.raises(OutOfDeviceMemoryError, match=r"asked, .* are free"):
        gpu.allocate(gpu.info.total_bytes + (1 << 30))


def test_an_address_that_is_none_is_refused(gpu: Gpu, stream: Stream) -> None:
    host = gpu.allocate_host(64)
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.copy_to_device(0, host.address, 64, stream)
    host.free()


def test_what_is_no_code_is_refused(gpu: Gpu) -> None:
    with breaks(CudaRule.INVALID_IMAGE):
        gpu.load_module(b"this is neither a cubin nor PTX")


def test_code_for_another_architecture_is_told_apart(gpu: Gpu, tmp_path: Path) -> None:
    triton = importlib.util.find_spec("triton")
    ptxas = Path(triton.origin).parent / "backends/nvidia/bin/ptxas" if triton else Path("none")  # type: ignore[arg-type]
    if not ptxas.is_file():
        pytest.skip("no ptxas to compile for another architecture")
    other = "sm_90" if is_before_sm_90(gpu) else "sm_80"
    (tmp_path / "ramp.ptx").write_text(PTX)
    command = [ptxas, f"--gpu-name={other}", "ramp.ptx", "-o", "ramp.cubin"]
    subprocess.run(command, check=True, cwd=tmp_path)
    with breaks(CudaRule.WRONG_ARCHITECTURE, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        gpu.load_module((tmp_path / "ramp.cubin").read_bytes())


FAULT = f"""
from zse.device.cuda.errors import CudaError
from zse.device.cuda.gpu import Gpu
with Gpu.open() as gpu:
    stream, block = gpu.create_stream(), gpu.allocate(64)
    kernel = gpu.load_module({PTX!r}.encode()).kernel("ramp", {TYPES}, num_threads=128)
    kernel.launch((8, 1, 1), stream, 4096, {COUNT}, 1.0)
    try:
        stream.synchronize()
    except CudaError as fault:
        print("fault", fault.code)
    try:
        gpu.fill(block.address, 0, 64, stream)
    except CudaError as fault:
        print("still", fault.code)
print("closed")
"""


def test_a_kernel_that_writes_where_nothing_is_loses_the_context_and_nothing_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULT], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fault", "700", "still", "700", "closed"]
