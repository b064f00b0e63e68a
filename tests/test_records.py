"""Records are frozen dataclasses in everything but what they cost to define."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from functools import cached_property

import pytest

from zse.records import record


@record
class Point:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)
    note: str = field(default="", compare=False)

    @cached_property
    def length(self) -> int:
        """Their sum."""
        return self.x + self.y


@record
class Named(Point):
    """A point with a name."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("no name")


def test_fields_are_given_by_name_and_the_rest_take_their_defaults():
    one, other = Point(x=1), Point(x=1)
    assert (one.x, one.y, one.tags) == (1, 2, [])
    assert one.tags is not other.tags
    with pytest.raises(TypeError, match="positional"):
        Point(1)


def test_a_field_that_lacks_or_is_unknown_is_named():
    with pytest.raises(TypeError, match=r"Point lacks x and knows no z$"):
        Point(z=1)


def test_nothing_can_be_set_or_deleted():
    point = Point(x=1)
    with pytest.raises(FrozenInstanceError, match="y cannot be set"):
        point.y = 3
    with pytest.raises(FrozenInstanceError, match="x cannot be deleted"):
        del point.x
    assert point.length == 3


def test_equal_records_have_one_hash_and_what_is_not_compared_does_not_count():
    assert Named(x=1, name="a", tags=()) == Named(x=1, name="a", tags=(), note="other")
    assert len({Named(x=1, name="a", tags=()), Named(x=1, name="a", tags=(), note="other")}) == 1
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Named(x=1, name="a")


def test_secrets_are_not_shown():
    assert repr(Point(x=1, secret="hunter2")) == "Point(x=1, y=2, tags=[], note='')"


def test_a_record_extends_another_and_checks_itself():
    assert [entry.name for entry in fields(Named)][-1] == "name"
    with pytest.raises(ValueError, match="no name"):
        Named(x=1, name="")


def test_the_standard_functions_work_on_records():
    point = Named(x=1, name="a")
    assert point.length == 3
    changed = replace(point, x=5)
    assert (changed.x, changed.name, changed.length) == (5, "a", 7)
    assert asdict(changed) == {
        "x": 5, "y": 2, "tags": [], "secret": "", "note": "", "name": "a",
    }  # fmt: skip
    with pytest.raises(TypeError, match="knows no z"):
        replace(point, z=1)


def test_methods_of_the_class_itself_stay():
    @record
    class Loud:
        x: int

        def __repr__(self) -> str:
            return f"LOUD {self.x}"

    assert repr(Loud(x=1)) == "LOUD 1"
    assert Loud.__doc__ == "Loud"


def test_a_class_that_compares_in_its_own_way_can_still_be_hashed():
    @record
    class Loose:  # noqa: PLW1641 - what ``record`` adds
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Loose) and self.x % 2 == other.x % 2

    assert Loose(x=1) == Loose(x=3)
    assert hash(Loose(x=1)) == hash(Loose(x=1))


def test_one_field_is_compared_as_dataclasses_do():
    @record
    class Value:
        x: object

    nothing = float("nan")
    assert Value(x=nothing) == Value(x=nothing)
    assert (Value(x=1) == 1) is False


@pytest.mark.parametrize("wrong", [{"init": False}, {"hash": False}])
def test_what_records_do_not_offer_is_refused_where_it_is_written(wrong):
    with pytest.raises(TypeError, match="init and hash"):

        @record
        class Odd:
            x: int = field(default=1, **wrong)
