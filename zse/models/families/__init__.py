"""Families of models: a module each, which alone reads its ``config.json``.

A family is found by being here. Its module says ``ARCHITECTURES``, as a ``config.json`` calls
them; ``MODELS``, as people do; and ``read``. What ``read`` makes is a spec, and a file then keeps
the values of ``config.json`` that were read. Families whose layers differ by nothing but a window
make numbers instead (``zse.models.uniform``), which is what their files keep; ``NAMES`` are those
of their checkpoints' tensors, where they are not Llama's. ``PACKINGS`` are the schemes that the
family's checkpoints may have already, by their ``quant_method``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from zse.errors import FormatError, UnsupportedModelError
from zse.models.config_json import ConfigJSON
from zse.models.spec_checks import check_spec
from zse.models.uniform import TensorNames, UniformDecoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.spec import ModelSpec


_MEANINGLESS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What values of a wrong kind raise where they are used; a ``config.json`` may be anybody's."""


class Family(Protocol):
    """What a family's module has."""

    ARCHITECTURES: tuple[str, ...]
    MODELS: str

    def read(self, config: ConfigJSON) -> ModelSpec | UniformDecoder:
        """Return the model that a ``config.json`` describes, or its numbers.

        Raises:
            UnsupportedModelError: An option is not supported, or a value that is needed is missing
                or has no meaning.
        """


def all_families() -> dict[str, Family]:
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    return {name: family_named(name) for name in names}


def family_named(name: str) -> Family:
    """Return a family.

    Raises:
        UnsupportedModelError: There is none of this name.
    """
    try:
        if str(name).isidentifier() and not name.startswith("_"):  # it may be a file's word
            return cast("Family", import_module(f"{__name__}.{name}"))
    except ModuleNotFoundError:
        pass
    raise UnsupportedModelError(
        f"model family {str(name)[:100]!r} is not supported", hint=_supported()
    )


def names_of(family: str) -> TensorNames:
    """Return what a family's checkpoints call their tensors."""
    return getattr(family_named(family), "NAMES", None) or TensorNames()


def read_checkpoint(
    config_json: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Return the model that a checkpoint's parsed ``config.json`` describes.

    Token ids of ``generation_config.json`` win.

    Raises:
        UnsupportedModelError: The architecture or one of its options is not supported, or a value
            that is needed is missing or has no meaning.
    """
    architectures = _architectures(config_json)
    model_type = config_json.get("model_type")
    families = all_families()
    for name, family in families.items():
        if set(architectures) & set(family.ARCHITECTURES) or (
            not architectures and model_type == name
        ):
            return _read(family, name, config_json, generation_config)
    from zse.models.nearest import describe_nearest  # only what nobody knows asks for it

    found = ", ".join(architectures) or f"model_type {str(model_type)[:100]!r}"
    nearest = describe_nearest(config_json, families)
    raise UnsupportedModelError(
        f"architecture {found} is not supported", hint=f"{nearest} {_supported()}".strip()
    )


def read_header(values: Mapping[str, Any]) -> ModelSpec:
    """Return the model that the ``model_config`` of a file's header describes.

    Raises:
        FormatError: A field is missing, unknown or of the wrong kind.
    """
    if "config" in values:
        return _read_values(values)
    numbers = UniformDecoder.from_json(values)
    try:
        return numbers.spec(names_of(numbers.family))
    except UnsupportedModelError as error:
        raise FormatError(f"model config cannot be read: {error}") from error


def _read_values(values: Mapping[str, Any]) -> ModelSpec:
    """Read a header that has values of a ``config.json``: all of them, and no others."""
    name, config = values.get("family"), values["config"]
    if set(values) != {"family", "config"} or not isinstance(config, dict):
        raise FormatError("model config is not a family and values of its config.json")
    try:
        spec = _read(family_named(str(name)), str(name), config, None)
    except UnsupportedModelError as error:
        raise FormatError(f"model config cannot be read: {error}") from error
    if unknown := sorted(set(config) - set(spec.header["config"])):
        raise FormatError(f"model config has unknown fields: {', '.join(unknown)[:200]}")
    return spec


def _read(
    family: Family,
    name: str,
    config_json: Mapping[str, Any],
    generation_config: Mapping[str, Any] | None,
) -> ModelSpec:
    packings = getattr(family, "PACKINGS", ())
    try:
        found = family.read(ConfigJSON(name, config_json, generation_config, packings))
        if isinstance(found, UniformDecoder):
            return found.spec(names_of(found.family))
        check_spec(found)
    except _MEANINGLESS as error:
        raise UnsupportedModelError(
            f"config.json of a {name} model has a value that means nothing there: {error}",
            hint="Download config.json again, or look at who wrote it.",
        ) from error
    return found


def _architectures(config_json: Mapping[str, Any]) -> list[str]:
    names = config_json.get("architectures")
    return [str(name)[:100] for name in names[:4]] if isinstance(names, list) else []


def _supported() -> str:
    families = all_families().values()
    architectures = ", ".join(name for family in families for name in family.ARCHITECTURES)
    models = "; ".join(family.MODELS for family in families)
    return (
        f"Supported: {architectures}. Choose a model of one of these architectures ({models}; and "
        "what is tuned from them), or ask for this one in an issue, by the word architectures of "
        "its config.json."
    )
