"""A mixture of experts on a GPU: its matrices, and the memory of a step that goes through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.experts.plan import FEW_ROWS, ROUTED_ROWS
from zse.kernels.experts.weight import STEP_COLUMNS, StackedWeight, reads_few_rows, takes_slot
from zse.kernels.route.launch import Choice, Grouping
from zse.kernels.route.rules import MAX_CHOSEN, MAX_EXPERTS, MAX_GROUPS
from zse.kernels.route.variants import fits_norm_route
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.kernels.linear.weight import LinearWeight
    from zse.models.layer_spec import ExpertsSpec, LayerSpec, MLPSpec
    from zse.models.spec import ModelSpec

_ALIGNMENT = 256
_GATE_SPLITS = 16
"""Most splits of the product of a shared expert's gate."""


@record
class SharedMatrices:
    """A shared expert of another form than the others: two products of its own."""

    up: LinearWeight
    down: LinearWeight


@record
class Mixture:
    """The matrices of a layer's experts."""

    up: StackedWeight
    down: StackedWeight
    router: LinearWeight
    gate: LinearWeight | None
    """Of the shared expert, one row."""
    chosen: int
    """Experts of a row."""
    has_shared: bool
    """Whether a shared expert has the last slot of each row."""
    shared: SharedMatrices | None
    """Where it cannot be one more of the stacked ones."""
    fuses_norm: bool
    """Whether the norm of a few rows can choose their experts."""
    beside: LinearWeight | None
    """The last matrix of a dense MLP beside them."""

    @property
    def slots(self) -> int:
        return self.chosen + self.has_shared

    @property
    def groups(self) -> int:
        """Experts of the grouped products."""
        return self.up.experts + (self.has_shared and self.shared is None)

    @property
    def width(self) -> int:
        """Columns between the two products of an expert."""
        return self.down.columns

    @property
    def hidden(self) -> int:
        return self.down.rows

    def takes_few(self, rows: int, *, quantized: bool) -> bool:
        """Return whether each pair of so many rows reads its expert's matrices for itself."""
        is_read = all(reads_few_rows(each, quantized=quantized) for each in (self.up, self.down))
        return self.fuses_norm and rows <= FEW_ROWS and is_read


def mixtures_of(
    spec: ModelSpec, linears: Mapping[str, LinearWeight], vectors: Mapping[str, int]
) -> dict[str, Mixture]:
    """Return the mixtures of a model by the name of their router.

    Args:
        linears: Matrices by name.
        vectors: Addresses of biases by name; without one a bias counts as none.
    """
    return {
        layer.experts.router.weight.name: _mixture(layer.experts, layer.mlp, linears, vectors)
        for layer in spec.layers
        if layer.experts is not None
    }


def _mixture(
    experts: ExpertsSpec,
    dense: MLPSpec | None,
    linears: Mapping[str, LinearWeight],
    vectors: Mapping[str, int],
) -> Mixture:
    mlp, count, shared_gate = experts.expert, experts.num_experts, experts.shared_gate
    up, down = linears[mlp.up.weight.name], linears[mlp.down.weight.name]
    router = linears[experts.router.weight.name]
    gate = None if shared_gate is None else linears[shared_gate.weight.name]
    own = None if experts.shared is None else _shared_matrices(experts.shared, linears)
    joins = own is not None and _joins(experts, own, up, down)
    own_up, own_down = (own.up, own.down) if own is not None and joins else (None, None)

    def stacked(stack: LinearWeight, bias: str, shared: LinearWeight | None) -> StackedWeight:
        return StackedWeight(stack=stack, experts=count, bias=vectors.get(bias, 0), shared=shared)

    return Mixture(
        up=stacked(up, mlp.up.bias.name if mlp.up.bias else "", own_up),
        down=stacked(down, mlp.down.bias.name if mlp.down.bias else "", own_down),
        router=router,
        gate=gate,
        chosen=experts.experts_per_token,
        has_shared=own is not None,
        shared=None if joins else own,
        fuses_norm=_norms_fuse(experts)
        and {router.scheme, gate.scheme if gate else "bf16"} == {"bf16"}
        and (own is None or joins)
        and fits_norm_route(router.columns),
        beside=None if dense is None else linears[dense.down.weight.name],
    )


