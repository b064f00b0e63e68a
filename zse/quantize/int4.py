"""INT4: group-wise asymmetric, round to nearest, with scale and zero point fitted.

A weight is ``q * scale + minus_zero_scale`` with q in 0..15 (0..7 and 0..3 in INT3 and INT2, which
are fitted here as well) and both numbers in float16.

Without data the sixteen codes of INT4 span a group's range, and the zero point alone is fitted, by
half-quadratic splitting (Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning
Models", 2023). A decoder then answers nearer to what it did in 16 bits than after a fit that loses
less of the weights by giving up some of the largest for all others.

Where a text says what inputs count, and where codes are fewer, the range is first clipped, by the
best of a small grid, then scale and zero point are fitted to the codes by least squares and the
codes rounded again, a few times.
"""

from __future__ import annotations

import torch

from zse.format.schemes import Scheme, code_bits
from zse.quantize.finite import check_finite
from zse.quantize.packing import divided, narrow_codes, pack_int4, tree_sum_
from zse.records import record

MAX_CODE = 15
CLIP_RATIOS = (1.0, 0.9, 0.8)
FEW_CLIP_RATIOS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""With fewer codes the range is worth less than the steps inside it."""
REFINE_ROUNDS = 4
ZERO_POINT_ROUNDS = 6
MOST_PULL = 0.25
"""Steps by which what rounding leaves of one weight pulls its group's zero point, at most."""


@record
class Fitted:
    """Codes of weights, and the numbers by which they stand for them."""

    codes: torch.Tensor
    """uint8 [num_rows, K], 0 to the largest code."""
    scale_zero: torch.Tensor
    """float16 [num_rows, K/G, 2]: the scale of a code, and what is added to the product."""


