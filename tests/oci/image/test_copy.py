"""A finished image is brought to a registry: the same digest, and all that is stated about it."""

import pytest
from oci_builders import FakeRegistry

from zse.oci.errors import DigestMismatchError, LayoutError
from zse.oci.image.copy import copy_image
from zse.oci.image.inspect import read_sbom
from zse.oci.image.source import open_image
from zse.oci.image.verify import Expectations, verify_image
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.layer import Compression
from zse.oci.layout.manifest import MEDIA_TYPE_INDEX, Descriptor, build_index
from zse.oci.registry import client
from zse.oci.registry.client import Registry
from zse.oci.registry.reference import parse_reference

THERE = "127.0.0.1:5000/team/zse:2"


@pytest.fixture(params=[False, True], ids=["agreed tag", "own list"])
def fake(request, monkeypatch):
    """A registry that lists what refers to a manifest by itself, and one that does not."""
    fake = FakeRegistry(has_referrers=request.param)

    def connect(reference, credentials, **options):
        return Registry(reference, credentials, transport=fake.transport(), **options)

    monkeypatch.setattr(client, "Registry", connect)
    return fake


@pytest.fixture
def push(tmp_path):
    """Copy an image from a place to a name; returns the digest."""

    def push(place, name=THERE):
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        with (
            open_image(place, auth_file=tmp_path / "none") as source,
            client.open_registry(parse_reference(name), tmp_path / "none") as registry,
        ):
            return copy_image(source, registry, scratch, lambda _: None)

    return push


@pytest.mark.parametrize("kind", ["oci", "tar"])
def test_an_image_arrives_with_its_digest_and_its_statements(kind, build, push, fake, project):
    built = build(output=f"{kind}:{project / 'made'}", compression=Compression.GZIP)
    assert push(f"{kind}:{project / 'made'}") == built.digest
    with open_image(THERE, auth_file=project / "none") as source:
        found = verify_image(source, Expectations(), lambda _: None)
        assert (found.digest, found.problems) == (built.digest, [])
        assert {check.partition(": ")[2] for check in found.checks} >= {
            "application/spdx+json",
            "application/vnd.in-toto+json",
        }
        assert {part["name"] for part in read_sbom(source)["packages"]} >= {"demo"}


def test_the_tag_comes_last(build, push, fake, project):
    build()
    push(f"oci:{project / 'out'}")
    puts = [url.rpartition("/")[2] for method, url, _ in fake.log
            if method == "PUT" and "/manifests/" in url]  # fmt: skip
    assert puts[-1] == "2"


def test_from_one_repository_to_another_of_its_registry_nothing_is_sent(build, push, fake, project):
    built = build()
    push(f"oci:{project / 'out'}")
    begin = len(fake.log)
    assert push(THERE, "127.0.0.1:5000/other/zse:3") == built.digest
    later = fake.log[begin:]
    assert not [url for method, url, _ in later if method == "PATCH"]
    assert [url for method, url, _ in later if method == "POST" and "mount=" in url]
    with open_image("127.0.0.1:5000/other/zse:3", auth_file=project / "none") as source:
        assert verify_image(source, Expectations(), lambda _: None).problems == []


def test_a_blob_with_other_bytes_leaves_no_tag(build, push, fake, project):
    built = build(output=f"tar:{project / 'made.tar'}")
    layer = built.layers[0].digest
    data = (project / "made.tar").read_bytes()
    begin = data.index(layer.replace(":", "/").encode()) + 512
    (project / "made.tar").write_bytes(data[:begin] + b"\xff" + data[begin + 1 :])
    with pytest.raises(DigestMismatchError):
        push(f"tar:{project / 'made.tar'}")
    assert ("team/zse", "2") not in fake.manifests


@pytest.mark.parametrize(
    "content",
    [b"[]", b"nothing", b'{"manifests": [1]}', b'{"layers": {"a": 1}}', b'{"config": "x"}'],
)
def test_what_is_no_manifest_is_refused(content, build, push, fake, project):
    build()
    layout = ImageLayout(project / "out")
    layout.add_image(layout.add(MEDIA_TYPE_INDEX, content), "bad", [])
    with pytest.raises(LayoutError):
        push(f"oci:{project / 'out'}:bad")
    assert fake.manifests == {}


def test_indexes_in_indexes_end_somewhere(build, push, fake, project):
    build()
    layout = ImageLayout(project / "out")
    (one,) = (item for item in layout.manifests() if not item.artifact_type)
    for _ in range(6):
        bare = Descriptor(media_type=one.media_type, digest=one.digest, size_bytes=one.size_bytes)
        one = layout.add(MEDIA_TYPE_INDEX, build_index([bare], annotations={}))
    layout.add_image(one, "deep", [])
    with pytest.raises(LayoutError, match="more than 4 deep"):
        push(f"oci:{project / 'out'}:deep")


def test_an_image_without_a_bill_of_materials_is_told_so(build, project):
    build(is_attested=False)
    with (
        open_image(f"oci:{project / 'out'}", auth_file=project / "none") as source,
        pytest.raises(LayoutError, match="no bill of materials beside linux/amd64") as told,
    ):
        read_sbom(source)
    assert "--no-attest" in str(told.value.hint)
