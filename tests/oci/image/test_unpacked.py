"""An image on disk, started by its own loader."""

import shutil

import pytest

from zse.oci.image.unpacked import RunnerError, UnpackedImage, unpacked

CONFIG = {
    "Entrypoint": ["python3", "-I", "/opt/zse/boot.py"],
    "Env": ["A=1", "PORT=8000"],
    "User": "65532:65532",
}


@pytest.fixture
def image(tmp_path):
    rootfs = tmp_path / "rootfs"
    for name in (
        "opt/zse/boot.py",
        "usr/lib64/ld-linux-x86-64.so.2",
        "usr/lib/x86_64-linux-gnu/libc.so.6",
    ):
        (rootfs / name).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / name).write_text("")
    return UnpackedImage(
        layout=tmp_path / "layout", tag="t", rootfs=rootfs, config=CONFIG, scratch=tmp_path
    )


def test_entry_point_and_environment_are_the_images_own(image):
    command = unpacked(image, [], {"PORT": "9"})
    assert "A=1" in command
    assert "PORT=9" in command
    assert f"HOME={image.scratch}" in command  # not that of whoever runs it
    assert command[-1] == f"{image.rootfs}/opt/zse/boot.py"


def test_an_image_without_a_loader_cannot_run_as_it_lies_there(image):
    shutil.rmtree(image.rootfs / "usr")
    with pytest.raises(RunnerError, match="loader"):
        unpacked(image, [], {})
