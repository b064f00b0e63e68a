"""What only some models have: linear attention, mixtures of experts, vectors of whole texts.

What computes them is imported here and nowhere else, for a model that has them: a start imports
nothing that its model does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.backends.gpu.delta import LinearAttention
    from zse.backends.gpu.experts import ExpertOperations
    from zse.backends.gpu.mixture import Mixture
    from zse.backends.gpu.mixture_plans import MixturePlans
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.plans import StepPlans
    from zse.backends.gpu.state_pool import StatePool
    from zse.backends.gpu.texts import TextOperations
    from zse.backends.states import StateLayout
    from zse.device.gpu import Gpu
    from zse.kernels.linear.weight import LinearWeight
    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec


def has_experts(spec: ModelSpec) -> bool:
    return any(layer.experts is not None for layer in spec.layers)


def import_kinds(spec: ModelSpec) -> None:
    """Import what a model has, while the GPU is being opened."""
    if has_experts(spec):
        import zse.backends.gpu.experts
        import zse.backends.gpu.mixture_plans
    if not all(is_attention(layer.mixer) for layer in spec.layers):
        import zse.backends.gpu.delta
        import zse.backends.gpu.state_pool
    if spec.is_encoder:
        import zse.backends.gpu.texts  # noqa: F401 - all for their effect


def obstacles(layer: LayerSpec) -> Iterator[str]:
    """Return what of such a layer the kernels do not compute."""
    if layer.experts is not None:
        from zse.backends.gpu.mixture import expert_obstacles

        yield from expert_obstacles(layer, layer.experts)
    if not is_attention(layer.mixer):
        from zse.backends.gpu.delta import delta_obstacles

        yield from delta_obstacles(layer.mixer)


def linear_attention_of(states: StateLayout) -> LinearAttention | None:
    if not states.shapes:
        return None
    from zse.backends.gpu.delta import LinearAttention

    return LinearAttention(states.shapes)


def state_pool_of(gpu: Gpu, states: StateLayout, num_slots: int) -> StatePool | None:
    """Return memory for so many states; None where sequences have none."""
    if not states.shapes:
        return None
    from zse.backends.gpu.state_pool import StatePool

    return StatePool(gpu, states.shapes, num_slots)


def mixtures_of(
    spec: ModelSpec, linears: Mapping[str, LinearWeight], vectors: Mapping[str, int]
) -> Mapping[str, Mixture]:
    """Return the mixtures of a model by the name of their router; see ``mixture.mixtures_of``."""
    if not has_experts(spec):
        return {}
    from zse.backends.gpu.mixture import mixtures_of

    return mixtures_of(spec, linears, vectors)


def mixture_plans_of(
    spec: ModelSpec, linears: Mapping[str, LinearWeight], plans: StepPlans
) -> MixturePlans | None:
    if not has_experts(spec):
        return None
    from zse.backends.gpu.mixture_plans import MixturePlans

    return MixturePlans(spec, linears, plans)


def text_operations_of(model: DeviceModel) -> TextOperations | None:
    if not model.spec.is_encoder:
        return None
    from zse.backends.gpu.texts import TextOperations

    return TextOperations(model)


def expert_operations_of(model: DeviceModel) -> ExpertOperations | None:
    if not has_experts(model.spec):
        return None
    from zse.backends.gpu.experts import ExpertOperations

    return ExpertOperations(model)