def quantize_int4(
    rows: torch.Tensor, group_size: int, importance: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Quantize [num_rows, K] float32 to qweight uint8 [num_rows, K/2], scale_zero int32.

    Scales and zero points are [num_rows, K/G] for groups of G along K; ``importance`` is as for
    ``fit``.

    Raises:
        ConversionError: A group's range is not finite.
    """
    return quantize_whole_numbers(Scheme.INT4, rows, group_size, importance)


def quantize_whole_numbers(
    scheme: Scheme, rows: torch.Tensor, group_size: int, importance: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """As ``quantize_int4`` for INT4, INT3 and INT2; qweight is uint8 [num_rows, K * bits / 8]."""
    bits = code_bits(scheme)
    fitted = fit(rows, group_size, importance, scheme)
    # On a little-endian machine the first float16 of a pair is the low half of the int32.
    pairs = fitted.scale_zero.view(torch.int32).squeeze(2)
    packed = narrow_codes(pack_int4(fitted.codes, group_size), bits)
    return {"qweight": packed, "scale_zero": pairs}


def fit(
    rows: torch.Tensor,
    group_size: int,
    importance: torch.Tensor | None = None,
    scheme: Scheme = Scheme.INT4,
) -> Fitted:
    """Find codes, scales and offsets that stand for [num_rows, K] float32, which is left alone.

    Args:
        rows: The weights.
        group_size: G, weights along K that share a scale and an offset.
        importance: [K] float32 above 0: what the squared error of an input's weights counts, such
            as the mean square of that input; None: all count alike.
        scheme: INT4, INT3 or INT2: how many codes there are.

    Raises:
        ConversionError: A group's range is not finite.
    """
    num_rows, columns = rows.shape
    # [group_size, num_groups]: an operation on one number a group is then one on plain vectors.
    groups = rows.reshape(-1, group_size).t().contiguous()
    low, high = groups.amin(0), groups.amax(0)
    check_finite({"range": high - low}, scheme)
    most = (1 << code_bits(scheme)) - 1
    counts = None
    if importance is not None:
        counts = importance.reshape(-1, group_size).t().repeat(1, num_rows)
    if counts is None and scheme is Scheme.INT4:
        scale, offset = _range_kept(groups, low, high)
    else:
        scale, offset = _refined(groups, low, high, counts, most)
    scale_zero = torch.stack((scale.half(), offset.half()), dim=1)  # [num_groups, 2]
    scale, offset = scale_zero[:, 0].float(), scale_zero[:, 1].float()
    codes = _round_codes_(groups.sub_(offset), _inverse(scale), most).to(torch.uint8)
    return Fitted(
        codes=codes.t().reshape(num_rows, columns),
        scale_zero=scale_zero.view(num_rows, columns // group_size, 2),
    )


def _range_kept(
    groups: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and offset [num_groups] whose codes span groups [group_size, num_groups].

    In steps of the scale, what rounding leaves of a weight is ``left = weight - offset - code``. Of
    it half-quadratic quantization takes what an outlier may keep, ``shrink(left)``, and moves the
    offset by the mean of the rest. With the l1 norm for outliers that rest is ``left`` clamped to
    +-1/beta; here 1/beta is MOST_PULL in every round (the paper has p = 0.7 and a growing beta).
    """
    scale = divided(high - low, MAX_CODE)
    inverse = _inverse(scale)
    steps, offset = groups * inverse, low * inverse
    left, codes = torch.empty_like(groups), torch.empty_like(groups)
    for _ in range(ZERO_POINT_ROUNDS):
        torch.sub(steps, offset, out=left)
        torch.round(left, out=codes).clamp_(0, MAX_CODE)
        left.sub_(codes).clamp_(-MOST_PULL, MOST_PULL)
        offset = offset + divided(tree_sum_(left), float(groups.shape[0]))
    # A group whose weights are all equal has no steps: its offset alone is exact.
    return scale, torch.where(scale == 0, low, offset * scale)


@record
class _Fit:
    """The best line through codes and weights, for each of num_groups groups."""

    scale: torch.Tensor
    offset: torch.Tensor
    explained: torch.Tensor
    """Squared weight that the line explains; larger is better."""


def _refined(
    groups: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    counts: torch.Tensor | None,
    most: int = MAX_CODE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and offset [num_groups] that approximate groups [group_size, num_groups].

    ``counts`` is what the error of each weight counts, of the shape of ``groups``; ``most`` is the
    largest code.
    """
    # Three buffers serve every round: fresh ones would cost more in page faults than the sums.
    codes, work = torch.empty_like(groups), groups.clone()
    total = torch.tensor(float(groups.shape[0])) if counts is None else tree_sum_(counts.clone())
    mean = _sum_(work, counts) / total
    centered = groups - mean  # sums of products then lose no digits to the mean
    middle, width = (low + high) * 0.5 - mean, divided(high - low, most)
    sums = _Sums(centered=centered, counts=counts, total=total, codes=codes, work=work, most=most)
    best: _Fit | None = None
    for ratio in CLIP_RATIOS if most == MAX_CODE else FEW_CLIP_RATIOS:
        scale = width * ratio
        fitted = _fit(sums, scale, middle - scale * (most / 2))
        best = fitted if best is None else _better(best, fitted)
    assert best is not None
    for _ in range(REFINE_ROUNDS):
        best = _better(best, _fit(sums, best.scale, best.offset))
    # A group whose weights are all equal has no slope: its offset alone is exact.
    constant = best.scale == 0
    return best.scale, torch.where(constant, low, best.offset + mean)


@record
class _Sums:
    """What every round sums over: [group_size, num_groups], but for the total."""

    centered: torch.Tensor
    """Weights less their group's mean."""
    counts: torch.Tensor | None
    total: torch.Tensor
    """Sum of the counts of a group."""
    codes: torch.Tensor
    """Scratch, as is ``work``."""
    work: torch.Tensor
    most: int
    """The largest code."""


def _fit(sums: _Sums, scale: torch.Tensor, offset: torch.Tensor) -> _Fit:
    """Round to codes with this scale and offset, then fit scale and offset to those codes."""
    codes, work, counts = sums.codes, sums.work, sums.counts
    _round_codes_(torch.sub(sums.centered, offset, out=codes), _inverse(scale), sums.most)
    product = _sum_(torch.mul(codes, sums.centered, out=work), counts).clone()
    # Sums of small whole numbers are exact in float32 whatever the order.
    code_mean = _sum_(work.copy_(codes), counts) / sums.total
    squares = _sum_(torch.mul(codes, codes, out=work), counts)
    variance = squares - code_mean * code_mean * sums.total
    fitted = torch.where(variance > 0, product / variance.clamp(min=1e-9), torch.zeros_like(scale))
    return _Fit(scale=fitted, offset=-fitted * code_mean, explained=fitted * product)


def _sum_(values: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
    """Sum over a group what its numbers count; ``values`` are used up, and hold the sum."""
    return tree_sum_(values if counts is None else values.mul_(counts))


def _better(first: _Fit, second: _Fit) -> _Fit:
    wins = second.explained > first.explained
    return _Fit(
        scale=torch.where(wins, second.scale, first.scale),
        offset=torch.where(wins, second.offset, first.offset),
        explained=torch.where(wins, second.explained, first.explained),
    )


def _round_codes_(
    shifted: torch.Tensor, inverse_scale: torch.Tensor, most: int = MAX_CODE
) -> torch.Tensor:
    """Turn weights minus their offset into whole numbers 0 to ``most``, in place."""
    return shifted.mul_(inverse_scale).round_().clamp_(0, most)


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale > 0, 1.0 / scale.clamp(min=1e-30), torch.zeros_like(scale))
