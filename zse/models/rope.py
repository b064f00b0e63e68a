"""Rotary position parameters: what a checkpoint says, and the frequencies that follow from it.

Plain Python: the tables are small (head_dim / 2 numbers), and every backend starts from the same
ones. The formulas are those of transformers' ``modeling_rope_utils``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zse.errors import UnsupportedModelError
from zse.records import record

SUPPORTED_KINDS = ("linear", "dynamic", "llama3", "yarn", "proportional")


@record
class RoPEScaling:
    """How the rotary frequencies are stretched beyond the length seen in training."""

    kind: str
    """linear, dynamic, llama3, yarn or proportional."""
    factor: float
    original_max_position: int
    """Tokens of context the model was trained with before it was stretched."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    """Multiplies cosines and sines (yarn); None: computed from ``factor`` and the mscales."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """Round yarn's correction range to whole dimensions."""
    proportion: float = 1.0
    """Part of the frequencies that turn at all (proportional); the others are zero."""

    def __post_init__(self) -> None:
        if self.kind not in SUPPORTED_KINDS:
            raise UnsupportedModelError(
                f"RoPE scaling {self.kind!r} is not supported",
                hint="Supported: default, " + ", ".join(SUPPORTED_KINDS) + ".",
            )
        if not self.factor > 0 or self.original_max_position < 1:
            raise UnsupportedModelError(
                f"RoPE scaling factor {self.factor!r} over {self.original_max_position!r} tokens; "
                "expected both above 0"
            )


@record
class FactorsByLength:
    """Divisors of the frequencies, of their own for long sequences (longrope, arXiv:2402.13753)."""

    short: tuple[float, ...]
    """One for each frequency, where no sequence is longer than those of the first training."""
    long: tuple[float, ...]
    """Where any may be."""
    original_max_position: int
    """Tokens of the longest sequence of that training."""
    magnitude: float
    """Multiplies cosines and sines, whatever the length."""


