"""The reference of the gated delta rule equals the rule as transformers has it."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from zse.kernels.delta.reference import (
    DeltaParameters,
    convolve,
    delta,
    mix_chunked,
    mix_recurrent,
    split_heads,
)
from zse.kernels.delta.shape import DeltaShape

SHAPE = DeltaShape(
    num_key_heads=2, num_value_heads=6, key_dim=16, value_dim=24, convolution_width=4
)


def random_parameters(shape: DeltaShape = SHAPE) -> DeltaParameters:
    return DeltaParameters(
        convolution=torch.randn(shape.channels, shape.convolution_width),
        decay=torch.rand(shape.num_value_heads) * 3 - 2,
        step_bias=torch.randn(shape.num_value_heads),
        norm=torch.rand(shape.value_dim) + 0.5,
        epsilon=1e-6,
    )


def random_inputs(tokens: int, shape: DeltaShape = SHAPE) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(tokens, shape.input_columns), torch.randn(tokens, 2 * shape.num_value_heads)


def empty_state(shape: DeltaShape = SHAPE) -> tuple[torch.Tensor, torch.Tensor]:
    history = torch.zeros(shape.convolution_width - 1, shape.channels)
    return history, torch.zeros(shape.num_value_heads, shape.key_dim, shape.value_dim)


@pytest.mark.parametrize("tokens", [1, 5, 64, 150])
def test_chunked_and_recurrent_forms_equal_the_rule_of_transformers(tokens: int) -> None:
    torch.manual_seed(tokens)
    convolved = torch.randn(tokens, SHAPE.channels)
    gates = torch.randn(tokens, 2 * SHAPE.num_value_heads)
    parameters = random_parameters()
    heads = split_heads(convolved, gates, parameters, SHAPE)
    initial = torch.randn(SHAPE.num_value_heads, SHAPE.key_dim, SHAPE.value_dim)
    query, key, _ = convolved.split([SHAPE.key_columns] * 2 + [SHAPE.value_columns], 1)
    expected, end = torch_recurrent_gated_delta_rule(
        query.view(1, tokens, -1, SHAPE.key_dim),
        key.view(1, tokens, -1, SHAPE.key_dim),
        heads.value[None],
        g=heads.log_decay[None],
        beta=heads.beta[None],
        initial_state=initial[None].clone(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    for mix in (mix_recurrent, mix_chunked):
        state = initial.clone()
        torch.testing.assert_close(mix(heads, state), expected[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state, end[0], rtol=1e-4, atol=1e-5)


def test_equal_keys_without_decay_are_solved_exactly() -> None:
    tokens = 64
    convolved = torch.randn(1, SHAPE.channels).expand(tokens, -1)
    gates = torch.full((tokens, 2 * SHAPE.num_value_heads), 30.0)  # steps of one
    gates[:, SHAPE.num_value_heads :] = -60.0  # and no decay
    heads = split_heads(convolved, gates, random_parameters(), SHAPE)
    chunked, recurrent = empty_state()[1], empty_state()[1]
    torch.testing.assert_close(mix_chunked(heads, chunked), mix_recurrent(heads, recurrent))
    torch.testing.assert_close(chunked, recurrent)


def test_a_sequence_may_be_cut_anywhere() -> None:
    torch.manual_seed(3)
    parameters, (inputs, gates) = random_parameters(), random_inputs(100)
    whole = delta(inputs, gates, parameters, SHAPE, *empty_state())
    history, state = empty_state()
    parts = [
        delta(*part, parameters, SHAPE, history, state)
        for part in zip(inputs.split(7), gates.split(7), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)


def test_the_convolution_looks_back_and_never_ahead() -> None:
    weight = torch.tensor([[0.0, 0.0, 2.0, 1.0]])
    history = torch.tensor([[0.0], [0.0], [5.0]])
    found = convolve(torch.tensor([[1.0], [3.0]]), weight, history)
    expected = torch.nn.functional.silu(torch.tensor([[11.0], [5.0]]))
    torch.testing.assert_close(found, expected)
    assert history.tolist() == [[5.0], [1.0], [3.0]]
