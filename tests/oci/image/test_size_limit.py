"""How large an image may be."""

from __future__ import annotations

from broken_rules import breaks

from zse.oci.errors import ImageRule
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.layer import Compression


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
