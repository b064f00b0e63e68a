"""A transformers model that is in memory already: its linear layers packed, or bitsandbytes'.

No file is involved: ``QuantizedLinear`` is what a file's layers are, made of an ordinary one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from zse.errors import UsageError
from zse.format.schemes import parts_for
from zse.format.spec import TensorEntry, TensorPart
from zse.models.storage import Storage
from zse.models.weights import Source, WeightSpec
from zse.quantize.huggingface.bnb import bitsandbytes, linear4bit
from zse.quantize.huggingface.layers import Place, ZSELinear
from zse.quantize.scheme import quantize_rows
from zse.quantize.stored import StoredMatrix
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

SKIPPED = ("lm_head",)
"""Layers that stay as they are unless others are named: heads cost most when they are rounded."""
_CHUNK_ELEMENTS = 4 * 1024 * 1024


class QuantizedLinear(ZSELinear):
    """A linear layer with packed weights, in the place of a ``torch.nn.Linear``.

    Args:
        linear: The layer; it is left as it is, and nothing of it is kept but its bias.
        quantization: ``int4``, ``nf4``, ``mxfp4``, ``int8``, ``fp16`` or ``bf16``.
        group_size: 128, 64 or 32 (int4, nf4); None means 128 for int4, 64 for nf4. Rows that no
            group divides become INT8.

    Raises:
        UsageError: A value is none of those listed.
        ConversionError: A weight is infinite, or not a number.
    """

    def __init__(
        self, linear: torch.nn.Linear, quantization: str = "int8", group_size: int | None = None
    ) -> None:
        storage = Storage(quantization=quantization.lower(), group_size=group_size)
        weight = linear.weight.detach()
        bias = None if linear.bias is None else linear.bias.detach().float()
        super().__init__(_packed(weight, storage), bias, device=weight.device)
        self.train(linear.training)


def quantize_model(
    model: Any,
    quantization: str = "int8",
    *,
    group_size: int | None = None,
    skip_layers: Collection[str] = SKIPPED,
) -> Any:
    """Put a ``QuantizedLinear`` in the place of each linear layer of a model, one at a time.

    Args:
        model: A torch model; it is changed.
        quantization: As for ``QuantizedLinear``.
        group_size: As for ``QuantizedLinear``.
        skip_layers: Layers that stay: their names, or any part of these between dots.

    Returns:
        The model.

    Raises:
        UsageError: A value is none of those listed, or no layer is left to quantize.
        ConversionError: A weight is infinite, or not a number.
    """
    return _replaced(
        model, skip_layers, lambda linear: QuantizedLinear(linear, quantization, group_size)
    )


def convert_model_to_bnb(
    model: Any, config: Any = None, *, skip_layers: Collection[str] = SKIPPED
) -> Any:
    """Put bitsandbytes' Linear4bit in the place of each linear layer of a model.

    A packed layer of NF4 keeps its codes, unless its maxima are to be quantized, too; other layers
    are rounded to four bits, packed ones a second time.

    Args:
        model: A torch model, as from ``load_zse_model``; it is changed.
        config: A ``transformers.BitsAndBytesConfig``: its ``bnb_4bit_quant_type``,
            ``bnb_4bit_compute_dtype`` and ``bnb_4bit_use_double_quant``. None: NF4 that computes in
            the type of the model.
        skip_layers: Layers that stay: their names, or any part of these between dots.

    Returns:
        The model.

    Raises:
        MissingDependencyError: bitsandbytes is not installed.
        UsageError: The configuration is not one of four bits, or no layer is left.
    """
    if config is not None and not config.load_in_4bit:
        raise UsageError("the BitsAndBytesConfig says nothing of 4 bits", hint="load_in_4bit=True.")
    library = bitsandbytes("convert_model_to_bnb")
    dtype = model.dtype if config is None else config.bnb_4bit_compute_dtype
    kind = "nf4" if config is None else config.bnb_4bit_quant_type
    is_nested = config is not None and config.bnb_4bit_use_double_quant

    def convert(linear: torch.nn.Linear) -> torch.nn.Module:
        bias = linear.bias
        if isinstance(linear, ZSELinear):
            stored = linear.stored()
            place = Place(device=next(iter(stored.parts.values())).device, dtype=dtype)
            if stored.entry.scheme == kind == "nf4" and not is_nested:
                return linear4bit(library, place, stored, bias)
            values = stored.values()
        else:
            values = linear.weight.detach()
        layer: torch.nn.Module = library.nn.Linear4bit(
            linear.in_features,
            linear.out_features,
            bias=bias is not None,
            compute_dtype=dtype,
            compress_statistics=is_nested,
            quant_type=kind,
            device="meta",
        )
        layer.weight = library.nn.Params4bit(
            values.to(dtype).contiguous(),
            requires_grad=False,
            compress_statistics=is_nested,
            quant_type=kind,
            module=layer,
        )
        if bias is not None:
            layer.bias = torch.nn.Parameter(bias.detach().to(dtype), requires_grad=False)
        return layer.to(values.device)  # where bitsandbytes quantizes

    return _replaced(model, skip_layers, convert)


@record
class ModelMemory:
    """What a model in memory takes, in bytes."""

    parameters_bytes: int
    """Dense tensors."""
    packed_bytes: int
    """Codes and scales of packed layers."""
    buffers_bytes: int
    """Other tensors: rotary tables, biases of packed layers."""
    packed_layers: int
    dense_layers: int
    """Ordinary linear layers."""

    @property
    def total_bytes(self) -> int:
        return self.parameters_bytes + self.packed_bytes + self.buffers_bytes


def get_model_memory(model: Any) -> ModelMemory:
    """Return what a model in memory takes. What two layers share counts once."""
    packed: dict[int, int] = {}
    layers, dense = 0, 0
    for module in model.modules():
        if isinstance(module, ZSELinear):
            layers += 1
            packed |= {id(part): _size(part) for part in module.stored().parts.values()}
        elif isinstance(module, torch.nn.Linear):
            dense += 1
    buffers = {id(one): _size(one) for one in model.buffers()}
    return ModelMemory(
        parameters_bytes=sum(map(_size, model.parameters())),
        packed_bytes=sum(packed.values()),
        buffers_bytes=sum(size for key, size in buffers.items() if key not in packed),
        packed_layers=layers,
        dense_layers=dense,
    )


def _replaced(
    model: Any,
    skip_layers: Collection[str],
    make: Callable[[torch.nn.Linear], torch.nn.Module],
) -> Any:
    """Put another layer in the place of each linear layer that is not skipped."""
    count = 0
    for path in list(_linear_layers(model, skip_layers)):
        parent, _, leaf = path.rpartition(".")
        setattr(model.get_submodule(parent), leaf, make(model.get_submodule(path)))
        count += 1
    if not count:
        raise UsageError(
            f"the model has no linear layer but those skipped: {', '.join(skip_layers) or 'none'}",
            hint="Give a whole model, and other skip_layers.",
        )
    return model


def _linear_layers(model: Any, skip_layers: Collection[str]) -> Iterator[str]:
    for path, module in model.named_modules():
        is_skipped = any(f".{name}." in f".{path}." for name in skip_layers)
        if path and not is_skipped and isinstance(module, torch.nn.Linear):
            yield path


def _packed(weight: torch.Tensor, storage: Storage) -> StoredMatrix:
    """Return a dense matrix [N, K] in the scheme that a file would have it in."""
    rows, columns = weight.shape
    source = Source(name="weight", shape=(rows, columns))
    spec = WeightSpec(name="weight", shape=source.shape, kind="linear", sources=(source,))
    planned = storage.plan_tensor(spec)
    entry = TensorEntry(
        name=planned.name,
        scheme=planned.scheme,
        shape=planned.shape,
        group_size=planned.group_size,
        parts=tuple(
            TensorPart(role=role, dtype=dtype, shape=shape, offset_bytes=0, length_bytes=0)
            for role, dtype, shape in parts_for(planned.scheme, planned.shape, planned.group_size)
        ),
    )
    step = max(1, _CHUNK_ELEMENTS // columns)
    chunks = [
        quantize_rows(planned.scheme, weight[start : start + step].float(), planned.group_size)
        for start in range(0, rows, step)
    ]
    parts = {role: torch.cat([chunk[role] for chunk in chunks]) for role in chunks[0]}
    return StoredMatrix(entry=entry, parts=parts)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
