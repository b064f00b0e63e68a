"""What each scheme loses of a matrix's outputs, measured on some of its rows.

Rows are rounded as the conversion will round them: by feedback where a text is read, for what a
scheme loses with it and without it are not in proportion. Fewer bits gain more by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.backends.operations import is_attention
from zse.errors import ConversionError
from zse.format.as_torch import dequantize
from zse.format.layout import PlannedTensor
from zse.format.schemes import Scheme, group_sizes
from zse.format.spec import TensorEntry
from zse.quantize.calibrate.feedback import Feedback, shrunk
from zse.quantize.calibrate.rounding import round_rows
from zse.quantize.mixed.plan import Option
from zse.quantize.scheme import quantize_rows
from zse.quantize.source_rows import read_rows, rows_together
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.models.layer_spec import LayerSpec, NormSpec
    from zse.models.weights import WeightSpec
    from zse.quantize.calibrate.moments import Moments
    from zse.quantize.checkpoint import Checkpoint

ROWS = 256
"""Of a matrix that are measured; its others are like them."""
_COUNTS = {"attention": 2.5}
"""What the errors of a kind of matrices count beside those of others: INT4 without data takes as
much from the answers of Qwen2.5-Coder-0.5B by rounding what makes queries, keys and values as by
rounding all else (docs/quantization.md), which is three matrices of about as large an error."""
_MEASURED = (Scheme.INT2, Scheme.INT3, Scheme.INT4)
"""Schemes whose gain by feedback is measured, once each, for that takes a step a column. Groups of
other sizes are taken to gain as much, and schemes of more bits as INT4."""
_PIECES = 8
"""Places of each piece of a weight that rows are taken from."""


@record
class _Inputs:
    """What a matrix is given."""

    squares: torch.Tensor
    """float32 [K]: their mean squares."""
    products: Sequence[tuple[int, int, torch.Tensor]] = ()
    """First column and end of each range, and the mean products of its inputs, as far as they are
    trusted; empty: they are taken to be independent of each other."""
    feedbacks: Sequence[Feedback] = ()


def options_of(
    checkpoint: Checkpoint, weight: WeightSpec, layer: LayerSpec | None, moments: Sequence[Moments]
) -> list[Option]:
    """Measure every way to store a weight.

    Args:
        checkpoint: Where it is.
        weight: A matrix of linear layers, or a stack of them.
        layer: The layer it belongs to, if any.
        moments: Of its inputs, as a text makes them; none: they are taken as the norm before makes
            them, independent of each other.
    """
    sample = _Sample(_inputs(checkpoint, weight, layer, moments), _some_rows(checkpoint, weight))
    counts, gain, found = _COUNTS.get(weight.kind, 1.0), 1.0, []
    before: Scheme | None = None
    for planned in forms_of(weight, checkpoint.spec.dtype):
        scheme, group_size = planned.scheme, planned.group_size
        is_first, before = scheme is not before, scheme
        try:
            lost = sample.lost(scheme, group_size)
            if is_first and scheme in _MEASURED and sample.inputs.feedbacks:
                gain = sample.lost(scheme, group_size, sample.inputs.feedbacks) / lost
        except ConversionError:
            continue  # float16 does not reach as far as some weights
        found.append(Option(planned=planned, error=counts * gain * lost))
    return found


def forms_of(weight: WeightSpec, dtype: str) -> list[PlannedTensor]:
    """Return every way to store a weight of a checkpoint of some dtype, few bits first."""
    return [
        PlannedTensor(name=weight.name, scheme=scheme, shape=weight.shape, group_size=group_size)
        for scheme, sizes in _candidates(weight.shape[1], dtype)
        for group_size in sizes
    ]


class _Sample:
    """Rows of a matrix, and what it is given."""

    def __init__(self, inputs: _Inputs, rows: torch.Tensor) -> None:
        self.inputs = inputs
        self._rows = rows.to(inputs.squares.device)
        self._kept = max(_outputs(self._rows, inputs), 1e-30)

    def lost(self, scheme: Scheme, group_size: int, feedbacks: Sequence[Feedback] = ()) -> float:
        """Return the share of the squares of outputs that a scheme loses: above 0."""
        entry = TensorEntry(
            name="", scheme=scheme, shape=tuple(self._rows.shape), group_size=group_size, parts=()
        )
        if feedbacks:
            parts = round_rows(scheme, self._rows, group_size, self.inputs.squares, feedbacks)
        else:
            parts = quantize_rows(scheme, self._rows, group_size, self.inputs.squares)
        lost = _outputs(dequantize(entry, parts) - self._rows, self.inputs)
        return max(lost / self._kept, 1e-30)


def _candidates(columns: int, dtype: str) -> Iterator[tuple[Scheme, list[int]]]:
    """Yield schemes and the sizes of their groups, those of few bits first."""
    for scheme in _MEASURED:
        yield scheme, [size for size in group_sizes(scheme) if columns % size == 0]
    yield Scheme.NF4, [64] if columns % 64 == 0 else []
    yield Scheme.INT8, [0]
    yield Scheme.FP16 if dtype == "fp16" else Scheme.BF16, [0]


def _some_rows(checkpoint: Checkpoint, weight: WeightSpec) -> torch.Tensor:
    """Return float32 rows from all over a weight."""
    pieces = list(weight.pieces())
    pieces = pieces[:: max(1, len(pieces) // 16)]
    wanted = max(1, ROWS // (len(pieces) * _PIECES))
    found = []
    for piece in pieces:
        together = rows_together(piece)
        count = min(-(-wanted // together) * together, piece.rows)
        last = (piece.rows - count) // together
        starts = sorted({place * last // (_PIECES - 1) * together for place in range(_PIECES)})
        found += [
            read_rows(checkpoint, weight, piece, start, start + count).float() for start in starts
        ]
    return torch.cat(found)


def _inputs(
    checkpoint: Checkpoint,
    weight: WeightSpec,
    layer: LayerSpec | None,
    moments: Sequence[Moments],
) -> _Inputs:
    seen = [one for one in moments if one.count]
    if seen:
        total = sum(one.count for one in seen)
        squares = torch.stack([one.squares() * (one.count / total) for one in seen]).sum(0)
        known = seen[0].products() if len(seen) == 1 else []
        ranges = [
            (*edges, shrunk(one, total)) for edges, one in zip(seen[0].ranges, known, strict=False)
        ]
        feedbacks = [
            Feedback.of(start, one, total)
            for (start, _), one in zip(seen[0].ranges, known, strict=False)
        ]
        return _Inputs(squares=squares, products=ranges, feedbacks=feedbacks)
    norm = None if layer is None else _norm_before(layer, weight)
    if norm is None:
        return _Inputs(squares=torch.ones(weight.shape[1]))
    source = norm.weight.sources[0]
    values = read_rows(checkpoint, norm.weight, source, 0, source.rows).float().reshape(-1)
    return _Inputs(squares=values.square().clamp(min=1e-12))


def _norm_before(layer: LayerSpec, weight: WeightSpec) -> NormSpec | None:
    """Return the norm whose outputs a weight multiplies, if there is one."""
    pairs = []
    if is_attention(layer.mixer):
        pairs.append((layer.mixer_norm, layer.mixer.qkv))
    if layer.mlp is not None:
        pairs.append((layer.mlp_norm, layer.mlp.up))
    if layer.experts is not None:
        pairs.append((layer.experts.norm, layer.experts.expert.up))
    return next((norm for norm, linear in pairs if linear.weight.name == weight.name), None)


def _outputs(rows: torch.Tensor, inputs: _Inputs) -> float:
    """Return the mean square of what rows make of the inputs."""
    if not inputs.products:
        return float((rows.square() @ inputs.squares).sum())
    return sum(
        float(((rows[:, start:end] @ one) * rows[:, start:end]).sum())
        for start, end, one in inputs.products
    )
