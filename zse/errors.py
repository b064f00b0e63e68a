"""Every deliberate error of zse, one tree.

A class carries the exit code the command line ends with, the HTTP status the server answers with,
and the OpenAI error code. The message says what happened, with values; the hint says what to do
next; the rule, where there is one, says which of a class's rules was broken. A class of its own is
for what is caught, answered or documented apart from its parent.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator


class BrokenRule(StrEnum):
    """Says which rule was broken where one class stands for many; packages list their own.

    A member is its word for programs, and what to do about it where the error's class does not say.
    """

    hint: str

    def __new__(cls, word: str, hint: str = "") -> Self:
        rule = str.__new__(cls, word)
        rule._value_ = word
        rule.hint = hint
        return rule


class ZSEError(Exception):
    """Base of all deliberate errors.

    Args:
        message: What happened, with the values found and expected.
        hint: What the reader should do next; by default what the rule or the class says.
        param: The request parameter at fault, for API errors.
        rule: Which rule was broken, of a class that stands for several.
    """

    exit_code: int = 1
    http_status: int = 500
    error_code: str | None = None
    default_hint: str = ""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        param: str | None = None,
        rule: BrokenRule | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or (rule.hint if rule else "") or self.default_hint
        self.param = param
        self.rule = rule

    @property
    def error_type(self) -> str:
        """What OpenAI calls errors of this status."""
        if self.http_status == 429:
            return "rate_limit_error"
        return "server_error" if self.http_status >= 500 else "invalid_request_error"

    def __str__(self) -> str:
        """Return the message alone; the hint is shown on its own line by the command line."""
        return self.message


# --- usage and environment ----------------------------------------------------------------------


class UsageError(ZSEError):
    """The caller asked for something that has no meaning (a bad flag, value or combination)."""

    exit_code = 2
    http_status = 400


class BadSettingError(UsageError):
    """A ZSE_* environment variable holds a value that is not accepted."""


class MissingDependencyError(ZSEError):
    """An optional package that this feature stands on is not installed.

    Args:
        message: What needs which package.
        hint: What to do; not given together with ``extra``.
        extra: The extra that brings the package: the hint says how to install it here.
    """

    exit_code = 5

    def __init__(self, message: str, *, hint: str = "", extra: str = "") -> None:
        if extra:
            from zse.install import install_hint

            hint = install_hint(extra)
        super().__init__(message, hint=hint)


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Say which extra is missing when an import in the block fails.

    Args:
        extra: The extra that brings the package.
        what: What needs it, the subject of the sentence.

    Raises:
        MissingDependencyError: A package cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        lacking = f"a package that cannot be imported: {error}"
        if isinstance(error, ModuleNotFoundError):
            lacking = f"the package {error.name}"
        raise MissingDependencyError(f"{what} needs {lacking}", extra=extra) from error


class NotFoundError(ZSEError):
    """A file, model, object or image that was named does not exist."""

    exit_code = 3
    http_status = 404


class RefusedError(ZSEError):
    """An input was refused on purpose because it is unsafe."""

    exit_code = 4
    http_status = 400


class DiskFullError(ZSEError):
    """The destination has no room left."""

    default_hint = "Free space at the destination, or write somewhere else with -o."


# --- the .zse file ------------------------------------------------------------------------------


class FormatError(ZSEError):
    """A .zse file breaks a rule of the format; ``rule`` says which (see zse/format/SPEC.md)."""

    exit_code = 6
    default_hint = "The file is damaged or was not written by zse: convert the checkpoint again."


# --- conversion ---------------------------------------------------------------------------------


class ConversionError(ZSEError):
    """A checkpoint cannot be converted."""

    exit_code = 7


class UnsupportedModelError(ConversionError):
    """The architecture, or one of its options, is not supported."""


class CheckpointError(ConversionError):
    """The checkpoint is incomplete or inconsistent (missing shard, wrong shape, bad JSON)."""


class LoRAError(ZSEError):
    """A LoRA adapter is damaged, belongs to another model, or has what is not computed here."""

    exit_code = 7
    http_status = 400
    error_code = "bad_lora"


class HubError(ConversionError):
    """The model hub refused or could not be reached."""


# --- storage and images -------------------------------------------------------------------------


class StoreError(ZSEError):
    """A storage operation failed."""

    exit_code = 8
    http_status = 502


class SourceChangedError(StoreError):
    """A file or object was replaced or written to while it was read."""

    default_hint = "Start again, when nothing writes to it."


class LoadCancelledError(StoreError):
    """A read was stopped before its end."""


class ImageError(ZSEError):
    """An OCI image or registry operation failed."""

    exit_code = 9


# --- device and backend -------------------------------------------------------------------------


class DeviceError(ZSEError):
    """The device asked for is absent, busy, too old or out of memory."""

    is_out_of_memory = False
    """Whether less memory was left than what was asked for: with more, the same would work."""

    exit_code = 10
    http_status = 503


class RankError(DeviceError):
    """One of the processes that compute a model together ended, stopped or failed: all end."""


# --- mesh ---------------------------------------------------------------------------------------


class MeshError(ZSEError):
    """Several machines cannot do together what was asked of them."""

    exit_code = 14
    http_status = 503


class MeshFileError(MeshError, UsageError):
    """A file of nodes says what no mesh can be."""

    exit_code = 2
    default_hint = "docs/guides/mesh.md shows such a file; `zse mesh status --json` writes one."


class NoPlanError(MeshError):
    """A model does not fit onto the machines that there are."""

    default_hint = "Add a node, give nodes more memory, or ask for a shorter context."


# --- engine -------------------------------------------------------------------------------------


class EngineError(ZSEError):
    """The engine cannot go on with a request."""

    exit_code = 11


class CapacityError(EngineError):
    """A request can never fit: it needs more KV blocks than the pool has."""

    http_status = 400


class ContextLengthError(EngineError):
    """Prompt plus completion is longer than the model's context."""

    http_status = 400
    error_code = "context_length_exceeded"


class InvalidParameterError(UsageError):
    """A sampling or request parameter is out of its range; ``param`` names it."""


class TemplateError(ZSEError):
    """A chat template failed to render the messages."""

    http_status = 400


# --- serving ------------------------------------------------------------------------------------


class ModelNotFoundError(NotFoundError):
    """The request names a model that this server does not hold."""

    error_code = "model_not_found"


class OverloadedError(ZSEError):
    """The queue is full."""

    http_status = 429
    error_code = "rate_limit_exceeded"
    retry_after_seconds: float = 1.0
    """When room is likely."""


class LoadingError(ZSEError):
    """The model is still loading."""

    http_status = 503
    error_code = "server_is_overloaded"
    retry_after_seconds: float = 1.0
    """When it is likely to be there."""
    default_hint = "Try again after the time in Retry-After."


class DeadlineError(ZSEError):
    """A request did not end in the time that it, or the server, allows."""

    http_status = 504
    error_code = "request_timeout"
    default_hint = "Ask for fewer tokens or a later deadline."


class UnreadOutputError(ZSEError):
    """A client took its answer so slowly that too much of it lay unread."""

    http_status = 408
    error_code = "client_too_slow"


class ShuttingDownError(ZSEError):
    """The server is draining and takes no new work."""

    http_status = 503
    error_code = "server_is_overloaded"
