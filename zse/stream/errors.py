"""What can go wrong between a file and the device."""

from __future__ import annotations

from zse.errors import FormatError, StoreError


class StreamError(StoreError):
    """Bytes of a model could not be read, or not brought to the device."""


class FileShrankError(FormatError):
    """A file has fewer bytes than it had when it was opened."""

    default_hint = "Something cut the file short while it was read: copy or convert it again."
