"""GPUs by memory: the smallest that holds a model, the same numbers as the platforms' tables."""

from zse.deploy.machines import load_catalog
from zse.device.known_gpus import DRIVER_BYTES, KNOWN_GPUS, smallest_gpu
from zse.units import GIB, MIB


def test_the_smallest_gpu_leaves_room_for_its_driver():
    smallest = KNOWN_GPUS[0]
    room_bytes = smallest.memory_mib * MIB - DRIVER_BYTES
    assert smallest_gpu(room_bytes) == smallest
    assert smallest_gpu(room_bytes + 1) == KNOWN_GPUS[1]
    assert smallest_gpu(1000 * GIB) is None


def test_gpus_stand_by_memory_as_platforms_tell_it():
    assert list(KNOWN_GPUS) == sorted(KNOWN_GPUS, key=lambda gpu: gpu.memory_mib)
    known = {gpu.name: gpu.memory_mib for gpu in KNOWN_GPUS}
    rented = {one.name: one.memory_mib for one in load_catalog("modal").machines}
    shared = known.keys() & rented.keys()
    assert {"L4", "L40S", "H100", "H200", "B200"} <= shared
    assert all(known[name] == rented[name] for name in shared)
