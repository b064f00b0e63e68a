"""Opening a GPU before anything else is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from stub_libcuda import stub  # noqa: F401

from zse.device.early import open_early, wake_driver
from zse.environment import num_gpu_nodes

CODE = """
import ctypes
from zse.device.early import open_early, wake_driver
wake_driver([])
open_early("cuda")
from zse.device.open import open_gpu
open_gpu("cuda").close()
from zse.device.early import early
assert not any(thread.is_alive() for thread in early.threads)
assert set(early.times) == {"driver", "device"}
assert early.times["driver"][0] <= early.times["driver"][1] <= early.times["device"][1]
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


SEVERAL = """
import os, subprocess, sys
import zse.environment
zse.environment._NODES = sys.argv[1]
from zse.device.early import open_early, wake_driver
from zse.environment import num_gpu_nodes
assert wake_driver([]) is None
open_early(sys.argv[2], is_only=sys.argv[3] == "only").join()
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.info import count_devices
from zse.device.cuda.library import Driver
from zse.device.survey import survey_cuda
driver = Driver()
print(count_devices(driver), [one.info.ordinal for one in survey_cuda(driver).gpus])
with Gpu.open(int(sys.argv[2].partition(":")[2] or 0), driver=driver) as gpu:
    print(gpu.name, gpu.info.ordinal, gpu.device)
try:
    Gpu.open(3, driver=driver).close()
    print("opened")
except Exception as error:
    print(error)
code = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
print(os.environ.get("CUDA_VISIBLE_DEVICES"))
"""


def run_with_several_gpus(stub, nodes, device, how, **environment):  # noqa: F811
    for index in range(2):
        (nodes / f"nvidia{index}").touch()
    (nodes / "nvidiactl").touch()
    usual = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    variables = {"LD_LIBRARY_PATH": str(stub.path.parent), "ZSE_STUB_DEVICES": "2", **environment}
    run = subprocess.run(
        [sys.executable, "-c", SEVERAL, str(nodes), device, how],
        env={**usual, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize(("device", "ordinal"), [("auto", 0), ("cuda:1", 1)])
def test_a_driver_whose_process_uses_one_gpu_looks_at_that_one_and_children_at_all(
    stub,  # noqa: F811
    tmp_path,
    device,
    ordinal,
):
    seen, opened, other, child, own = run_with_several_gpus(stub, tmp_path, device, "only")
    assert seen == f"1 [{ordinal}]"
    assert opened == f"cuda:{ordinal} {ordinal} {40 + ordinal}"
    assert other == f"there is no GPU 3 for this process, which uses GPU {ordinal}"
    assert (child, own) == ("None", "None")


def test_a_driver_whose_process_may_use_several_gpus_looks_at_all_of_them(
    stub,  # noqa: F811
    tmp_path,
):
    seen, opened, other, *_ = run_with_several_gpus(stub, tmp_path, "cuda:1", "any")
    assert (seen, opened) == ("2 [0, 1]", "cuda:1 1 41")
    assert other == "there is no GPU 3: 2 GPUs are visible, counted from 0"


def test_a_gpu_that_is_not_there_is_told_as_ever(stub, tmp_path):  # noqa: F811
    code = SEVERAL.partition("print(count")[0] + "Gpu.open(7)"
    for index in range(2):
        (tmp_path / f"nvidia{index}").touch()
    usual = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "cuda:7", "only"],
        env={**usual, "LD_LIBRARY_PATH": str(stub.path.parent), "ZSE_STUB_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "there is no GPU 7: 2 GPUs are visible, counted from 0" in run.stderr


def test_what_the_user_calls_visible_stays_visible(monkeypatch, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidiax"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert num_gpu_nodes(str(tmp_path)) == 2
    (tmp_path / "nvidia1").unlink()
    assert num_gpu_nodes(str(tmp_path)) == 1
    assert num_gpu_nodes(str(tmp_path / "absent")) == 0
    (tmp_path / "nvidia2").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert num_gpu_nodes(str(tmp_path)) == 0
