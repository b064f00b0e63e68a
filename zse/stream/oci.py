"""A ``.zse`` file in a registry as one source: ranges of its layers, signed for as a pull is."""

from __future__ import annotations

import bisect
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.errors import NotFoundError, StoreError, ZSEError
from zse.oci.errors import LayoutError
from zse.oci.registry.client import open_registry
from zse.oci.weights.artifact import BEGINNING_BYTES
from zse.oci.weights.transfer import read_weights, reference_of
from zse.store.cache import Cache
from zse.store.copying import copy_object
from zse.store.http.pool import HttpPool
from zse.store.http.ranged import Facts, RangedObject, Request
from zse.store.local import LocalWriter
from zse.store.location import Location
from zse.store.remote import READERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.oci.registry.client import Registry
    from zse.oci.weights.artifact import Piece, WeightsImage
    from zse.settings import ProxySettings, Settings
    from zse.store.base import Entry, Progress, Transfer
    from zse.store.checksum import Checksum
    from zse.store.http.answer import Answer

_CHUNK_BYTES = 8 << 20


class BlobPlace:
    """See ``Place``: a blob of a repository. Its length is known; a token that ends is renewed."""

    def __init__(self, registry: Registry, piece: Piece) -> None:
        self._registry = registry
        self._piece = piece
        self.name = f"{registry.reference} ({piece.layer.digest[:19]})"
        self._sent = ""

    def request(self) -> Request:
        headers = self._registry.authorization()
        self._sent = headers.get("Authorization", "")
        address = self._registry.address_of(f"blobs/{self._piece.layer.digest}")
        return Request(url=address, private=headers)

    def describe(self, pool: HttpPool) -> Facts | None:  # noqa: ARG002 - the manifest told it
        return Facts(size_bytes=self._piece.layer.size_bytes)

    def refusal(self, answer: Answer) -> ZSEError | None:
        if answer.status == 401:
            self._registry.authorize(answer.header("WWW-Authenticate"), refused=self._sent)
            return None
        if answer.status == 404:
            return NotFoundError(f"{self.name} is not there", hint="Push the model again.")
        return StoreError(f"{self.name}: the registry answered {answer.status} {answer.reason}")


class OciSource:
    """See ``ByteSource``: the pieces of a file, one behind the other."""

    kind = "http"

    def __init__(
        self, registry: Registry, image: WeightsImage, digest: str, proxies: ProxySettings
    ) -> None:
        self._registry = registry
        self._starts = [piece.offset_bytes for piece in image.pieces]
        self._pieces = image.pieces
        self.image = image
        self.digest = digest
        """Of the manifest, which names every byte."""
        self._pools = [HttpPool(proxies) for _ in image.pieces]
        self._blobs = [
            RangedObject(BlobPlace(registry, piece), pool, prefix_bytes=0)
            for piece, pool in zip(image.pieces, self._pools, strict=True)
        ]

    @property
    def name(self) -> str:
        return f"oci://{self._registry.reference}"

    @property
    def size_bytes(self) -> int:
        return self.image.size_bytes

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        """Fill ``view``; see ``ByteSource``."""
        if offset_bytes < 0 or offset_bytes + len(view) > self.size_bytes:
            raise StoreError(
                f"{self.name} has {self.size_bytes} bytes; the range asked for ends at "
                f"{offset_bytes + len(view)}"
            )
        filled = 0
        while filled < len(view):
            at = offset_bytes + filled
            index = bisect.bisect_right(self._starts, at) - 1
            piece = self._pieces[index]
            count = min(len(view) - filled, piece.end_bytes - at)
            with view[filled : filled + count] as part:
                start = piece.start_bytes + at - piece.offset_bytes
                self._blobs[index].read_into(start, part)
            filled += count
        if offset_bytes < BEGINNING_BYTES:
            self._check_beginning(offset_bytes, view)

    def _check_beginning(self, offset_bytes: int, view: memoryview) -> None:
        """Hold what was read against the file's first bytes, as the manifest has them.

        Layers are not read whole here, so their digests say nothing: the header is bound to the
        manifest by these bytes, and every group to the header.
        """
        beginning = self.image.beginning
        if not beginning:
            raise LayoutError(
                f"{self.name} cannot be read in ranges: its manifest does not say how the file "
                "begins, so nothing would bind the bytes to its digest",
                hint="Push the model again with this version, or fetch all of it, which is "
                "checked: `zse pull`.",
            )
        with view[: max(len(beginning) - offset_bytes, 0)] as part:
            if part != beginning[offset_bytes : offset_bytes + len(part)]:
                raise StoreError(
                    f"{self.name}: the file does not begin as its manifest, {self.digest}, says",
                    hint="Something between here and the registry changes bytes.",
                )

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:  # noqa: ARG002
        """Whether a read of this range waits for a network: always."""
        return True

    def check_unchanged(self) -> None:
        """Do nothing: a digest names one content."""

    def interrupt(self) -> None:
        for blob in self._blobs:
            blob.interrupt()

    def close(self) -> None:
        for blob in self._blobs:
            blob.close()
        self._registry.close()


