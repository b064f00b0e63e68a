"""Which supported family an unknown architecture is nearest to, and what that family leaves unread.

Each family reads the ``config.json`` as if it were its own; the one that understands most of it is
the nearest. That is a hint for a person, not a way to run the model: two architectures may have the
same ``config.json`` and compute other things.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from zse.errors import UnsupportedModelError
from zse.models.config_json import ConfigJSON
from zse.printable import printable
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.families import Family

_MAX_KEYS = 256
"""Of a config.json; more of them are not looked at."""
_MAX_LAYERS = 64
"""Layers that a family is tried with: reading a model takes time for each of them."""
_MAX_SHOWN = 8
_MAX_TEXT = 60
_LEAST_READ = 4
"""Values that a family must understand to be called near."""
_WEIGHT = 3
"""Of a value that a family does not know, beside one that it misses: those have a usual value."""
_SAYS_NOTHING = frozenset({
    "architectures", "auto_map", "attention_dropout", "bos_token_id", "chunk_size_feed_forward",
    "decoder_start_token_id", "dtype", "embd_pdrop", "eos_token_id", "finetuning_task",
    "hidden_dropout", "id2label", "initializer_range", "is_decoder", "is_encoder_decoder",
    "label2id", "max_window_layers", "model_type", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "resid_pdrop", "return_dict", "router_aux_loss_coef", "rope_parameters", "rope_scaling",
    "rope_theta", "sliding_window", "tokenizer_class", "torch_dtype", "transformers_version",
    "unk_token_id", "use_cache", "use_sliding_window",
})  # fmt: skip
"""Keys that change no arithmetic, or that every family reads in one way or another."""


@record
class Reading:
    """What a family made of a config.json that is not its own."""

    family: str
    models: str
    architecture: str
    known: int
    """Values that it read."""
    absent: int
    """Values that it asked for and that are not there."""
    unread: tuple[str, ...]
    """Keys that mean something and that it did not ask for."""
    refusal: str
    """Why it cannot be read so; empty where it can."""


class _Asked(ConfigJSON):
    """Remembers what a family asked for, there or not."""

    def __init__(self, family: str, values: Mapping[str, Any]) -> None:
        super().__init__(family, values, None)
        self.names: set[str] = set()

    def value(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().value(name, default)


def describe_nearest(values: Mapping[str, Any], families: Mapping[str, Family]) -> str:
    """Return a sentence or two about the nearest family; empty where none is near.

    Args:
        values: A parsed config.json, from anywhere.
        families: All that are supported, by their names.
    """
    flat = _flat(values)
    if not flat:
        return ""
    model_type = str(flat.get("model_type"))[:_MAX_TEXT]
    readings = [_read_as(name, family, flat) for name, family in families.items()]
    nearest = min(readings, key=lambda reading: _distance(reading, model_type))
    if nearest.known < _LEAST_READ:
        return ""
    return f"Nearest: {nearest.architecture} ({nearest.models}). {_difference(nearest, flat)}"


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the text model, few enough and of few enough layers."""
    inner = values.get("text_config")
    both = {**inner, **values} if isinstance(inner, dict) else dict(values)
    flat = {key: both[key] for key in list(both)[:_MAX_KEYS] if key != "text_config"}
    flat.pop("quantization_config", None)  # another story, told when the architecture is known
    layers = flat.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MAX_LAYERS:
        flat["num_hidden_layers"] = _MAX_LAYERS
        kinds = flat.get("layer_types")
        flat["layer_types"] = kinds[:_MAX_LAYERS] if isinstance(kinds, list) else kinds
    return flat


def _read_as(name: str, family: Family, flat: Mapping[str, Any]) -> Reading:
    config = _Asked(name, flat)
    refusal = ""
    try:
        family.read(config)
    except UnsupportedModelError as error:
        refusal = error.message
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        refusal = f"it cannot be read ({type(error).__name__})"  # a value of another kind
    read = config.header()["config"]
    unread = (
        key for key in flat if key not in read and key not in _SAYS_NOTHING and _is_on(flat[key])
    )
    return Reading(
        family=name,
        models=family.MODELS,
        architecture=family.ARCHITECTURES[0],
        known=len(read),
        absent=len(config.names - set(flat)),
        unread=tuple(key for key in unread if not key.startswith("_")),
        refusal=refusal,
    )


def _is_on(value: Any) -> bool:
    """Whether a value may change what is computed: an option that is off does not."""
    return value not in (None, False, 0, "", [], {})


def _distance(reading: Reading, model_type: str) -> tuple[bool, int, int, int, bool]:
    """Families that could run it come first, then those that understand most and miss least."""
    letters = zip(reading.family, model_type, strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], letters))
    # One that refuses did not ask for all that it would read.
    differences = 0 if reading.refusal else _WEIGHT * len(reading.unread) + reading.absent
    is_offspring = reading.family != "llama"  # of which the others were made
    return bool(reading.refusal), differences, -reading.known, -alike, is_offspring


def _difference(nearest: Reading, flat: Mapping[str, Any]) -> str:
    if nearest.refusal:
        return f"It differs: {_shortened(nearest.refusal, 200)}."
    if not nearest.unread:
        return "Its config.json says nothing that this family does not read: the code may differ."
    shown = [f"{_shortened(key)}{_value(flat[key])}" for key in nearest.unread[:_MAX_SHOWN]]
    more = len(nearest.unread) - len(shown)
    rest = f" and {more} more" if more else ""
    return f"That family does not know {', '.join(shown)}{rest}."


def _value(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return f"={value}"[:_MAX_TEXT]
    if isinstance(value, str):
        return f"={_shortened(value)!r}"
    return " (a list)" if isinstance(value, list) else " (an object)"


def _shortened(text: str, length: int = _MAX_TEXT) -> str:
    return printable(text[:length])
