"""Exchanges between real GPUs, each in a process of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import exchange_ranks
import pytest
import rank_mesh

from zse.device.cuda.info import count_devices
from zse.device.cuda.library import Driver

pytestmark = pytest.mark.gpu
SCRIPT = str(Path(exchange_ranks.__file__))


@pytest.fixture(scope="module")
def pack() -> str:
    path = os.environ.get("ZSE_KERNELS", "")
    if not path:
        pytest.skip("ZSE_KERNELS names no kernel pack")
    if count_devices(Driver()) < 2:
        pytest.skip("fewer than 2 GPUs")
    return path


@pytest.mark.parametrize("check", exchange_ranks.CHECKS)
def test_ranks_of_two_gpus_agree(pack: str, check: str) -> None:
    for output in rank_mesh.run([SCRIPT, pack, check], 2):
        assert json.loads(output.splitlines()[-1])["gpu"]
