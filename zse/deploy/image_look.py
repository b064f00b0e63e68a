"""Reads what an image says of itself: from its registry, or from where it was built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.deploy.order import ImageLook
from zse.errors import ZSEError
from zse.oci.image.inspect import read_image_facts

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "none"


def look_at(image: str, place: str, *, auth_file: Path) -> ImageLook:
    """Read what an image says of itself, or say why that was not possible.

    The place is ``oci:DIR[:TAG]``, ``tar:FILE[:TAG]``, ``none``, or empty for the registry.

    Raises:
        ImageError: A place that was named holds no image.
        NotFoundError: It does not exist.
    """
    if place == NOWHERE:
        return ImageLook()
    try:
        facts = read_image_facts(place or image, auth_file=auth_file, is_hurried=True)
    except ZSEError as error:
        if place:
            raise
        return ImageLook(why_not=error.message)
    if not facts.is_ours:
        return ImageLook(why_not="it does not say how zse built it")
    return ImageLook(facts=facts)
