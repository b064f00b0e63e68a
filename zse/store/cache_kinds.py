"""What lies in the cache folder: one line for each kind of thing.

Whatever writes there has a line here, and a test reads the sources to see that it does. So
``zse cache`` can show and remove all of it, and ``ZSE_CACHE_GIB`` counts all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from pathlib import Path


@record
class Kind:
    """Things of one sort that zse keeps."""

    name: str
    """What ``zse cache`` calls it."""
    what: str
    """The same in words."""
    items: tuple[str, ...]
    """Patterns below the cache folder; each match, a file or a folder, is one thing. A folder whose
    own content has a pattern is none."""
    is_work: bool = False
    """Whether it cannot be had again by itself: it goes only when it is asked for by name."""

    @property
    def area(self) -> str:
        """The folder below the cache folder that those who use such things lock."""
        return self.items[0].partition("/")[0]


@record
class CacheItem:
    """One thing in the cache."""

    kind: str
    name: str
    """Where it came from, without a query, or its file's name."""
    path: Path
    """Of a model that is not whole: where it will be."""
    size_bytes: int
    """Of all its files."""
    used_seconds: float
    """When it was last used, since 1970. File systems tell it within a day for most kinds."""
    is_whole: bool = True
    """Whether it is finished, and not what a stopped process left."""


MODELS = Kind(
    name="models",
    what="models that were fetched, or converted from a checkpoint",
    items=("models/*",),
)
KINDS: tuple[Kind, ...] = (
    MODELS,
    Kind(name="uploads", what="conversions on their way to S3", items=("uploads/*",)),
    Kind(
        name="layers",
        what="layers of images",
        items=("images/layers/blobs/*", "images/layers/keys/*"),
    ),
    Kind(
        name="downloads",
        what="packages, wheels and base images that images are made of",
        items=("images/downloads/*/*",),
    ),
    Kind(
        name="scratch", what="what builds of images that were killed left", items=("images/tmp*",)
    ),
    Kind(name="kernels", what="kernel packs", items=("kernels/*",)),
    Kind(name="triton", what="compiled kernels", items=("triton/finished/*", "triton/*")),
    Kind(
        name="pushes",
        what="notes of uploads that can be resumed",
        items=("pushes/*",),
        is_work=True,
    ),
    Kind(name="tuned", what="tables of `zse kernels tune`", items=("tuned/*",), is_work=True),
)
