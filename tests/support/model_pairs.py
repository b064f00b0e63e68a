"""Random tiny checkpoints of every family, converted, with transformers beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import shape_of
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from zse.format import Scheme, ZSEReader, ZSEWriter
from zse.format.as_torch import bytes_from
from zse.format.layout import PlannedTensor
from zse.format.schemes import group_sizes
from zse.models.families import all_families, read_checkpoint, read_header
from zse.quantize.huggingface import restore
from zse.quantize.scheme import quantize_rows
from zse.quantize.source_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.spec import ModelSpec
    from zse.models.weights import WeightSpec

CONFIG_CLASSES = {
    name: CONFIG_MAPPING[f"{name}_text" if f"{name}_text" in CONFIG_MAPPING else name]
    for name in all_families()
}
"""A family has the name that transformers has for its ``model_type``, or for the whole of which it
is the text."""
ARCHITECTURES = {name: family.ARCHITECTURES[0] for name, family in all_families().items()}


_AROUND_ONE = ("norm", "correction_bias", "layer_scalar", "router.scale", "per_expert_scale")
"""Of what transformers makes the same everywhere, so that leaving it out would not be seen."""


def _calm(model: torch.nn.Module) -> None:
    """Give scores that no scale divides the spread of scaled ones, as training does.

    With norms of ones each row would attend to one key, and a rounding could choose another.
    """
    for module in model.modules():
        query_norm = getattr(module, "q_norm", None)
        if query_norm is not None and getattr(module, "scaling", None) == 1.0:
            query_norm.weight.mul_(query_norm.weight.numel() ** -0.5)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A converted file and a float32 transformers model with the weights that the file holds."""

    path: Path
    reference: Any

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Return the reference's logits [tokens, vocab]."""
        with torch.no_grad():
            return self.reference(torch.tensor([token_ids])).logits[0]


def planned(tensor: WeightSpec, quantization: str, plain: Scheme) -> PlannedTensor:
    """Return how the test stores a tensor: linears quantized, the head INT8, the rest plain."""
    scheme, group_size, matrices = plain, 0, ("linear", "attention", "experts")
    if tensor.kind in ("state", "position"):
        scheme = Scheme.FP32
    if quantization not in ("fp16", "bf16", "fp32") and tensor.kind in ("head", *matrices):
        scheme = Scheme.INT8
        sizes = group_sizes(Scheme(quantization))
        fitting = [size for size in sizes if tensor.shape[1] % size == 0]
        if tensor.kind in matrices and fitting:
            scheme, group_size = Scheme(quantization), fitting[0]
    return PlannedTensor(name=tensor.name, scheme=scheme, shape=tensor.shape, group_size=group_size)


class InMemory:
    """The tensors of a checkpoint, as ``zse.quantize.checkpoint.Checkpoint`` reads them."""

    merging = None

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        tensor = self._tensors[name]
        flat = tensor if tensor.dim() == 1 else tensor.reshape(-1, tensor.shape[-1])
        return flat[start:stop]


def write_file(
    path: Path,
    spec: ModelSpec,
    weights: dict[str, torch.Tensor],
    quantization: str,
    *,
    has_guesses: bool = False,
    vectors: str = "bf16",
) -> None:
    """Write a .zse file from a checkpoint's tensors, with its heads that guess, or without.

    Quantized ones have ``vectors`` in a type of their own.
    """
    plain = Scheme(quantization if quantization in ("fp16", "bf16", "fp32") else vectors)
    plan = [*spec.groups(), *(spec.spare_groups() if has_guesses else ())]
    groups = [(g.name, [planned(t, quantization, plain) for t in g.weights]) for g in plan]
    checkpoint: Any = InMemory(weights)
    with ZSEWriter(
        path, architecture=spec.family, model_config=spec.header, provenance={}
    ) as writer:
        writer.plan(groups)
        for group, (_, tensors) in zip(plan, groups, strict=True):
            for tensor, form in zip(group.weights, tensors, strict=True):
                pieces = [
                    read_rows(checkpoint, tensor, piece, 0, piece.rows).float()
                    for piece in tensor.pieces()
                ]
                rows = torch.cat(pieces)
                matrix = rows.reshape(rows.shape[0], -1)
                parts = quantize_rows(form.scheme, matrix, form.group_size)
                for role, part in parts.items():
                    writer.write_part(tensor.name, role, bytes_from(part))
        writer.close()


def checkpoint_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the float32 tensors of the checkpoint that a file's values come from."""
    with ZSEReader(path) as reader:
        spec = read_header(reader.header.model_config)
        return restore.checkpoint_tensors(reader, spec, torch.float32)


def reference_model(path: Path, folder: Path) -> Any:
    """Return a float32 transformers model with the dequantized weights of a file.

    ``folder`` has the configuration, and gets the weights.
    """
    save_file(checkpoint_tensors(path), folder / "model.safetensors", {"format": "pt"})
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not report["unexpected_keys"], report["unexpected_keys"]
    assert not report["missing_keys"] - {"lm_head.weight"}, report["missing_keys"]
    return model.eval()


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """Return a function that makes a pair: family, quantization, changed configuration values."""
    made: dict[str, Pair] = {}

    def make(family: str, quantization: str, **changes: Any) -> Pair:
        key = repr((family, quantization, sorted(changes.items(), key=lambda item: item[0])))
        if key not in made:
            folder = tmp_path_factory.mktemp("pair")
            torch.manual_seed(7)
            config = CONFIG_CLASSES[family](**shape_of(family, **changes))
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            with torch.no_grad():
                for name, parameter in (*model.named_parameters(), *model.named_buffers()):
                    if any(word in name for word in _AROUND_ONE):
                        parameter.add_(torch.randn_like(parameter) * 0.1)
                    elif name.endswith("bias"):
                        parameter.add_(torch.randn_like(parameter) * 0.3)
                _calm(model)
            model.save_pretrained(folder)
            path = folder / "model.zse"
            ours = read_checkpoint(config.to_dict() | {"architectures": [ARCHITECTURES[family]]})
            write_file(path, ours, load_file(folder / "model.safetensors"), quantization)
            made[key] = Pair(path=path, reference=reference_model(path, folder))
        return made[key]

    return make
