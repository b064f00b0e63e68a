"""What can be wrong with kernels: with their packs, their tuning, and with having none."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from zse.errors import BrokenRule, FormatError, ZSEError
from zse.format.errors import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator


class KernelPackError(ZSEError):
    """A kernel pack is absent, damaged, or made for something else; ``rule`` may say which."""

    exit_code = 12
    http_status = 503
    default_hint = "The pack is damaged: build it again with `zse kernels build`."


class KernelPackNotFound(KernelPackError):  # noqa: N818 - says what is wrong
    """No pack for this GPU was found, and none can be built here."""


class NativeLibraryError(ZSEError):
    """The library of a processor's kernels is absent, damaged, or of another version of zse."""

    exit_code = 12
    http_status = 503
    default_hint = "Install zse again: what is installed is not whole."


class InstructionsRefused(NativeLibraryError):  # noqa: N818 - says what is wrong
    """A processor's flags name instructions that it does not run."""

    default_hint = "Set ZSE_CPU_INSTRUCTIONS to fewer, or leave it unset."


class KernelRule(BrokenRule):
    """What a ``KernelPackError`` is about, beside the rules of the format."""

    def __call__(self, message: str, *, hint: str = "") -> KernelPackError:
        return KernelPackError(message, hint=hint, rule=self)

    VARIANT_MISSING = (
        "kernel_variant_missing",
        "The pack belongs to another version of zse: build it again.",
    )
    """The pack holds no kernel of the key that was asked for."""
    PACK_MISMATCH = "kernel_pack_mismatch"
    """The pack is for another GPU architecture than the device."""
    BUILD_FAILED = (
        "kernel_build_failed",
        "Fix them, or leave them out of the pack with --keep-going.",
    )
    """Kernels do not compile."""
    BAD_TUNING = "bad_tuning", "Delete the file, or write it again with `zse kernels tune`."
    """A tuning file is not what tuning files are."""


_CUT_SHORT = "The pack was cut short: copy or build it again."
_HINTS = {
    Rule.BAD_MAGIC: "This is no kernel pack: build one with `zse kernels build`.",
    Rule.UNSUPPORTED_VERSION: "Build the pack again with this version of zse: `zse kernels build`.",
    Rule.UNKNOWN_TARGET: "Upgrade zse, or build a pack for your GPU with `zse kernels build`.",
    Rule.TRUNCATED_HEADER: _CUT_SHORT,
    Rule.TRUNCATED_KERNEL: _CUT_SHORT,
}


@contextmanager
def in_pack(name: str) -> Iterator[None]:
    """Say of a broken rule of the format that it is a pack that breaks it.

    Raises:
        KernelPackError: A rule was broken in the block.
    """
    try:
        yield
    except FormatError as error:
        hint = next((hint for rule, hint in _HINTS.items() if rule is error.rule), "")
        raise KernelPackError(
            f"{name}: {error.message}", hint=hint or KernelPackError.default_hint, rule=error.rule
        ) from None
