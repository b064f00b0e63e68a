"""Tools as strangers list them, within bounds."""

import pytest
from mcp.types import CallToolResult, ImageContent, TextContent, Tool

from zse.serve.mcp.offers import MOST_DESCRIPTION_CHARACTERS, MOST_TOOLS, offers_of, told_of
from zse.tools.registry import ToolError

OBJECT = {"type": "object", "properties": {}}


def offered(*tools):
    return offers_of("it", tools, lambda name, arguments: name)


def tool(name="t", schema=OBJECT, description="d"):
    return Tool(name=name, input_schema=schema, description=description)


def test_schemas_are_shown_as_they_are_and_names_fit_the_pattern():
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}
    (one,) = offered(tool("a.b c" + "y" * 90, schema))
    assert one.parameters == schema
    assert one.name.startswith("it_a_b_cyy")
    assert len(one.name) == 64


def test_what_is_over_the_bounds_is_left_out():
    huge = {"type": "object", "description": "x" * 40_000}
    names = [one.name for one in offered(tool("a", huge), tool("b", {"type": "array"}), tool("c"))]
    assert names == ["it_c"]
    assert [one.name for one in offered(tool("a.b"), tool("a_b"))] == ["it_a_b"]
    assert len(offered(*(tool(f"t{n}") for n in range(300)))) == MOST_TOOLS
    (long,) = offered(tool(description="x" * 10_000))
    assert len(long.description) == MOST_DESCRIPTION_CHARACTERS


def test_a_model_is_told_texts_and_of_what_is_none():
    image = ImageContent(type="image", data="aGk=", mime_type="image/png")
    said = [TextContent(type="text", text="hi"), image]
    assert told_of(CallToolResult(content=said)) == "hi\n[image, which is no text]"
    assert told_of(CallToolResult(content=[], structured_content={"a": 1})) == '{"a": 1}'
    with pytest.raises(ToolError, match="hi"):
        told_of(CallToolResult(content=said, is_error=True))
