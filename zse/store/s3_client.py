"""The S3 client and the translation of its errors into ours. boto3 is imported when it is used."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from zse.errors import NotFoundError, StoreError, needing
from zse.settings import load_settings, subprocess_environment
from zse.store.location import Location
from zse.store.retry import (
    ATTEMPTS,
    BUSY_STATUSES,
    FIRST_ATTEMPTS,
    backoff_seconds,
    retry_after_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CONNECTIONS = 16
_AUTO_REGION_HOSTS = (".r2.cloudflarestorage.com", "storage.googleapis.com")
_CREDENTIALS_HINT = (
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


@cache
def shared_client(endpoint_url: str) -> Any:
    """Return the process's client for one endpoint (``""`` means AWS). It is thread-safe.

    A custom endpoint is addressed by path, unless the AWS configuration file says ``virtual``: it
    rarely has a DNS name for every bucket. Checksums are ours (Content-MD5 a part, SHA-256 a file):
    many S3-compatible servers refuse those that botocore adds since 1.36. Over TLS the payload is
    not signed as well; Content-MD5 holds it.

    Raises:
        MissingDependencyError: boto3 is not installed.
    """
    with needing("s3", "an s3:// location"):
        import boto3
        from botocore.config import Config
    with translated_errors(Location(scheme="s3")):
        session = boto3.session.Session()
    config = Config(
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=MAX_CONNECTIONS,
        signature_version="s3v4",
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        client = session.client(
            "s3",
            endpoint_url=endpoint_url or None,
            region_name=_region(endpoint_url) or session.region_name or _usual_region(endpoint_url),
            config=config,
        )
    except ValueError as error:
        raise StoreError(
            f"the S3 endpoint {endpoint_url!r} is not usable: {error}",
            hint="Set AWS_ENDPOINT_URL_S3 to http(s)://host[:port], or unset it for AWS.",
        ) from error
    client.meta.events.register_first("needs-retry.s3", _Patience())
    return client


def _region(endpoint_url: str) -> str | None:
    """Return the region that the environment names; boto3 itself reads one of the two names."""
    environ = subprocess_environment()
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    # R2 knows no other region than this, and "auto" means nothing to AWS.
    return None if region == "auto" and not endpoint_url else region


def _usual_region(endpoint_url: str) -> str | None:
    """Return what a signature for another server than AWS is made with when nothing is set."""
    host = urlsplit(endpoint_url).hostname or ""
    if host.endswith(_AUTO_REGION_HOSTS):
        return "auto"
    return "us-east-1" if endpoint_url else None


class _Patience:
    """Waits as long as a busy server asks; gives up early on one that never answered.

    Otherwise botocore's own rule holds.
    """

    def __init__(self) -> None:
        self._has_answered = False

    def __call__(
        self,
        response: Any,
        attempts: int,
        caught_exception: Exception | None = None,
        **_: object,
    ) -> float | None:
        """Return the seconds to wait before another attempt, or None."""
        if response is None:
            if attempts >= FIRST_ATTEMPTS and not self._has_answered and caught_exception:
                raise caught_exception
            return None
        self._has_answered = True
        if attempts >= ATTEMPTS or response[0].status_code not in BUSY_STATUSES:
            return None
        seconds = retry_after_seconds(response[0].headers.get("Retry-After"))
        if response[0].status_code == 429:  # botocore would not try again
            seconds = max(seconds, backoff_seconds(attempts))
        return seconds or None


def default_client() -> Any:
    """Return the client for the endpoint that the environment names."""
    return shared_client(load_settings().aws.endpoint_url)


def list_buckets(client: Any) -> list[str]:
    """Return the names of the buckets that the account owns.

    Raises:
        StoreError: The server refuses or cannot be reached.
    """
    with translated_errors(Location(scheme="s3")):
        return sorted(str(bucket["Name"]) for bucket in client.list_buckets().get("Buckets", ()))


@contextlib.contextmanager
def translated_errors(location: Location, client: Any = None) -> Iterator[None]:
    """Turn botocore's errors into StoreError and NotFoundError that say what to do next.

    Args:
        location: What the request was about.
        client: Given when the request was a HEAD: its 404 has no body, so this client is asked
            whether the bucket or only the key is missing.
    """
    from botocore import exceptions as failures

    try:
        yield
    except failures.ClientError as error:
        translated = _from_answer(error, location)
        if client is not None and isinstance(translated, NotFoundError):
            translated = _missing_bucket(client, location) or translated
        raise translated from error
    except (failures.NoCredentialsError, failures.PartialCredentialsError) as error:
        raise StoreError(
            f"no S3 credentials were found: {error}", hint=_CREDENTIALS_HINT
        ) from error
    except (failures.ProfileNotFound, failures.ConfigParseError) as error:
        raise StoreError(
            f"the S3 settings are not usable: {error}",
            hint="Check the AWS_* variables and ~/.aws/config.",
        ) from error
    except failures.NoRegionError as error:
        raise StoreError(
            "no AWS region is set",
            hint="Set AWS_REGION, or AWS_ENDPOINT_URL_S3 for another server.",
        ) from error
    except (failures.EndpointConnectionError, failures.ConnectTimeoutError) as error:
        raise StoreError(
            f"{location.url} cannot be reached: {error}",
            hint="Check this machine's network, AWS_ENDPOINT_URL_S3 and AWS_REGION.",
        ) from error
    except failures.BotoCoreError as error:
        raise StoreError(
            f"no usable answer for {location.url}: {error}",
            hint="Check that the endpoint (AWS_ENDPOINT_URL_S3) is right and can be reached.",
        ) from error


def _from_answer(error: Any, location: Location) -> Exception:
    """Return the deliberate error for an error that the server answered with."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    text = str(error.response.get("Error", {}).get("Message") or error)
    if code == "NoSuchBucket":
        return _no_such_bucket(location)
    if code in {"NoSuchKey", "404", "NotFound"}:
        return NotFoundError(
            f"{location.url} does not exist", hint="List the bucket to see what it holds."
        )
    if code in _DENIED:
        return StoreError(
            f"access to {location.url} was refused: {code}: {text}",
            hint=f"Check the key's permissions. {_CREDENTIALS_HINT}",
        )
    if code in {"PreconditionFailed", "412"}:
        return StoreError(
            f"{location.url} was replaced while it was read", hint="Start the copy again."
        )
    return StoreError(
        f"{location.url}: the server answered {code}: {text}",
        hint=_HINTS.get(code, "Try again; if it stays, ask whoever runs the storage."),
    )


def _no_such_bucket(location: Location) -> MissingBucketError:
    return MissingBucketError(
        f"the bucket {location.bucket!r} does not exist",
        hint="Check its name and the endpoint, or create it.",
    )


def _missing_bucket(client: Any, location: Location) -> MissingBucketError | None:
    """Return the error that says that the bucket is missing, if it is."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.head_bucket(Bucket=location.bucket)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in {"404", "NoSuchBucket", "NotFound"}:
            return _no_such_bucket(location)
    except BotoCoreError:
        return None  # the first answer stands
    return None
