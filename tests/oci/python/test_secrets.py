from __future__ import annotations

import os
import subprocess

import pytest
from broken_rules import breaks
from oci_builders import fill_cache, read_layer

from zse.errors import NotFoundError, UsageError
from zse.oci.errors import ImageRule
from zse.oci.layout.layer import Compression
from zse.oci.python import wheels as wheels_module
from zse.oci.python.secrets import Secrets, read_secrets

WORD = "s3cr3t-w0rd"
ADDRESS = f"https://me:{WORD}@index.example/simple"


@pytest.fixture
def secrets(tmp_path):
    (tmp_path / "index").write_text(ADDRESS + "\n")
    return read_secrets([f"index-url={tmp_path / 'index'}"], os.environ)


def test_secret_comes_from_a_file_or_a_variable(secrets, monkeypatch):
    monkeypatch.setenv("MY_INDEX", ADDRESS)
    assert secrets == read_secrets(["index-url=env:MY_INDEX"], os.environ)
    assert secrets.pip_variables() == {"PIP_INDEX_URL": ADDRESS}


@pytest.mark.parametrize("text", ["token=x", "index-url", "index-url=", "index-url=env:NOT_SET_X"])
def test_secret_that_means_nothing_is_refused(text):
    with pytest.raises(UsageError):
        read_secrets([text], os.environ)


def test_missing_file_is_an_error():
    with pytest.raises(NotFoundError):
        read_secrets(["netrc=/nowhere"], os.environ)


def test_secret_is_not_shown(secrets):
    assert WORD not in repr(secrets)
    assert secrets.redact(f"ERROR: {ADDRESS} and {WORD} alone") == "ERROR: *** and *** alone"


def test_password_is_hidden_as_it_is_written_in_addresses():
    hidden = Secrets(values={"index-url": "https://me:a%2Fb@x.example"})
    assert hidden.redact("a/b a%2Fb") == "*** ***"


def test_pip_gets_the_secret_and_its_errors_do_not_show_it(build, project, secrets, monkeypatch):
    seen = []

    def fail(command, **options):
        seen.append((command, options["env"]))
        return subprocess.CompletedProcess(command, 1, "", f"ERROR: no {ADDRESS}")

    monkeypatch.setattr(wheels_module.subprocess, "run", fail)
    with breaks(ImageRule.WHEEL) as caught:
        build(cache_dir=project / "empty", secrets=secrets)
    assert seen[0][1]["PIP_INDEX_URL"] == ADDRESS
    assert not any(WORD in word for word in seen[0][0])
    assert WORD not in str(caught.value)


def test_no_byte_of_an_image_or_its_cache_holds_the_secret(build, project, recipe_files, secrets):
    cache = fill_cache(project / "own", recipe_files)
    built = build(compression=Compression.NONE, cache_dir=cache, secrets=secrets)
    assert built.digest == build(compression=Compression.NONE).digest
    files = [p for folder in ("out", "own") for p in (project / folder).rglob("*") if p.is_file()]
    assert any(path.name == built.layers[0].digest.removeprefix("sha256:") for path in files)
    assert b"demo" in read_layer(project / "out", built.layers[1].digest)
    for path in files:
        data = path.read_bytes()
        assert WORD.encode() not in data, path
        assert b"index.example" not in data, path
