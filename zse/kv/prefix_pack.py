r"""Reads prefix packs: computed KV blocks of prompts, kept in a ``.zse`` file or beside it.

A pack is a container (``zse.format.container``) with the magic ``ZPX\0``. Behind its header, and
zeros to a multiple of 4096, lie its runs in the header's order, each at a multiple of 4096: its
token ids as u32, zeros to a multiple of 256, then an image of its blocks for each group of layers.
A run goes on where its parent ends, so prompts that begin alike keep that part once.

Opening checks the header and every place. Digests, one for each 4 MiB, are checked when a run is
read, since that is when the bytes come into memory anyway. What numbers a block holds cannot be
checked; so a pack says whose they are (``PrefixBinding``), and nobody else's are used.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from zse.format.container import (
    PREFIX_BYTES,
    Container,
    check_aligned,
    check_end,
    check_inside,
    check_sha256,
    checked_header,
)
from zse.format.errors import Rule
from zse.format.header_json import Fields, parse_object
from zse.format.names import check_digest
from zse.format.spec import PAGE
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONTAINER = Container(magic=b"ZPX\0", version=1, max_header_bytes=16 * 1024 * 1024)
CHUNK_BYTES = 4 * 1024 * 1024
"""What one digest covers."""
IMAGE_ALIGN = 256
MOST_TEXT_TOKENS = 1 << 26
"""Of the texts that all runs end, from their starts: what whoever restores a pack walks through. A
chain of short runs has few bytes and long texts."""
MOST_BLOCK_TOKENS = 1 << 16
HEADER_KEYS = frozenset({"binding", "runs"})
BINDING_KEYS = frozenset(
    {"block_bytes", "block_size", "computed_by", "is_deterministic", "layout", "model", "zse"}
)
RUN_KEYS = frozenset(
    {"is_public", "name", "num_blocks", "offset", "parent", "salt", "sha256", "windows"}
)


@record
class PrefixBinding:
    """Whose keys and values these are: of what model, how they lie, how they were computed."""

    model: str
    """SHA-256 of the weights, of what is said of the model, and of its tokenizer."""
    layout: str
    """Name of how blocks lie outside of their pool (``zse.backends.kv_images``)."""
    block_size: int
    block_bytes: tuple[int, ...]
    """Bytes of a block of each group of layers."""
    computed_by: str
    """Instructions and roundings, in words."""
    is_deterministic: bool
    """Whether each token was computed alone."""
    zse: str
    """Version that computed them."""

    def obstacle(self, kept: PrefixBinding) -> str:
        """Return why what ``kept`` describes is of no use here, in words; nothing where it is."""
        if kept.model != self.model:
            return "it is of other weights, another tokenizer or another configuration"
        if kept.zse != self.zse:
            return f"zse {kept.zse} computed it, this is {self.zse}"
        own = (self.layout, self.block_size, self.block_bytes)
        if (kept.layout, kept.block_size, kept.block_bytes) != own:
            return f"its KV cache is {kept.layout}, this one {self.layout}"
        if self.is_deterministic and not kept.is_deterministic:
            return "it was computed without --deterministic"
        if self.is_deterministic and kept.computed_by != self.computed_by:
            return f"it was computed by {kept.computed_by}, here by {self.computed_by}"
        return ""


@record
class SavedRun:
    """Where a run lies, and whose it is."""

    name: str
    """What a person called the prompt that ends here; empty where nobody named it."""
    salt: str
    """Who may share it: the namespace of requests. Empty where no salt was given."""
    is_public: bool
    """Whether all may, whatever their salt."""
    parent: int
    """Place of the run that it goes on; -1 at the start of a text."""
    num_blocks: int
    windows: tuple[int, ...]
    """For each group behind the first, how many of the last blocks of the text up to here are kept:
    those that a token behind it sees, or none."""
    offset: int
    sha256: tuple[str, ...]
    """Of each 4 MiB of it."""

    def parts(self, binding: PrefixBinding) -> tuple[int, ...]:
        """Return where the image of each group begins, and the end of the last; from ``offset``."""
        end = align_up(4 * self.num_blocks * binding.block_size, IMAGE_ALIGN)
        places = [end]
        for count, size in zip((self.num_blocks, *self.windows), binding.block_bytes, strict=True):
            end += count * size
            places.append(end)
        return tuple(places)

    def length_bytes(self, binding: PrefixBinding) -> int:
        return self.parts(binding)[-1]


class PrefixPack:
    """One pack in memory, or mapped; its bytes are not copied.

    Raises:
        FormatError: Its ``rule`` says what is broken.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data = data.cast("B").toreadonly()
        length, digest = CONTAINER.parse_prefix(bytes(data[:PREFIX_BYTES]), len(data))
        raw = checked_header(bytes(data[PREFIX_BYTES : PREFIX_BYTES + length]), digest)
        fields = Fields(parse_object(raw), "the header", HEADER_KEYS)
        self.binding = _read_binding(fields.record("binding"))
        self.runs = tuple(_read_run(value, self.binding) for value in fields.items("runs"))
        self.size_bytes = len(data)
        self._check_places(align_up(PREFIX_BYTES + length, PAGE))

    def path(self, index: int) -> list[int]:
        """Return the places of the runs from the start of a text to one of its runs."""
        places = [index]
        while (index := self.runs[index].parent) >= 0:
            places.append(index)
        return places[::-1]

    def text(self, index: int) -> list[int]:
        """Return the token ids from the start of a text to the end of one of its runs."""
        return [token for place in self.path(index) for token in self.token_ids(place)]

    def token_ids(self, index: int) -> Sequence[int]:
        """Return the token ids of a run's own blocks; check its digests before."""
        run = self.runs[index]
        count = run.num_blocks * self.binding.block_size
        return self._data[run.offset : run.offset + 4 * count].cast("I").tolist()

    def image(self, index: int, group: int) -> memoryview:
        """Return the image of a run's blocks of one group of layers; check its digests before."""
        run = self.runs[index]
        start, end = run.parts(self.binding)[group : group + 2]
        return self._data[run.offset + start : run.offset + end]

    def chunks(self, index: int) -> Iterator[tuple[memoryview, str]]:
        """Yield each 4 MiB of a run with its digest."""
        run = self.runs[index]
        data = self._data[run.offset : run.offset + run.length_bytes(self.binding)]
        for place, digest in enumerate(run.sha256):
            yield data[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES], digest

    def check(self, index: int) -> None:
        """Check every byte of a run.

        Raises:
            FormatError: It differs from a digest.
        """
        for data, digest in self.chunks(index):
            check_chunk(data, digest)

    def _check_places(self, end: int) -> None:
        check_inside(Rule.TRUNCATED_HEADER, "the header", end if self.runs else 0, self.size_bytes)
        lengths: list[int] = []
        """In blocks, of the texts that the runs end."""
        for index, run in enumerate(self.runs):
            where = f"run {index}"
            if run.parent >= index:
                raise Rule.BAD_HEADER_FIELD(
                    f"{where} goes on run {run.parent}, which is not before"
                )
            lengths.append(run.num_blocks + (lengths[run.parent] if run.parent >= 0 else 0))
            check_aligned(Rule.MISALIGNED_SECTION, where, run.offset, PAGE)
            if run.offset < end:
                raise Rule.OVERLAPPING_REGIONS(f"{where} starts at {run.offset}, before byte {end}")
            length = run.length_bytes(self.binding)
            check_inside(Rule.TRUNCATED_SECTION, where, run.offset + length, self.size_bytes)
            if len(run.sha256) != -(-length // CHUNK_BYTES):
                raise Rule.LENGTH_MISMATCH(f"{where} has {len(run.sha256)} digests")
            end = align_up(run.offset + length, PAGE)
        check_end(end, self.size_bytes)
        num_tokens = sum(lengths) * self.binding.block_size
        if num_tokens > MOST_TEXT_TOKENS:
            raise Rule.BAD_HEADER_FIELD(
                f"the texts of {len(lengths)} runs have {num_tokens} tokens together, expected "
                f"at most {MOST_TEXT_TOKENS}"
            )


def check_chunk(data: memoryview, digest: str) -> None:
    """Raise a FormatError unless some bytes have a digest."""
    check_sha256("a run", hashlib.sha256(data).hexdigest(), digest)


def _read_binding(value: object) -> PrefixBinding:
    fields = Fields(value, "binding", BINDING_KEYS)
    block_bytes = fields.counts("block_bytes")
    if not block_bytes or len(block_bytes) > 256:
        raise Rule.BAD_HEADER_FIELD(f"binding has {len(block_bytes)} groups of layers")
    return PrefixBinding(
        model=check_digest(fields.text("model"), "binding"),
        layout=_printable(fields.text("layout")),
        block_size=fields.count("block_size", 1, MOST_BLOCK_TOKENS),
        block_bytes=block_bytes,
        computed_by=_printable(fields.text("computed_by")),
        is_deterministic=fields.flag("is_deterministic"),
        zse=_printable(fields.text("zse")),
    )


def _read_run(value: object, binding: PrefixBinding) -> SavedRun:
    fields = Fields(value, "a run", RUN_KEYS)
    windows, parent = fields.counts("windows"), fields.items("parent")
    if len(windows) != len(binding.block_bytes) - 1:
        raise Rule.BAD_HEADER_FIELD(f"a run has {len(windows)} windows")
    if len(parent) > 1 or not all(type(each) is int and each >= 0 for each in parent):
        raise Rule.BAD_HEADER_FIELD(f"a run has the parent {parent!r:.40}")
    digests = [str(each) for each in fields.items("sha256")]
    return SavedRun(
        name=_printable(fields.text("name")),
        salt=fields.text("salt"),
        is_public=fields.flag("is_public"),
        parent=parent[0] if parent else -1,
        num_blocks=fields.count("num_blocks", 1, 1 << 32),
        windows=windows,
        offset=fields.count("offset"),
        sha256=tuple(check_digest(each, "a run") for each in digests),
    )


def _printable(text: str) -> str:
    if not text.isprintable() or len(text) > 200:
        raise Rule.BAD_HEADER_FIELD(f"{text!r:.80} is not printable text")
    return text
