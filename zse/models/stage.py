"""A run of a model's layers as a model of its own: what one machine of several computes.

Layers are counted anew, from 0, and keep the names of their weights, so whoever binds, places or
runs layers needs no second way. What comes before the first layer belongs to the first stage, what
stands behind the last one to the last stage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.errors import UnsupportedModelError, UsageError
from zse.models.decoder import forward_of
from zse.models.spec import StagePlace, weights_of
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.backends.operations import Operations, Sampled, Step
    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec


@record
class StageSpec:
    """Layers ``first_layer`` to ``end_layer`` of a model."""

    first_layer: int
    end_layer: int
    is_first: bool
    is_last: bool
    model: ModelSpec
    """The model with these layers alone, counted from 0; it knows its place."""

    @property
    def weight_names(self) -> frozenset[str]:
        """Names of the tensors that steps of this stage read, and of no others."""
        return frozenset(self._weight_names())

    @property
    def gathered(self) -> frozenset[str]:
        """Names of the tables of which steps read rows of tokens alone."""
        return self.model.gathered

    def _weight_names(self) -> Iterator[str]:
        model = self.model
        for layer in model.layers:
            yield from (weight.name for weight in weights_of(layer))
        if self.is_first or (self.is_last and model.is_tied):
            yield from (weight.name for weight in weights_of(model.embedding))
        if self.is_last:
            yield from (weight.name for weight in weights_of(model.head))

    def forward(self, ops: Operations, step: Step) -> Sampled:
        """Run the layers; the first stage begins with tokens, the last one ends with them."""
        return forward_of(self.model)(ops, step)


def stage_of(spec: ModelSpec, first_layer: int, end_layer: int) -> StageSpec:
    """Return some layers of a model, as machines share it.

    Raises:
        UsageError: The model has no such layers.
        UnsupportedModelError: The model cannot be cut there, or at all.
    """
    check_divisible(spec)
    model = layers_of(spec, first_layer, end_layer)
    return StageSpec(
        first_layer=first_layer,
        end_layer=end_layer,
        is_first=model.place.is_first,
        is_last=model.place.is_last,
        model=model,
    )


def layers_of(spec: ModelSpec, first_layer: int, end_layer: int) -> ModelSpec:
    """Return some layers of a model as a model that knows its place in it.

    Raises:
        UsageError: The model has no such layers.
        UnsupportedModelError: What its layers are told besides the stream is not at hand there.
    """
    count = len(spec.layers)
    if not 0 <= first_layer < end_layer <= count:
        raise UsageError(
            f"layers {first_layer} to {end_layer - 1} were asked for; the model has {count}"
        )
    check_ends(spec)
    return replace(
        spec,
        layers=tuple(_counted(layer, first_layer) for layer in spec.layers[first_layer:end_layer]),
        place=StagePlace(is_first=first_layer == 0, is_last=end_layer == count),
    )


def check_ends(spec: ModelSpec) -> None:
    """Refuse a model whose layers are told more than the stream, or that writes no text.

    Raises:
        UnsupportedModelError: It is one; the message names what it has.
    """
    _refuse(_unlike_ends(spec))


def check_divisible(spec: ModelSpec) -> None:
    """Refuse a model whose sequences have more than keys and values, each layer its own.

    That is what machines can take over from each other.

    Raises:
        UnsupportedModelError: It is one; the message names what it has.
    """
    _refuse(_obstacles(spec))


def _refuse(obstacles: Iterator[str]) -> None:
    found = next(obstacles, None)
    if found is not None:
        raise UnsupportedModelError(
            f"this model has {found}, which is not divided among stages",
            hint="Serve it on one device, or choose a model whose layers are alike.",
        )


def _unlike_ends(spec: ModelSpec) -> Iterator[str]:
    if spec.is_encoder:
        yield "no text to write: it makes vectors"
    if spec.embedding.layer_inputs is not None:
        yield "embeddings for each layer"


def _obstacles(spec: ModelSpec) -> Iterator[str]:
    yield from _unlike_ends(spec)
    for layer in spec.layers:
        if not is_attention(layer.mixer):
            yield f"a state beside its keys and values in layer {layer.index}"
        elif layer.mixer.kv_of_layer is not None:
            yield f"a layer, {layer.index}, that reads the keys of layer {layer.mixer.kv_of_layer}"


def _counted(layer: LayerSpec, first_layer: int) -> LayerSpec:
    mixer = layer.mixer
    if is_attention(mixer) and mixer.kv_of_layer is not None:
        mixer = replace(mixer, kv_of_layer=mixer.kv_of_layer - first_layer)
    return replace(layer, index=layer.index - first_layer, mixer=mixer)
