"""What an image is made of, one record a thing: for its bill of materials and its provenance."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import quote

import zse
from zse.install import DISTRIBUTION
from zse.oci.statements.licences import Licence, debian_licence, wheel_licence
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zse.oci.debian.index import Package
    from zse.oci.python.wheels import LockedWheel

CODE_LICENCE = "Apache-2.0"


class MaterialKind(StrEnum):
    """Where a thing comes from."""

    BASE = "base"
    DEBIAN = "debian"
    WHEEL = "wheel"
    KERNELS = "kernels"
    CODE = "code"
    MODEL = "model"
    VENDORED = "vendored"


@record
class Material:
    """One thing that went into an image; what is not known of it is empty."""

    kind: MaterialKind
    name: str
    version: str = ""
    sha256: str = ""
    """Hash of the file it came as."""
    file: str = ""
    """Name of that file."""
    purl: str = ""
    """Package URL."""
    licence: Licence = Licence()
    facts: Mapping[str, str] = field(default_factory=dict)


def wheel_material(wheel: LockedWheel, path: Path) -> Material:
    return Material(
        kind=MaterialKind.WHEEL,
        name=wheel.name,
        version=wheel.version,
        sha256=wheel.sha256,
        file=wheel.file,
        purl=f"pkg:pypi/{quote(wheel.name)}@{quote(wheel.version)}",
        licence=wheel_licence(path),
    )


def debian_material(package: Package, path: Path, *, suite: str, architecture: str) -> Material:
    file = package.path.rpartition("/")[2]
    built_for = "all" if file.endswith("_all.deb") else architecture
    return Material(
        kind=MaterialKind.DEBIAN,
        name=package.name,
        version=package.version,
        sha256=package.sha256,
        file=file,
        purl=f"pkg:deb/debian/{quote(package.name)}@{quote(package.version, safe='+~')}"
        f"?arch={built_for}&distro={suite}",
        licence=debian_licence(path, package.name),
    )


def base_material(name: str, sha256: str) -> Material:
    """Describe a base that is an image or a root file system."""
    kind, _, rest = name.partition(":")
    is_image = kind not in {"rootfs", "oci", "tar"}
    place, _, last = name.partition("@")[0].rpartition("/")
    last = last.partition(":")[0]
    purl = f"pkg:oci/{quote(last)}@sha256%3A{sha256}" if is_image else ""
    if is_image and place:
        purl += f"?repository_url={quote(f'{place}/{last}', safe='/')}"
    return Material(
        kind=MaterialKind.BASE,
        name=name if is_image else rest or name,
        version=f"sha256:{sha256}",
        sha256=sha256,
        purl=purl,
    )


def code_material(entries_sha256: str) -> Material:
    """Describe zse itself; the hash is over paths and contents of its files in the image."""
    return Material(
        kind=MaterialKind.CODE,
        name=DISTRIBUTION,
        version=zse.__version__,
        sha256=entries_sha256,
        purl=f"pkg:pypi/{DISTRIBUTION}@{quote(zse.__version__)}",
        licence=Licence(expression=CODE_LICENCE),
    )


def kernels_material(target: str, sha256: str) -> Material:
    return Material(
        kind=MaterialKind.KERNELS,
        name=f"zse-kernels-{target}",
        version=zse.__version__,
        sha256=sha256,
        file=f"{target}.zkp",
        purl=f"pkg:generic/zse-kernels-{target}@{quote(zse.__version__)}",
        licence=Licence(expression=CODE_LICENCE),
    )


def model_material(sha256: str, facts: Mapping[str, str]) -> Material:
    """Describe the model; the hash is that of its file, or empty where that is only an address."""
    name, version = facts.get("name", "") or "model", facts.get("version", "")
    source = facts.get("source", "")
    purl = f"pkg:generic/{quote(name, safe='')}"
    if source.startswith("hf://"):
        purl = f"pkg:huggingface/{quote(source.removeprefix('hf://'), safe='/')}"
    return Material(
        kind=MaterialKind.MODEL,
        name=name,
        version=version,
        sha256=sha256,
        file="model.zse",
        purl=f"{purl}@{quote(version)}" if version else purl,
        licence=Licence(expression=facts.get("licence", "")),
        facts={key: value for key, value in facts.items() if key not in {"licence"} and value},
    )
