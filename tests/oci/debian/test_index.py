from __future__ import annotations

import lzma
import shutil
import subprocess

import pytest
from broken_rules import breaks
from oci_builders import sha256_hex

from zse.oci.debian import index as debian_index
from zse.oci.debian.index import (
    Package,
    read_index,
    release_digests,
    resolve,
    verify_release,
    version_key,
)
from zse.oci.errors import DigestMismatchError, ImageRule


def package(name: str, *, version: str = "1", depends: str = "", provides: str = "") -> Package:
    return Package(
        name=name,
        version=version,
        archive="debian",
        path=f"pool/{name}",
        sha256="0" * 64,
        size_bytes=1,
        depends=depends,
        provides=provides,
    )


def names(packages: list[Package]) -> list[str]:
    return [item.name for item in packages]


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("1.0", "1.1"),
        ("1.9", "1.10"),
        ("1.0~rc1", "1.0"),
        ("1.0", "1.0+deb12u1"),
        ("1.0-1", "1.0-2"),
        ("9.9", "1:0.1"),
        ("3.11.2-6", "3.11.2-6+deb12u5"),
        ("1.0~~", "1.0~"),
        ("1.0", "1.0a"),
        ("2.36-9+deb12u9", "2.36-9+deb12u10"),
    ],
)
def test_versions_are_ordered_as_dpkg_orders_them(smaller, larger):
    assert version_key(smaller) < version_key(larger)
    assert version_key(smaller) == version_key(smaller)


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg is the judge")
@pytest.mark.parametrize("pair", [("1.0-1~x", "1.0-1"), ("0:1", "1"), ("1.2.3-4", "1.2.3a-1")])
def test_versions_are_ordered_as_the_real_dpkg_says(pair):
    left, right = pair
    for operator, expected in (("lt", -1), ("eq", 0), ("gt", 1)):
        said = subprocess.run(["dpkg", "--compare-versions", left, operator, right], check=False)
        ours, theirs = version_key(left), version_key(right)
        assert (said.returncode == 0) == ((ours > theirs) - (ours < theirs) == expected)


def test_dependencies_are_followed_and_the_newest_version_is_taken():
    packages = [
        package("a", depends="b (>= 1), c:any"),
        package("b", version="1.9"),
        package("b", version="1.10", depends="a"),
        package("c"),
        package("unused"),
    ]
    found = resolve(packages, ["a"], exclude=())
    assert names(found) == ["a", "b", "c"]
    assert found[1].version == "1.10"


def test_first_alternative_that_exists_is_taken():
    packages = [package("a", depends="gone | b | c"), package("b"), package("c")]
    assert names(resolve(packages, ["a"], exclude=())) == ["a", "b"]


def test_virtual_package_is_answered_by_one_that_provides_it():
    packages = [package("a", depends="mta"), package("b", provides="mta (= 1)")]
    assert names(resolve(packages, ["a"], exclude=())) == ["a", "b"]


def test_excluded_packages_are_not_followed():
    packages = [package("a", depends="dpkg, debconf | debconf-2.0"), package("dpkg")]
    assert names(resolve(packages, ["a"], exclude=["dpkg", "debconf"])) == ["a"]


def test_missing_dependency_is_named_with_who_wants_it():
    with breaks(ImageRule.DEBIAN, match="a depends on gone"):
        resolve([package("a", depends="gone")], ["a"], exclude=())


def test_index_with_another_hash_than_the_signed_one_is_refused():
    with pytest.raises(DigestMismatchError, match="signed index"):
        read_index(lzma.compress(b""), expected_sha256="0" * 64, archive="debian")


def test_index_is_parsed():
    text = b"Package: a\nVersion: 1\nFilename: pool/a.deb\nSize: 5\nSHA256: ff\nPre-Depends: x\nDepends: y\n"
    packed = lzma.compress(text)
    (found,) = read_index(packed, expected_sha256=sha256_hex(packed), archive="debian")
    assert (found.path, found.size_bytes, found.depends) == ("pool/a.deb", 5, "x, y")


def test_digests_are_read_from_the_sha256_list_only():
    text = "Origin: x\nMD5Sum:\n aa 1 main/P\nSHA256:\n bb 1 main/P\n cc 2 main/Q\n"
    assert release_digests(text) == {"main/P": "bb", "main/Q": "cc"}


@pytest.mark.parametrize("absent", ["gpgv", "keyring"])
def test_index_whose_signature_cannot_be_checked_is_refused(monkeypatch, tmp_path, absent):
    keyring = tmp_path / "debian-archive-keyring.gpg"
    keyring.write_bytes(b"")
    monkeypatch.setattr(
        debian_index, "KEYRINGS", (tmp_path / "none" if absent == "keyring" else keyring,)
    )
    monkeypatch.setattr(shutil, "which", lambda name: None if absent == "gpgv" else name)
    with breaks(ImageRule.SIGNATURE, match=absent) as caught:
        verify_release(b"Origin: x\n", label="bookworm")
    assert "debian-archive-keyring" in caught.value.hint


@pytest.mark.skipif(
    shutil.which("gpgv") is None or not any(path.is_file() for path in debian_index.KEYRINGS),
    reason="needs gpgv and Debian's keyring",
)
def test_index_signed_by_nobody_is_refused_where_it_can_be_checked():
    forged = b"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: x\n-----BEGIN PGP SIGNATURE-----\n\nAAAA\n-----END PGP SIGNATURE-----\n"
    with breaks(ImageRule.SIGNATURE, match="not signed"):
        verify_release(forged, label="bookworm")
