"""The S3 client and the translation of its errors into ours. boto3 is imported when it is used."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any

from zse.errors import StoreError, needing
from zse.store.http.retry import (
    ATTEMPTS,
    BUSY_STATUSES,
    FIRST_ATTEMPTS,
    backoff_seconds,
    retry_after_seconds,
)
from zse.store.location import Location
from zse.store.s3_errors import CREDENTIALS_HINT, s3_error
from zse.store.s3_object import account_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.settings import AWSSettings, ProxySettings

MAX_CONNECTIONS = 16


@cache
def client_of(aws: AWSSettings, proxies: ProxySettings) -> Any:
    """Return the process's client for these settings. It is thread-safe.

    A custom endpoint is addressed by path, unless the AWS configuration file says ``virtual``: it
    rarely has a DNS name for every bucket. Checksums are ours (Content-MD5 a part, SHA-256 a file):
    many S3-compatible servers refuse those that botocore adds since 1.36. Over TLS the payload is
    not signed as well; Content-MD5 holds it.

    Raises:
        MissingDependencyError: boto3 is not installed.
        StoreError: The endpoint or the profile is not usable.
    """
    account = account_of(aws, proxies)
    with needing("s3", "listing or writing at s3://"):
        import boto3
        from botocore.config import Config
    config = Config(
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=MAX_CONNECTIONS,
        signature_version="s3v4",
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    with translated_errors(Location(scheme="s3")):
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=account.endpoint_url or None,
            region_name=account.region,
            config=config,
        )
    client.meta.events.register_first("needs-retry.s3", _Patience())
    return client


class _Patience:
    """Waits as long as a busy server asks; gives up early on one that never answered.

    Otherwise botocore's own rule holds.
    """

    def __init__(self) -> None:
        self._has_answered = False

    def __call__(
        self, response: Any, attempts: int, caught_exception: Exception | None = None, **_: object
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


def list_buckets(client: Any) -> list[str]:
    """Return the names of the buckets that the account owns.

    Raises:
        StoreError: The server refuses or cannot be reached.
    """
    with translated_errors(Location(scheme="s3")):
        return sorted(str(bucket["Name"]) for bucket in client.list_buckets().get("Buckets", ()))


def list_below(
    client: Any, location: Location, operation: str, field: str
) -> Iterator[dict[str, Any]]:
    """Yield what an operation lists in the field of its pages: at this key, or below it.

    Raises:
        NotFoundError: The bucket does not exist.
        StoreError: The storage failed.
    """
    key = location.key
    below = key if not key or key.endswith("/") else key + "/"
    with translated_errors(location):
        pages = client.get_paginator(operation).paginate(Bucket=location.bucket, Prefix=key)
        for page in pages:
            for item in page.get(field, ()):
                if item["Key"] == key or item["Key"].startswith(below):
                    yield item


@contextlib.contextmanager
def translated_errors(location: Location) -> Iterator[None]:
    """Turn botocore's errors about a location into those that say what to do next."""
    from botocore import exceptions as failures

    try:
        yield
    except failures.ClientError as error:
        said = error.response.get("Error", {})
        code, text = str(said.get("Code", "")), str(said.get("Message") or error)
        raise s3_error(location, code, text) from error
    except (failures.NoCredentialsError, failures.PartialCredentialsError) as error:
        raise StoreError(f"no S3 credentials were found: {error}", hint=CREDENTIALS_HINT) from error
    except (failures.ProfileNotFound, failures.ConfigParseError) as error:
        raise StoreError(
            f"the S3 settings are not usable: {error}",
            hint="Check the AWS_* variables and ~/.aws/config.",
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
