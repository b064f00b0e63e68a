"""The files of the AWS tools, read without them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from zse.errors import MissingDependencyError, StoreError
from zse.settings import AWSSettings
from zse.store.http.profiles import credentials_of, load_profile

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
# a comment
[default]
region = eu-west-1
s3 =
    addressing_style = virtual
    max_concurrent_requests = 3
output = json

[profile work]
region=us-west-2
services = mine
aws_access_key_id = from-config

[profile "quoted name"]
region = ap-south-1

[services mine]
s3 =
  endpoint_url = https://minio.example

[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = work

[profile program]
credential_process = /opt/give keys
"""
KEYS = """
[default]
aws_access_key_id = AKID
aws_secret_access_key = a=b/c
aws_session_token = token
[work]
aws_access_key_id = from-keys
[half]
aws_access_key_id = AKID
"""


@pytest.fixture
def aws(tmp_path: Path) -> AWSSettings:
    (tmp_path / "config").write_text(CONFIG)
    (tmp_path / "credentials").write_text(KEYS)
    return AWSSettings(
        config_file=tmp_path / "config", shared_credentials_file=tmp_path / "credentials"
    )


def chosen(aws: AWSSettings, profile: str) -> AWSSettings:
    return AWSSettings(
        profile=profile,
        config_file=aws.config_file,
        shared_credentials_file=aws.shared_credentials_file,
    )


def test_the_default_profile_is_both_files_together(aws: AWSSettings) -> None:
    assert load_profile(aws) == {
        "region": "eu-west-1",
        "s3": "",
        "s3.addressing_style": "virtual",
        "s3.max_concurrent_requests": "3",
        "output": "json",
        "aws_access_key_id": "AKID",
        "aws_secret_access_key": "a=b/c",
        "aws_session_token": "token",
    }
    found = credentials_of(load_profile(aws), aws)
    assert found is not None
    assert (found.access_key, found.secret_key, found.token) == ("AKID", "a=b/c", "token")


def test_a_named_profile_wins_with_its_keys_and_its_services(aws: AWSSettings) -> None:
    profile = load_profile(chosen(aws, "work"))
    assert profile["region"] == "us-west-2"
    assert profile["aws_access_key_id"] == "from-keys"
    assert profile["endpoint_url"] == "https://minio.example"
    assert load_profile(chosen(aws, "quoted name")) == {"region": "ap-south-1"}


def test_files_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    nothing = AWSSettings(
        config_file=tmp_path / "config", shared_credentials_file=tmp_path / "credentials"
    )
    assert load_profile(nothing) == {}
    assert credentials_of({}, nothing) is None
    with pytest.raises(StoreError, match="there is no profile 'work'") as caught:
        load_profile(chosen(nothing, "work"))
    assert "AWS_PROFILE" in caught.value.hint


def test_a_file_that_cannot_be_read_is_named(aws: AWSSettings) -> None:
    aws.config_file.write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"cannot read .*config"):
        load_profile(aws)


def test_a_key_without_a_secret_is_an_error(aws: AWSSettings) -> None:
    half = chosen(aws, "half")
    with pytest.raises(StoreError, match="'half' has a key and no secret"):
        credentials_of(load_profile(half), half)


@pytest.mark.parametrize(("name", "behind"), [("role", "role_arn"), ("program", "credential_pro")])
def test_keys_behind_a_role_or_a_program_are_asked_of_boto3(
    aws: AWSSettings, name: str, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("boto3", "botocore", "botocore.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    one = chosen(aws, name)
    with pytest.raises(MissingDependencyError, match=f"'{name}', whose keys lie behind {behind}"):
        credentials_of(load_profile(one), one)


def test_boto3_gets_the_keys_that_a_program_gives(
    aws: AWSSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "give"
    given = '{"Version": 1, "AccessKeyId": "AKID", "SecretAccessKey": "s", "SessionToken": "t"}'
    program.write_text(f"#!/bin/sh\necho '{given}'\n")
    program.chmod(0o755)
    aws.config_file.write_text(f"[profile given]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(aws.config_file))
    one = chosen(aws, "given")
    found = credentials_of(load_profile(one), one)
    assert found is not None
    assert (found.access_key, found.secret_key, found.token) == ("AKID", "s", "t")
