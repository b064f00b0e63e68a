"""Which layers of a step of one row have their norms begun by the products before them.

Only usual layers: attention and an MLP, an RMSNorm before each, nothing else on the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zse.backends.operations import is_attention
from zse.kernels.linear.closed import begins_norm, reads_begun
from zse.kernels.linear.closed_forms import CLOSED_ROWS
from zse.kernels.linear.weight import supports_quantized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zse.backends.gpu.inputs import InputShape
    from zse.backends.gpu.plans import StepPlans
    from zse.backends.gpu.weights import BoundLinear, BoundNorm
    from zse.backends.handles import LayerWeights
    from zse.kernels.linear.plan import LinearPlan
    from zse.kernels.linear.weight import LinearWeight
    from zse.models.layer_spec import LayerSpec, NormSpec


class _Usual(NamedTuple):
    """The norms and matrices of a usual layer."""

    mixer_norm: BoundNorm
    qkv: BoundLinear
    output: BoundLinear
    mlp_norm: BoundNorm
    up: BoundLinear
    down: BoundLinear


def norms_behind(
    specs: Sequence[LayerSpec],
    layers: Sequence[LayerWeights],
    plans: StepPlans,
    shape: InputShape,
) -> Mapping[str, BoundNorm]:
    """Return the norms that products of a step begin, by the name of the product's matrix.

    The matrices that read such a norm take it.
    """
    found: dict[str, BoundNorm] = {}
    if not _may_close(plans, shape):
        return found
    takes = _Takes(plans, shape.rows)
    usual = [_usual(spec, layer) for spec, layer in zip(specs, layers, strict=True)]
    for layer, following in zip(usual, [*usual[1:], None], strict=True):
        if layer is None:
            continue
        if takes.norm(layer.output) and takes.begun(layer.up):
            found[layer.output.name] = layer.mlp_norm
        if following and takes.norm(layer.down) and takes.begun(following.qkv):
            found[layer.down.name] = following.mixer_norm
    return found


def _may_close(plans: StepPlans, shape: InputShape) -> bool:
    is_few = 0 < shape.rows <= CLOSED_ROWS and not shape.adapter_tiles
    return is_few and plans.reads_quantized(shape) and not plans.deterministic


def _usual(spec: LayerSpec, weights: LayerWeights) -> _Usual | None:
    """Return what a layer has that is usual; None of one that has more or other things."""
    if not _is_usual(spec):
        return None
    handles = (weights.mixer_norm, weights.qkv, weights.output)
    return _Usual(*handles, weights.mlp_norm, weights.up, weights.down)  # type: ignore[arg-type]


def _is_usual(spec: LayerSpec) -> bool:
    """Whether a layer is one of attention and an MLP, and nothing else is on the stream."""
    mixer, mlp = spec.mixer, spec.mlp
    if not is_attention(mixer) or mlp is None:
        return False
    others = (
        spec.mixer_post_norm,
        spec.mixer_stream_norm,
        spec.experts,
        spec.mlp_post_norm,
        spec.mlp_stream_norm,
        spec.own_input,
        spec.stream_scale,
        mixer.latent,
        mixer.output.bias,
        mlp.down.bias,
    )
    is_plain = all(other is None for other in others) and spec.residual_scale == 1.0
    return is_plain and _is_rms(spec.mixer_norm) and _is_rms(spec.mlp_norm)


def _is_rms(norm: NormSpec | None) -> bool:
    return norm is not None and norm.kind == "rms" and norm.bias is None


class _Takes:
    """What products of so many rows can do."""

    def __init__(self, plans: StepPlans, rows: int) -> None:
        self._plans, self._rows = plans, rows

    def norm(self, linear: BoundLinear) -> bool:
        """Whether a product begins the norm behind it."""
        return self._asked(linear.weight, begins_norm)

    def begun(self, linear: BoundLinear) -> bool:
        """Whether a product reads a norm that is begun."""
        return self._asked(linear.weight, reads_begun)

    def _asked(self, weight: LinearWeight, ask: Callable[[LinearPlan, LinearWeight], bool]) -> bool:
        if not supports_quantized(weight):
            return False
        return ask(self._plans.plan(weight, self._rows, quantized=True), weight)
