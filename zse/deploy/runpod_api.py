"""The calls of RunPod's REST API that a deployment needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from zse.deploy.errors import DeployError

if TYPE_CHECKING:
    from zse.deploy.plan import Request

TIMEOUT_SECONDS = 60.0
_SHOWN_CHARACTERS = 500


def send(request: Request, api_key: str, *, transport: httpx.BaseTransport | None = None) -> Any:
    """Send a request; return the JSON of the answer, None for an empty one.

    The account's key goes as a bearer token, and is never shown.

    Raises:
        DeployError: There is no key, the API cannot be reached, or it refuses.
    """
    if not api_key:
        raise DeployError("RUNPOD_API_KEY is not set", hint="Make a key in RunPod's settings.")
    headers = {"authorization": f"Bearer {api_key}"}
    try:
        with httpx.Client(timeout=TIMEOUT_SECONDS, transport=transport) as client:
            response = client.request(
                request.method, request.url, json=dict(request.body) or None, headers=headers
            )
    except httpx.TransportError as error:
        raise DeployError(
            f"RunPod's API cannot be reached: {error}",
            hint="The endpoint may exist: look in the console before you try again."
            if request.method == "POST"
            else "",
        ) from None
    if not response.is_success:
        raise DeployError(
            f"RunPod answered {response.status_code}: {response.text[:_SHOWN_CHARACTERS]}",
            hint="Check RUNPOD_API_KEY." if response.status_code in (401, 403) else "",
        )
    try:
        return response.json() if response.content else None
    except ValueError:
        raise DeployError("RunPod's answer is not JSON") from None
