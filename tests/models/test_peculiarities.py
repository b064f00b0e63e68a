"""What a family does that others do not matters: without it the logits are others.

The spec that a file's header gives agrees with transformers (``test_parity``). Here one thing is
taken out of it, and the torch backend computes what is left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from family_shapes import ENCODERS
from logits import as_tensor

from zse.format import ZSEReader
from zse.models.families import all_families
from zse.models.rope import RoPESpec
from zse.models.runner import load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec

    Change = Callable[[ModelSpec], ModelSpec]

LEAST_DIFFERENCE = 1e-3
"""Over the largest logit: ten times what parity allows."""


def mixers(**changes: Any) -> Change:
    """Change the mixers that have all of these fields: attention, or linear attention."""

    def without(layer: LayerSpec) -> LayerSpec:
        if not all(hasattr(layer.mixer, name) for name in changes):
            return layer
        return replace(layer, mixer=replace(layer.mixer, **changes))

    return layers(without)


def experts(**changes: Any) -> Change:
    def without(layer: LayerSpec) -> LayerSpec:
        if layer.experts is None:
            return layer
        return replace(layer, experts=replace(layer.experts, **changes))

    return layers(without)


def layers(change: Callable[[LayerSpec], LayerSpec]) -> Change:
    return lambda spec: replace(spec, layers=tuple(map(change, spec.layers)))


def every_layer(**changes: Any) -> Change:
    return layers(lambda layer: replace(layer, **changes))


def head(**changes: Any) -> Change:
    return lambda spec: replace(spec, head=replace(spec.head, **changes))


def unscaled_embedding(spec: ModelSpec) -> ModelSpec:
    return replace(spec, embedding=replace(spec.embedding, scale=1.0))


def unplaced(spec: ModelSpec) -> ModelSpec:
    return replace(spec, embedding=replace(spec.embedding, positions=None))


def layer_inputs(**changes: Any) -> Change:
    def change(spec: ModelSpec) -> ModelSpec:
        inputs = replace(spec.embedding.layer_inputs, **changes)
        return replace(spec, embedding=replace(spec.embedding, layer_inputs=inputs))

    return change


def unnormed_inputs(spec: ModelSpec) -> ModelSpec:
    norm = replace(spec.embedding.layer_inputs.norm, epsilon=1e9)
    return layer_inputs(norm=norm)(spec)


def own_input(**changes: Any) -> Change:
    def change(layer: LayerSpec) -> LayerSpec:
        return replace(layer, own_input=replace(layer.own_input, **changes))

    return layers(change)


def unlimited(layer: LayerSpec) -> LayerSpec:
    expert = replace(layer.experts.expert, limit=None)
    return replace(layer, experts=replace(layer.experts, expert=expert))


def unbiased_router(layer: LayerSpec) -> LayerSpec:
    router = replace(layer.experts.router, bias=None)
    return replace(layer, experts=replace(layer.experts, router=router))


def turned_whole(layer: LayerSpec) -> LayerSpec:
    if not hasattr(layer.mixer, "head_dim"):
        return layer
    rope = RoPESpec(theta=10000.0, rotary_dim=layer.mixer.head_dim)
    return replace(layer, mixer=replace(layer.mixer, rope=rope))


def with_epsilon_of_others(name: str) -> Change:
    """Give a norm of latents the epsilon that the model's other norms have."""

    def change(layer: LayerSpec) -> LayerSpec:
        of_latent = replace(getattr(layer.mixer.latent, name), epsilon=layer.mixer_norm.epsilon)
        parts = replace(layer.mixer.latent, **{name: of_latent})
        return replace(layer, mixer=replace(layer.mixer, latent=parts))

    return layers(change)


def values_from_keys_of_first(layer: LayerSpec) -> LayerSpec:
    shared = layer.mixer.kv_of_layer
    return (
        layer
        if shared is None
        else replace(layer, mixer=replace(layer.mixer, kv_of_layer=shared - 2))
    )


