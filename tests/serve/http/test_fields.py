"""Bodies become structs; what is refused, wrong or without effect is named with its path."""

import msgspec
import pytest

from zse.serve.http.errors import (
    BadRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from zse.serve.http.fields import convert, read_fields


class Part(msgspec.Struct, kw_only=True):
    text: str
    style: dict | None = None


class Body(msgspec.Struct, kw_only=True, rename={"kind": "type"}):
    kind: str = ""
    parts: list[Part] = []
    one: Part | None = None


def read(**fields):
    return read_fields(
        fields,
        Body,
        refused={"audio": (("none",), "Only text is generated.")},
        without_effect={"tier": ("auto",)},
    )


def test_fields_become_the_struct_under_the_names_of_the_wire():
    body, ignored = read(type="x", parts=[{"text": "a"}])
    assert (body.kind, body.parts[0].text, ignored) == ("x", "a", ())


def test_a_refused_field_is_refused_unless_it_asks_for_nothing():
    assert read(audio="none")[1] == read(audio=None)[1] == ()
    with pytest.raises(UnsupportedParameterError, match="Only text") as refused:
        read(audio={})
    assert refused.value.param == "audio"


def test_what_nobody_reads_is_named_wherever_it_stands_and_once():
    part = {"text": "a", "font": "b", "style": {"any": "thing"}, "nothing": None}
    _, ignored = read(tier="fast", parts=[part, part], one=part, more=1)
    assert ignored == ("tier", "parts[].font", "one.font", "more")
    assert read(tier="auto")[1] == ()


def test_wrong_and_missing_fields_are_named_with_their_path():
    with pytest.raises(BadRequestError) as wrong:
        read(parts=[{"text": 1}])
    assert wrong.value.param == "parts[0].text"
    with pytest.raises(MissingParameterError) as missing:
        convert({}, Part, where="input[3]")
    assert missing.value.param == "input[3].text"
    with pytest.raises(BadRequestError) as whole:
        convert(7, Part, where="input[3]")
    assert whole.value.param == "input[3]"