@record
class RoPESpec:
    """How positions turn queries and keys. Layers whose ropes are equal share a table."""

    theta: float
    """The base."""
    rotary_dim: int
    """Columns of a head that turn, the first ones."""
    scaling: RoPEScaling | None = None
    by_length: FactorsByLength | None = None
    """In place of a scaling."""
    longest: int = 0
    """Tokens of the longest sequence that is computed, which ``by_length`` goes by."""

    def inverse_frequencies(self, *, length: int = 0) -> list[float]:
        """Return rotary_dim / 2 frequencies in radians a token.

        Args:
            length: Tokens in the sequence so far; only ``dynamic`` scaling looks at it.
        """
        scaling, dim, theta = self.scaling, self.rotary_dim, self.theta
        if scaling is not None and scaling.kind == "dynamic":
            theta = _dynamic_theta(dim, theta, scaling, length)
        base = [theta ** (-2.0 * i / dim) for i in range(dim // 2)]
        if (by_length := self.by_length) is not None:
            is_long = self.longest > by_length.original_max_position
            factors = by_length.long if is_long else by_length.short
            return [frequency / factor for frequency, factor in zip(base, factors, strict=True)]
        if scaling is None or scaling.kind == "dynamic":
            return base
        if scaling.kind == "proportional":
            turning = int(scaling.proportion * dim // 2)
            stretched = [frequency / scaling.factor for frequency in base[:turning]]
            return stretched + [0.0] * (len(base) - turning)
        if scaling.kind == "linear":
            return [frequency / scaling.factor for frequency in base]
        if scaling.kind == "llama3":
            return [_llama3(frequency, scaling) for frequency in base]
        return _yarn(base, dim, theta, scaling)

    @property
    def factor(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.by_length is not None:
            return self.by_length.magnitude
        if self.scaling is None or self.scaling.kind != "yarn":
            return 1.0
        return _yarn_attention_factor(self.scaling)


def rope_values(config_json: Mapping[str, Any], layer_type: str | None = None) -> dict[str, Any]:
    """Return what a checkpoint says of a rotation, as transformers 5 spells it.

    Args:
        config_json: A configuration, or what this function returned.
        layer_type: Kind of layer whose rotation is meant, where there is one for each.

    Raises:
        UnsupportedModelError: It is no mapping.
    """
    values = (
        {} if config_json.get("rope_theta") is None else {"rope_theta": config_json["rope_theta"]}
    )
    for name in ("rope_scaling", "rope_parameters"):
        found = config_json.get(name) or {}
        if not isinstance(found, Mapping):
            raise UnsupportedModelError(f"{name} is {str(found)[:100]!r}; expected a mapping")
        if layer_type is not None and isinstance(found.get(layer_type), Mapping):
            found = found[layer_type]
        values.update(found)
    return values


def read_rope(
    config_json: Mapping[str, Any], max_position: int, head_dim: int
) -> tuple[float, RoPEScaling | None]:
    """Return the base and the scaling from ``rope_parameters`` or the older two fields.

    Raises:
        UnsupportedModelError: A kind or an option is not supported, or a value is missing.
    """
    values = rope_values(config_json)
    partial = values.get("partial_rotary_factor", config_json.get("partial_rotary_factor", 1.0))
    rotary_dim = config_json.get("rotary_dim", head_dim)
    if partial not in (None, 1, 1.0) or rotary_dim != head_dim:
        raise UnsupportedModelError(f"partial_rotary_factor {partial!r} is not supported")
    return read_scaling(values, max_position)


def read_scaling(values: Mapping[str, Any], max_position: int) -> tuple[float, RoPEScaling | None]:
    """Return the base and the scaling from what ``rope_values`` returned.

    Raises:
        UnsupportedModelError: A kind or an option is not supported, or a value is missing.
    """
    theta = values.get("rope_theta", 10000.0)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind in (None, "default", "none"):
        return float(theta), None
    if any(isinstance(value, Mapping) for value in values.values()):
        raise UnsupportedModelError("rope_parameters per layer type are not supported")
    original = values.get("original_max_position_embeddings") or max_position
    if kind == "dynamic":
        original = max_position
    try:
        scaling = RoPEScaling(
            kind=str(kind),
            factor=float(values.get("factor") or 1.0),
            original_max_position=int(original),
            low_freq_factor=float(values.get("low_freq_factor", 1.0)),
            high_freq_factor=float(values.get("high_freq_factor", 4.0)),
            attention_factor=_optional(values, "attention_factor"),
            beta_fast=float(values.get("beta_fast") or 32.0),
            beta_slow=float(values.get("beta_slow") or 1.0),
            mscale=_optional(values, "mscale"),
            mscale_all_dim=_optional(values, "mscale_all_dim"),
            truncate=bool(values.get("truncate", True)),
            proportion=float(values.get("partial_rotary_factor") or 1.0),
        )
    except (TypeError, ValueError) as error:
        raise UnsupportedModelError(f"RoPE scaling {values!r} cannot be read: {error}") from error
    return float(theta), scaling


def read_by_length(
    values: Mapping[str, Any], original_max_position: int, max_position: int, count: int
) -> FactorsByLength:
    """Return the divisors of so many frequencies from what ``rope_values`` returned.

    Raises:
        UnsupportedModelError: They are not as many numbers above zero, or a length has no meaning.
    """
    if original_max_position < 2 or max_position < 1:
        raise UnsupportedModelError(
            f"original_max_position_embeddings is {original_max_position}; expected at least 2"
        )
    stretch = float(values.get("factor") or max_position / original_max_position)
    magnitude = _optional(values, "attention_factor")
    if magnitude is None:
        grown = math.log(max(stretch, 1.0)) / math.log(original_max_position)
        magnitude = math.sqrt(1.0 + grown)
    return FactorsByLength(
        short=_factors(values, "short_factor", count),
        long=_factors(values, "long_factor", count),
        original_max_position=original_max_position,
        magnitude=magnitude,
    )


def _factors(values: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    found = values.get(name)
    if isinstance(found, list) and len(found) == count:
        numbers = [one for one in found if isinstance(one, int | float) and 0 < one < math.inf]
        if len(numbers) == count:
            return tuple(map(float, numbers))
    raise UnsupportedModelError(
        f"{name} of longrope is {str(found)[:100]}; expected {count} numbers above 0"
    )


def _dynamic_theta(head_dim: int, theta: float, scaling: RoPEScaling, length: int) -> float:
    original = scaling.original_max_position
    stretch = scaling.factor * max(length, original) / original - (scaling.factor - 1.0)
    return float(theta * stretch ** (head_dim / (head_dim - 2)))


def _llama3(frequency: float, scaling: RoPEScaling) -> float:
    wavelength = 2.0 * math.pi / frequency
    turns = scaling.original_max_position / wavelength
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (turns - scaling.low_freq_factor) / span
    return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency


def _yarn(base: list[float], head_dim: int, theta: float, scaling: RoPEScaling) -> list[float]:
    def dimension_of(rotations: float) -> float:
        turns = scaling.original_max_position / (rotations * 2.0 * math.pi)
        return head_dim * math.log(turns) / (2.0 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    frequencies = []
    for index, frequency in enumerate(base):
        ramp = min(max((index - low) / (high - low), 0.0), 1.0)
        frequencies.append(frequency / scaling.factor * ramp + frequency * (1.0 - ramp))
    return frequencies


def yarn_mscale(factor: float, weight: float) -> float:
    """Return by how much yarn magnifies what is stretched so much."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _yarn_attention_factor(scaling: RoPEScaling) -> float:
    def mscale(weight: float) -> float:
        return yarn_mscale(scaling.factor, weight)

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale(1.0)


def _optional(values: Mapping[str, Any], name: str) -> float | None:
    return None if values.get(name) is None else float(values[name])
