"""The rules of .zse files and kernel packs, and wrong use of their readers and writers."""

from __future__ import annotations

from zse.errors import BrokenRule, FormatError, UsageError

GGUF_HINT = (
    "Convert the one file that is wanted, on this machine: zse convert FILE.gguf -o model.zse"
)
_NOT_OURS = "This is not a .zse file: convert the checkpoint with `zse convert`."
_OTHER_VERSION = "Upgrade zse, or convert the checkpoint again with this version."
_CUT_SHORT = "The file was cut short: copy or convert it again."


class Rule(BrokenRule):
    """What a file can break, as the ``rule`` of a ``FormatError``; SPEC.md says each in full.

    A kernel pack that breaks one ends in a ``KernelPackError`` with the same rule.
    """

    def __call__(self, message: str, *, hint: str = "") -> FormatError:
        return FormatError(message, hint=hint, rule=self)

    # The prefix and the header as bytes.
    BAD_MAGIC = "bad_magic", _NOT_OURS
    """The first four bytes are not the magic."""
    UNSUPPORTED_VERSION = "unsupported_version", _OTHER_VERSION
    """The format version is one that this reader does not know."""
    TRUNCATED_HEADER = "truncated_header", _CUT_SHORT
    """The file ends inside the prefix or inside the header."""
    RESERVED_BYTES_SET = "reserved_bytes_set"
    """Reserved bytes of the prefix are not zero."""
    HEADER_TOO_LARGE = "header_too_large"
    """The claimed header length is over the limit."""
    HEADER_CHECKSUM_MISMATCH = "header_checksum_mismatch"
    """The header does not have the SHA-256 that the prefix claims."""

    # The header as a document.
    BAD_HEADER_ENCODING = "bad_header_encoding"
    """The header is not UTF-8, or escapes characters that UTF-8 cannot hold."""
    HEADER_TOO_DEEP = "header_too_deep"
    """The header nests objects or lists deeper than the limit."""
    HEADER_TOO_COMPLEX = "header_too_complex"
    """The header holds more values than any model needs."""
    BAD_HEADER_JSON = "bad_header_json"
    """The header is not strict JSON, or is not one object."""
    DUPLICATE_KEY = "duplicate_key"
    """An object of the header has one key twice."""
    BAD_HEADER_FIELD = "bad_header_field"
    """A field of the header is missing, unknown, of the wrong type or out of range."""
    UNKNOWN_SCHEME = "unknown_scheme", _OTHER_VERSION
    """A tensor names a quantization scheme that this reader does not know."""
    UNKNOWN_DTYPE = "unknown_dtype", _OTHER_VERSION
    """A part names a data type that this reader does not know."""
    UNKNOWN_TARGET = "unknown_target"
    """A pack is for a GPU architecture that this reader does not know."""
    BAD_SHAPE = "bad_shape"
    """A shape has no meaning for its scheme: rank, a dimension below 1, or too many elements."""
    BAD_GROUP_SIZE = "bad_group_size"
    """A quantization group size is not allowed, or does not divide the row."""
    PARTS_MISMATCH = "parts_mismatch"
    """A tensor's parts are not those that its scheme and shape prescribe."""
    LENGTH_MISMATCH = "length_mismatch"
    """A part's length in bytes is not what its shape and data type need."""
    BAD_DIGEST = "bad_digest"
    """A digest is not 64 lowercase hexadecimal digits."""
    DUPLICATE_NAME = "duplicate_name"
    """Two tensors, two groups, two sections or two kernels have one name."""
    UNSAFE_TENSOR_NAME = "unsafe_tensor_name"
    """A tensor or group name holds something other than letters, digits, ``.``, ``_``, ``-``."""
    UNSAFE_SECTION_NAME = "unsafe_section_name"
    """A section name is absolute, climbs with ``..``, or holds unsafe characters."""

    # Where things lie.
    NEGATIVE_OFFSET = "negative_offset"
    """An offset or a length is below zero."""
    OFFSET_OVERFLOW = "offset_overflow"
    """An offset, a length or their sum does not fit in 63 bits."""
    MISALIGNED_TENSOR = "misaligned_tensor"
    """A tensor part does not start at a multiple of 256."""
    MISALIGNED_GROUP = "misaligned_group"
    """A group does not start or end at a page, or the first one not at 2 MiB."""
    MISALIGNED_SECTION = "misaligned_section"
    """A section does not start at a page."""
    MISALIGNED_KERNEL = "misaligned_kernel"
    """A kernel does not start at a multiple of 256."""
    TRUNCATED_TENSOR = "truncated_tensor", _CUT_SHORT
    """A tensor part ends after the end of the file."""
    TRUNCATED_GROUP = "truncated_group", _CUT_SHORT
    """A group ends after the end of the file."""
    TRUNCATED_SECTION = "truncated_section", _CUT_SHORT
    """A section ends after the end of the file."""
    TRUNCATED_KERNEL = "truncated_kernel"
    """A kernel ends after the end of its pack."""
    OVERLAPPING_TENSORS = "overlapping_tensors"
    """Two tensor parts share bytes."""
    OVERLAPPING_REGIONS = "overlapping_regions"
    """The header, a section or a group shares bytes with another."""
    OVERLAPPING_KERNELS = "overlapping_kernels"
    """Kernels share bytes, or are not listed in the order in which they lie."""
    GROUP_GAP = "group_gap"
    """Groups are not listed in file order, or do not touch."""
    TENSOR_OUTSIDE_GROUP = "tensor_outside_group"
    """A tensor part does not lie inside one group, together with its other parts."""
    EMPTY_GROUP = "empty_group"
    """A group holds no tensor."""
    TRAILING_BYTES = "trailing_bytes"
    """The file goes on after everything that the header lists."""

    # What `verify` checks.
    CHECKSUM_MISMATCH = "checksum_mismatch"
    """A section, a group or a kernel does not have the SHA-256 that the header claims."""
    NON_FINITE_SCALE = "non_finite_scale"
    """A quantization scale is infinite or not a number."""
    NON_ZERO_PADDING = "non_zero_padding"
    """A byte between the listed regions is not zero."""
    NOT_CANONICAL = "not_canonical"
    """A pack's header, or a kernel's facts, is not JSON in its canonical spelling."""
    NOT_A_CUBIN = "not_a_cubin"
    """A kernel's code is not an ELF file."""
    TOKENIZER = "tokenizer", "Convert the checkpoint again; its tokenizer.json may be damaged."
    """The tokenizer carried by the file cannot be read."""
    FILE_SHRANK = (
        "file_shrank",
        "Something cut the file short while it was read: copy or convert it again.",
    )
    """The file has fewer bytes than it had when it was opened."""


class Misuse(BrokenRule):
    """Wrong use of a reader or a writer, as the ``rule`` of a ``UsageError``."""

    def __call__(self, message: str, *, hint: str = "") -> UsageError:
        return UsageError(message, hint=hint, rule=self)

    WRITER_STAGE = "writer_stage"
    """A writer method was called in the wrong stage, or with a part out of order."""
    WRITER_BUSY = "writer_busy", "Wait for it to end, or write under another name."
    """Another process is writing the same file."""
    READER_CLOSED = "reader_closed"
    """A reader was used after it was closed."""
    UNKNOWN_NAME = "unknown_name"
    """A tensor, part, group or section was asked for that the file does not hold."""
