"""Objects in S3 as sources: found and signed here, read as HTTP."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from zse.errors import MissingDependencyError, StoreError, UsageError
from zse.settings import load_settings, subprocess_environment
from zse.store.s3 import S3Store
from zse.store.s3_client import default_client, translated_errors
from zse.stream.http_pool import HttpPool
from zse.stream.http_source import HttpRangeSource
from zse.stream.signing import Credentials, Signatures, credentials_from, sign_get

if TYPE_CHECKING:
    from zse.store.location import Location

_FALLBACK_REGION = "us-east-1"


def open_s3(location: Location) -> HttpRangeSource:
    """Open one object.

    Raises:
        UsageError: The location names a folder.
        NotFoundError: The bucket or the object does not exist.
        StoreError: The server refuses or cannot be reached, or there are no credentials.
        MissingDependencyError: The credentials are not in the environment, and boto3, which knows
            where else to look, is not installed.
    """
    if location.is_prefix:
        raise UsageError(
            f"{location.url} names a folder, not an object",
            hint=f"Add a name: {location.url.rstrip('/')}/NAME",
        )
    environ = subprocess_environment()
    static = credentials_from(environ)
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if not region and (static is None or not load_settings().aws.endpoint_url):
        region = _asked_region()
    region = region or _FALLBACK_REGION
    address, path = _address(location, region)
    try:
        pool = HttpPool(address)
    except UsageError as error:
        raise StoreError(
            f"the S3 endpoint {address!r} is not usable",
            hint="Set AWS_ENDPOINT_URL_S3 to http(s)://host[:port], or unset it for AWS.",
        ) from error

    def sign() -> dict[str, str]:
        # Credentials that boto3 found may be renewed while a load runs, so they are asked again.
        return sign_get(
            static or _asked_credentials(location), host=pool.host_header, path=path, region=region
        )

    return HttpRangeSource(
        pool,
        path,
        name=location.url,
        sign=Signatures(sign).headers,
        explain=lambda: _explain(location),
    )


def _address(location: Location, region: str) -> tuple[str, str]:
    """Return the server's URL and the object's path on it."""
    key = quote(location.key, safe="/-_.~")
    endpoint = load_settings().aws.endpoint_url.rstrip("/")
    if endpoint:
        folder = "/" + endpoint.partition("://")[2].partition("/")[2]
        return endpoint, f"{folder.rstrip('/')}/{location.bucket}/{key}"
    domain = f"s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
    if "." in location.bucket:  # the certificate covers one label before the domain
        return f"https://{domain}", f"/{location.bucket}/{key}"
    return f"https://{location.bucket}.{domain}", f"/{key}"


@cache
def _session() -> object:
    default_client()  # says what is missing when boto3 is
    import boto3

    return boto3.session.Session()


def _asked_region() -> str:
    """Return the region of the AWS configuration files; empty where there is none."""
    try:
        return str(getattr(_session(), "region_name", None) or "")
    except (MissingDependencyError, StoreError):
        return ""


def _asked_credentials(location: Location) -> Credentials:
    """Ask boto3: configuration files, roles of machines and pods."""
    with translated_errors(location):
        found = _session().get_credentials()  # type: ignore[attr-defined]
    if found is None:
        raise StoreError(
            f"no S3 credentials were found for {location.url}",
            hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
        )
    frozen = found.get_frozen_credentials()
    return Credentials(
        access_key=frozen.access_key, secret_key=frozen.secret_key, token=frozen.token or ""
    )


def _explain(location: Location) -> None:
    """Let the store ask for the object: its errors name bucket, key and permission."""
    try:
        S3Store(location).size()
    except MissingDependencyError:
        return
