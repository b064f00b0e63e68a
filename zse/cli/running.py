"""Finds running servers of this machine, and asks them for statistics (``zse``, ``zse top``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import ZSEError

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8000"
LIVENESS_TIMEOUT_SECONDS = 0.5
_STATS_TIMEOUT_SECONDS = 5.0


class UnreachableError(ZSEError):
    """Nobody answers there, or what answers is no server of zse."""

    exit_code = 8


class StatsClient:
    """Asks one server what it is doing.

    Args:
        url: The server's address, with or without ``/v1``.
        api_key: A key with the scope ``admin``, or of any kind where the server shows metrics to
            it; empty for a server without keys.
    """

    def __init__(self, url: str, *, api_key: str = "") -> None:
        import httpx

        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx.Client(timeout=_STATS_TIMEOUT_SECONDS, headers=headers)

    def stats(self) -> dict[str, Any]:
        """Return what ``GET /api/stats`` says.

        Raises:
            UnreachableError: Nobody answers, or not with statistics.
        """
        import httpx

        try:
            response = self._client.get(f"{self.url}/api/stats")
        except httpx.InvalidURL as error:
            raise UnreachableError(f"{self.url!r} is no address: {error}") from None
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"no answer from {self.url}: {str(error) or type(error).__name__}",
                hint="Start a server with `zse serve`, or name one: zse top http://HOST:PORT.",
            ) from None
        return _checked(response, self.url)

    def close(self) -> None:
        self._client.close()


def _checked(response: httpx.Response, url: str) -> dict[str, Any]:
    if response.status_code in (401, 403):
        raise UnreachableError(
            f"{url} answered {response.status_code}: its statistics need a key",
            hint="Give one with --api-key, or set ZSE_API_KEY.",
        )
    try:
        answer = response.json()
    except ValueError:
        answer = None
    error = answer.get("error") if isinstance(answer, dict) else None
    if response.status_code == 503 and isinstance(error, dict):
        raise UnreachableError(f"{url} is not ready: {error.get('message', '')}")
    if response.status_code != 200 or not isinstance(answer, dict) or "models" not in answer:
        raise UnreachableError(
            f"{url} answered {response.status_code}, and not with statistics of zse",
            hint="Is it a server of zse? `curl URL/health/live` shows what is there.",
        )
    return answer


def answers(url: str) -> bool:
    """Whether a server of zse is alive at ``url``; asks once and waits half a second."""
    import httpx

    try:
        response = httpx.get(f"{url}/health/live", timeout=LIVENESS_TIMEOUT_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return response.status_code == 200
