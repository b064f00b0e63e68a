"""Tags stand where the engine finds them: held against the engine, and where the two once differed."""

import random

import minijinja
import pytest

from zse.errors import TemplateError
from zse.text.template_guard import weave
from zse.text.template_tags import MAX_TAG_CHARACTERS, tags_of

BITS = (
    *("{{", "}}", "{%", "%}", "{#", "#}", "{", "}", "[", "]", "(", ")", "'", '"', "\\'", "%", "~"),
    *("x", " ", "-", "+", "1", ",", ":", "'a'", '"b"', "'}}'", "'%}'", "{{-", "-}}", "\n", "é"),
    *("raw", "endraw", "{% raw %}", "{% endraw %}", "{%- raw -%}", "{%- endraw +%}", "{{ x }}"),
    *("if x", "endif", "{% if 1 %}", "{% endif %}", "{{ {'a': {'b': 1}}.a }}", "{{ [1][0] }}"),
)


def rendered(source):
    """Return what the engine alone makes of a template; None where it is none for it."""
    environment = minijinja.Environment(trim_blocks=True, lstrip_blocks=True)
    try:
        return environment.render_str(source, x=1)
    except minijinja.TemplateError:
        return None


def kinds_of(source):
    return [(tag.kind, source[tag.start : tag.end]) for tag in tags_of(source)]


def test_what_the_engine_takes_is_read_and_stays_what_it_was():
    dice, num_taken = random.Random(7), 0
    for _ in range(6000):
        source = "".join(dice.choice(BITS) for _ in range(dice.randrange(1, 9)))
        text = rendered(source)
        if text is not None:
            assert rendered(weave(source)) == text, source
            num_taken += 1
    assert num_taken > 1000


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("{{ {'a': {'b': 1}}.a ~ 2 }}", [("print", "{{ {'a': {'b': 1}}.a ~ 2 }}")]),
        ("{{ '}}' }} }}", [("print", "{{ '}}' }}")]),
        ("{% set x = {'a': 5 %2} %}", [("block", "{% set x = {'a': 5 %2} %}")]),
        (
            "{% raw %}{{{% endraw %}{{ 1 }}",
            [("raw", "{% raw %}{{{% endraw %}"), ("print", "{{ 1 }}")],
        ),
        ("{# {{ ' #}{{ 1 }}", [("comment", "{# {{ ' #}"), ("print", "{{ 1 }}")]),
        ("{{ 'it\\'s }}' }}", [("print", "{{ 'it\\'s }}' }}")]),
        ("no tag { at } all", []),
    ],
)
def test_a_tag_ends_where_the_engine_ends_it(source, kinds):
    assert kinds_of(source) == kinds


@pytest.mark.parametrize(
    "source",
    ["{{ x", "{% if x", "{# x", "{{ 'x }}", "{{ ) }}", "{{ (x }}", "{% raw %}x", "{{ x }} {{"],
)
def test_a_tag_that_does_not_end_is_refused(source):
    assert rendered(source) is None
    with pytest.raises(TemplateError, match="does not end"):
        list(tags_of(source))


def test_a_tag_may_be_so_long_and_a_comment_longer():
    assert len(kinds_of("{{ " + "x" * (MAX_TAG_CHARACTERS - 10) + " }}{#" + "x" * 9999 + "#}")) == 2
    with pytest.raises(TemplateError):
        list(tags_of("{{ " + "x" * MAX_TAG_CHARACTERS + " }}"))
