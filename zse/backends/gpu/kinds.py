"""What only some models have: experts, latents, states, adapters, vectors of texts, several GPUs.

What computes them is imported here and nowhere else, for a model that has them: a start imports
nothing that its model does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.heads import latent_attentions_of
from zse.backends.operations import is_attention
from zse.backends.ranks import HostEdges
from zse.backends.types import MAX_DRAFTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from zse.backends.gpu.adapter_tiles import AdapterTiles
    from zse.backends.gpu.adapters import AdapterPool
    from zse.backends.gpu.block_copies import BlockCopies
    from zse.backends.gpu.collectives import Collectives
    from zse.backends.gpu.delta import LinearAttention
    from zse.backends.gpu.experts import ExpertOperations
    from zse.backends.gpu.flow import StreamFlow
    from zse.backends.gpu.host_arena import HostArena
    from zse.backends.gpu.host_flow import HostFlow
    from zse.backends.gpu.inputs import InputShape
    from zse.backends.gpu.kv_pool import KVPool
    from zse.backends.gpu.latent import LatentOperations, LatentPlans
    from zse.backends.gpu.mixture import Mixture
    from zse.backends.gpu.mixture_plans import MixturePlans
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.plans import StepPlans
    from zse.backends.gpu.state_pool import StatePool
    from zse.backends.gpu.texts import TextOperations
    from zse.backends.kv_images import KVImages
    from zse.backends.ranks import RankPart
    from zse.backends.states import StateLayout
    from zse.backends.types import SequenceChunk
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Gpu, Stream
    from zse.kernels.linear.weight import LinearWeight
    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions, LoRAOptions


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
    if latent_attentions_of(spec):
        import zse.backends.gpu.latent
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
    elif layer.mixer.latent is not None:
        from zse.backends.gpu.latent import latent_obstacles

        yield from latent_obstacles(layer.mixer)


def latent_plans_of(
    spec: ModelSpec, facts: DeviceFacts, max_context: int, *, any_rows: int
) -> LatentPlans | None:
    if not (attentions := latent_attentions_of(spec)):
        return None
    from zse.backends.gpu.latent import LatentPlans

    return LatentPlans(attentions, facts, max_context, any_rows=any_rows)


def latent_operations_of(model: DeviceModel) -> LatentOperations | None:
    if model.plans.latents is None:
        return None
    from zse.backends.gpu.latent import LatentOperations

    return LatentOperations(model)


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


def collectives_of(
    gpu: Gpu, stream: Stream, part: RankPart | None, options: LoadOptions
) -> Collectives | None:
    """Return what a rank does together with the others; None where there are none.

    Where bits may not depend on how many rows there are, and where nothing may be rounded, sums are
    sent as float32 however many they are.
    """
    if part is None or not part.is_divided:
        return None
    from zse.backends.gpu.collectives import Collectives

    device = options.device
    is_exact = device.deterministic or device.exact_activations
    hidden = part.spec.hidden_size
    return Collectives(gpu, stream, part.link, hidden=hidden, is_exact=is_exact)


def flow_of(
    gpu: Gpu, stream: Stream, part: RankPart | None, options: LoadOptions
) -> StreamFlow | HostFlow | None:
    """Return the stream's way from stage to stage; None where one has all layers."""
    if part is None or part.edges is None:
        return None
    hidden = part.spec.hidden_size
    most = max(options.batch.max_batch_tokens, options.batch.max_sequences + MAX_DRAFTS)
    if isinstance(part.edges, HostEdges):
        from zse.backends.gpu.host_flow import HostFlow

        return HostFlow(gpu, stream, hidden=hidden, most_rows=most)
    from zse.backends.gpu.flow import StreamFlow

    return StreamFlow(gpu, stream, part.edges, hidden=hidden, most_rows=most)


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


def adapter_pool_of(gpu: Gpu, spec: ModelSpec, options: LoRAOptions) -> AdapterPool | None:
    """Return memory for adapters; None where none was asked for."""
    if not options.gpu_bytes or spec.is_encoder:
        return None
    from zse.backends.gpu.adapters import AdapterPool

    return AdapterPool(gpu, spec, options)


def count_adapter_tiles(chunks: Sequence[SequenceChunk], prefill_rows: int) -> int:
    """Return the tiles of a step's rows with adapters; 0 where no row has one."""
    if all(chunk.adapter is None for chunk in chunks):
        return 0
    from zse.backends.gpu.adapter_tiles import count_tiles

    return count_tiles(chunks, prefill_rows)


def adapter_tiles_of(placed: Iterable[tuple[SequenceChunk, int]], tile_rows: int) -> AdapterTiles:
    """Return the tiles of chunks that have adapters, each chunk with its first row."""
    from zse.backends.gpu.adapter_tiles import adapter_tiles

    return adapter_tiles(placed, tile_rows)


def low_rank_bytes(spec: ModelSpec, options: LoRAOptions, shape: InputShape) -> int:
    """Return what the kernels of adapters hand on to each other in a step with some."""
    from zse.backends.gpu.adapters import low_rank_bytes

    return low_rank_bytes(spec, options, shape)


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


def images_of(spec: ModelSpec, pool: KVPool, block_size: int) -> KVImages:
    """Return what the blocks of a pool look like outside of it."""
    from zse.backends.gpu import block_copies

    return block_copies.images_of(spec, pool, block_size)


def block_copies_of(gpu: Gpu, pool: KVPool, stream: Stream) -> BlockCopies:
    """Return what copies blocks between a pool and the host, for one call."""
    from zse.backends.gpu.block_copies import BlockCopies

    return BlockCopies(gpu, pool, stream)


def host_arena_of(gpu: Gpu, pool: KVPool, stream: Stream, length_bytes: int) -> HostArena:
    """Return host memory for a pool's blocks."""
    from zse.backends.gpu.host_arena import HostArena

    return HostArena(gpu, pool, stream, length_bytes)
