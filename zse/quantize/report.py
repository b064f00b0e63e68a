"""What a conversion tells: how far it is, and what it made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@record
class ConversionProgress:
    """How far a conversion is."""

    stage: str
    """``fetch``, ``convert``, ``checksum`` or ``upload``."""
    done_bytes: int
    """Of the checkpoint while fetching and converting, of the file afterwards. Layers that a text
    goes through count twice."""
    total_bytes: int


@record
class Written:
    """What is known of a file when it was written."""

    source_bytes: int
    """Size of the checkpoint's weight files."""
    header_sha256: str
    """Of the header, which lists the digest of everything else in the file."""
    schemes: Mapping[str, int]
    """Scheme -> number of tensors stored in it."""
    int8_instead: int
    """Matrices that are INT8 although four bits were asked for: no group divides their width."""
    kept_packed: int
    """Matrices whose numbers the checkpoint had quantized already: they are as they were, whatever
    was asked for."""
    calibration: Mapping[str, str | int]
    """What the model read for it: ``text``, its ``sha256``, ``tokens``, ``method``; empty where it
    was converted without data."""
    resumed_groups: int
    """Groups that an earlier run had finished."""
    warnings: tuple[str, ...] = ()
    """What will be missed when the file is served, one sentence each."""


@record
class ConversionReport(Written):
    """What a conversion made."""

    path: str
    """Where the file is: a local path, or the s3:// location."""
    size_bytes: int
    sha256: str
    """Of the file, as ``sha256sum`` prints it."""
    seconds: float
    tensors: int


def stage(notify: Callable[[ConversionProgress], None], name: str) -> Callable[[int, int], None]:
    """Return a store's callback that reports under the name of a stage."""

    def report(done_bytes: int, total_bytes: int) -> None:
        notify(ConversionProgress(stage=name, done_bytes=done_bytes, total_bytes=total_bytes))

    return report
