from __future__ import annotations

import base64
import json
import os

import pytest

from zse.oci.errors import RegistryAuthError
from zse.oci.registry.credentials import find_credentials

SECRET = base64.b64encode(b"me:se:cret").decode()


@pytest.fixture
def config(tmp_path):
    def write(content: object):
        path = tmp_path / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A credential helper that answers for one host."""
    program = tmp_path / "bin" / "docker-credential-test"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nread host\n[ "$host" = known.example ] || exit 1\n'
        'echo \'{"Username": "helped", "Secret": "s"}\'\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


def test_no_file_means_no_credentials(tmp_path):
    assert find_credentials("a.example", tmp_path / "none.json") is None


def test_stored_password_may_hold_a_colon(config):
    found = find_credentials("a.example", config({"auths": {"a.example": {"auth": SECRET}}}))
    assert (found.user, found.password) == ("me", "se:cret")


def test_docker_hub_is_found_under_its_old_name(config):
    path = config({"auths": {"https://index.docker.io/v1/": {"auth": SECRET}}})
    assert find_credentials("docker.io", path).user == "me"


def test_identity_token_is_taken(config):
    path = config({"auths": {"a.example": {"identitytoken": "t"}}})
    assert find_credentials("a.example", path).identity_token == "t"


@pytest.mark.parametrize(
    "key", [{"credHelpers": {"known.example": "test"}}, {"credsStore": "test"}]
)
def test_credential_helper_is_asked(config, helper, key):
    assert find_credentials("known.example", config(key)).user == "helped"


def test_helper_that_knows_nothing_means_no_credentials(config, helper):
    assert find_credentials("other.example", config({"credsStore": "test"})) is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        {"auths": {"a.example": {"auth": "???"}}},
        {"credsStore": "not-installed"},
        {"auths": ["a.example"]},
        {"auths": {"a.example": "secret"}},
        {"credHelpers": "test"},
    ],
)
def test_unusable_configuration_is_an_error(config, content):
    with pytest.raises(RegistryAuthError):
        find_credentials("a.example", config(content))


def test_secrets_are_not_shown(config):
    found = find_credentials("a.example", config({"auths": {"a.example": {"auth": SECRET}}}))
    assert "cret" not in repr(found)
