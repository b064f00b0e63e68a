"""Random tiny checkpoints of every family, converted, with transformers beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from zse.format import Scheme, ZSEReader, ZSEWriter
from zse.format.as_torch import bytes_from
from zse.format.layout import PlannedTensor
from zse.format.schemes import group_sizes
from zse.models.families import all_families, read_checkpoint, read_header
from zse.quantize.scheme import quantize_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.spec import ModelSpec, WeightSpec

CONFIG_CLASSES = {name: CONFIG_MAPPING[name] for name in all_families()}
ARCHITECTURES = {name: family.ARCHITECTURES[0] for name, family in all_families().items()}
SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
}


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
    scheme, group_size = plain, 0
    if quantization not in ("fp16", "bf16", "fp32") and tensor.kind in ("head", "linear"):
        scheme = Scheme.INT8
        sizes = group_sizes(Scheme(quantization))
        fitting = [size for size in sizes if tensor.shape[1] % size == 0]
        if tensor.kind == "linear" and fitting:
            scheme, group_size = Scheme(quantization), fitting[0]
    return PlannedTensor(name=tensor.name, scheme=scheme, shape=tensor.shape, group_size=group_size)


def write_file(
    path: Path, spec: ModelSpec, weights: dict[str, torch.Tensor], quantization: str
) -> None:
    """Write a .zse file from a transformers state dict."""
    plain = Scheme(quantization if quantization in ("fp16", "bf16", "fp32") else "bf16")
    plan = list(spec.groups())
    groups = [(g.name, [planned(t, quantization, plain) for t in g.weights]) for g in plan]
    with ZSEWriter(
        path, architecture=spec.family, model_config=spec.header, provenance={}
    ) as writer:
        writer.plan(groups)
        for group, (_, tensors) in zip(plan, groups, strict=True):
            for tensor, form in zip(group.weights, tensors, strict=True):
                rows = torch.cat([weights[name].float() for name, _ in tensor.sources])
                matrix = rows.reshape(rows.shape[0], -1)
                parts = quantize_rows(form.scheme, matrix, form.group_size)
                for role, part in parts.items():
                    writer.write_part(tensor.name, role, bytes_from(part))
        writer.close()


def reference_model(path: Path, config: Any) -> Any:
    """Return a float32 transformers model with the dequantized weights of a file."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = {}
    with ZSEReader(path) as reader:
        for weight in read_header(reader.header.model_config).weights():
            pieces = torch.split(reader.tensor(weight.name).clone(), weight.piece_rows)
            for (name, _), piece in zip(weight.sources, pieces, strict=True):
                state[name] = piece
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name == "lm_head.weight" and config.tie_word_embeddings for name in missing)
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
            config = CONFIG_CLASSES[family](**{**SHAPE, **changes})
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "norm" in name:
                        parameter.add_(torch.randn_like(parameter) * 0.1)
                    elif name.endswith("bias"):
                        parameter.add_(torch.randn_like(parameter) * 0.3)
            path = folder / "model.zse"
            ours = read_checkpoint(config.to_dict() | {"architectures": [ARCHITECTURES[family]]})
            write_file(path, ours, model.state_dict(), quantization)
            made[key] = Pair(path=path, reference=reference_model(path, config))
        return made[key]

    return make
