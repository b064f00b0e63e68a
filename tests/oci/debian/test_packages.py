from __future__ import annotations

import httpx
import pytest
from broken_rules import breaks
from oci_builders import FakeMirror, make_deb

from zse.oci.debian import index as debian_index
from zse.oci.debian import packages as debian
from zse.oci.debian.apt import Mirrors
from zse.oci.debian.packages import (
    Archive,
    debian_entries,
    read_debian_lock,
    update_debian_lock,
)
from zse.oci.errors import DigestMismatchError, ImageRule, LockError
from zse.oci.layout.tar import Kind
from zse.oci.recipe import DebianRecipe

RECIPE = DebianRecipe(
    suite="bookworm",
    packages=("python3",),
    exclude=("dpkg",),
    prune=("usr/share/man/*",),
)


def signed_text(signed: bytes, *, label: str) -> str:
    """Return what a signature is about; those of the fake index no key of Debian's could check."""
    return signed.decode().partition("\n\n")[2].partition("\n-----BEGIN PGP SIGNATURE")[0] + "\n"


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setattr(debian, "verify_release", signed_text)
    return FakeMirror(
        packages={
            "python3": make_deb(
                {
                    "usr/bin/python3": b"python",
                    "usr/share/man/man1/python3.1": b"manual",
                    "usr/share/doc/python3/changelog": b"changes",
                    "usr/share/doc/python3/copyright": b"licence",
                }
            ),
            "libc6": make_deb({"lib/x86_64-linux-gnu/libc.so.6": b"libc"}),
            "base-passwd": make_deb({"usr/share/base-passwd/passwd.master": b"root:x:0:0\n"}),
            "ca": make_deb(
                {
                    "usr/share/ca-certificates/mozilla/b.crt": b"B\n",
                    "usr/share/ca-certificates/mozilla/a.crt": b"A",
                }
            ),
        },
        depends={"python3": "libc6, dpkg, base-passwd, ca"},
    )


@pytest.fixture
def said():
    return []


@pytest.fixture
def archive(mirror, tmp_path, said):
    return Archive(
        mirrors=Mirrors(debian="http://mirror.example/debian"),
        cache=tmp_path / "cache",
        report=said.append,
        transport=mirror.transport(),
    )


def build(archive, packages) -> dict:
    return {entry.path: entry for entry in debian_entries(archive, packages, RECIPE)}


def test_lock_names_packages_but_no_host(archive, tmp_path):
    packages = update_debian_lock(archive, RECIPE, tmp_path)
    assert [p.name for p in packages] == ["base-passwd", "ca", "libc6", "python3"]
    assert "mirror.example" not in (tmp_path / "debian.amd64.lock").read_text()
    locked = read_debian_lock(tmp_path, RECIPE)
    assert [(p.path, p.sha256) for p in locked] == [(p.path, p.sha256) for p in packages]


def test_no_lock_is_written_from_an_index_that_cannot_be_checked(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(debian, "verify_release", debian_index.verify_release)
    monkeypatch.setattr(debian_index, "KEYRINGS", (tmp_path / "none",))
    with breaks(ImageRule.SIGNATURE, match="no lock is written"):
        update_debian_lock(archive, RECIPE, tmp_path)
    assert not list(tmp_path.glob("*.lock"))


def test_missing_updates_are_said(archive, tmp_path, said):
    update_debian_lock(archive, RECIPE, tmp_path)
    assert any("bookworm-updates" in words for words in said)


def test_root_has_what_scripts_would_have_made(archive, tmp_path):
    root = build(archive, update_debian_lock(archive, RECIPE, tmp_path))
    assert root["usr/lib/x86_64-linux-gnu/libc.so.6"].read() == b"libc"
    assert (root["lib"].kind, root["lib"].target) == (Kind.SYMLINK, "usr/lib")
    assert b"nonroot:x:65532:65532" in root["etc/passwd"].read()
    assert root["etc/passwd"].read().startswith(b"root:x:0:0\n")
    assert root["etc/ssl/certs/ca-certificates.crt"].read() == b"A\nB\n"
    assert root["tmp"].mode == 0o1777
    assert {"proc", "sys", "dev", "run"} <= set(root)


def test_manuals_are_left_out_and_licences_kept(archive, tmp_path):
    root = build(archive, update_debian_lock(archive, RECIPE, tmp_path))
    assert "usr/share/doc/python3/copyright" in root
    assert not any("man" in path or "changelog" in path for path in root)


def test_package_in_the_cache_is_not_fetched_again(archive, mirror, tmp_path):
    packages = update_debian_lock(archive, RECIPE, tmp_path)
    build(archive, packages)
    mirror.requests.clear()
    build(archive, packages)
    assert mirror.requests == []


def test_busy_or_cut_mirror_is_asked_again(archive, mirror, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    package = next(p for p in update_debian_lock(archive, RECIPE, tmp_path) if p.name == "libc6")
    mirror.failures = [httpx.Response(503), httpx.ReadError("cut")]
    assert archive.fetch(package).read_bytes() == mirror.packages["libc6"]
    mirror.failures = [httpx.Response(429) for _ in range(9)]
    with breaks(ImageRule.DEBIAN, match="429"):
        archive.get("debian", "dists/bookworm/InRelease")


def test_replaced_package_tells_how_to_update_the_lock(archive, mirror, tmp_path):
    packages = update_debian_lock(archive, RECIPE, tmp_path)
    mirror.gone.add("pool/libc6_1.0_amd64.deb")
    with pytest.raises(LockError, match=r"libc6 1\.0") as caught:
        build(archive, packages)
    assert "--update-lock" in caught.value.hint


def test_package_with_other_bytes_is_refused(archive, mirror, tmp_path):
    packages = update_debian_lock(archive, RECIPE, tmp_path)
    mirror.packages["libc6"] = make_deb({"evil": b"1"})
    with pytest.raises(DigestMismatchError, match="libc6"):
        build(archive, packages)


def test_two_packages_with_one_file_are_an_error(archive, mirror, tmp_path):
    mirror.packages["libc6"] = make_deb({"usr/bin/python3": b"other"})
    with breaks(ImageRule.DEBIAN, match="usr/bin/python3"):
        build(archive, update_debian_lock(archive, RECIPE, tmp_path))


def test_unknown_suite_is_an_error(archive, tmp_path):
    recipe = DebianRecipe(suite="nowhere", packages=("python3",))
    with breaks(ImageRule.DEBIAN, match="no suite nowhere"):
        update_debian_lock(archive, recipe, tmp_path)


def test_lock_without_a_wanted_package_is_stale(archive, tmp_path):
    update_debian_lock(archive, RECIPE, tmp_path)
    with pytest.raises(LockError, match="does not lock extra"):
        read_debian_lock(tmp_path, DebianRecipe(packages=("python3", "extra")))
