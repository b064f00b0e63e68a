"""Images of several platforms in one index; none of them is run, so no emulation is needed."""

from __future__ import annotations

import pytest
from oci_builders import FakeRegistry, read_json

from zse.errors import UsageError
from zse.oci.errors import BadReferenceError
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.manifest import MEDIA_TYPE_INDEX, Descriptor, build_index
from zse.oci.registry import client
from zse.oci.registry.client import Registry

PLATFORMS = ("linux/amd64", "linux/arm64")


@pytest.fixture
def both(project, build):
    """A recipe for two platforms, and a base that has both."""
    recipe = project / "recipe" / "image.toml"
    recipe.write_text(f"platforms = {list(PLATFORMS)}\n{recipe.read_text()}")
    lock = project / "recipe" / "wheels.amd64.lock"
    lock.with_name("wheels.arm64.lock").write_text(lock.read_text())
    manifests = []
    for platform in PLATFORMS:
        built = build(name="base:1", platforms=(platform,), output=f"oci:{project / 'base'}")
        size_bytes = ImageLayout(project / "base").blob_path(built.digest).stat().st_size
        manifests.append(
            Descriptor(
                media_type="application/vnd.oci.image.manifest.v1+json",
                digest=built.digest,
                size_bytes=size_bytes,
                platform=platform,
            )
        )
    layout = ImageLayout(project / "base")
    layout.add_image(layout.add(MEDIA_TYPE_INDEX, build_index(manifests, annotations={})), "both")
    return f"oci:{project / 'base'}:both"


def test_two_platforms_become_one_index(both, build, project):
    built = build(base=both, platforms=PLATFORMS)
    index = read_json(project / "out", built.digest)
    assert [item["platform"]["architecture"] for item in index["manifests"]] == ["amd64", "arm64"]
    assert [p.digest for p in built.platforms] == [item["digest"] for item in index["manifests"]]
    for item in index["manifests"]:
        config = read_json(project / "out", item["digest"])["config"]["digest"]
        architecture = read_json(project / "out", config)["architecture"]
        assert architecture == item["platform"]["architecture"]


def test_each_platform_of_an_index_is_the_image_built_alone(both, build, project):
    built = build(base=both, platforms=PLATFORMS)
    for platform in built.platforms:
        alone = build(base=both, platforms=(platform.platform,), output=f"oci:{project / 'one'}")
        assert alone.digest == platform.digest


def test_platforms_share_the_model(both, build):
    built = build(base=both, platforms=PLATFORMS)
    models = {platform.layers[-1].digest for platform in built.platforms}
    assert len(models) == 1


def test_each_platform_has_its_own_documents(both, build, project):
    built = build(base=both, platforms=PLATFORMS)
    items = [item for item in ImageLayout(project / "out").manifests() if item.artifact_type]
    subjects = [read_json(project / "out", item.digest)["subject"]["digest"] for item in items]
    assert sorted(subjects) == sorted(2 * [platform.digest for platform in built.platforms])


def test_index_is_pushed_after_all_that_it_names(both, build, project, monkeypatch):
    fake = FakeRegistry()

    def connect(reference, credentials, **options):
        return Registry(reference, credentials, transport=fake.transport(), **options)

    monkeypatch.setattr(client, "Registry", connect)
    name = "127.0.0.1:5000/zse:1"
    built = build(base=both, platforms=PLATFORMS, name=name, output="", is_pushed=True)
    puts = [url.rpartition("/")[2] for method, url, _ in fake.log if "/manifests/" in url
            and method == "PUT"]  # fmt: skip
    assert puts[-1] == "1"
    assert fake.manifests["zse", "1"][0] == MEDIA_TYPE_INDEX
    assert {platform.digest for platform in built.platforms} <= {name for _, name in fake.manifests}


def test_root_file_system_is_for_one_platform(both, build):
    with pytest.raises(UsageError, match="made for one platform"):
        build(platforms=PLATFORMS)


def test_platform_named_twice_or_not_in_the_recipe_is_refused(both, build):
    with pytest.raises(UsageError, match="twice"):
        build(base=both, platforms=("linux/amd64", "linux/amd64"))
    with pytest.raises(BadReferenceError, match="not made for linux/s390x"):
        build(base=both, platforms=("linux/s390x",))
