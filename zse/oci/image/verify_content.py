"""Compares what is stated about an image with the image, its locks and its base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from zse.install import DISTRIBUTION
from zse.oci.recipe import load_lock, lock_name
from zse.oci.statements.provenance import BUILDER
from zse.oci.statements.sbom import package_sha256, package_url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zse.oci.image.source import PlatformManifest
    from zse.oci.image.verify import Expectations

    Document = Mapping[str, Any]

_BASE_DIGEST = "org.opencontainers.image.base.digest"
_LOCKS = (("pkg:pypi/", "wheels", "wheel"), ("pkg:deb/", "debian", "package"))


def is_ours(document: Document) -> bool:
    """Tell whether zse wrote a bill of materials or a provenance."""
    creators = (document.get("creationInfo") or {}).get("creators") or ()
    details = (document.get("predicate") or {}).get("runDetails") or {}
    builder = str((details.get("builder") or {}).get("id", ""))
    return builder == BUILDER or any(str(name).startswith("Tool: zse-") for name in creators)


def check_statements(digest: str, sbom: Document | None, provenance: Document | None) -> list[str]:
    """Check that the documents are about this image and agree with each other."""
    problems = []
    if sbom is not None:
        described = [p for p in sbom.get("packages", ()) if p.get("versionInfo") == digest]
        if not described:
            problems.append(f"the bill of materials does not describe {digest}")
    if provenance is not None:
        subjects = [item.get("digest", {}).get("sha256") for item in provenance.get("subject", ())]
        if digest.removeprefix("sha256:") not in subjects:
            problems.append(f"the provenance is not about {digest}")
    if sbom is not None and provenance is not None:
        image = digest.removeprefix("sha256:")
        listed = {package_sha256(package) for package in sbom.get("packages", ())} - {"", image}
        definition = (provenance.get("predicate") or {}).get("buildDefinition") or {}
        dependencies = definition.get("resolvedDependencies", ())
        used = {item.get("digest", {}).get("sha256", "") for item in dependencies} - {""}
        problems += [
            f"sha256:{value} is in only one of bill of materials and provenance"
            for value in sorted(listed ^ used)
        ]
    return problems


def check_base(image: PlatformManifest, expected: Expectations) -> list[str]:
    """Check that the image stands on an expected base, and begins with its layers."""
    stated = str((image.manifest.get("annotations") or {}).get(_BASE_DIGEST, ""))
    if stated not in expected.base:
        return [f"the base is {stated or 'not stated'}, expected {' or '.join(expected.base)}"]
    wanted = expected.base_layers.get(stated, ())
    if tuple(layer.digest for layer in image.layers[: len(wanted)]) != wanted:
        return [f"the image does not begin with the layers of {stated}"]
    return []


def check_locks(sbom: Document | None, locks: Path, platform: str) -> list[str]:
    """Check that every wheel and Debian package is the one that is locked.

    Raises:
        LockError: A lock cannot be read.
    """
    if sbom is None:
        return [f"{platform}: there is no bill of materials to compare with the locks"]
    architecture = platform.partition("/")[2]
    problems = []
    for prefix, kind, table in _LOCKS:
        path = locks / lock_name(kind, architecture)
        locked = {
            str(entry["name"]): (str(entry["version"]), str(entry["sha256"]))
            for entry in load_lock(path, table)
        }
        found = [
            (unquote(str(package.get("name"))), package)
            for package in sbom.get("packages", ())
            if package_url(package).startswith(prefix)
        ]
        if found:
            absent = sorted(set(locked) - {name for name, _ in found})
            problems += [f"{platform}: {name} of {path.name} is absent" for name in absent]
        for name, package in found:
            version, sha256 = str(package.get("versionInfo", "")), package_sha256(package)
            if name == DISTRIBUTION or locked.get(name) == (version, sha256):
                continue
            problem = f"{platform}: {name} {version} is not in {path.name}"
            if name in locked:
                problem = (
                    f"{platform}: {name} is {version} (sha256:{sha256[:12]}), "
                    f"{path.name} has {locked[name][0]} (sha256:{locked[name][1][:12]})"
                )
            problems.append(problem)
    return problems