HYBRID: dict[str, Change] = {
    "heads that turn in part": layers(turned_whole),
    "norms of heads": mixers(q_norm=None, k_norm=None),
    "key heads that value heads share": mixers(num_key_heads=4, key_dim=8),
}
OF_A_LATENT: dict[str, Change] = {
    "a stretched rotation": mixers(rope=RoPESpec(theta=10000.0, rotary_dim=16)),
    "scores that stretching magnifies": mixers(scale=40**-0.5),
    "an epsilon of the latent's norm": with_epsilon_of_others("norm"),
    "an expert of every token": experts(shared=None),
    "scaled weights": experts(weight_scale=1.0),
}
PECULIARITIES: dict[str, dict[str, Change]] = {
    "deepseek_v2": {
        **OF_A_LATENT,
        "weights that are shares of all experts": experts(normalizes_weights=True),
    },
    "deepseek_v3": {
        **OF_A_LATENT,
        "an epsilon of the norm of queries' latents": with_epsilon_of_others("query_norm"),
        "sigmoids for scores": experts(scoring="softmax"),
        "a bias for the choice": experts(selection_bias=None),
        "groups": experts(num_groups=1, groups_per_token=1),
        "the sum of two for a group's score": experts(scores_in_group=1),
    },
    "gpt_oss": {
        "sinks": mixers(sinks=None),
        "windows": mixers(window=None),
        "a limit of gate and up": layers(unlimited),
        "a bias of the router": layers(unbiased_router),
        "a softmax of the chosen alone": experts(scoring="sigmoid", normalizes_weights=False),
        "a stretched rotation": layers(turned_whole),
    },
    "qwen3_5": HYBRID,
    "qwen3_5_moe": {"the gate of the shared expert": experts(shared_gate=None)},
    "qwen3_next": {"the gate of the shared expert": experts(shared_gate=None)},
    "qwen3_moe": {
        "norms of heads": mixers(q_norm=None, k_norm=None),
        "weights with a sum of one": experts(normalizes_weights=False),
    },
    "qwen2_moe": {
        "an expert of every token": experts(shared=None),
        "the gate of that expert": experts(shared_gate=None),
    },
    "mixtral": {"two experts of a token": experts(experts_per_token=1)},
    "glm4_moe": {
        "sigmoids for scores": experts(scoring="softmax"),
        "a bias for the choice": experts(selection_bias=None),
        "groups": experts(num_groups=1, groups_per_token=1),
        "the sum of two for a group's score": experts(scores_in_group=1),
        "scaled weights": experts(weight_scale=1.0),
        "heads that turn in part": layers(turned_whole),
    },
    "phi3": {"heads that turn in part": layers(turned_whole)},
    "smollm3": {"layers that do not turn": layers(turned_whole)},
    "olmo2": {"norms of all heads together": mixers(q_norm=None, k_norm=None)},
    "olmo3": {"windows": mixers(window=None)},
    "glm4": {
        "norms of what is added": every_layer(mixer_post_norm=None, mlp_post_norm=None),
        "heads that turn in part": layers(turned_whole),
    },
    "gpt2": {"learned positions": unplaced},
    "gemma2": {
        "capped scores": mixers(softcap=None),
        "capped logits": head(softcap=None),
        "windows": mixers(window=None),
        "norms of what is added": every_layer(mixer_post_norm=None, mlp_post_norm=None),
        "a scaled embedding": unscaled_embedding,
        "a scale of scores of its own": mixers(scale=32**-0.5),
    },
    "gemma3": {
        "windows": mixers(window=None),
        "norms of heads": mixers(q_norm=None, k_norm=None),
        "two tables of rotation": layers(turned_whole),
    },
    "gemma4": {
        "normed values": mixers(value_norm_epsilon=None),
        "keys of another layer": layers(values_from_keys_of_first),
        "a factor of the stream": every_layer(stream_scale=None),
        "a norm of the router's own": experts(router_norm=None),
        "a scale of each expert": experts(expert_scale=None),
        "a norm of what experts add": experts(post_norm=None),
        "a norm of what the MLP adds beside them": every_layer(dense_post_norm=None),
        "frequencies that are zero": layers(turned_whole),
        "per-layer embeddings": every_layer(own_input=None),
        "rows of tokens in them": layer_inputs(scale=0.0),
        "a projection of the embedding in them": unnormed_inputs,
        "an activation of the layer's own input": own_input(activation="relu2"),
        "a norm of what it adds": own_input(post_norm=None),
    },
}


def cases() -> list[Any]:
    return [
        pytest.param(family, change, id=f"{family}: {name}")
        for family, found in PECULIARITIES.items()
        for name, change in found.items()
    ]


def logits(path: Any, spec: ModelSpec, token_ids: list[int]) -> torch.Tensor:
    options = load_options(device="torch", num_blocks=8, block_size=8, threads=1)
    runner = load_runner(path, options, spec=spec)
    try:
        return as_tensor(runner.logits(token_ids))
    finally:
        runner.close()


@pytest.mark.parametrize(("family", "change"), cases())
def test_without_it_the_logits_are_others(
    family: str, change: Change, make_pair: Callable[..., Any]
) -> None:
    token_ids = list(range(3, 40))
    pair = make_pair(family, "fp32")
    with ZSEReader(pair.path) as reader:
        spec = change(spec_of(reader))
    expected = pair.logits(token_ids)
    difference = (logits(pair.path, spec, token_ids) - expected).abs().max() / expected.abs().max()
    assert float(difference) > LEAST_DIFFERENCE


def test_every_family_with_layers_of_its_own_has_something_peculiar() -> None:
    uniform = {"granite", "llama", "mistral", "qwen2", "qwen3", "starcoder2"}
    assert set(all_families()) - uniform - ENCODERS <= set(PECULIARITIES)
