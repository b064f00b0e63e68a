"""What a layout lists, and how one image of it is named: ``PATH[:TAG]``."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import NotFoundError
from zse.oci.errors import BadReferenceError, LayoutError
from zse.oci.layout.manifest import MALFORMED, Descriptor

if TYPE_CHECKING:
    from collections.abc import Sequence

REFERENCE_NAME = "org.opencontainers.image.ref.name"
"""The annotation that holds an image's tag."""
REFERRERS = "dev.zse.referrers"
"""The annotation that names the index of what is stated about an image, in a tar file."""


def parse_index(content: bytes, *, place: str) -> list[Descriptor]:
    """Return what a layout's ``index.json`` lists.

    Raises:
        LayoutError: It is no index.
    """
    try:
        return [Descriptor.from_json(item) for item in json.loads(content)["manifests"]]
    except MALFORMED as error:
        raise LayoutError(f"the index.json of {place} is no index: {error!r}") from error


def parse_manifest(content: bytes) -> tuple[Descriptor, list[Descriptor]]:
    """Return the config and the layers that an image's manifest names.

    Raises:
        LayoutError: It is no manifest of an image.
    """
    try:
        document = json.loads(content)
        layers = [Descriptor.from_json(item) for item in document["layers"]]
        return Descriptor.from_json(document["config"]), layers
    except MALFORMED as error:
        raise LayoutError(f"a manifest is not that of an image: {error!r}") from error


def choose_image(items: Sequence[Descriptor], tag: str, *, place: str) -> Descriptor:
    """Return the image of a tag, or the only one; ``place`` is the layout: ``oci:FOLDER``.

    Raises:
        LayoutError: There is no such image, or several to choose from.
    """
    images = [item for item in items if not item.artifact_type]
    found = [x for x in images if tag in {"", x.annotations.get(REFERENCE_NAME)}]
    if len(found) != 1:
        tags = ", ".join(sorted(x.annotations.get(REFERENCE_NAME, "none") for x in images))
        raise LayoutError(
            f"{place} has {len(found)} images" + (f" for tag {tag!r}" * bool(tag)) + ", expected 1",
            hint=f"Its tags: {tags}. Name one as {place}:TAG." if tags else "",
        )
    return found[0]


def with_kind(text: str) -> str:
    """Return an image's name with ``oci:`` or ``tar:`` before it where it names one that lies here.

    A folder counts only when it is a layout: ``team/llm`` stays a reference beside a folder of that
    name that holds something else.
    """
    kind = text.partition(":")[0]
    if kind in {"oci", "tar"}:
        return text
    with suppress(OSError):  # too long for a path
        for place in filter(None, (text, text.rpartition(":")[0])):
            path = Path(place)
            if (path / "oci-layout").is_file():
                return f"oci:{text}"
            if path.suffix == ".tar" and path.is_file():
                return f"tar:{text}"
    return text


def split_place(place: str) -> tuple[Path, str]:
    """Split ``PATH[:TAG]`` of a layout; a path that exists is taken whole.

    Raises:
        BadReferenceError: It names no path.
        NotFoundError: There is nothing at the path.
    """
    path, tag = Path(place), ""
    if ":" in place and not path.exists():
        head, _, tail = place.rpartition(":")
        path, tag = Path(head), tail
    if path == Path():
        raise BadReferenceError(f"{place!r} names no path", hint="Write oci:FOLDER or tar:FILE.")
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    return path, tag
