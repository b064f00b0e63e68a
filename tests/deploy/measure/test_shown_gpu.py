"""What of a machine's GPUs a container is shown."""

import pytest

from zse.deploy.measure.shown_gpu import gpu_binds

LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def roots(tmp_path):
    machine, rootfs = tmp_path / "machine", tmp_path / "rootfs"
    for folder in (machine / "dev", rootfs / LIBRARIES):
        folder.mkdir(parents=True)
    return machine, rootfs


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def test_a_machine_without_a_gpu_shows_nothing(roots):
    machine, rootfs = roots
    put(machine / LIBRARIES / "libcuda.so.1")
    assert gpu_binds(rootfs, machine) == {}


@pytest.mark.parametrize("folder", [LIBRARIES, "usr/lib64", "usr/local/nvidia/lib64"])
def test_devices_and_the_driver_are_shown_where_the_image_looks(roots, folder):
    machine, rootfs = roots
    device = put(machine / "dev/nvidia0")
    real = put(machine / folder / "libcuda.so.580.1")
    (machine / folder / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    expected = {"/dev/nvidia0": device, f"/{LIBRARIES}/libcuda.so.1": real}
    assert gpu_binds(rootfs, machine) == expected


def test_devices_are_shown_where_no_driver_is_found(roots):
    machine, rootfs = roots
    device = put(machine / "dev/nvidiactl")
    assert gpu_binds(rootfs, machine) == {"/dev/nvidiactl": device}
