"""Reference of ``delta``: plain, slow, obviously right.

The rule, for one head with state S [key_dim, value_dim], decay exp(g) and step beta:

    S = exp(g) * S
    S = S + k (beta * (v - S^T k))^T
    output = S^T q

``mix_recurrent`` is this text; ``mix_chunked`` takes 64 tokens at a time. There the steps of a
chunk are one triangular system: what each token adds depends on what those before it added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from zse.kernels.norm.reference import rms_norm

if TYPE_CHECKING:
    from zse.kernels.delta.shape import DeltaShape

TOLERANCE = 2e-2
"""Largest error over largest value of a kernel that computes in 16 bits."""
CHUNK_TOKENS = 64
L2_EPSILON = 1e-6


class DeltaParameters(NamedTuple):
    """The weights of a layer that are no matrices, float32."""

    convolution: torch.Tensor
    """[channels, width]; the last column is for the newest token."""
    decay: torch.Tensor
    """[value_heads]: logarithm of the rate."""
    step_bias: torch.Tensor
    """[value_heads]."""
    norm: torch.Tensor
    """[value_dim]."""
    epsilon: float


class Heads(NamedTuple):
    """What the rule is given, float32; queries and keys are repeated for their value heads."""

    query: torch.Tensor
    """[T, value_heads, key_dim]."""
    key: torch.Tensor
    value: torch.Tensor
    """[T, value_heads, value_dim]."""
    log_decay: torch.Tensor
    """[T, value_heads], at most 0."""
    beta: torch.Tensor


def delta(
    inputs: torch.Tensor,
    gates: torch.Tensor,
    parameters: DeltaParameters,
    shape: DeltaShape,
    history: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """Return the output of consecutive tokens of one sequence, float32 [T, value columns].

    Args:
        inputs: float32 [T, shape.input_columns]: queries, keys, values, gates of the output.
        gates: float32 [T, 2 * value_heads]: steps, then decays, of each value head.
        parameters: Of the layer.
        shape: Its numbers.
        history: float32 [width - 1, channels], what was convolved before, oldest first; changed.
        state: float32 [value_heads, key_dim, value_dim]; changed.
    """
    channels, output_gate = torch.split(inputs, [shape.channels, shape.value_columns], 1)
    convolved = convolve(channels, parameters.convolution, history)
    heads = split_heads(convolved, gates, parameters, shape)
    mix = mix_recurrent if inputs.shape[0] == 1 else mix_chunked
    mixed = mix(heads, state)
    normed = rms_norm(mixed, parameters.norm, parameters.epsilon).flatten(1)
    return normed * functional.silu(output_gate)


def convolve(inputs: torch.Tensor, weight: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """Return SiLU of the causal convolution of [T, channels], each channel by itself."""
    line = torch.cat((history, inputs))
    windows = line.unfold(0, weight.shape[1], 1)  # [T, channels, width]
    history.copy_(line[line.shape[0] - history.shape[0] :])
    return functional.silu((windows * weight).sum(-1))


def split_heads(
    convolved: torch.Tensor, gates: torch.Tensor, parameters: DeltaParameters, shape: DeltaShape
) -> Heads:
    """Return normalized queries and keys, values, decays and steps."""
    repeats = shape.num_value_heads // shape.num_key_heads
    query, key, value = torch.split(
        convolved, [shape.key_columns, shape.key_columns, shape.value_columns], 1
    )
    step, decay = gates.chunk(2, dim=1)
    rate = torch.exp(parameters.decay)
    return Heads(
        query=_unit(query, shape).repeat_interleave(repeats, 1) * shape.key_dim**-0.5,
        key=_unit(key, shape).repeat_interleave(repeats, 1),
        value=value.reshape(-1, shape.num_value_heads, shape.value_dim),
        log_decay=-rate * functional.softplus(decay + parameters.step_bias),
        beta=torch.sigmoid(step),
    )


def mix_recurrent(heads: Heads, state: torch.Tensor) -> torch.Tensor:
    """Return [T, value_heads, value_dim], one token after the other; the state is changed."""
    outputs = []
    for query, key, value, log_decay, beta in zip(*heads, strict=True):
        state.mul_(torch.exp(log_decay)[:, None, None])
        known = torch.einsum("hkv,hk->hv", state, key)
        state.add_(torch.einsum("hk,hv->hkv", key, (value - known) * beta[:, None]))
        outputs.append(torch.einsum("hkv,hk->hv", state, query))
    return torch.stack(outputs)


def mix_chunked(
    heads: Heads, state: torch.Tensor, chunk_tokens: int = CHUNK_TOKENS
) -> torch.Tensor:
    """Return the same, so many tokens at a time."""
    chunks = zip(*(torch.split(part, chunk_tokens) for part in heads), strict=True)
    return torch.cat([_mix_chunk(Heads(*chunk), state) for chunk in chunks])


def _mix_chunk(heads: Heads, state: torch.Tensor) -> torch.Tensor:
    query, key, value = (part.transpose(0, 1) for part in heads[:3])  # [heads, T, dim]
    beta = heads.beta.T.unsqueeze(-1)  # [heads, T, 1]
    total = heads.log_decay.T.cumsum(1)  # [heads, T], from the chunk's start to each token's end
    between = (total.unsqueeze(2) - total.unsqueeze(1)).tril().exp().tril()  # [heads, T, T]
    grown = total.exp().unsqueeze(-1)
    system = (key * beta) @ key.transpose(1, 2) * between
    wanted = beta * (value - grown * (key @ state))
    added = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    outputs = grown * (query @ state) + query @ key.transpose(1, 2) * between @ added
    kept = (total[:, -1:] - total).exp().unsqueeze(-1)
    state.mul_(grown[:, -1:]).add_((key * kept).transpose(1, 2) @ added)
    return outputs.transpose(0, 1)


def _unit(columns: torch.Tensor, shape: DeltaShape) -> torch.Tensor:
    heads = columns.reshape(-1, shape.num_key_heads, shape.key_dim)
    return heads * torch.rsqrt(heads.pow(2).sum(-1, keepdim=True) + L2_EPSILON)
