"""Reference of ``norm``: plain, slow, obviously right."""

from __future__ import annotations

import torch

TOLERANCE = 2e-2
"""Largest error over largest value of a kernel that computes in 16 bits."""


def rms_norm(values: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return ``values / rms(values) * weight`` over the last dimension, float32."""
    root = torch.sqrt(values.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return values / root * weight


def residual_norm(
    residual: torch.Tensor,
    norm: torch.Tensor | None,
    epsilon: float,
    added: torch.Tensor | None = None,
    *,
    added_bias: torch.Tensor | None = None,
    added_scale: float = 1.0,
    is_layer_norm: bool = False,
    norm_bias: torch.Tensor | None = None,
    output_scale: float = 1.0,
    post_norm: torch.Tensor | None = None,
    post_epsilon: float = 0.0,
    stream_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new residual stream and its norm, both float32 [T, H].

    Args:
        residual: float32 [T, H].
        norm: float32 [H]; None gives the stream in place of its norm.
        added: float32 [splits, T, H], added in order of the first dimension.
        added_bias: float32 [H], added to their sum.
        added_scale: Multiplies the sum and its bias.
        norm_bias: float32 [H], added after the weight.
        post_norm: float32 [H], of an RMSNorm of the sum and its bias, before the scale.
        stream_scale: Multiplies the stream after the sum was added.
    """
    if added is not None:
        total = added.sum(0) if added_bias is None else added.sum(0) + added_bias
        if post_norm is not None:
            total = rms_norm(total, post_norm, post_epsilon)
        residual = (residual + total * added_scale) * stream_scale
    if norm is None:
        return residual, residual * output_scale
    centered = residual - residual.mean(-1, keepdim=True) if is_layer_norm else residual
    normalized = rms_norm(centered, norm, epsilon)
    if norm_bias is not None:
        normalized = normalized + norm_bias
    return residual, normalized * output_scale


def quantize(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return int8 codes [T, K], float32 scales [T, K / 128] and scaled sums of codes.

    The largest value of a group of 128 gets code 127; halves are rounded to even; a group of
    zeros has scale 0.
    """
    groups = values.float().view(*values.shape[:-1], -1, 128)
    scales = groups.abs().amax(-1) / 127.0
    inverse = torch.where(scales > 0, 1.0 / scales, torch.zeros_like(scales))
    codes = torch.round(groups * inverse.unsqueeze(-1))
    return codes.flatten(-2).to(torch.int8), scales, scales * codes.sum(-1)


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return float32 [T, K] of int8 codes [T, K] and scales [T, K / 128]."""
    groups = codes.float().view(*codes.shape[:-1], -1, 128)
    return (groups * scales.unsqueeze(-1)).flatten(-2)
