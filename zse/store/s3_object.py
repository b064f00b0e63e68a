"""One object in S3 or in a server that speaks its protocol: its address, its signed requests."""

from __future__ import annotations

import math
import re
import time
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from zse.errors import StoreError
from zse.store.http.credentials import CredentialChain
from zse.store.http.pool import HttpPool
from zse.store.http.profiles import load_profile
from zse.store.http.ranged import Request
from zse.store.http.sigv4 import sign
from zse.store.s3_errors import s3_error

if TYPE_CHECKING:
    from zse.errors import ZSEError
    from zse.settings import AWSSettings, ProxySettings
    from zse.store.http.answer import Answer
    from zse.store.http.ranged import Facts
    from zse.store.location import Location

_AUTO_REGION_HOSTS = (".r2.cloudflarestorage.com", "storage.googleapis.com")
_SIGNED_SECONDS = 60.0
"""How long a signature is used; the servers accept it for a quarter of an hour."""
_USUAL_REGION = "us-east-1"
_ERROR = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)


class S3Account:
    """Where S3 is and who asks: one rule for all that reads and writes there.

    Raises:
        StoreError: The endpoint or the profile is not usable.
    """

    def __init__(self, aws: AWSSettings, proxies: ProxySettings) -> None:
        self._aws, self._proxies = aws, proxies
        self._profile = load_profile(aws)
        self.endpoint_url = (aws.endpoint_url or self._profile.get("endpoint_url", "")).rstrip("/")
        """Empty means AWS."""
        self.ca_bundle = aws.ca_bundle or self._profile.get("ca_bundle", "")
        self.region = self._region()
        self.chain = CredentialChain(aws, self._profile, proxies)
        parts = urlsplit(self.endpoint_url)
        if self.endpoint_url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise StoreError(
                f"the S3 endpoint {self.endpoint_url!r} is not usable",
                hint="Set AWS_ENDPOINT_URL_S3 to http(s)://host[:port], or unset it for AWS.",
            )

    def address(self, location: Location, region: str) -> tuple[str, str]:
        """Return the server's URL and the object's path on it."""
        key, bucket = quote(location.key, safe="/-_.~"), location.bucket
        style = self._profile.get("s3.addressing_style", "auto")
        if self.endpoint_url:
            parts = urlsplit(self.endpoint_url)
            # A custom endpoint rarely has a DNS name for every bucket.
            if style == "virtual":
                return f"{parts.scheme}://{bucket}.{parts.netloc}", f"{parts.path}/{key}"
            return f"{parts.scheme}://{parts.netloc}", f"{parts.path}/{bucket}/{key}"
        domain = f"s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
        if "." in bucket or style == "path":  # the certificate covers one label before the domain
            return f"https://{domain}", f"/{bucket}/{key}"
        return f"https://{bucket}.{domain}", f"/{key}"

    def pool(self) -> HttpPool:
        """Return connections of their own for one reader."""
        return HttpPool(self._proxies, ca_bundle=self.ca_bundle)

    def _region(self) -> str:
        """Return what was set, else what the server takes; AWS itself says when it is another."""
        host = urlsplit(self.endpoint_url).hostname or ""
        region = self._aws.region or self._profile.get("region", "")
        if region == "auto" and not self.endpoint_url:
            region = ""  # R2 knows no other; it means nothing to AWS
        return region or ("auto" if host.endswith(_AUTO_REGION_HOSTS) else _USUAL_REGION)


@cache
def account_of(aws: AWSSettings, proxies: ProxySettings) -> S3Account:
    """Return the process's one account for these settings, whose credentials are held.

    Raises:
        StoreError: The endpoint or the profile is not usable.
    """
    return S3Account(aws, proxies)


class S3Place:
    """How one object is asked for; see ``Place``."""

    def __init__(self, location: Location, account: S3Account) -> None:
        self._location, self._account = location, account
        self._region = account.region
        self._is_anonymous = False
        self._request, self._signed_at = Request(url=""), -math.inf
        self.name = location.url

    def request(self) -> Request:
        """Return how the object is asked for now; a redirect would be to another's signature."""
        now = time.monotonic()
        if now - self._signed_at > _SIGNED_SECONDS:  # two threads may both do it: no harm
            server, path = self._account.address(self._location, self._region)
            self._request = Request(url=server + path, private=self._signed(), follow="nowhere")
            self._signed_at = now
        return self._request

    def describe(self, pool: HttpPool) -> Facts | None:  # noqa: ARG002 - the first range tells all
        return None

    def refusal(self, answer: Answer) -> ZSEError | None:
        """Return what an answer means; None where the bucket turns out to be in another region."""
        region = answer.header("x-amz-bucket-region")
        if answer.status in (301, 307, 400, 403) and region not in ("", self._region):
            self._region = region
            self._signed_at = -math.inf
            return None
        body = answer.read().decode("utf-8", "replace")
        said = _ERROR.search(body)
        code = said[1] if said else str(answer.status)
        text = (said[2] or "") if said else answer.reason
        return s3_error(self._location, code, text, is_anonymous=self._is_anonymous)

    def part_bytes(self, pool: HttpPool, number: int) -> int:
        """Return the length of a part of the upload; 0 when the server does not say."""
        query = f"partNumber={number}"
        server, path = self._account.address(self._location, self._region)
        headers = self._signed("HEAD", query)
        url = f"{server}{path}?{query}"
        with pool.ask(url, headers, method="HEAD", follow="nowhere") as answer:
            length = answer.header("Content-Length")[:18]
            return int(length) if answer.status == 206 and length.isdecimal() else 0

    def _signed(self, method: str = "GET", query: str = "") -> dict[str, str]:
        credentials = self._account.chain.credentials()
        self._is_anonymous = credentials is None
        if credentials is None:
            return {}
        server, path = self._account.address(self._location, self._region)
        return sign(
            credentials,
            host=urlsplit(server).netloc.rpartition("@")[2],
            path=path,
            region=self._region,
            method=method,
            query=query,
        )