def _norms_fuse(experts: ExpertsSpec) -> bool:
    """Return whether one kernel makes what the experts and their router read."""
    norm, of_router = experts.norm, experts.router_norm or experts.norm
    if norm is None or of_router is None:
        return False
    return (norm.kind, of_router.kind, of_router.epsilon) == ("rms", "rms", norm.epsilon)


def _shared_matrices(shared: MLPSpec, linears: Mapping[str, LinearWeight]) -> SharedMatrices:
    return SharedMatrices(up=linears[shared.up.weight.name], down=linears[shared.down.weight.name])


def _joins(experts: ExpertsSpec, own: SharedMatrices, up: LinearWeight, down: LinearWeight) -> bool:
    """Return whether the shared expert can be one more of the stacked ones."""
    shared, mlp, count = experts.shared, experts.expert, experts.num_experts
    return (
        shared is not None
        and shared.up.bias is None
        and (shared.activation, shared.limit) == (mlp.activation, mlp.limit)
        and takes_slot(own.up, up, count)
        and takes_slot(own.down, down, count)
    )


def expert_obstacles(layer: LayerSpec, experts: ExpertsSpec) -> Iterator[str]:
    """Return what of a layer's mixture the kernels do not compute."""
    shared, gate = experts.shared, experts.shared_gate
    slots = experts.experts_per_token + (shared is not None)
    if layer.mlp is not None and None in (layer.dense_post_norm, experts.post_norm):
        yield "a dense MLP beside experts without a norm of each"
    if experts.num_experts > MAX_EXPERTS or slots > MAX_CHOSEN or experts.num_groups > MAX_GROUPS:
        yield f"more than {MAX_EXPERTS} experts, {MAX_CHOSEN} a token or {MAX_GROUPS} groups"
    if (shared and shared.down.bias) or (gate and gate.bias):
        yield "a shared expert with a bias behind it"
    matrices = (experts.expert.up.weight, experts.expert.down.weight)
    if any(matrix.shape[1] % STEP_COLUMNS for matrix in matrices):
        yield f"experts of a width that is no multiple of {STEP_COLUMNS}"


@record
class MixtureArea:
    """Where the routing of a step lies, in bytes from the start of its part of the scratch."""

    rows: int
    slots: int
    groups: int
    weights: int
    order: int
    starts: int
    logits: int
    """float32 [rows, experts + 1], of a few rows; or the summands of the shared expert's gate."""
    shared_hidden: int
    shared_sums: int
    sums: int
    """float32 [rows, hidden]: what the experts add, where a norm comes after it."""
    length_bytes: int

    def choice(self, address: int) -> Choice:
        return Choice(
            rows=self.rows, slots=self.slots, experts=address, weights=address + self.weights
        )

    def grouping(self, address: int) -> Grouping:
        return Grouping(
            pairs=self.rows * self.slots,
            groups=self.groups,
            order=address + self.order,
            starts=address + self.starts,
        )


def area_of(mixture: Mixture, rows: int, shared_sums_bytes: int) -> MixtureArea:
    """Return where the parts of a routing lie.

    Args:
        shared_sums_bytes: Of what a shared expert of another form leaves; 0 without one.
    """
    pairs = rows * mixture.slots
    logits = rows * (mixture.up.experts + 1) if rows <= ROUTED_ROWS else 0
    shared_columns = mixture.shared.down.columns if mixture.shared else 0
    sizes = {
        "experts": pairs * 4,
        "weights": pairs * 4,
        "order": pairs * 4,
        "starts": (mixture.groups + 1) * 4,
        "logits": max(logits, rows * _GATE_SPLITS) * 4,
        "shared_hidden": rows * shared_columns * 2,
        "shared_sums": shared_sums_bytes,
        "sums": rows * mixture.hidden * 4,
    }
    offsets, end = {}, 0
    for name, size_bytes in sizes.items():
        offsets[name] = end
        end += align_up(size_bytes, _ALIGNMENT)
    del offsets["experts"]  # which come first
    return MixtureArea(
        rows=rows, slots=mixture.slots, groups=mixture.groups, length_bytes=end, **offsets
    )
