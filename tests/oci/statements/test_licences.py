from __future__ import annotations

import pytest
from oci_builders import make_deb, make_wheel

from zse.oci.statements.licences import debian_licence, wheel_licence


def wheel_with(folder, lines: str):
    text = f"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n{lines}"
    return make_wheel(folder, metadata=text.encode())


@pytest.mark.parametrize(
    ("lines", "expression", "words"),
    [
        ("License-Expression: MIT OR Apache-2.0\n", "MIT OR Apache-2.0", ""),
        ("License: Apache 2.0\n", "Apache-2.0", ""),
        ("Classifier: License :: OSI Approved :: MIT License\n", "MIT", ""),
        ("License: My own words\n", "", "My own words"),
        ("Classifier: License :: OSI Approved\n", "", ""),
        ("", "", ""),
    ],
)
def test_licence_of_a_wheel_is_what_its_metadata_says(tmp_path, lines, expression, words):
    found = wheel_licence(wheel_with(tmp_path, lines))
    assert (found.expression, found.words) == (expression, words)


@pytest.mark.parametrize(
    ("text", "expression", "words"),
    [
        ("Format: x\n\nFiles: *\nLicense: Expat\n", "MIT", ""),
        ("Format: x\n\nLicense: GPL-2+ or Artistic\n\nLicense: Zlib\n",
         "(GPL-2.0-or-later OR Artistic-1.0-Perl) AND Zlib", ""),
        ("Format: x\n\nLicense: custom\n", "", "custom"),
        ("Some prose.\n", "", ""),
    ],
)  # fmt: skip
def test_licence_of_a_debian_package_is_what_its_copyright_says(tmp_path, text, expression, words):
    path = tmp_path / "demo.deb"
    path.write_bytes(make_deb({"usr/share/doc/demo/copyright": text.encode()}))
    found = debian_licence(path, "demo")
    assert (found.expression, found.words) == (expression, words)


def test_package_without_a_copyright_file_has_no_licence(tmp_path):
    path = tmp_path / "demo.deb"
    path.write_bytes(make_deb({"usr/bin/x": b""}))
    assert debian_licence(path, "demo").expression == ""
