# ruff: noqa: N818
"""One error class per rule of the format; SPEC.md lists the rule behind each name.

The names say what is wrong with the file, as a reader would say it aloud, so they carry no
``Error`` suffix. All of them are ``FormatError``: exit code 6, one place to catch them.
"""

from __future__ import annotations

from zse.errors import FormatError, UsageError

# --- the fixed prefix and the header as bytes ---------------------------------------------------


GGUF_HINT = (
    "Its weights are quantized already, in another way: convert the model that it was made from, "
    "in safetensors (the repository's name without -GGUF): zse convert OWNER/NAME -o model.zse"
)


class BadMagic(FormatError):
    """The first four bytes are not the magic."""

    default_hint = "This is not a .zse file: convert the checkpoint with `zse convert`."


class UnsupportedVersion(FormatError):
    """The format version is one that this reader does not know."""

    default_hint = "Upgrade zse, or convert the checkpoint again with this version."


class TruncatedHeader(FormatError):
    """The file ends inside the prefix or inside the header."""

    default_hint = "The file was cut short: copy or convert it again."


class ReservedBytesSet(FormatError):
    """Reserved bytes of the prefix are not zero."""


class HeaderTooLarge(FormatError):
    """The claimed header length is over the limit."""


class HeaderChecksumMismatch(FormatError):
    """The header does not have the SHA-256 that the prefix claims."""


# --- the header as a document -------------------------------------------------------------------


class BadHeaderEncoding(FormatError):
    """The header is not UTF-8, or escapes characters that UTF-8 cannot hold."""


class HeaderTooDeep(FormatError):
    """The header nests objects or lists deeper than the limit."""


class HeaderTooComplex(FormatError):
    """The header holds more values than any model needs."""


class BadHeaderJSON(FormatError):
    """The header is not strict JSON, or is not one object."""


class DuplicateKey(FormatError):
    """An object of the header has one key twice."""


class BadHeaderField(FormatError):
    """A field of the header is missing, unknown or of the wrong type."""


class UnknownScheme(FormatError):
    """A tensor names a quantization scheme that this reader does not know."""

    default_hint = "Upgrade zse, or convert the checkpoint again with this version."


class UnknownDType(FormatError):
    """A part names a data type that this reader does not know."""

    default_hint = "Upgrade zse, or convert the checkpoint again with this version."


class BadShape(FormatError):
    """A shape has no meaning for its scheme: rank, a dimension below 1, or too many elements."""


class BadGroupSize(FormatError):
    """A quantization group size is not allowed, or does not divide the row."""


class PartsMismatch(FormatError):
    """A tensor's parts are not those that its scheme and shape prescribe."""


class LengthMismatch(FormatError):
    """A part's length in bytes is not what its shape and data type need."""


class BadDigest(FormatError):
    """A digest is not 64 lowercase hexadecimal digits."""


class DuplicateName(FormatError):
    """Two tensors, two groups or two sections have one name."""


class UnsafeTensorName(FormatError):
    """A tensor or group name holds something other than letters, digits, ``.``, ``_``, ``-``."""


class UnsafeSectionName(FormatError):
    """A section name is absolute, climbs with ``..``, or holds unsafe characters."""


# --- where things lie ---------------------------------------------------------------------------


class NegativeOffset(FormatError):
    """An offset or a length is below zero."""


class OffsetOverflow(FormatError):
    """An offset, a length or their sum does not fit in 63 bits."""


class MisalignedTensor(FormatError):
    """A tensor part does not start at a multiple of 256."""


class MisalignedGroup(FormatError):
    """A group does not start or end at a page, or the first one not at 2 MiB."""


class MisalignedSection(FormatError):
    """A section does not start at a page."""


class TruncatedTensor(FormatError):
    """A tensor part ends after the end of the file."""

    default_hint = "The file was cut short: copy or convert it again."


class TruncatedGroup(FormatError):
    """A group ends after the end of the file."""

    default_hint = "The file was cut short: copy or convert it again."


class TruncatedSection(FormatError):
    """A section ends after the end of the file."""

    default_hint = "The file was cut short: copy or convert it again."


class OverlappingTensors(FormatError):
    """Two tensor parts share bytes."""


class OverlappingRegions(FormatError):
    """The header, a section or a group shares bytes with another."""


class GroupGap(FormatError):
    """Groups are not listed in file order, or do not touch."""


class TensorOutsideGroup(FormatError):
    """A tensor part does not lie inside one group, together with its other parts."""


class EmptyGroup(FormatError):
    """A group holds no tensor."""


class TrailingBytes(FormatError):
    """The file goes on after everything that the header lists."""


# --- what `verify` checks -----------------------------------------------------------------------


class ChecksumMismatch(FormatError):
    """A section or a group does not have the SHA-256 that the header claims."""


class NonFiniteScale(FormatError):
    """A quantization scale is infinite or not a number."""


class NonZeroPadding(FormatError):
    """A byte between the listed regions is not zero."""


# --- wrong use ----------------------------------------------------------------------------------


class WriterStageError(UsageError):
    """A writer method was called in the wrong stage, or with a part out of order."""


class WriterBusyError(UsageError):
    """Another process is writing the same file."""

    default_hint = "Wait for it to end, or write under another name."


class ReaderClosedError(UsageError):
    """A reader was used after it was closed."""


class UnknownNameError(UsageError):
    """A tensor, part, group or section was asked for that the file does not hold."""
