from __future__ import annotations

import pytest
from oci_builders import MODEL, sha256_hex

from zse.errors import NotFoundError
from zse.oci.image.facts import ImageFacts
from zse.oci.image.inspect import read_image_facts
from zse.oci.image.options import ModelMode

KNOWN = {"name": "org/tiny", "version": "r1", "quantization": "int4"}


@pytest.fixture
def read(project):
    return lambda place: read_image_facts(place, auth_file=project / "none")


@pytest.mark.parametrize("output", ["oci:{}", "tar:{}"])
def test_image_says_its_model_and_how_it_gets_the_weights(build, read, project, output):
    place = output.format(project / "image")
    build(output=place, model_facts=KNOWN)
    facts = read(place)
    assert facts.is_ours
    assert (facts.model_name, facts.model_revision, facts.model_scheme) == (
        "org/tiny",
        "r1",
        "int4",
    )
    assert facts.model_sha256 == sha256_hex(MODEL)
    assert (facts.weights, facts.recipe) == ("baked", "small")


def test_image_that_fetches_its_model_says_from_where_without_the_signature(build, read, project):
    url = "https://models.example/m.zse?signature=secret-word"
    build(model_mode=ModelMode.URL, model=None, model_url=url)
    facts = read(f"oci:{project / 'out'}")
    assert (facts.weights, facts.model_url) == ("url", "https://models.example/m.zse?...")
    assert facts.model_sha256 == ""


def test_labels_read_back_what_was_written():
    facts = ImageFacts(recipe="cuda", kernels=("sm_80", "sm_90"), weights="url")
    assert ImageFacts.from_labels(facts.to_labels()) == facts


def test_image_of_others_says_nothing():
    assert not ImageFacts.from_labels({"maintainer": "someone"}).is_ours


def test_place_without_an_image_is_refused(read, project):
    with pytest.raises(NotFoundError):
        read(f"oci:{project / 'nothing'}")


def test_labels_of_a_stranger_cannot_command_a_terminal_or_forge_a_line():
    hostile = "x\x1b[2J\nerror: y"
    facts = ImageFacts.from_labels({"dev.zse.model.name": hostile, "dev.zse.kernels": hostile})
    assert "".join((facts.model_name, *facts.kernels)).isprintable()
