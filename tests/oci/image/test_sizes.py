from __future__ import annotations

import pytest
from broken_rules import breaks

from zse.errors import UsageError
from zse.oci.errors import ImageRule
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.layer import Compression
from zse.oci.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("250MB", 250_000_000), ("1.5 GB", 1_500_000_000), ("2gib", 2 << 30), ("3k", 3000)],
)
def test_sizes_are_read_as_people_write_them(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "0", "1 parsec"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError):
        parse_size(text)


def test_image_over_its_budget_is_neither_listed_nor_pushed(build, project):
    size_bytes = build(output=f"oci:{project / 'first'}").size_bytes
    build(max_size_bytes=size_bytes, output=f"oci:{project / 'second'}")
    with breaks(ImageRule.IMAGE_TOO_LARGE, match="--max-size"):
        build(max_size_bytes=size_bytes - 1)
    assert ImageLayout(project / "out").manifests() == []


def test_budget_of_the_recipe_does_not_count_the_model(build, project):
    recipe = project / "recipe" / "image.toml"
    recipe.write_text(f'max_size = "10KB"\n{recipe.read_text()}')
    assert build().size_bytes > 10_000
    recipe.write_text(recipe.read_text().replace("10KB", "1KB"))
    with breaks(ImageRule.IMAGE_TOO_LARGE, match="recipe small, no model"):
        build()


def test_limit_that_is_given_replaces_the_recipes(build, project):
    recipe = project / "recipe" / "image.toml"
    recipe.write_text(f'max_size = "1KB"\n{recipe.read_text()}')
    assert build(max_size_bytes=1_000_000).size_bytes > 1000


def test_recipes_limit_says_nothing_of_layers_that_are_not_compressed(build, project):
    recipe = project / "recipe" / "image.toml"
    recipe.write_text(f'max_size = "1KB"\n{recipe.read_text()}')
    assert build(compression=Compression.NONE).size_bytes > 1000
    with breaks(ImageRule.IMAGE_TOO_LARGE, match="--max-size"):
        build(compression=Compression.NONE, max_size_bytes=1000)
