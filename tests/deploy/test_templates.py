"""Templates: placeholders, omitted lines, blocks, and the refusal of unknown names."""

import pytest
import yaml

from zse.deploy.errors import DeployError
from zse.deploy.templates import OMIT, render_text


def test_placeholders_become_literals_of_the_files_language():
    values = {"name": 'a"b', "count": 2, "on": True}
    template = "x: @{name}\ny: [@{count}, @{on}]\n"
    assert yaml.safe_load(render_text(template, values, name="a.yaml")) == {
        "x": 'a"b',
        "y": [2, True],
    }
    assert render_text("x = @{name}, @{on}\n", values, name="a.py") == "x = 'a\"b', True\n"


def test_a_line_with_an_omitted_value_disappears():
    text = render_text("a: 1\nb: @{b}\nc: 2\n", {"b": OMIT}, name="a.yaml")
    assert text == "a: 1\nc: 2\n"


def test_a_list_spreads_over_the_lines_below_its_key():
    values = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    text = render_text("spec:\n  env: @{env}\n  z: 1\n", values, name="a.yaml")
    assert "  env:\n    - name: " in text
    assert yaml.safe_load(text) == {"spec": {"env": values["env"], "z": 1}}


def test_a_value_that_looks_like_a_placeholder_stays_as_it_is():
    text = render_text("a: @{a}\n", {"a": "@{b}", "b": "no"}, name="a.yaml")
    assert yaml.safe_load(text) == {"a": "@{b}"}


def test_a_placeholder_without_a_value_is_named():
    with pytest.raises(DeployError, match=r"a\.yaml: no value for x"):
        render_text("@{x}", {}, name="a.yaml")


def test_a_file_whose_language_is_unknown_is_refused():
    with pytest.raises(DeployError, match="no rule"):
        render_text("@{x}", {"x": 1}, name="a.ini")
