"""Exchanges between real GPUs, each in a process of its own; where there is one, they take turns."""

from __future__ import annotations

import json
import os
from pathlib import Path

import exchange_ranks
import pytest
import rank_mesh

pytestmark = pytest.mark.gpu
SCRIPT = str(Path(exchange_ranks.__file__))


@pytest.fixture(scope="module")
def pack() -> str:
    path = os.environ.get("ZSE_KERNELS", "")
    if not path:
        pytest.skip("ZSE_KERNELS names no kernel pack")
    return path


@pytest.mark.parametrize("check", exchange_ranks.CHECKS)
def test_two_ranks_agree_on_a_gpu_each_or_in_turns_on_one(pack: str, check: str) -> None:
    for output in rank_mesh.run([SCRIPT, pack, check], 2):
        assert json.loads(output.splitlines()[-1])["gpu"]
