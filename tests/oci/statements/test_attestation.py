from __future__ import annotations

import json
import re

import pytest
from oci_builders import MODEL, read_json, sha256_hex

from zse.oci.image.options import ModelMode
from zse.oci.layout.folder import ImageLayout
from zse.oci.statements.attestation import MEDIA_TYPE_INTOTO, MEDIA_TYPE_SPDX
from zse.oci.statements.sbom import package_sha256, package_url, sbom_counts


def statements(layout) -> dict[str, tuple[dict, dict]]:
    """artifact type -> its manifest and its document."""
    found = {}
    for item in ImageLayout.open(layout).manifests():
        if item.artifact_type:
            manifest = read_json(layout, item.digest)
            found[item.artifact_type] = (
                manifest,
                read_json(layout, manifest["layers"][0]["digest"]),
            )
    return found


@pytest.fixture
def built(build):
    return build(model_facts={"name": "tiny", "version": "r1", "source": "hf://org/tiny"})


@pytest.fixture
def sbom(built, project) -> dict:
    return statements(project / "out")[MEDIA_TYPE_SPDX][1]


@pytest.fixture
def provenance(built, project) -> dict:
    return statements(project / "out")[MEDIA_TYPE_INTOTO][1]


def test_both_documents_name_the_image_as_their_subject(built, project):
    found = statements(project / "out")
    assert set(found) == {MEDIA_TYPE_SPDX, MEDIA_TYPE_INTOTO}
    for manifest, _ in found.values():
        assert manifest["subject"]["digest"] == built.digest
        assert manifest["config"]["digest"] == f"sha256:{sha256_hex(b'{}')}"


def test_bill_of_materials_has_what_spdx_asks_for(sbom):
    assert (sbom["spdxVersion"], sbom["dataLicense"]) == ("SPDX-2.3", "CC0-1.0")
    assert sbom["creationInfo"]["created"] == "1970-01-01T00:00:00Z"
    identifiers = [package["SPDXID"] for package in sbom["packages"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", name) for name in identifiers)
    for package in sbom["packages"]:
        assert {"name", "downloadLocation", "filesAnalyzed"} <= set(package)
    described = {r["relatedSpdxElement"] for r in sbom["relationships"]}
    assert described == set(identifiers)


def test_bill_of_materials_lists_wheels_base_code_and_model_with_hashes(sbom, project):
    packages = {package["name"]: package for package in sbom["packages"]}
    wheel = next((project / "recipe").glob("*.whl"))
    assert package_sha256(packages["demo"]) == sha256_hex(wheel.read_bytes())
    assert package_url(packages["demo"]) == "pkg:pypi/demo@1.0"
    assert package_sha256(packages["tiny"]) == sha256_hex(MODEL)
    assert package_url(packages["tiny"]) == "pkg:huggingface/org/tiny@r1"
    assert packages["zse-toolkit"]["licenseDeclared"] == "Apache-2.0"
    assert "base.tar" in packages


def test_things_are_counted_by_kind(sbom):
    assert sbom_counts(sbom) == {"huggingface": 1, "other": 1, "pypi": 2}


def test_provenance_names_inputs_by_hash_and_the_builder(provenance, built):
    assert provenance["predicateType"] == "https://slsa.dev/provenance/v1"
    assert provenance["subject"][0]["digest"]["sha256"] == built.digest.removeprefix("sha256:")
    definition = provenance["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["recipe"] == "small"
    hashes = {item["digest"]["sha256"] for item in definition["resolvedDependencies"]}
    assert sha256_hex(MODEL) in hashes
    assert provenance["predicate"]["runDetails"]["builder"]["id"].startswith("https://")


def test_documents_hold_nothing_of_the_host(built, project):
    text = json.dumps(statements(project / "out"))
    assert str(project) not in text


def test_documents_are_the_same_each_time(build, project):
    listed = []
    for index in range(2):
        build(output=f"oci:{project / f'out{index}'}", is_cached=False)
        listed.append(ImageLayout.open(project / f"out{index}").manifests())
    assert listed[0] == listed[1]


def test_image_that_fetches_its_model_states_the_address(build, project):
    build(model_mode=ModelMode.URL, model=None, model_url="s3://bucket/m.zse")
    _, document = statements(project / "out")[MEDIA_TYPE_INTOTO]
    parameters = document["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters["modelUrl"] == "s3://bucket/m.zse"


def test_documents_can_be_left_out(build, project):
    build(is_attested=False)
    assert statements(project / "out") == {}


def test_documents_of_a_replaced_image_go_with_it(build, project):
    build()
    (project / "model.zse").write_bytes(MODEL[::-1])
    second = build()
    found = statements(project / "out")
    assert len(ImageLayout.open(project / "out").manifests()) == 3
    assert {manifest["subject"]["digest"] for manifest, _ in found.values()} == {second.digest}


def test_documents_of_an_image_with_another_tag_stay(build, project):
    build()
    build(name="zse:2")
    (project / "model.zse").write_bytes(MODEL[::-1])
    build(name="zse:2")
    assert len(ImageLayout.open(project / "out").manifests()) == 6
