"""A bill of materials as CycloneDX 1.6 JSON, of a thing that is released by itself, as a wheel.

Images have SPDX (`sbom.py`), which registries show; CycloneDX is what scanners of packages read.
The same inputs give the same bytes: the serial number is made of the thing's hash.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import zse
from zse.oci.layout.manifest import timestamp
from zse.oci.statements.materials import Material, MaterialKind

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES = {
    MaterialKind.BASE: "container",
    MaterialKind.CODE: "application",
    MaterialKind.MODEL: "machine-learning-model",
}
"""Anything else is a library."""


def build_cyclonedx(
    root: Material,
    *,
    needs: Sequence[Material] = (),
    holds: Sequence[Material] = (),
    epoch_seconds: int,
) -> dict[str, Any]:
    """Return the CycloneDX document of a released thing.

    Args:
        root: The thing; its SHA-256 names the document.
        needs: What is installed beside it.
        holds: What others made and it brings along.
        epoch_seconds: When it was made, in UTC.
    """
    component = _component(root)
    if holds:
        component["components"] = [_component(material) for material in holds]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'sha256:{root.sha256}')}",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(epoch_seconds),
            "tools": {
                "components": [{"type": "application", "name": "zse", "version": zse.__version__}]
            },
            "component": component,
        },
        "components": [_component(material) for material in needs],
        "dependencies": [
            {"ref": _reference(root), "dependsOn": sorted(_reference(m) for m in needs)},
            *({"ref": _reference(material)} for material in needs),
        ],
    }


def _reference(material: Material) -> str:
    return material.file or f"{material.kind}:{material.name}"


def _component(material: Material) -> dict[str, Any]:
    licence = material.licence
    licences: list[dict[str, Any]] = []
    if licence.expression:
        licences = [{"expression": licence.expression}]
    elif licence.words:
        licences = [{"license": {"name": licence.words}}]
    sha256 = material.sha256
    optional = {
        "version": material.version,
        "hashes": [{"alg": "SHA-256", "content": sha256}] if sha256 else [],
        "licenses": licences,
        "purl": material.purl,
        "properties": [
            {"name": f"zse:{key}", "value": value} for key, value in sorted(material.facts.items())
        ],
    }
    return {
        "type": _TYPES.get(material.kind, "library"),
        "bom-ref": _reference(material),
        "name": material.name,
        **{key: value for key, value in optional.items() if value},
    }
