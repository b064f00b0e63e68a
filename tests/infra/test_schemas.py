"""Every resource, argument and block that is written is one that its provider has."""

import modules
import pytest
from schema import Attribute, Block, grow, load_schema
from walk import check

BLOCK = Block(
    attributes={
        "name": Attribute(mode="required", type="string"),
        "arn": Attribute(mode="computed", type="string"),
    },
    blocks={"rule": Block(nesting="list", min_items=1, max_items=1)},
)


@pytest.mark.parametrize(
    "folder", modules.FOLDERS, ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_every_argument_and_block_is_known_and_none_is_missing(folder):
    wrong = []
    for name, label, body in modules.things(folder):
        types = load_schema(name.provider)
        assert str(name) in types, f"{folder.name} uses {name}: run trim_schema.py"
        wrong += check(body, types[str(name)], f"{name}.{label}")
    for provider, body in modules.named(folder, "provider").items():
        wrong += check(body, load_schema(provider)["provider"], f"provider {provider}")
    assert not wrong


def test_every_schema_is_of_something_that_is_used():
    used = {str(name) for name in modules.used_types()}
    for provider in {name.provider for name in modules.used_types()}:
        assert load_schema(provider).keys() - {"provider"} <= used


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "a", "rule": [{}]}, []),
        ({"name": "a", "rule": [{}], "lifecycle": [{}], "count": 1}, []),
        ({"name": "a", "dynamic": [{"rule": {"for_each": "x", "content": [{}]}}]}, []),
        ({"rule": [{}]}, ["x: name is missing"]),
        ({"name": "a"}, ["x: a block rule is missing"]),
        ({"name": "a", "rule": [{}, {}]}, ["x: 2 blocks rule, 1 at most"]),
        ({"name": "a", "rule": [{}], "nmae": "b"}, ["x: there is no nmae"]),
        ({"name": "a", "rule": [{}], "arn": "b"}, ["x: arn cannot be set"]),
        ({"name": "a", "rule": [{"count": 1}]}, ["x.rule: there is no count"]),
        (
            {"name": "a", "rule": [{}], "dynamic": [{"role": {"for_each": "x", "content": []}}]},
            ["x: there is no block role"],
        ),
    ],
)
def test_what_is_wrong_is_named(body, said):
    assert list(check(body, BLOCK, "x")) == said


def test_a_schema_file_is_a_tree():
    lines = {"a": "block list 1 2", "a.b": "block set 0 0", "a.b.c": 'required ["list","string"]'}
    root = grow(lines | {"d": "optional+computed number"})
    assert (root.blocks["a"].min_items, root.blocks["a"].max_items) == (1, 2)
    assert root.blocks["a"].blocks["b"].attributes["c"].type == ["list", "string"]
    assert root.attributes["d"].mode == "optional+computed"
