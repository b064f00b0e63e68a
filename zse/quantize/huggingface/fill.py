"""Puts a file's tensors where a transformers model, built on the meta device, expects them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.errors import FormatError
from zse.quantize.huggingface.layers import ZSELinear
from zse.quantize.stored import stored_matrix

if TYPE_CHECKING:
    from typing import Any

    from zse.format.reader import ZSEReader
    from zse.models.spec import ModelSpec
    from zse.models.weights import WeightSpec
    from zse.quantize.huggingface.layers import LayerMaker, Place
    from zse.quantize.stored import StoredMatrix

_MATRICES = ("linear", "attention", "head")
"""Kinds of weights that are a module's of their own."""


def is_kept_as_is(weight: WeightSpec) -> bool:
    """Whether a file has the rows of a checkpoint's matrices and vectors as they are there."""
    moved = any(source.order or source.is_transposed for source in weight.sources)
    stacked = weight.stack > 1 or any(len(source.shape) > 2 for source in weight.sources)
    return not (moved or stacked or weight.offset or weight.factor != 1.0)


def fill_model(
    model: Any, reader: ZSEReader, spec: ModelSpec, layers: LayerMaker, place: Place
) -> None:
    """Give every parameter of a model its value, group by group.

    Args:
        model: A transformers model whose parameters are on the meta device.
        spec: Of the file; all of its weights are kept as they are.
        layers: What linear layers become.
        place: Of embeddings and norms.

    Raises:
        FormatError: The file's tensors and its config.json do not belong together.
    """
    for group in spec.groups():
        biases = _biases(reader, group.weights)
        for tensor in group.weights:
            if tensor is spec.head.weight and spec.is_tied:
                _fill_tied(model, stored_matrix(reader, tensor.name), layers, place)
            elif tensor.kind in _MATRICES:
                _fill_matrix(model, stored_matrix(reader, tensor.name), tensor, layers, biases)
            elif tensor.kind != "bias":
                name, values = tensor.sources[0].name, reader.tensor(tensor.name)
                _set_parameter(model, name, place.frozen(values))
                if name in biases:  # a LayerNorm's
                    bias = place.frozen(biases[name])
                    _set_parameter(model, name.removesuffix("weight") + "bias", bias)
        reader.release(group.name)
    _compute_buffers(model, place.device)
    left = [name for name, value in model.named_parameters() if value.is_meta]
    left += [name for name, value in model.named_buffers() if value.is_meta]
    if left:
        raise FormatError(f"the file has no values for {', '.join(left[:3])} of its config.json")


def pack_layers(model: Any, reader: ZSEReader, spec: ModelSpec, layers: LayerMaker) -> None:
    """Put packed layers in the place of a model's own, where a file has their matrices as they are.

    Args:
        model: A transformers model that is filled already.
    """
    for group in spec.groups():
        biases = _biases(reader, tuple(filter(is_kept_as_is, group.weights)))
        for tensor in group.weights:
            path = tensor.sources[0].name.removesuffix(".weight")
            if tensor.kind not in _MATRICES or not is_kept_as_is(tensor):
                continue
            if isinstance(_module(model, path), torch.nn.Linear):
                _fill_matrix(model, stored_matrix(reader, tensor.name), tensor, layers, biases)
        reader.release(group.name)


def _biases(reader: ZSEReader, tensors: tuple[WeightSpec, ...]) -> dict[str, torch.Tensor]:
    """Return float32 biases by the checkpoint name of the weight that each belongs to."""
    found = {}
    for tensor in tensors:
        if tensor.kind == "bias":
            pieces = torch.split(reader.tensor(tensor.name), list(tensor.piece_rows))
            for source, piece in zip(tensor.sources, pieces, strict=True):
                found[source.name.removesuffix("bias") + "weight"] = piece
    return found


def _fill_matrix(
    model: Any,
    whole: StoredMatrix,
    tensor: WeightSpec,
    layers: LayerMaker,
    biases: dict[str, torch.Tensor],
) -> None:
    """Cut a joined matrix apart and put a layer where each piece belongs."""
    first = 0
    for source in tensor.sources:
        name, piece = source.name, whole.rows(first, first + source.rows)
        first += source.rows
        _set_module(model, name.removesuffix(".weight"), layers(piece, biases.get(name)))


def _fill_tied(model: Any, whole: StoredMatrix, layers: LayerMaker, place: Place) -> None:
    """Fill embedding and head from the one matrix that both read."""
    embedding = model.get_input_embeddings()
    embedding.weight = place.frozen(whole.values())
    head = layers(whole, None)
    if isinstance(head, torch.nn.Linear) and not isinstance(head, ZSELinear):
        head.weight = embedding.weight
    model.set_output_embeddings(head)


def _set_parameter(model: Any, name: str, value: torch.nn.Parameter) -> None:
    path, _, leaf = name.rpartition(".")
    module = _module(model, path)
    expected = module._parameters.get(leaf)
    if expected is None or expected.shape != value.shape:
        found = "no such parameter" if expected is None else f"one of shape {list(expected.shape)}"
        raise FormatError(f"{name} is {list(value.shape)}, but its config.json gives {found}")
    setattr(module, leaf, value)


def _set_module(model: Any, path: str, layer: torch.nn.Module) -> None:
    old = _module(model, path)
    sizes = [(getattr(m, "out_features", 0), getattr(m, "in_features", 0)) for m in (old, layer)]
    if sizes[0] != sizes[1]:
        raise FormatError(f"{path} is {sizes[1]}, but its config.json gives {sizes[0]}")
    parent, _, leaf = path.rpartition(".")
    setattr(_module(model, parent), leaf, layer)


def _module(model: Any, path: str) -> Any:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise FormatError(f"its config.json gives a model without {path}") from error


def _compute_buffers(model: Any, device: torch.device) -> None:
    """Make modules again whose buffers are computed from the configuration (rotary tables)."""
    for path, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, type(module)(model.config).to(device))
