"""What an S3 server's refusals mean, in words that say what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import NotFoundError, SourceChangedError, StoreError

if TYPE_CHECKING:
    from zse.store.location import Location

CREDENTIALS_HINT = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run `aws configure`."
)
_DENIED = {
    "403",
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
}
_HINTS = {
    "BadDigest": "The file changed while it was sent: try again when nothing writes to it.",
    "InvalidDigest": "The file changed while it was sent: try again when nothing writes to it.",
    "QuotaExceeded": "Free space in the bucket, or raise its quota.",
    "SlowDown": "The service asks for fewer requests: try again later.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
    "PermanentRedirect": "The bucket is in another region: set AWS_REGION to it.",
    "301": "The bucket is in another region: set AWS_REGION to it.",
}


class MissingBucketError(NotFoundError):
    """The bucket itself does not exist."""


def s3_error(
    location: Location, code: str, text: str, *, is_anonymous: bool = False
) -> NotFoundError | StoreError:
    """Return the error for an answer of a server.

    Args:
        code: The server's word for it, or the status.
        text: What the server says beside.
        is_anonymous: Nobody's key was shown to it.
    """
    if code == "NoSuchBucket":
        return MissingBucketError(
            f"the bucket {location.bucket!r} does not exist",
            hint="Check its name and the endpoint, or create it.",
        )
    if code in {"NoSuchKey", "404", "NotFound"}:
        return NotFoundError(
            f"{location.url} does not exist", hint="List the bucket to see what it holds."
        )
    if code in _DENIED and is_anonymous:
        return StoreError(
            f"no S3 credentials were found, and {location.url} is not for everybody: {code}",
            hint=CREDENTIALS_HINT,
        )
    if code in _DENIED:
        return StoreError(
            f"access to {location.url} was refused: {code}: {text}",
            hint=f"Check the key's permissions. {CREDENTIALS_HINT}",
        )
    if code in {"PreconditionFailed", "412"}:
        return SourceChangedError(f"{location.url} was replaced while it was read")
    return StoreError(
        f"{location.url}: the server answered {code}: {text}",
        hint=_HINTS.get(code, "Try again; if it stays, ask whoever runs the storage."),
    )
