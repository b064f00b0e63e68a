"""The bill of materials of an image, as SPDX 2.3 JSON.

One package for the image, one for each thing in it, with the hash of the file it came as. Licences
are those that the things state themselves; nothing is concluded.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import zse
from zse.oci.layout.manifest import hex_of, timestamp
from zse.oci.statements.materials import Material, MaterialKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.oci.image.platform import PlatformImage

_ROOT = "SPDXRef-Image"
_UNKNOWN = "NOASSERTION"
_RELATIONS = {**dict.fromkeys(MaterialKind, "CONTAINS"), MaterialKind.BASE: "DESCENDANT_OF"}
_PURPOSES = {
    MaterialKind.BASE: "OPERATING-SYSTEM",
    MaterialKind.CODE: "APPLICATION",
    MaterialKind.MODEL: "FILE",
    MaterialKind.KERNELS: "LIBRARY",
    MaterialKind.WHEEL: "LIBRARY",
    MaterialKind.DEBIAN: "LIBRARY",
    MaterialKind.VENDORED: "LIBRARY",
}


def build_sbom(name: str, image: PlatformImage, *, epoch_seconds: int) -> dict[str, Any]:
    """Return the SPDX document of an image; ``name`` is its repository, without its registry."""
    digest, platform = image.manifest.digest, image.manifest.platform
    packages = [_package(material) for material in image.materials]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{platform.replace('/', '-')}",
        "documentNamespace": f"https://zse.dev/spdx/{name}/{hex_of(digest)}",
        "creationInfo": {
            "created": timestamp(epoch_seconds),
            "creators": [f"Tool: zse-{zse.__version__}"],
        },
        "packages": [_image(name, digest, platform), *packages],
        "relationships": [
            _relationship("SPDXRef-DOCUMENT", "DESCRIBES", _ROOT),
            *(_relationship(_ROOT, _RELATIONS[m.kind], _identifier(m)) for m in image.materials),
        ],
    }


def sbom_counts(document: Mapping[str, Any]) -> dict[str, int]:
    """Count the packages of a bill of materials by the type of their package URL."""
    things = (item for item in document.get("packages", ()) if item.get("SPDXID") != _ROOT)
    urls = (package_url(item).removeprefix("pkg:") for item in things)
    return dict(sorted(Counter(url.partition("/")[0] or "other" for url in urls).items()))


def package_url(package: Mapping[str, Any]) -> str:
    for item in package.get("externalRefs", ()):
        if item.get("referenceType") == "purl":
            return str(item.get("referenceLocator", ""))
    return ""


def package_sha256(package: Mapping[str, Any]) -> str:
    for item in package.get("checksums", ()):
        if item.get("algorithm") == "SHA256":
            return str(item.get("checksumValue", ""))
    return ""


def _image(name: str, digest: str, platform: str) -> dict[str, Any]:
    last, hexadecimal = name.rpartition("/")[2], hex_of(digest)
    architecture = platform.partition("/")[2]
    return {
        "SPDXID": _ROOT,
        "name": name,
        "versionInfo": digest,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "primaryPackagePurpose": "CONTAINER",
        "checksums": [{"algorithm": "SHA256", "checksumValue": hexadecimal}],
        "externalRefs": [_purl(f"pkg:oci/{last}@sha256%3A{hexadecimal}?arch={architecture}")],
    }


def _package(material: Material) -> dict[str, Any]:
    sha256, words = material.sha256, material.licence.words
    optional = {
        "versionInfo": material.version,
        "packageFileName": material.file,
        "checksums": [{"algorithm": "SHA256", "checksumValue": sha256}] if sha256 else [],
        "externalRefs": [_purl(material.purl)] if material.purl else [],
        "licenseComments": f"Stated as: {words}" if words else "",
        "comment": "; ".join(f"{key}: {value}" for key, value in sorted(material.facts.items())),
    }
    return {
        "SPDXID": _identifier(material),
        "name": material.name,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": material.licence.expression or _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "primaryPackagePurpose": _PURPOSES[material.kind],
        **{key: value for key, value in optional.items() if value},
    }


def _relationship(subject: str, kind: str, target: str) -> dict[str, str]:
    return {"spdxElementId": subject, "relationshipType": kind, "relatedSpdxElement": target}


def _purl(locator: str) -> dict[str, str]:
    return {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": locator,
    }


def _identifier(material: Material) -> str:
    text = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{material.kind}-{material.name}")
    return f"SPDXRef-{text}"
