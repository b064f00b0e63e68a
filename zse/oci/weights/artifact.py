"""What an image that holds one ``.zse`` file consists of: pieces, layers, one index.

Each layer is a tar that is not compressed, with one file: the model, or a piece of it. So a node
that mounts the image as a volume finds the file, and a server reads ranges of layers and needs no
tar. A piece begins at a page of its layer. The manifests of two platforms share the layers, since
nodes ask for their own. There is no time and no host in it: one file gives one digest.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

from zse.errors import UsageError
from zse.oci.errors import LayoutError
from zse.oci.layout.layer import MEDIA_TYPE_TAR
from zse.oci.layout.manifest import (
    MALFORMED,
    MEDIA_TYPE_CONFIG,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    build_index,
    build_manifest,
    canonical_json,
    digest_of,
    hex_of,
)
from zse.oci.layout.tar import BLOCK, Entry, directory, header_of, pad_to
from zse.records import record
from zse.units import GIB, align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

ARTIFACT_TYPE = "application/vnd.zse.model.v1"
FOLDER = "models"
"""Where the file lies in the image, as KServe and others expect it."""
PLATFORMS = ("linux/amd64", "linux/arm64")
CHUNK_BYTES = 9 * GIB
"""Registries take layers of 10 GB; a smaller model stays one file."""
BEGINNING_BYTES = 64
"""Of the file, which stand in the manifest: in a ``.zse`` file they hold the digest of its header,
which lists all other digests. So a digest of the manifest names all that is read in ranges, too."""
_FILE, _SIZE = "dev.zse.model.file", "dev.zse.model.bytes"
_BEGINNING = "dev.zse.model.beginning"
_OFFSET, _START, _LENGTH = (f"dev.zse.piece.{word}" for word in ("offset", "start", "length"))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.zse")
_NUMBER = re.compile(r"[0-9]{1,18}")
_HEX = re.compile(r"([0-9a-f]{2}){1,64}")
_PAGE = 4096
_MOST_PIECES = 4096
_READ_BYTES = 4 << 20


@record
class Piece:
    """A part of the file, and the layer that holds it."""

    layer: Descriptor
    offset_bytes: int
    """Where it begins in the file."""
    start_bytes: int
    """Where it begins in the layer."""
    length_bytes: int

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.length_bytes


@record
class WeightsImage:
    """A file in a registry, or on its way there."""

    file_name: str
    size_bytes: int
    pieces: tuple[Piece, ...]
    beginning: bytes = b""
    """The first bytes of the file; empty where the manifest is older than that."""


class PieceTar:
    """The bytes of a layer: a tar around a part of a local file, which is not copied.

    Args:
        path: The whole file.
        name: What the part is called in the image.
    """

    def __init__(self, path: Path, name: str, offset_bytes: int, length_bytes: int) -> None:
        self._path, self._offset, self.length_bytes = path, offset_bytes, length_bytes
        self._head = _tar_head(name, length_bytes)
        self.start_bytes = len(self._head)
        end = self.start_bytes + length_bytes
        self.size_bytes = align_up(end, BLOCK) + 2 * BLOCK
        self._tail = bytes(self.size_bytes - end)

    def window(self, offset_bytes: int, length_bytes: int) -> Callable[[], Iterator[bytes]]:
        """Return what yields a part of the layer, anew each time."""
        return lambda: self._read(offset_bytes, offset_bytes + length_bytes)

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        if start < self.start_bytes:
            yield self._head[start:end]
        first = max(start, self.start_bytes)
        data_end = self.start_bytes + self.length_bytes
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._offset + first - self.start_bytes)
            while first < min(end, data_end):
                data = file.read(min(_READ_BYTES, min(end, data_end) - first))
                if not data:
                    raise LayoutError(f"{self._path} became shorter while it was read")
                first += len(data)
                yield data
        if end > data_end:
            yield self._tail[max(0, start - data_end) : end - data_end]


def split_file(path: Path, file_name: str, chunk_bytes: int = CHUNK_BYTES) -> list[PieceTar]:
    """Return the layers of a file, in order.

    Raises:
        UsageError: The name is none that an image can have, or there would be too many pieces.
    """
    if not _NAME.fullmatch(file_name):
        raise UsageError(
            f"a file in an image cannot be called {file_name[:80]!r}",
            hint="Use letters, digits, '.', '_' and '-', and .zse at the end.",
        )
    size = path.stat().st_size
    starts = range(0, size, chunk_bytes)
    if len(starts) > _MOST_PIECES:
        raise UsageError(f"{len(starts)} pieces are more than the {_MOST_PIECES} that are taken")
    return [
        PieceTar(
            path,
            file_name if len(starts) == 1 else f"{file_name}.part{number:04}",
            start,
            min(chunk_bytes, size - start),
        )
        for number, start in enumerate(starts)
    ]


def described(
    tars: Sequence[PieceTar], file_name: str, progress: Callable[[int], None] = lambda _: None
) -> WeightsImage:
    """Read a file's layers once, for their digests."""
    pieces, offset, done = [], 0, 0
    beginning = b"".join(tars[0].window(tars[0].start_bytes, BEGINNING_BYTES)())
    beginning = beginning[: tars[0].length_bytes]
    for one in tars:
        digest = hashlib.sha256()
        for data in one.window(0, one.size_bytes)():
            digest.update(data)
            done += len(data)
            progress(done)
        facts = {_OFFSET: offset, _START: one.start_bytes, _LENGTH: one.length_bytes}
        layer = Descriptor(
            media_type=MEDIA_TYPE_TAR,
            digest=f"sha256:{digest.hexdigest()}",
            size_bytes=one.size_bytes,
            annotations={name: str(value) for name, value in facts.items()},
        )
        pieces.append(
            Piece(
                layer=layer,
                offset_bytes=offset,
                start_bytes=one.start_bytes,
                length_bytes=one.length_bytes,
            )
        )
        offset += one.length_bytes
    return WeightsImage(
        file_name=file_name, size_bytes=offset, pieces=tuple(pieces), beginning=beginning
    )


