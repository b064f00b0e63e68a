"""The page of model families: what each has, and what computes it, as their own code says.

A family is shown by the tiny configuration that the tests of it start from, with the widths of
published models where kernels have no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from family_shapes import shape_of

from zse.backends.cpu.supported import check_supported as check_for_cpu
from zse.backends.gpu.supported import check_supported as check_for_gpu
from zse.backends.operations import is_attention
from zse.errors import UnsupportedModelError
from zse.format.schemes import Scheme, group_sizes
from zse.kernels.linear.weight import GROUPED_SCHEMES, PLAIN_SCHEMES
from zse.kernels.native import codes
from zse.models.families import all_families, read_checkpoint
from zse.models.storage import QUANTIZATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.models.layer_spec import AttentionSpec, ExpertsSpec, LayerSpec
    from zse.models.spec import ModelSpec

_HEAD = """# Model families

Generated from `zse/models/families` and what each backend says of them. Where a backend has no
yes, it refuses the models before anything is read, for what stands there. The torch backend is
what tests hold the others against.
"""
_PUBLISHED = {
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_PUBLISHED_OF = {
    "gpt_oss": {"intermediate_size": 128},
    "mixtral": {"intermediate_size": 128},
    "modernbert": {"hidden_size": 128, "num_attention_heads": 2},
}
"""The same of families by name."""
_GPU_SCHEMES = {*PLAIN_SCHEMES, *GROUPED_SCHEMES, "int8"}
_CPU_SCHEMES = {scheme.name.lower() for scheme in codes.Scheme}


def models_page() -> str:
    families = all_families()
    specs = {name: _spec_of(name, family.ARCHITECTURES[0]) for name, family in families.items()}
    lines = [_HEAD, "| family | models | architectures | GPU | CPU |", "|---|---|---|---|---|"]
    for name, family in families.items():
        architectures = ", ".join(f"`{each}`" for each in family.ARCHITECTURES)
        on_gpu, on_cpu = (_answer(check, specs[name]) for check in (check_for_gpu, check_for_cpu))
        lines.append(f"| {name} | {family.MODELS} | {architectures} | {on_gpu} | {on_cpu} |")
    lines += ["", "## What their layers have", "", "Beside causal attention and a dense MLP:", ""]
    lines += ["| family | peculiarities |", "|---|---|"]
    lines += [
        f"| {name} | {', '.join(_features(spec)) or 'none'} |" for name, spec in specs.items()
    ]
    return "\n".join([*lines, "", *_schemes()])


def _spec_of(name: str, architecture: str) -> ModelSpec:
    shape = shape_of(name, **_PUBLISHED_OF.get(name, {}))
    widths = {key: width for key, width in _PUBLISHED.items() if key in shape}
    return read_checkpoint({**shape, **widths, "architectures": [architecture]})


def _schemes() -> Iterator[str]:
    taken: dict[str, list[str]] = {}
    for name, family in all_families().items():
        for packing in getattr(family, "PACKINGS", ()):
            taken.setdefault(packing, []).append(name)
    yield from ("## Schemes", "", "Every family has every scheme that its backend multiplies.", "")
    yield "| scheme | weights that share a scale | `--quant` | GPU | CPU | kept as checkpoints of |"
    yield "|---|---|---|---|---|---|"
    for scheme in Scheme:
        sizes = ", ".join(map(str, group_sizes(scheme)))
        words = [_yes(scheme in each) for each in (QUANTIZATIONS, _GPU_SCHEMES, _CPU_SCHEMES)]
        kept = ", ".join(taken.get(scheme, ()))
        yield f"| {scheme} | {sizes} | {' | '.join(words)} | {kept} |"
    yield ""


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _answer(check: Callable[[ModelSpec], None], spec: ModelSpec) -> str:
    """Return whether a backend takes a model, or what it says is in its way."""
    try:
        check(spec)
    except UnsupportedModelError as error:
        told = error.message.partition(", which")[0]
        return f"no: {told.partition(' has ')[2] or told}"
    return "yes"


def _features(spec: ModelSpec) -> dict[str, None]:
    """Return what a model has that not every decoder has, in words, each once."""
    found: dict[str, None] = {}
    for layer in spec.layers:
        found |= dict.fromkeys(_of_layer(layer))
    head, dense = spec.head, [layer.mixer for layer in spec.layers if is_attention(layer.mixer)]
    words = {
        "heads of several widths": len({mixer.head_dim for mixer in dense}) > 1,
        "several rotary tables": len({mixer.rope for mixer in dense}) > 1,
        "scaled embeddings": spec.embedding.scale != 1.0,
        "learned positions": spec.embedding.positions is not None,
        "bounded logits": head.softcap is not None,
        "scaled logits": head.logit_scale != 1.0,
        f"vectors by {head.pooling}": head.pooling != "none",
        "positions that begin later": spec.embedding.first_position > 0,
        "a classifier": head.classifier is not None,
        "a head that guesses further tokens, kept and not computed": bool(spec.guesses),
    }
    return found | dict.fromkeys(word for word, holds in words.items() if holds)


def _of_layer(layer: LayerSpec) -> Iterator[str]:
    if is_attention(layer.mixer):
        yield from _of_attention(layer.mixer)
    else:
        yield "linear attention"
    if layer.experts is not None:
        yield from _of_experts(layer.experts)
    mlps = [layer.mlp, layer.experts.expert if layer.experts is not None else None]
    yield from (f"activation {mlp.activation}" for mlp in mlps if mlp and mlp.activation != "silu")
    words = {
        "LayerNorm": layer.mixer_norm is not None and layer.mixer_norm.kind == "layer",
        "no norm before attention": layer.mixer_norm is None,
        "norms of the stream itself": (layer.mixer_stream_norm or layer.mlp_stream_norm)
        is not None,
        "norms of what is added": layer.mixer_post_norm is not None,
        "scaled additions": layer.residual_scale != 1.0,
        "per-layer embeddings": layer.own_input is not None,
        "a factor of the stream": layer.stream_scale is not None,
    }
    yield from (word for word, holds in words.items() if holds)


def _of_attention(attention: AttentionSpec) -> Iterator[str]:
    rope = attention.rope
    words = {
        "windows": attention.window is not None,
        "layers without rotation": rope is None,
        "rotation of a part": rope is not None
        and attention.latent is None
        and rope.rotary_dim < attention.head_dim,
        "keys and values of a latent": attention.latent is not None,
        "normed heads": attention.q_norm is not None,
        "normed values": attention.value_norm_epsilon is not None,
        "biases of attention": attention.qkv.bias is not None,
        "sinks": attention.sinks is not None,
        "bounded scores": attention.softcap is not None,
        "gated attention": attention.is_gated,
        "keys of other layers": attention.kv_of_layer is not None,
        "values that are keys": attention.values_are_keys,
        "attention to what follows": not attention.is_causal,
    }
    return (word for word, holds in words.items() if holds)


def _of_experts(experts: ExpertsSpec) -> Iterator[str]:
    yield f"experts by {experts.scoring}"
    words = {
        "groups of experts": experts.num_groups > 1,
        "a bias of the choice": experts.selection_bias is not None,
        "a shared expert": experts.shared is not None,
        "a factor of each expert": experts.expert_scale is not None,
    }
    yield from (word for word, holds in words.items() if holds)
