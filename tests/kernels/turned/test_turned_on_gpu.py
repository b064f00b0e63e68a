"""Gates that leave their product turned equal their reference on the GPU at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from kernels_on_gpu import KernelsOnGpu, kernels_on_gpu

from zse.kernels.layout import Turned
from zse.kernels.linear.launch_8bit import turned_at, turned_bytes
from zse.kernels.turned.gates import gates_bytes, round_gates, takes_gates, turned_gates
from zse.kernels.turned.reference import gated

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.gpu

COLUMNS = 256
ALIKE = (1, 7, 64, 65, 128, 200, 600)
"""Tokens of steps in which the first ones are to have the same bits."""


@pytest.fixture(scope="module")
def device() -> Iterator[KernelsOnGpu]:
    with kernels_on_gpu() as opened:
        yield opened


@pytest.fixture(scope="module")
def gates(device: KernelsOnGpu) -> tuple[Turned, torch.Tensor, torch.Tensor]:
    """Rows of gates and ups: one group more than there are multiprocessors."""
    torch.manual_seed(1)
    rows = 2 * 128 * (device.launcher.device.multiprocessors + 1)
    codes = torch.randint(-127, 128, (rows, COLUMNS), dtype=torch.int8)
    scales = (torch.rand(rows) + 0.5) * 2e-4
    sent = Turned(rows=rows, columns=COLUMNS, codes=device.send(codes), scales=device.send(scales))
    return sent, codes, scales


@pytest.mark.parametrize("tokens", [1, 70, 128, 200, 400])
def test_gates_are_the_references_whoever_takes_the_last_groups(
    device: KernelsOnGpu, gates: tuple[Turned, torch.Tensor, torch.Tensor], tokens: int
) -> None:
    weights, codes, scales = gates
    width = weights.rows // 2
    if not takes_gates(width, device.launcher.device.target):
        pytest.skip("gates of this architecture are no product's")
    values = torch.randint(-127, 128, (tokens, COLUMNS), dtype=torch.int8)
    token_scales = (torch.rand(tokens) + 0.5) * 2e-2
    inputs = Turned(
        rows=tokens, columns=COLUMNS, codes=device.send(values), scales=device.send(token_scales)
    )
    room = device.room(gates_bytes(tokens, width))
    output = turned_at(device.room(turned_bytes(tokens, width)).address, tokens, width)
    turned_gates(device.launcher, inputs, weights, room.address)
    round_gates(device.launcher, room.address, output)
    found = device.read(output.codes, torch.int8, tokens, width).double()
    found *= device.read(output.scales, torch.float32, tokens).double()[:, None] * 128
    product = (values.float() @ codes.float().T).double() * token_scales[:, None] * scales
    expected = gated(product)
    most = expected.abs().amax(-1, keepdim=True)
    assert ((found - expected).abs() <= most * 0.01).all()


def test_gates_that_are_made_for_as_many_tokens_have_the_bits_of_each_alone(
    device: KernelsOnGpu, gates: tuple[Turned, torch.Tensor, torch.Tensor]
) -> None:
    weights = gates[0]
    width = weights.rows // 2
    if not takes_gates(width, device.launcher.device.target):
        pytest.skip("gates of this architecture are no product's")
    values = torch.randint(-127, 128, (ALIKE[-1], COLUMNS), dtype=torch.int8)
    scales = (torch.rand(ALIKE[-1]) + 0.5) * 2e-2
    codes_at, scales_at = device.send(values), device.send(scales)
    found = {}
    for tokens in ALIKE:
        inputs = Turned(rows=tokens, columns=COLUMNS, codes=codes_at, scales=scales_at)
        room = device.room(gates_bytes(tokens, width))
        output = turned_at(device.room(turned_bytes(tokens, width)).address, tokens, width)
        turned_gates(device.launcher, inputs, weights, room.address, made_for=128)
        round_gates(device.launcher, room.address, output, made_for=128)
        found[tokens] = (
            device.read(output.codes, torch.int8, tokens, width),
            device.read(output.scales, torch.float32, tokens),
        )
    codes, steps = found[ALIKE[-1]]
    for tokens in ALIKE:
        assert found[tokens][0].equal(codes[:tokens]), tokens
        assert found[tokens][1].equal(steps[:tokens]), tokens
