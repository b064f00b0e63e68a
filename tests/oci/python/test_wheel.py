from __future__ import annotations

import os
import zipfile

import pytest
from broken_rules import breaks

from zse.oci.errors import ImageRule
from zse.oci.python.wheel import wheel_entries


def contents(wheel, **options) -> dict[str, bytes]:
    return {entry.path: entry.read() for entry in wheel_entries(wheel, **options)}


def test_files_land_in_site_packages(wheel_builder):
    assert contents(wheel_builder())["opt/zse/site-packages/demo/__init__.py"] == b"VALUE = 1\n"


def test_library_folders_of_the_data_folder_are_merged_and_scripts_left_out(wheel_builder):
    files = {
        "demo-1.0.data/purelib/extra.py": b"1",
        "demo-1.0.data/scripts/tool": b"#!python",
        "demo-1.0.data/headers/x.h": b"",
    }
    paths = contents(wheel_builder(files=files))
    assert "opt/zse/site-packages/extra.py" in paths
    assert not any("tool" in path or path.endswith(".h") for path in paths)


def test_pruned_paths_are_left_out(wheel_builder):
    wheel = wheel_builder(files={"demo/a.py": b"1", "demo/test/deep/b.py": b"2"})
    paths = contents(wheel, prune=["demo/test/*"])
    assert any(path.endswith("demo/a.py") for path in paths)
    assert not any("test" in path for path in paths)


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.py", "demo/../../outside.py"])
def test_members_outside_the_folder_are_refused(wheel_builder, path):
    with breaks(ImageRule.UNSAFE_ARCHIVE):
        contents(wheel_builder(files={path: b"bad"}))


def test_member_that_record_does_not_list_is_refused(wheel_builder):
    with breaks(ImageRule.UNSAFE_ARCHIVE, match="RECORD does not list"):
        contents(wheel_builder(unlisted={"demo/extra.py": b"bad"}))


def test_member_that_differs_from_record_is_refused(wheel_builder):
    wheel = wheel_builder(files={"demo/a.py": b"changed"}, record={"demo/a.py": b"original"})
    with breaks(ImageRule.WHEEL, match=r"demo/a\.py differs"):
        contents(wheel)


@pytest.mark.parametrize(
    "record", [b"\xff", b"a.py,sha256=!,1\n", b"a.py,sha256=A,1\n", b"a.py,,\n"]
)
def test_record_that_cannot_be_read_is_an_error_with_words(tmp_path, record):
    path = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.py", b"")
        archive.writestr("demo-1.dist-info/RECORD", record)
    with breaks(ImageRule.WHEEL, match="RECORD"):
        contents(path)


def test_large_member_is_checked_while_it_is_read(wheel_builder):
    data = os.urandom(5 << 20)
    good = wheel_builder("good", files={"good/big.so": data})
    assert contents(good)["opt/zse/site-packages/good/big.so"] == data
    bad = wheel_builder("bad", files={"bad/big.so": data}, record={"bad/big.so": b"other"})
    with breaks(ImageRule.WHEEL, match=r"big\.so differs"):
        contents(bad)


def test_something_else_than_a_wheel_is_refused(tmp_path):
    path = tmp_path / "x.whl"
    path.write_bytes(b"not a zip")
    with breaks(ImageRule.WHEEL, match="not a wheel"):
        contents(path)
