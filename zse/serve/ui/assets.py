"""The files that pages are made of: scripts, styles, a font. Read once, the same for everybody."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from zse.records import record

if TYPE_CHECKING:
    from starlette.requests import Request

FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


@record
class Asset:
    """One file."""

    content: bytes
    media_type: str
    tag: str
    """Changes with the content."""


@cache
def all_assets() -> dict[str, Asset]:
    """Return every file by its name below the folder: what is not in here is not served."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.relative_to(FOLDER).as_posix()] = Asset(
                content=content,
                media_type=_TYPES[path.suffix],
                tag=f'"{hashlib.sha256(content).hexdigest()[:16]}"',
            )
    return found


async def asset(request: Request) -> Response:
    """Answer ``GET /ui/assets/NAME``."""
    found = all_assets().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    # Browsers ask each time whether it has changed: a new version of zse is seen at once.
    headers = {"etag": found.tag, "cache-control": "no-cache", "x-content-type-options": "nosniff"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
