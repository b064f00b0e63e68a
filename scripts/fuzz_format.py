"""Feed damaged files to the reader until the time is up; anything but a FormatError is a bug.

    .venv/bin/python scripts/fuzz_format.py [--minutes 5] [--start 0]

Each round is made from its number alone, so a failure is repeated with `--start N --rounds 1`. The
offending file is kept. Header damage is sealed again with a right digest, or nothing behind the
digest would ever be reached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "golden")]

import small_file  # noqa: E402

from zse.errors import FormatError  # noqa: E402
from zse.format.reader import ZSEReader  # noqa: E402

NUMBERS = (0, 1, -1, 63, 255, 256, 4095, 4096, 2**21, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30)
STRINGS = ("", ".", "..", "/", "a/../b", "\0", "\n", "é", "int4", "fp16", "u8", "f" * 64, "x" * 999)


def damage_bytes(data: bytes, choose: random.Random) -> bytes:
    """Flip, cut, insert or repeat raw bytes."""
    edited = bytearray(data)
    for _ in range(choose.randint(1, 8)):
        where = choose.randrange(min(len(edited), choose.choice((64, 6000, len(data)))) or 1)
        action = choose.randrange(4)
        if action == 0 and where < len(edited):
            edited[where] ^= 1 << choose.randrange(8)
        elif action == 1:
            del edited[where:]
        elif action == 2:
            edited[where:where] = choose.randbytes(choose.randint(1, 64))
        else:
            edited[where : where + 8] = struct.pack("<q", choose.choice((-1, 0, 1 << 40)))
        if not edited:
            break
    return bytes(edited)


def damage_header_text(raw: bytes, choose: random.Random) -> bytes:
    """Damage the header's JSON as text."""
    edited = bytearray(raw)
    for _ in range(choose.randint(1, 3)):
        where = choose.randrange(len(edited))
        edited[where : where + choose.randint(0, 3)] = choose.choice(
            (b"", b'"', b"[", b"{", b"}", b",", b"\\", b"\xff", b"-", b"9", b"e", b"null")
        )
    return bytes(edited)


def damage_header_values(raw: bytes, choose: random.Random) -> bytes:
    """Replace, remove or copy values anywhere in the header's JSON."""
    header = json.loads(raw)
    for _ in range(choose.randint(1, 4)):
        place: Any = header
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = choose.choice(keys)
            if isinstance(place[key], (dict, list)) and choose.random() < 0.85:
                place = place[key]
                continue
            _replace(place, key, choose)
            break
    return json.dumps(header).encode()


def _replace(place: Any, key: Any, choose: random.Random) -> None:
    value, action = place[key], choose.randrange(6)
    if action == 0:
        del place[key]
    elif action == 1 and isinstance(place, list):
        place.append(value)
    elif isinstance(value, int) and action < 5:
        place[key] = choose.choice(
            (value + choose.choice((-4096, -256, -1, 1, 256, 4096)), choose.choice(NUMBERS))
        )
    elif isinstance(value, str) and action < 5:
        place[key] = choose.choice(STRINGS)
    else:
        place[key] = choose.choice((None, True, 1.5, [], {}, "x", 7))


def build(data: bytes, number: int) -> bytes:
    """Return the damaged file of one round."""
    choose = random.Random(number)
    kind = choose.randrange(3)
    if kind == 0:
        return damage_bytes(data, choose)
    length = struct.unpack_from("<Q", data, 8)[0]
    damage = damage_header_text if kind == 1 else damage_header_values
    raw = damage(data[64 : 64 + length], choose)
    prefix = struct.pack("<4sIQ32s16x", b"ZSE\0", 1, len(raw), hashlib.sha256(raw).digest())
    return (prefix + raw).ljust(8192, b"\0") + data[8192:]


def try_file(path: Path) -> str:
    """Open, verify and read everything; return how it ended."""
    try:
        with ZSEReader(path) as reader:
            for entry in reader.header.tensors:
                for part in entry.parts:
                    assert len(reader.part(entry.name, part.role)) == part.length_bytes
            reader.verify()
    except FormatError as error:
        str(error)
        return type(error).__name__
    return "accepted"


def main() -> int:
    """Run rounds; return 1 at the first one that ends in anything but a FormatError."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=0, help="stop after so many (0: by time)")
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    ends: Counter[str] = Counter()
    until = time.monotonic() + 60 * options.minutes
    number = options.start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.zse"
        small_file.write(path)
        data = path.read_bytes()
        assert min(section["offset"] for section in _sections(data)) == 8192
        while time.monotonic() < until and (
            not options.rounds or number < options.start + options.rounds
        ):
            path.write_bytes(build(data, number))
            try:
                ends[try_file(path)] += 1
            except Exception as error:  # noqa: BLE001
                kept = Path(tempfile.gettempdir()) / f"zse-fuzz-{number}.zse"
                kept.write_bytes(path.read_bytes())
                print(f"round {number}: {type(error).__name__}: {error}; kept as {kept}")
                return 1
            number += 1
    for name, count in ends.most_common():
        print(f"{count:8} {name}")
    print(json.dumps({"rounds": number - options.start, "classes": len(ends)}))
    return 0


def _sections(data: bytes) -> list[dict[str, int]]:
    length = struct.unpack_from("<Q", data, 8)[0]
    sections: list[dict[str, int]] = json.loads(data[64 : 64 + length])["sections"]
    return sections


if __name__ == "__main__":
    sys.exit(main())
