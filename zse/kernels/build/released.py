"""Where released kernel packs are: as the environment says, else as the package does."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

from zse.install import DISTRIBUTION

NOBODY = "none"
"""The setting of who wants nobody to be asked."""
_LABEL = "kernel packs"
"""Name of the address among the project's, in ``[project.urls]``."""


def release_address(setting: str) -> str:
    """Return the repository of the released packs, by ``Settings.released_kernels``; else empty."""
    if setting:
        return "" if setting == NOBODY else setting
    try:
        addresses = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    named = dict(address.split(", ", 1) for address in addresses if ", " in address)
    found = {label.casefold(): address for label, address in named.items()}
    return str(found.get(_LABEL, "")).removeprefix("https://")
