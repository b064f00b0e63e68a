"""``adapter_config.json`` of PEFT: the scale of each module, and what is refused by name."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, TypeVar

from zse.errors import LoRAError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

_REFUSED = {
    "use_dora": "DoRA (use_dora)",
    "modules_to_save": "whole modules (modules_to_save)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "lora_bias": "biases (lora_bias)",
    "use_qalora": "QALoRA (use_qalora)",
    "use_bdlora": "block-diagonal matrices (use_bdlora)",
    "layer_replication": "repeated layers (layer_replication)",
    "target_parameters": "adapted parameters (target_parameters)",
    "alora_invocation_tokens": "tokens that switch it on (alora_invocation_tokens)",
    "arrow_config": "a router (arrow_config)",
    "kasa_config": "KaSA (kasa_config)",
    "monteclora_config": "MonteCLoRA (monteclora_config)",
    "velora_config": "VeLoRA (velora_config)",
}
"""Settings that change what an adapter computes: it would answer wrongly without them."""
_CHANGES_BASE = ("pissa", "olora", "corda", "lora_ga")
"""Ways to begin that subtract the adapter from the model's own weights."""
_PATTERN = re.compile(r"\^?[A-Za-z0-9_.]+", re.ASCII)
_MOST_PATTERNS = 4096
Number = TypeVar("Number", int, float)


@record
class LoRAConfig:
    """How strongly an adapter counts in each module, and of what rank it is there."""

    rank: int
    alpha: float
    is_rank_stabilized: bool
    """Whether alpha is divided by the root of the rank, not by the rank."""
    rank_pattern: Mapping[str, int]
    """Ranks of modules whose names end so; behind ``^`` stands a whole name."""
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        return _match(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return what the product of the two matrices is multiplied by."""
        alpha, rank = _match(self.alpha_pattern, module, self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)


def parse_config(
    data: bytes, where: str, *, max_rank: int, computed: Container[str] = ()
) -> LoRAConfig:
    """Read an ``adapter_config.json``; ``where`` is what errors call it.

    ``computed`` are settings that whoever asks can do, of those that are refused else.

    Raises:
        LoRAError: It is none of a LoRA adapter, or has what is not computed.
    """
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LoRAError(f"{where} is not JSON", hint="Save the adapter again.") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise LoRAError(
            f"{where} has peft_type {str(kind)[:100]!r}, expected 'LORA'",
            hint="Name the folder of a LoRA adapter, as PEFT's save_pretrained writes it.",
        )
    _refuse_unsupported(config, where, computed)
    return LoRAConfig(
        rank=_rank(config.get("r", 8), f"{where}: r", max_rank),
        alpha=_alpha(config.get("lora_alpha", 8), f"{where}: lora_alpha"),
        is_rank_stabilized=config.get("use_rslora") is True,
        rank_pattern={
            name: _rank(value, f"{where}: rank_pattern", max_rank)
            for name, value in _patterns(config, "rank_pattern", where).items()
        },
        alpha_pattern={
            name: _alpha(value, f"{where}: alpha_pattern")
            for name, value in _patterns(config, "alpha_pattern", where).items()
        },
    )


def _refuse_unsupported(config: dict[str, Any], where: str, computed: Container[str]) -> None:
    refused = ((name, words) for name, words in _REFUSED.items() if name not in computed)
    found = [words for name, words in refused if config.get(name)]
    if (bias := config.get("bias", "none")) != "none":
        found.append(f"biases (bias: {str(bias)[:40]!r})")
    begin = config.get("init_lora_weights")
    if isinstance(begin, str) and begin.lower().startswith(_CHANGES_BASE):
        found.append(f"a changed base model (init_lora_weights: {begin[:40]!r})")
    if found:
        raise LoRAError(
            f"{where} asks for {found[0]}, which is not computed here",
            hint="Merge it into the model with PEFT's merge_and_unload, and convert that.",
        )


def _patterns(config: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return a table of modules' names; PEFT would read them as regular expressions."""
    table = config.get(name) or {}
    if not isinstance(table, dict) or len(table) > _MOST_PATTERNS:
        raise LoRAError(f"{where}: {name} is no object of at most {_MOST_PATTERNS} entries")
    plain = {key.replace("\\.", "."): value for key, value in table.items()}
    for key in plain:
        if not _PATTERN.fullmatch(key):
            raise LoRAError(
                f"{where}: {name} names {key[:100]!r}; expected the end of a module's name",
                hint="Write each module out: regular expressions are not read.",
            )
    return plain


def _match(table: Mapping[str, Number], module: str, default: Number) -> Number:
    """Return the value of the first entry that a module's name ends with, by whole parts."""
    for key, value in table.items():
        if module == key.removeprefix("^") or module.endswith(f".{key}"):
            return value
    return default


def _rank(value: Any, where: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise LoRAError(
            f"{where} is {str(value)[:40]}, expected 1 to {most}",
            hint="--max-lora-rank allows more.",
        )
    return value


def _alpha(value: Any, where: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= 1e6:  # NaN is refused, too
        raise LoRAError(f"{where} is {str(value)[:40]}, expected a number up to a million")
    return float(value)
