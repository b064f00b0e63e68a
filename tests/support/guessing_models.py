"""Random tiny models with a head that guesses further tokens, as files and as transformers has it.

transformers leaves such heads out. But a head is one layer of its family between a product and the
model's logits, and transformers' models take what stands before their layers (``inputs_embeds``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from family_shapes import shape_of
from model_pairs import ARCHITECTURES, CONFIG_CLASSES, write_file
from safetensors.torch import save_file

from zse.models.families import read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.spec import ModelSpec

ONE_LAYER: dict[str, dict[str, Any]] = {
    "qwen3_next": {"layer_types": ["full_attention"], "mlp_only_layers": []},
    "qwen3_5": {"layer_types": ["full_attention"]},
    "qwen3_5_moe": {"layer_types": ["full_attention"]},
    "glm4_moe": {"first_k_dense_replace": 0},
    "deepseek_v3": {"first_k_dense_replace": 0},
}
"""What a family's configuration says of a model that is the head's layer alone."""
_OF_LAYER = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
_COUNTS = {"glm4_moe": "num_nextn_predict_layers", "qwen3_5": "mtp_num_hidden_layers"}


@dataclass(frozen=True, kw_only=True)
class GuessingModel:
    """A file with a head, and the tensors of the checkpoint that it was made of."""

    path: Path
    family: str
    spec: ModelSpec
    tensors: dict[str, torch.Tensor]

    @property
    def _theirs(self) -> tuple[str, str]:
        """How the names of the head's tensors begin, and of its layer's."""
        if self.family.startswith("qwen"):
            return "mtp.", "mtp.layers.0."
        own = f"model.layers.{len(self.spec.layers)}."
        return own, own

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.tensors[name] + (1.0 if self.family.startswith("qwen") else 0.0)
        epsilon = self.spec.guesses[0].norm.epsilon
        return rows * (rows.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weight

    def joined(self, token_ids: list[int], states: torch.Tensor) -> torch.Tensor:
        """Return [tokens, hidden]: arXiv:2412.19437, equation 21, embeddings first."""
        head, _ = self._theirs
        names = {
            True: ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc"),
            False: ("enorm", "hnorm", "eh_proj"),
        }[self.family.startswith("qwen")]
        ours, theirs, product = (f"{head}{name}.weight" for name in names)
        embedding = self.tensors["model.embed_tokens.weight"][token_ids]
        both = torch.cat((self._norm(embedding, ours), self._norm(states, theirs)), 1)
        return both @ self.tensors[product].T

    def reference(self, folder: Path) -> Any:
        """Return the layer of the head, with its norm and the logits, as a transformers model."""
        head, layer = self._theirs
        final = f"{head}norm.weight" if head == "mtp." else f"{head}shared_head.norm.weight"
        found = {
            name.replace(layer, "model.layers.0."): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(layer) and name[len(layer) :].startswith(_OF_LAYER)
        }
        found["model.norm.weight"] = self.tensors[final]
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            found[name] = self.tensors[name]
        folder.mkdir()
        values = {"num_hidden_layers": 1, **ONE_LAYER[self.family]}
        config = CONFIG_CLASSES[self.family](**shape_of(self.family, **values))
        config.architectures = [ARCHITECTURES[self.family]]
        config.save_pretrained(folder)
        save_file(found, folder / "model.safetensors", {"format": "pt"})
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
        assert not report["unexpected_keys"], report["unexpected_keys"]
        assert not report["missing_keys"], report["missing_keys"]
        return model.eval()


def make_guessing_model(
    folder: Path, family: str, quantization: str = "fp32", *, knows: bool = False, **changes: Any
) -> GuessingModel:
    """Write a random model with a head, which often guesses right where it ``knows`` the model."""
    changes = {_COUNTS.get(family, "mtp"): 1, "eos_token_id": None, **changes}
    config = CONFIG_CLASSES[family](**shape_of(family, **changes)).to_dict() | changes
    spec = read_checkpoint(config | {"architectures": [ARCHITECTURES[family]]})
    generator = torch.Generator().manual_seed(7)
    tensors = {
        piece.name: torch.randn(piece.shape, generator=generator) * 0.08
        for group in (*spec.groups(), *spec.spare_groups())
        for weight in group.weights
        for piece in weight.pieces()
    }
    for name, tensor in tensors.items():
        if "norm" in name and not family.startswith("qwen"):
            tensor += 1.0
    if knows:
        _know(tensors, spec)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    path = folder / "model.zse"
    write_file(path, spec, tensors, quantization, has_guesses=True)
    return GuessingModel(path=path, family=family, spec=spec, tensors=tensors)


def _know(tensors: dict[str, torch.Tensor], spec: ModelSpec) -> None:
    """Let the model hardly look at what stands before a token, and its head not at all."""
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")):
            tensor.mul_(0.0 if name.startswith("mtp.") else 0.02)
    width = spec.hidden_size
    tensors["mtp.fc.weight"].zero_()[:, :width] = torch.eye(width)
    tensors["mtp.pre_fc_norm_embedding.weight"].zero_()
    tensors["mtp.norm.weight"].copy_(tensors["model.norm.weight"])