def open_oci(text: str, settings: Settings) -> OciSource:
    """Open ``oci://HOST/REPOSITORY[:TAG][@DIGEST]``: a manifest or two are read.

    Raises:
        BadReferenceError: It is no reference.
        LayoutError: It is no image of a ``.zse`` file.
        RegistryAuthError, RegistryError: The registry refuses, or has none.
    """
    registry = open_registry(reference_of(text), settings.registry_auth_file)
    try:
        image, digest = read_weights(registry)
        return OciSource(registry, image, digest, settings.proxies)
    except BaseException:
        registry.close()
        raise


def fetch_oci(text: str, settings: Settings, progress: Progress | None = None) -> Path:
    """Return the local copy of a file in a registry, fetched into the cache if it is not there.

    Raises:
        As ``open_oci``, and DiskFullError when there is no room.
    """
    source = open_oci(text, settings)
    try:
        name = source.image.file_name.removesuffix(".zse")
        target = f"{name}-oci-{source.digest.partition(':')[2][:20]}.zse"

        def write(path: Path) -> None:
            copy_oci(source, path, progress)

        return Cache(settings).make(target, source.name, write)
    finally:
        source.close()


def copy_oci(source: OciSource, path: Path, progress: Progress | None = None) -> Transfer:
    """Copy a file out of a registry; each layer is held against its digest, as it comes.

    Raises:
        StoreError: The bytes are not those that the manifest names.
        DiskFullError: There is no room.
    """
    return copy_object(_OciStore(source), LocalWriter(path), progress)


class _OciStore:
    """See ``Store``: what a copy reads. Layers are checked whole, frames of their tars included."""

    def __init__(self, source: OciSource) -> None:
        self._source = source

    @property
    def location(self) -> Location:
        return Location(scheme="https", address=f"https://{self._source.name[len('oci://') :]}")

    def exists(self) -> bool:
        return True

    def size(self) -> int:
        return self._source.size_bytes

    def checksum(self) -> Checksum | None:
        return None

    def version(self) -> str:
        return self._source.digest

    def list(self) -> Iterator[Entry]:
        return iter(())

    def read_chunks(self, offset: int = 0) -> Iterator[memoryview]:
        """Yield the file, read by several threads a few chunks ahead."""
        assert offset == 0, "a copy from a registry begins at its start"
        for blob, piece in zip(self._source._blobs, self._source._pieces, strict=True):
            digest = hashlib.sha256()
            end = piece.start_bytes + piece.length_bytes
            for start, view in _chunks(blob, piece.layer.size_bytes):
                digest.update(view)
                first, last = max(piece.start_bytes - start, 0), max(end - start, 0)
                if part := view[first : min(last, len(view))]:
                    yield part
            if digest.hexdigest() != piece.layer.digest.partition(":")[2]:
                raise StoreError(
                    f"{self._source.name}: a layer does not have the digest {piece.layer.digest}",
                    hint="Something between here and the registry changes bytes.",
                )


def _chunks(blob: RangedObject, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
    def read(start: int) -> memoryview:
        view = memoryview(bytearray(min(_CHUNK_BYTES, size_bytes - start)))
        blob.read_into(start, view)
        return view

    starts = range(0, size_bytes, _CHUNK_BYTES)
    with ThreadPoolExecutor(READERS, thread_name_prefix="zse-read") as pool:
        for first in range(0, len(starts), 2 * READERS):
            some = starts[first : first + 2 * READERS]
            yield from zip(some, pool.map(read, some), strict=True)
