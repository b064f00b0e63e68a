"""Opening a GPU before anything else is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from stub_libcuda import stub  # noqa: F401

from zse.device.early import open_early, wake_driver

CODE = """
import ctypes
from zse.device.early import open_early, wake_driver
wake_driver([])
open_early("cuda").join()
from zse.device.cuda.gpu import Gpu
Gpu.open().close()
print("opened")
"""


@pytest.mark.parametrize("device", ["cpu", "cuda:first", "tpu"])
def test_nothing_is_begun_for_other_devices(device):
    assert open_early(device) is None


@pytest.mark.parametrize(
    ("arguments", "variable", "is_woken"),
    [
        ([], None, True),
        (["model.zse", "--device", "cuda:1"], "cpu", True),
        (["--device=auto"], None, True),
        (["model.zse", "--device", "cpu", "--port", "0"], None, False),
        (["--device=torch"], "cuda", False),
        ([], "cpu", False),
        (["--device"], None, False),  # which is refused by who reads the flags
    ],
)
def test_the_driver_is_woken_unless_another_device_is_asked_for(
    monkeypatch, arguments, variable, is_woken
):
    monkeypatch.delenv("ZSE_DEVICE", raising=False)
    if variable is not None:
        monkeypatch.setenv("ZSE_DEVICE", variable)
    thread = wake_driver(arguments)
    assert (thread is not None) == is_woken
    if thread is not None:
        thread.join(30)


def test_a_missing_driver_is_left_to_whoever_opens_the_gpu():
    thread = open_early("cuda:7")
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def test_a_gpu_that_was_opened_early_is_opened_again(stub):  # noqa: F811
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stub.path.parent)}
    run = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout == "opened\n", run.stderr
