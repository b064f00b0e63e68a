"""Profiles of the AWS tools: ``~/.aws/config`` and ``~/.aws/credentials``."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

from zse.errors import StoreError, needing
from zse.store.http.sigv4 import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from zse.settings import AWSSettings

_OF_A_ROLE_OR_SESSION = frozenset({"role_arn", "sso_session", "sso_start_url"})
_OF_ANOTHER_PROGRAM = frozenset({"credential_process", "login_session"})
_BORROWED_SECONDS = 360.0
"""boto3 renews its own; it is asked again before these have any chance to expire."""

Profile = dict[str, str]
"""Settings of one profile; those of an indented block are called ``block.name``."""


def load_profile(aws: AWSSettings) -> Profile:
    """Return the settings of the profile that is chosen; those of the keys' file win.

    Raises:
        StoreError: It does not exist, or a file cannot be read.
    """
    config, keys = _sections(aws.config_file), _sections(aws.shared_credentials_file)
    name = aws.profile or "default"
    titles = ("default", "profile default") if name == "default" else (f"profile {name}",)
    found = [config[title] for title in titles if title in config]
    found += [keys[name]] if name in keys else []
    if aws.profile and not found:
        raise StoreError(
            f"the S3 settings are not usable: there is no profile {aws.profile!r}",
            hint=f"Check AWS_PROFILE, {aws.config_file} and {aws.shared_credentials_file}.",
        )
    profile: Profile = {}
    for section in found:
        profile |= section
    services = config.get(f"services {profile.get('services', '')}", {})
    if endpoint := services.get("s3.endpoint_url"):
        profile["endpoint_url"] = endpoint
    return profile


def credentials_of(profile: Mapping[str, str], aws: AWSSettings) -> Credentials | None:
    """Return the keys of a profile; boto3 is asked where they lie behind a role or a program.

    Raises:
        MissingDependencyError: boto3 is needed and not installed.
        StoreError: The keys are incomplete, or boto3 does not get them.
    """
    key = profile.get("aws_access_key_id", "")
    if not profile.keys() & _OF_A_ROLE_OR_SESSION and key:
        if "aws_secret_access_key" not in profile:
            raise StoreError(
                f"the AWS profile {aws.profile or 'default'!r} has a key and no secret",
                hint=f"Add aws_secret_access_key in {aws.shared_credentials_file}.",
            )
        return Credentials(
            access_key=key,
            secret_key=profile["aws_secret_access_key"],
            token=profile.get("aws_session_token", ""),
        )
    behind = sorted(profile.keys() & (_OF_A_ROLE_OR_SESSION | _OF_ANOTHER_PROGRAM))
    return _borrowed(aws.profile or "default", behind[0]) if behind else None


def _borrowed(name: str, behind: str) -> Credentials:
    with needing("s3", f"the AWS profile {name!r}, whose keys lie behind {behind},"):
        from botocore.exceptions import BotoCoreError, ClientError
    try:
        frozen = _boto3_credentials(name).get_frozen_credentials()
    except (BotoCoreError, ClientError, AttributeError) as error:
        raise StoreError(
            f"the AWS profile {name!r} gives no keys ({behind}): {error}",
            hint=f"Sign in again (`aws sso login --profile {name}`), or check ~/.aws/config.",
        ) from error
    return Credentials(
        access_key=frozen.access_key,
        secret_key=frozen.secret_key,
        token=frozen.token or "",
        expires_at=time.time() + _BORROWED_SECONDS,
    )


@cache
def _boto3_credentials(name: str) -> Any:
    import boto3

    return boto3.session.Session(profile_name=name).get_credentials()


def _sections(path: Path) -> dict[str, Profile]:
    """Return what a file says by its sections; one that does not exist says nothing."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            f"the S3 settings are not usable: cannot read {path}: {error}",
            hint="Check AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE.",
        ) from error
    found: dict[str, Profile] = {}
    for title, name, value in _lines(text):
        section = found.setdefault(title, {})
        if name:
            section[name] = value
    return found


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, name and value of each line; a section's own line has no name."""
    title = block = ""
    for line in text.splitlines():
        words = line.strip()
        if not words or words[0] in "#;":
            continue
        if words.startswith("["):
            title, block = " ".join(words.strip("[]").replace('"', " ").split()), ""
            yield title, "", ""
            continue
        name, _, value = (part.strip() for part in words.partition("="))
        if line[0] in " \t" and block:
            yield title, f"{block}.{name.lower()}", value
        else:
            block = "" if value else name.lower()
            yield title, name.lower(), value
