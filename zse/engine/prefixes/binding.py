"""Whose keys and values a model computes: what must be equal for them to be used again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from zse import __version__
from zse.backends.operations import is_attention
from zse.errors import UnsupportedModelError
from zse.format.header_json import dump_canonical
from zse.kv.prefix_pack import PrefixBinding

if TYPE_CHECKING:
    from zse.engine.core import EngineCore
    from zse.format.spec import ZSEHeader
    from zse.models.runner import ModelRunner
    from zse.options import DeviceOptions

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def binding_of(header: ZSEHeader, runner: ModelRunner, device: DeviceOptions) -> PrefixBinding:
    """Return the binding of what a model computes that runs now."""
    images = runner.kv_images
    roundings = [runner.device.instructions]
    if device.exact_activations:
        roundings.append("exact activations")
    roundings.append(f"prefill precision {device.prefill_precision}")
    if alone := runner.device.weights_alone:
        roundings.append(f"{alone} weights")
    return PrefixBinding(
        model=_model_digest(header, runner),
        layout=images.layout,
        block_size=runner.block_size,
        block_bytes=images.block_bytes,
        computed_by=", ".join(roundings),
        is_deterministic=device.deterministic,
        zse=__version__,
    )


def check_can_save(core: EngineCore) -> None:
    """Refuse a model whose prefixes are more than blocks.

    Raises:
        UnsupportedModelError: It is; the message says what it has.
    """
    if core.cache.can_save:
        return
    if core.cache.checkpoints is not None:
        raise UnsupportedModelError(
            "the prefixes of this model cannot be kept: its linear attention has states beside "
            "the blocks of keys and values",
            hint="Leave --prefix-store out; prefixes are reused while the server runs.",
        )
    raise UnsupportedModelError("this model keeps no prefixes: the prefix cache is off")


def _model_digest(header: ZSEHeader, runner: ModelRunner) -> str:
    """Hash weights, what is said of the model, its tokenizer, and how positions are turned.

    A section that was added later, such as a kernel pack, changes none of them.
    """
    sections = {each.name: each.sha256 for each in header.sections}
    ropes = [
        repr(layer.mixer.rope) if is_attention(layer.mixer) else "" for layer in runner.spec.layers
    ]
    facts = {
        "groups": [[each.name, each.sha256] for each in header.loaded().groups],
        "config": header.model_config,
        "tokenizer": {name: sections.get(name, "") for name in _TOKENIZER_FILES},
        "rope": hashlib.sha256("\n".join(ropes).encode()).hexdigest(),
    }
    return hashlib.sha256(dump_canonical(facts)).hexdigest()
