from __future__ import annotations

import tarfile

import pytest
from broken_rules import breaks
from oci_builders import make_deb, make_tar

from zse.oci.debian.deb import deb_entries, merged_usr_path
from zse.oci.errors import ImageRule
from zse.oci.layout.tar import Kind


def unpack(tmp_path, content: bytes) -> dict:
    path = tmp_path / "x.deb"
    path.write_bytes(content)
    return {entry.path: entry for entry in deb_entries(path)}


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, target
    return header


@pytest.mark.parametrize("suffix", [".xz", ""])
def test_files_of_a_package_are_found(tmp_path, suffix):
    entries = unpack(tmp_path, make_deb({"usr/bin/tool": b"code"}, suffix=suffix))
    assert entries["usr/bin/tool"].read() == b"code"


def test_old_folders_move_below_usr():
    moved = [merged_usr_path(p) for p in ("lib/x.so", "bin/sh", "etc/x", "library/x", "lib")]
    assert moved == ["usr/lib/x.so", "usr/bin/sh", "etc/x", "library/x", "lib"]


def test_links_are_kept_and_hard_links_become_copies(tmp_path):
    data = make_tar(
        [
            ("./usr/a", b"content"),
            link("./usr/soft", "a", tarfile.SYMTYPE),
            link("./usr/hard", "./usr/a", tarfile.LNKTYPE),
        ]
    )
    entries = unpack(tmp_path, make_deb(data))
    assert (entries["usr/soft"].kind, entries["usr/soft"].target) == (Kind.SYMLINK, "a")
    assert entries["usr/hard"].read() == b"content"


def test_setuid_bits_are_dropped(tmp_path):
    header = tarfile.TarInfo("./usr/bin/su")
    header.mode = 0o4755
    assert unpack(tmp_path, make_deb(make_tar([header])))["usr/bin/su"].mode == 0o755


def test_devices_are_dropped(tmp_path):
    assert unpack(tmp_path, make_deb(make_tar([link("./dev/x", "", tarfile.CHRTYPE)]))) == {}


@pytest.mark.parametrize("path", ["../etc/passwd", "./a/../../b"])
def test_paths_outside_the_root_are_refused(tmp_path, path):
    with breaks(ImageRule.UNSAFE_ARCHIVE):
        unpack(tmp_path, make_deb(make_tar([(path, b"bad")])))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not an archive", "does not start"),
        (b"!<arch>\n", "no data.tar"),
        (make_deb({"a": b"1"})[:-40], "cut short"),
        (make_deb({"a": b"1"}).replace(b"data.tar.xz", b"data.tar.qq"), "expected .xz"),
        (make_deb({"a": b"1"}).replace(b"\xfd7zXZ", b"\xfd7zXX"), "not a readable"),
    ],
)
def test_broken_packages_are_refused(tmp_path, content, words):
    with breaks(ImageRule.DEBIAN, match=words):
        unpack(tmp_path, content)
