from __future__ import annotations

import io
import tarfile

import pytest
import zstandard
from oci_builders import read_json, read_layer, sha256_hex

from zse.errors import NotFoundError, UsageError
from zse.oci.layout.folder import ImageLayout
from zse.oci.statements.attestation import MEDIA_TYPE_SPDX
from zse.oci.statements.sbom import package_sha256


@pytest.fixture
def packs(project):
    """A recipe that carries kernels, and two packs."""
    recipe = project / "recipe" / "image.toml"
    recipe.write_text(recipe.read_text() + '[kernels]\ngpu = ["sm_80", "sm_90"]\n')
    paths = {}
    for name in ("sm_80", "sm_90"):
        paths[name] = project / f"{name}.zkp"
        paths[name].write_bytes(name.encode() * 100)
    return paths


def test_packs_lie_where_the_server_looks_for_them(build, project, packs):
    built = build(kernels=packs)
    layer = built.layers[-3]
    assert layer.comment == "kernels for sm_80, sm_90"
    data = zstandard.ZstdDecompressor().decompressobj()
    data = data.decompress(read_layer(project / "out", layer.digest))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        stream = archive.extractfile("opt/zse/app/zse/kernels/packs/sm_90.zkp")
        assert stream.read() == b"sm_90" * 100


def test_packs_are_inputs_of_the_digest_and_are_stated(build, project, packs):
    first = build(kernels=packs)
    (sbom,) = [x for x in ImageLayout(project / "out").manifests()
               if x.artifact_type == MEDIA_TYPE_SPDX]  # fmt: skip
    document = read_json(project / "out", sbom.digest)["layers"][0]["digest"]
    found = {p["name"]: package_sha256(p) for p in read_json(project / "out", document)["packages"]}
    assert found["zse-kernels-sm_90"] == sha256_hex(b"sm_90" * 100)
    packs["sm_90"].write_bytes(b"other")
    assert build(kernels=packs).digest != first.digest


def test_image_for_gpus_is_not_built_without_kernels(build, packs):
    with pytest.raises(NotFoundError, match="sm_80, sm_90"):
        build()
    with pytest.raises(NotFoundError, match="sm_80"):
        build(kernels={"sm_90": packs["sm_90"]})


def test_image_for_cpus_takes_no_kernels(build, project):
    with pytest.raises(UsageError, match="carries no kernel packs"):
        build(kernels={"sm_90": project / "x.zkp"})
