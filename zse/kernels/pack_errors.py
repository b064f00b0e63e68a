# ruff: noqa: N818
"""One error class per rule that a kernel pack can break, and per way of not having one.

The names say what is wrong, as a reader would say it aloud, so they carry no ``Error`` suffix. All
of them are ``KernelPackError``: exit code 12, one place to catch them.
"""

from __future__ import annotations

from zse.errors import ZSEError


class KernelPackError(ZSEError):
    """A kernel pack is absent, damaged, or made for something else."""

    exit_code = 12
    http_status = 503
    default_hint = "The pack is damaged: build it again with `zse kernels build`."


# --- the file -----------------------------------------------------------------------------------


class BadPackMagic(KernelPackError):
    """The first bytes are not those of a kernel pack."""

    default_hint = "This is no kernel pack: build one with `zse kernels build`."


class UnsupportedPackVersion(KernelPackError):
    """The pack has a version that this zse does not know."""

    default_hint = "Build the pack again with this version of zse: `zse kernels build`."


class TruncatedPack(KernelPackError):
    """The file ends before its header, or before the last kernel."""

    default_hint = "The pack was cut short: copy or build it again."


class PackReservedBytesSet(KernelPackError):
    """Reserved bytes of the prefix are not zero."""


class PackHeaderTooLarge(KernelPackError):
    """The claimed length of the header is over the limit."""


class PackHeaderChecksumMismatch(KernelPackError):
    """The header does not have the SHA-256 that the prefix claims."""


class BadPackHeader(KernelPackError):
    """The header is not JSON in the form that packs use, or not in its canonical spelling."""


class BadPackField(KernelPackError):
    """A field of the header is missing, unknown, of the wrong type or out of range."""


class UnknownPackTarget(KernelPackError):
    """The pack is for an architecture that this zse does not know."""

    default_hint = "Upgrade zse, or build a pack for your GPU with `zse kernels build`."


class DuplicatePackKey(KernelPackError):
    """Two kernels of the pack have one key."""


class MisalignedKernel(KernelPackError):
    """A kernel's code does not start at a multiple of 256."""


class OverlappingKernels(KernelPackError):
    """Kernels share bytes, or are not listed in the order in which they lie."""


class PackTrailingBytes(KernelPackError):
    """Bytes follow the last kernel."""


class PackPaddingSet(KernelPackError):
    """Padding between kernels is not zero."""


class KernelChecksumMismatch(KernelPackError):
    """A kernel's code does not have the SHA-256 that the header claims."""


class NotACubin(KernelPackError):
    """A kernel's code is not an ELF file."""


# --- the pack and the machine -------------------------------------------------------------------


class KernelVariantMissing(KernelPackError):
    """The pack holds no kernel of the key that was asked for."""

    default_hint = "The pack belongs to another version of zse: build it again."


class KernelPackMismatch(KernelPackError):
    """The pack is for another GPU architecture than the device."""


class KernelPackNotFound(KernelPackError):
    """No pack for this GPU was found, and none can be built here."""


class BadTuning(KernelPackError):
    """A tuning file is not what tuning files are."""

    default_hint = "Delete the file, or write it again with `zse kernels tune`."
