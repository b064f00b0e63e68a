"""What of a template turns its reasoning on and off."""

import pytest

from zse.text.reasoning.controls import EFFORTS, ThinkingControls, controls_of


@pytest.mark.parametrize(
    ("template", "controls"),
    [
        ("{%- if enable_thinking is defined and enable_thinking is false %}", ThinkingControls(switch="enable_thinking")),
        ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}", ThinkingControls(switch="thinking")),
        ("{%- if message.thinking %}{%- if \"thinking\" in message %}", ThinkingControls(history_key="thinking")),
        ("{{- 'Reasoning: ' + reasoning_effort }}{{ message.thinking }}", ThinkingControls(has_effort=True, history_key="thinking")),
        ("{%- if message.reasoning_content is string %}", ThinkingControls(history_key="reasoning_content")),
        ("{%- if m['reasoning_content'] %}{{ enable_thinking }}", ThinkingControls(switch="enable_thinking", history_key="reasoning_content")),
        ("{{ 'enable_thinking' }} think about it", ThinkingControls()),
        ("{{ raise_exception(\"no tags in the thinking field\") }} thinking {{ 'it\\'s thinking' }}", ThinkingControls()),
        ("{{ unclosed thinking", ThinkingControls()),
        ("", ThinkingControls()),
    ],
)  # fmt: skip
def test_a_template_tells_what_it_reads(template, controls):
    assert controls_of(template) == controls


def test_every_effort_is_one_that_templates_know():
    both = ThinkingControls(switch="thinking", has_effort=True)
    known = {effort: both.variables(effort) for effort in EFFORTS}
    assert known.pop("none") == {"thinking": False}
    assert {each["reasoning_effort"] for each in known.values()} == {"low", "medium", "high"}
    assert all(each["thinking"] for each in known.values())
    assert both.variables("") == {}
