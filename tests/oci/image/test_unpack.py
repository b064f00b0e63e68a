"""Layers become a folder, as a container runtime would lay them out."""

import gzip
import os
import tarfile

import pytest
import zstandard
from broken_rules import breaks
from oci_builders import make_tar

from zse.oci.errors import ImageRule, LayoutError
from zse.oci.image.unpack import inside, unpack


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644):
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, link, mode
    found.uid, found.gid = os.getuid(), os.getgid()
    return found


@pytest.fixture
def lay_out(tmp_path):
    """Unpack layers given as members, compressed in turn by nothing, gzip and zstd."""

    def lay_out(*layers):
        packers, blobs = [bytes, gzip.compress, zstandard.compress], []
        for index, members in enumerate(layers):
            pack = packers[index % 3]
            data = members if isinstance(members, bytes) else pack(make_tar(members))
            blobs.append(tmp_path / f"blob{index}")
            blobs[-1].write_bytes(data)
        unpack(blobs, tmp_path / "rootfs")
        return tmp_path / "rootfs"

    return lay_out


def test_later_layers_replace_and_delete_what_earlier_ones_laid_down(lay_out):
    rootfs = lay_out(
        [("etc/a", b"old"), ("etc/b", b"gone"), ("var/x/y", b"gone too"), ("opt/d/old", b"hidden")],
        [("etc/a", b"new"), ("etc/.wh.b", b""), ("var/.wh.x", b"")],
        [("opt/d/new", b"kept"), ("opt/d/.wh..wh..opq", b"")],
    )
    files = {str(p.relative_to(rootfs)): p.read_bytes() for p in rootfs.rglob("*") if p.is_file()}
    assert files == {"etc/a": b"new", "opt/d/new": b"kept"}


def test_links_modes_and_folders_are_as_the_layer_says(lay_out):
    rootfs = lay_out(
        [
            entry("usr/lib", tarfile.DIRTYPE, mode=0o755),
            entry("lib", tarfile.SYMTYPE, "usr/lib"),
            ("lib/a.so", b"code"),
            entry("lib/b.so", tarfile.LNKTYPE, "lib/a.so"),
            entry("run/locked", tarfile.DIRTYPE, mode=0o700),
            entry("dev/null", tarfile.CHRTYPE),
        ]
    )
    assert (rootfs / "lib").is_symlink()
    assert (rootfs / "usr/lib/b.so").samefile(rootfs / "usr/lib/a.so")
    assert (rootfs / "run/locked").stat().st_mode & 0o777 == 0o700
    assert not (rootfs / "dev/null").exists()


@pytest.mark.parametrize("link", ["/etc", "../../../../etc", "/../etc"])
def test_a_link_out_of_the_folder_stays_inside(lay_out, tmp_path, link):
    rootfs = lay_out([entry("escape", tarfile.SYMTYPE, link), ("escape/zse-test-escape", b"x")])
    assert (rootfs / "etc/zse-test-escape").read_bytes() == b"x"
    assert {path.name for path in tmp_path.iterdir()} == {"rootfs", "blob0"}


def test_a_hard_link_cannot_reach_a_file_of_this_machine(lay_out):
    with pytest.raises(LayoutError, match="cannot be unpacked"):
        lay_out([entry("stolen", tarfile.LNKTYPE, "../../../../../../etc/passwd")])


def test_a_path_with_two_dots_is_refused(lay_out, tmp_path):
    with breaks(ImageRule.UNSAFE_ARCHIVE, match="two"):
        lay_out([("../two", b"x")])
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("name", [".wh...", "etc/.wh...", ".wh..", "etc/.wh..", ".wh.", "etc/.wh."])
def test_a_whiteout_deletes_nothing_but_a_name_beside_itself(lay_out, tmp_path, name):
    (tmp_path / "neighbour").write_bytes(b"of this machine")
    with breaks(ImageRule.UNSAFE_ARCHIVE, match="deletes"):
        lay_out([("etc/a", b"x")], [(name, b"")])
    assert (tmp_path / "neighbour").read_bytes() == b"of this machine"
    assert (tmp_path / "rootfs/etc/a").read_bytes() == b"x"


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with breaks(ImageRule.UNSAFE_ARCHIVE, match="circles"):
        inside(tmp_path, "a/x")


@pytest.mark.parametrize("data", [b"no tar at all" * 99, make_tar([("a", b"x" * 9000)])[:4000]])
def test_a_damaged_layer_is_an_error_that_names_it(lay_out, data):
    with pytest.raises(LayoutError, match="layer blob0 cannot be unpacked"):
        lay_out(data)