def documents(image: WeightsImage) -> tuple[bytes, list[tuple[Descriptor, bytes]], list[bytes]]:
    """Return the index, the manifests with their descriptors, and the configs, all as JSON."""
    manifests, configs = [], []
    layers = [piece.layer for piece in image.pieces]
    annotations = {_FILE: image.file_name, _SIZE: str(image.size_bytes)}
    if image.beginning:
        annotations[_BEGINNING] = image.beginning.hex()
    for platform in PLATFORMS:
        config = _config(platform, layers)
        described_config = Descriptor(
            media_type=MEDIA_TYPE_CONFIG, digest=digest_of(config), size_bytes=len(config)
        )
        manifest = build_manifest(described_config, layers, annotations)
        descriptor = Descriptor(
            media_type=MEDIA_TYPE_MANIFEST,
            digest=digest_of(manifest),
            size_bytes=len(manifest),
            platform=platform,
        )
        configs.append(config)
        manifests.append((descriptor, manifest))
    listed = [descriptor for descriptor, _ in manifests]
    return build_index(listed, annotations=annotations), manifests, configs


def parse_manifest(content: bytes, where: str) -> WeightsImage:
    """Read a manifest; every place is checked before it is used.

    Raises:
        LayoutError: It is no image of a ``.zse`` file, or contradicts itself.
    """
    try:
        document = json.loads(content)
        annotations = dict(document.get("annotations") or {})
        layers = [Descriptor.from_json(layer) for layer in document["layers"]]
    except MALFORMED as error:
        raise _not_one(where, f"its manifest cannot be read: {error}") from None
    name, size = str(annotations.get(_FILE, "")), _number(annotations, _SIZE, where)
    if not _NAME.fullmatch(name) or not 0 < len(layers) <= _MOST_PIECES:
        raise _not_one(where, f"it holds {name[:80]!r} in {len(layers)} layers")
    pieces, end = [], 0
    for layer in layers:
        hex_of(layer.digest)
        piece = Piece(
            layer=layer,
            offset_bytes=_number(layer.annotations, _OFFSET, where),
            start_bytes=_number(layer.annotations, _START, where),
            length_bytes=_number(layer.annotations, _LENGTH, where),
        )
        is_inside = piece.start_bytes + piece.length_bytes <= layer.size_bytes
        is_plain = layer.media_type == MEDIA_TYPE_TAR
        if piece.offset_bytes != end or not piece.length_bytes or not is_inside or not is_plain:
            raise _not_one(where, f"the piece at byte {piece.offset_bytes} does not fit")
        pieces.append(piece)
        end = piece.end_bytes
    if end != size:
        raise _not_one(where, f"its pieces have {end} bytes, the file {size}")
    return WeightsImage(
        file_name=name,
        size_bytes=size,
        pieces=tuple(pieces),
        beginning=_beginning(annotations, size, where),
    )


def _tar_head(name: str, length_bytes: int) -> bytes:
    """Return what stands before the content of a tar's one file, which begins at a page."""
    folder = header_of(directory(FOLDER), 0)
    head = _as_bytes(folder)
    file = header_of(Entry(path=f"{FOLDER}/{name}", size_bytes=length_bytes), 0)
    pad_to(file, len(head), _PAGE)
    head += _as_bytes(file)
    assert len(head) % _PAGE == 0
    return head


def _as_bytes(header: tarfile.TarInfo) -> bytes:
    return header.tobuf(tarfile.PAX_FORMAT)


def _config(platform: str, layers: Sequence[Descriptor]) -> bytes:
    system, _, architecture = platform.partition("/")
    # A layer that is not compressed has one digest, as it is stored and as it is unpacked.
    diffs = [layer.digest for layer in layers]
    return canonical_json(
        {
            "architecture": architecture,
            "os": system,
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": diffs},
        }
    )


def _beginning(annotations: Mapping[str, Any], size_bytes: int, where: str) -> bytes:
    text = annotations.get(_BEGINNING)
    if text is None:
        return b""
    expected = min(BEGINNING_BYTES, size_bytes)
    if not isinstance(text, str) or not _HEX.fullmatch(text) or len(text) != 2 * expected:
        raise _not_one(where, f"{_BEGINNING} is {str(text)[:40]!r}")
    return bytes.fromhex(text)


def _number(annotations: Mapping[str, Any], name: str, where: str) -> int:
    text = str(annotations.get(name, ""))
    if not _NUMBER.fullmatch(text):
        raise _not_one(where, f"{name} is {text[:40]!r}")
    return int(text)


def _not_one(where: str, why: str) -> LayoutError:
    return LayoutError(
        f"{where} is no image of a .zse file: {why}",
        hint="Push one with `zse push FILE oci://REGISTRY/REPOSITORY:TAG`.",
    )
