"""The strict reading of a body into a typed struct, so that every refusal names its field.

In three steps: fields that change the answer in ways this server cannot are refused when they hold
anything but what asks for nothing; the rest is converted to the struct; what the struct does not
have is reported back, wherever it stood, never dropped in silence.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from zse.serve.http.errors import BadRequestError, MissingParameterError, UnsupportedParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Refused: TypeAlias = "Mapping[str, tuple[tuple[object, ...], str]]"
"""Known fields that are not done here: name -> (values that ask for nothing, what to do).

All other values are refused."""
WithoutEffect: TypeAlias = "Mapping[str, tuple[object, ...]]"
"""Known fields that change no answer: name -> values that need not be reported either."""
_SCALARS = frozenset({int, str, float, bool, type(None)})
Body = TypeVar("Body", bound=msgspec.Struct)


def read_fields(
    mapping: dict[str, Any], kind: type[Body], *, refused: Refused, without_effect: WithoutEffect
) -> tuple[Body, tuple[str, ...]]:
    """Check a mapping and convert it to a struct.

    Returns:
        The struct, and the names of fields that have no effect: ``tools[].cache_control``.

    Raises:
        UnsupportedParameterError: A known field asks for something this server does not do.
        BadRequestError: A field has the wrong type or shape; ``param`` names it.
    """
    known = set(kind.__struct_encode_fields__)
    asks_nothing = set()
    for name in mapping.keys() - known:
        rule = refused.get(name)
        values = rule[0] if rule else without_effect.get(name)
        if values is not None and (mapping[name] is None or mapping[name] in values):
            asks_nothing.add(name)
        elif rule:
            raise UnsupportedParameterError(name, rule[1])
    body = convert(mapping, kind)
    found = dict.fromkeys(unread_fields(mapping, body))
    return body, tuple(name for name in found if name not in asks_nothing)


def convert(value: Any, kind: type[Body], *, where: str = "") -> Body:
    """Return the struct that a parsed value holds; ``where`` is the path of the value in its body.

    Raises:
        BadRequestError: A field has the wrong type or shape; ``param`` names it.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error), where) from None


def unread_fields(value: Any, read: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of the fields of a parsed value that its struct does not have.

    Fields that are null, and what lies inside mappings that the struct takes as they are, count as
    read.
    """
    if isinstance(read, msgspec.Struct):
        names = dict(zip(read.__struct_encode_fields__, read.__struct_fields__, strict=True))
        prefix = f"{where}." if where else ""
        for key, inner in value.items():
            if key in names:
                yield from unread_fields(inner, getattr(read, names[key]), prefix + key)
            elif inner is not None and key != read.__struct_config__.tag_field:
                yield prefix + key
    elif isinstance(read, list):
        for inner, one in zip(value, read, strict=True):
            if type(one) in _SCALARS:  # hundreds of thousands of them may be token ids
                continue
            yield from unread_fields(inner, one, f"{where}[]")


def check_range(param: str, value: float | None, low: float, high: float) -> None:
    """Refuse a number outside [low, high] with an error that names the parameter; None is none."""
    if value is not None and not low <= value <= high:
        raise BadRequestError(
            f"Invalid value for '{param}': {value} is not between {low} and {high}.", param=param
        )


def _bad_field(text: str, where: str) -> BadRequestError:
    """Turn msgspec's words (``Expected `float`, got `str` - at `$.top_p` ``) into an API error."""
    what, _, place = text.partition(" - at ")
    inner = re.sub(r"^`?\$\.?|`$", "", place)
    path = f"{where}.{inner}" if where and inner else where or inner
    missing = re.search(r"missing required field `(\w+)`", what)
    if missing:
        return MissingParameterError(f"{path}.{missing[1]}" if path else missing[1])
    return BadRequestError(
        f"Invalid value for '{path[:200]}': {what[:200]}.", param=path[:200] or None
    )
