"""Licences of wheels and Debian packages, as their own files state them.

Names are turned into SPDX's where the meaning is certain; anything else is kept word for word and
never guessed at.
"""

from __future__ import annotations

import email
import re
import zipfile
from typing import TYPE_CHECKING

from zse.oci.debian.deb import read_deb_file
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_EXPRESSION = re.compile(r"[A-Za-z0-9.+\-() ]{1,200}")
_SPDX = (
    "Apache-2.0 BSD-2-Clause BSD-3-Clause BSD-4-Clause-UC BSL-1.0 CC0-1.0 curl ISC MIT MPL-2.0 "
    "PSF-2.0 X11 Zlib"
)
_SIMPLE = {
    **{name.lower(): name for name in _SPDX.split()},
    "apache 2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",
    "expat": "MIT",
    "gfdl-1.3": "GFDL-1.3-only",
    "gfdl-1.3+": "GFDL-1.3-or-later",
    "gpl-1+": "GPL-1.0-or-later",
    "gpl-2": "GPL-2.0-only",
    "gpl-2+": "GPL-2.0-or-later",
    "gpl-3": "GPL-3.0-only",
    "gpl-3+": "GPL-3.0-or-later",
    "isc license (iscl)": "ISC",
    "lgpl-2": "LGPL-2.0-only",
    "lgpl-2+": "LGPL-2.0-or-later",
    "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-2.1+": "LGPL-2.1-or-later",
    "lgpl-3": "LGPL-3.0-only",
    "lgpl-3+": "LGPL-3.0-or-later",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""Name in small letters -> SPDX's; ``bsd`` alone says too little."""


@record
class Licence:
    """What is known of a licence: an SPDX expression, or the words it was stated in."""

    expression: str = ""
    words: str = ""


def wheel_licence(wheel: Path) -> Licence:
    """Read a wheel's metadata: its expression, else its licence field, else its classifiers."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            fields = email.message_from_bytes(archive.read(name))
    except (OSError, StopIteration, zipfile.BadZipFile):
        return Licence()
    expression = str(fields.get("License-Expression") or "").strip()
    if _EXPRESSION.fullmatch(expression):
        return Licence(expression=expression)
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in fields.get_all("Classifier", [])
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    stated = str(fields.get("License") or "").strip()
    short = [stated] if stated and "\n" not in stated and len(stated) < 100 else []
    return _licence(short or classifiers)


def debian_licence(package: Path, name: str) -> Licence:
    """Read the machine-readable copyright file of a Debian package, where it has one."""
    data = read_deb_file(package, f"usr/share/doc/{name}/copyright")
    text = data.decode(errors="replace")
    if not text.startswith("Format:"):
        return Licence()
    lines = sorted(set(re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)))
    found = [_debian_expression(line) for line in lines]
    if all(found):
        return Licence(expression=" AND ".join(dict.fromkeys(found)))
    return Licence(words="; ".join(lines))


def _debian_expression(line: str) -> str:
    """Translate ``A, B and C`` or ``A or B``; nothing when a name is not known for certain."""
    groups = []
    for part in re.split(r"\s+and\s+|,", line):
        if not part.strip():
            continue
        known = [_SIMPLE.get(word.strip().lower(), "") for word in re.split(r"\s+or\s+", part)]
        if not all(known):
            return ""
        groups.append(f"({' OR '.join(known)})" if len(known) > 1 else known[0])
    return " AND ".join(groups)


def _licence(names: Iterable[str]) -> Licence:
    """Turn names, any of which applies, into an expression when all are known; else keep them."""
    words = list(dict.fromkeys(names))
    known = [_SIMPLE.get(word.lower(), "") for word in words]
    if known and all(known):
        return Licence(expression=" OR ".join(dict.fromkeys(known)))
    return Licence(words=", ".join(words))
