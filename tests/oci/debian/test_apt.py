from __future__ import annotations

import pytest

from zse.oci.debian.apt import find_mirrors, parse_paragraphs


@pytest.fixture
def apt_folder(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_one_line_sources_are_read(apt_folder):
    (apt_folder / "sources.list").write_text(
        "# deb http://old.example/debian x main\n"
        "deb-src http://source.example/debian bookworm main\n"
        "deb [ arch=amd64 signed-by=/x y=z ] http://one.example/debian/ bookworm main\n"
        "deb http://one.example/debian-security bookworm-security main\n"
    )
    mirrors = find_mirrors(apt_folder=apt_folder)
    assert mirrors.debian == "http://one.example/debian"
    assert mirrors.of("debian-security") == "http://one.example/debian-security"


def test_paragraph_sources_are_read(apt_folder):
    (apt_folder / "sources.list.d" / "off.sources").write_text(
        "Types: deb\nEnabled: no\nURIs: http://off.example/debian\n"
    )
    (apt_folder / "sources.list.d" / "on.sources").write_text(
        "# comment\nTypes: deb deb-src\nURIs: http://on.example/debian\nSuites: a b\n"
    )
    mirrors = find_mirrors(apt_folder=apt_folder)
    assert (mirrors.debian, mirrors.security) == ("http://on.example/debian", "")


def test_given_mirror_wins_and_has_its_security_archive_beside_it(apt_folder):
    mirrors = find_mirrors("http://mine.example/debian/", apt_folder=apt_folder)
    assert mirrors.debian == "http://mine.example/debian"
    assert mirrors.security == "http://mine.example/debian-security"


def test_host_that_is_not_debian_takes_debians_own_mirror(apt_folder):
    (apt_folder / "sources.list").write_text("deb http://x.example/ubuntu noble main\n")
    mirrors = find_mirrors(apt_folder=apt_folder)
    assert mirrors.of("debian") == "http://ftp.debian.org/debian"
    assert mirrors.of("debian-security") == "http://security.debian.org/debian-security"


def test_folded_lines_belong_to_their_key():
    assert parse_paragraphs("A: 1\nB:\n x y\n z\n\nA: 2\n") == [
        {"a": "1", "b": "\nx y\nz"},
        {"a": "2"},
    ]
