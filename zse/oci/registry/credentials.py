"""Registry credentials from where docker and podman keep them.

Read only: nothing is ever written, and a secret never enters a message or a log.
"""

from __future__ import annotations

import base64
import binascii
import json
import shutil
import subprocess
from dataclasses import field
from typing import TYPE_CHECKING, Any

from zse.oci.errors import RegistryAuthError
from zse.oci.registry.reference import DEFAULT_HOST
from zse.records import record

if TYPE_CHECKING:
    from pathlib import Path

_HELPER_SECONDS = 30
_TOKEN_USER = "<token>"  # what credential helpers answer as user for an identity token


@record
class Credentials:
    """A user and password, or an identity token. Not shown when printed."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find_credentials(host: str, config_file: Path) -> Credentials | None:
    """Look up the credentials of a registry host, as references write it, in docker's config.json.

    Raises:
        RegistryAuthError: The file is malformed, or names a helper that fails.
    """
    try:
        config = json.loads(config_file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RegistryAuthError(f"{config_file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise RegistryAuthError(f"{config_file} does not hold a JSON object")
    for key in _keys(host):
        found = _look_up(config, key)
        if found is not None:
            return found
    return None


def _keys(host: str) -> list[str]:
    if host == DEFAULT_HOST:
        return ["https://index.docker.io/v1/", "index.docker.io", DEFAULT_HOST]
    return [host, f"https://{host}", f"https://{host}/v2/", f"https://{host}/v1/"]


def _look_up(config: dict[str, Any], key: str) -> Credentials | None:
    """Ask in docker's order: the host's own helper, the file, the common helper."""
    own_helper = _object(config, "credHelpers").get(key)
    if own_helper:
        return _ask_helper(str(own_helper), key)
    entry = _object(_object(config, "auths"), key)
    if entry.get("identitytoken"):
        return Credentials(identity_token=str(entry["identitytoken"]))
    if entry.get("auth"):
        return _decode(str(entry["auth"]), key)
    store = config.get("credsStore")
    return _ask_helper(str(store), key) if store else None


def _object(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object of docker's config; an empty one when it has none."""
    found = holder.get(name) or {}
    if not isinstance(found, dict):
        raise RegistryAuthError(f"docker's config.json: {name} is not a JSON object")
    return found


def _decode(text: str, key: str) -> Credentials:
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user, colon, password = "", "", ""
    if not colon:
        raise RegistryAuthError(f"the stored credentials of {key} are not user:password in base64")
    return Credentials(user=user, password=password)


def _ask_helper(helper: str, key: str) -> Credentials | None:
    program = shutil.which(f"docker-credential-{helper}")
    if program is None:
        raise RegistryAuthError(
            f"the credential helper docker-credential-{helper} is not installed",
            hint="Install it, or take it out of docker's config.json and log in again.",
        )
    try:
        done = subprocess.run(
            [program, "get"],
            input=key,
            capture_output=True,
            text=True,
            check=False,
            timeout=_HELPER_SECONDS,
        )
        if done.returncode != 0:  # helpers exit with 1 when they know nothing of this host
            return None
        answer = json.loads(done.stdout)
        user, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    except (subprocess.TimeoutExpired, OSError, ValueError, AttributeError) as error:
        raise RegistryAuthError(f"docker-credential-{helper} gave no usable answer") from error
    if user == _TOKEN_USER:
        return Credentials(identity_token=secret)
    return Credentials(user=user, password=secret)
