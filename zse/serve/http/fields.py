"""The strict reading of a body into a typed struct, so that every refusal names its field.

In three steps: fields that change the answer in ways this server cannot are refused when they hold
anything but what asks for nothing; the rest is converted to the struct; what the struct does not
have is refused or reported back, wherever it stood, never dropped in silence.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from zse.serve.http.errors import BadRequestError, MissingParameterError, UnsupportedParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Refused: TypeAlias = "Mapping[str, tuple[tuple[object, ...], str]]"
"""Known fields that are not done here: path -> (values that ask for nothing, what to do).

All other values are refused. A path is a name, or leads to one: ``messages[].prefix``."""
WithoutEffect: TypeAlias = "Mapping[str, tuple[object, ...]]"
"""Known fields that change no answer: path -> values that need not be reported either."""
_INDEX = re.compile(r"\[\d+\]")
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
    for name in mapping.keys() - set(kind.__struct_encode_fields__):
        # Before the struct, which may miss what somebody has put into another field.
        _refuse(name, mapping[name], refused)
    body = convert(mapping, kind)
    ignored: dict[str, None] = {}
    for place, value in unread_fields(mapping, body):
        path = kind_of_place(place)
        if path in refused:
            _refuse(path, value, refused, place)
        elif value not in without_effect.get(path, ()):
            ignored[path] = None
    return body, tuple(ignored)


def _refuse(path: str, value: object, refused: Refused, place: str = "") -> None:
    rule = refused.get(path)
    if rule is not None and value is not None and value not in rule[0]:
        raise UnsupportedParameterError(place or path, rule[1])


def convert(value: Any, kind: type[Body], *, where: str = "") -> Body:
    """Return the struct that a parsed value holds; ``where`` is the path of the value in its body.

    Raises:
        BadRequestError: A field has the wrong type or shape; ``param`` names it.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error), where) from None


def unread_fields(value: Any, read: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the paths and values of the fields of a parsed value that its struct does not have.

    A path has indexes: ``tools[0].more``. Fields that are null, and what lies inside mappings that
    the struct takes as they are, count as read.
    """
    if isinstance(read, msgspec.Struct):
        names = dict(zip(read.__struct_encode_fields__, read.__struct_fields__, strict=True))
        prefix = f"{where}." if where else ""
        for key, inner in value.items():
            if key in names:
                yield from unread_fields(inner, getattr(read, names[key]), prefix + key)
            elif inner is not None and key != read.__struct_config__.tag_field:
                yield prefix + key, inner
    elif isinstance(read, list):
        for index, (inner, one) in enumerate(zip(value, read, strict=True)):
            if type(one) in _SCALARS:  # hundreds of thousands of them may be token ids
                continue
            yield from unread_fields(inner, one, f"{where}[{index}]")


def kind_of_place(place: str) -> str:
    """Return a path without its indexes: ``tools[].more``."""
    return _INDEX.sub("[]", place)


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
