"""Write FOLDER/zse.cdx.json: the bill of materials of the wheel in FOLDER, as CycloneDX.

    scripts/release_sbom.py FOLDER EPOCH_SECONDS

It names the wheel by its digest, the wheels that it is locked with for amd64 and arm64
(infra/homebrew), and what others made of the pages that it brings along.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import homebrew  # noqa: E402

import zse  # noqa: E402
from zse.install import DISTRIBUTION  # noqa: E402
from zse.oci.python.wheels import sha256_of  # noqa: E402
from zse.oci.statements.cyclonedx import build_cyclonedx  # noqa: E402
from zse.oci.statements.licences import Licence  # noqa: E402
from zse.oci.statements.materials import CODE_LICENCE, Material, MaterialKind  # noqa: E402

VENDORED = ROOT / "zse" / "serve" / "ui" / "static" / "vendor" / "vendored.toml"


def needs() -> list[Material]:
    """Return the locked wheels; where architectures differ, each file is one."""
    found = {}
    for architecture in homebrew.MACHINES:
        for wheel in homebrew.locked(architecture):
            name, version, file = wheel["name"], wheel["version"], wheel["file"]
            found[file] = Material(
                kind=MaterialKind.WHEEL,
                name=name,
                version=version,
                sha256=wheel["sha256"],
                file=file,
                purl=f"pkg:pypi/{quote(name)}@{quote(version)}?file_name={quote(file)}",
                licence=Licence(expression=wheel["licence"]),
            )
    return [found[file] for file in sorted(found)]


def holds() -> list[Material]:
    """Return what others made and the wheel brings along."""
    return [
        Material(
            kind=MaterialKind.VENDORED,
            name=row["package"],
            version=row["version"],
            sha256=row["sha256"],
            file=file,
            purl=f"pkg:npm/{quote(row['package'], safe='/')}@{quote(row['version'])}",
            licence=Licence(expression=row["licence"]),
            facts={"path": row["file"]},
        )
        for file, row in sorted(tomllib.loads(VENDORED.read_text()).items())
    ]


def main(words: list[str]) -> int:
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(words[0])
    (wheel,) = folder.glob("*.whl")
    root = Material(
        kind=MaterialKind.CODE,
        name=DISTRIBUTION,
        version=zse.__version__,
        sha256=sha256_of(wheel),
        file=wheel.name,
        purl=f"pkg:pypi/{DISTRIBUTION}@{quote(zse.__version__)}",
        licence=Licence(expression=CODE_LICENCE),
    )
    document = build_cyclonedx(root, needs=needs(), holds=holds(), epoch_seconds=int(words[1]))
    (folder / "zse.cdx.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
