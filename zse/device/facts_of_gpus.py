"""What the drivers of some GPUs say of them, for plans and estimates where no such GPU is there."""

from __future__ import annotations

from zse.device.facts import DeviceFacts

H200 = DeviceFacts(
    name="NVIDIA H200",
    target="sm_90",
    warp_threads=32,
    multiprocessors=132,
    shared_memory_optin_bytes=227 << 10,
    l2_bytes=50 << 20,
    bandwidth_bytes_per_second=4.916736e12,
)
H100 = DeviceFacts(
    name="NVIDIA H100 80GB HBM3",
    target="sm_90",
    warp_threads=32,
    multiprocessors=132,
    shared_memory_optin_bytes=227 << 10,
    l2_bytes=50 << 20,
    bandwidth_bytes_per_second=3.3e12,
)
A100 = DeviceFacts(
    name="NVIDIA A100",
    target="sm_80",
    warp_threads=32,
    multiprocessors=108,
    shared_memory_optin_bytes=163 << 10,
    l2_bytes=40 << 20,
    bandwidth_bytes_per_second=1.56e12,
)
L4 = DeviceFacts(
    name="NVIDIA L4",
    target="sm_89",
    warp_threads=32,
    multiprocessors=58,
    shared_memory_optin_bytes=99 << 10,
    l2_bytes=48 << 20,
    bandwidth_bytes_per_second=3e11,
)
