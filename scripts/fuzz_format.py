"""Feed damaged .zse files, kernel packs and prefix packs to their readers until the time is up.

Anything but the error of a broken rule is a bug. Rounds take turns; all are the same container.

    .venv/bin/python scripts/fuzz_format.py [--minutes 5] [--start 0]

Each round is made from its number alone, so a failure is repeated with `--start N --rounds 1`. The
offending file is kept. Header damage is sealed again with a right digest, or nothing behind the
digest would ever be reached.
"""

from __future__ import annotations

import argparse
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
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "golden"), str(ROOT / "tests" / "support")]

import sample_packs  # noqa: E402
import small_file  # noqa: E402

from zse.errors import FormatError  # noqa: E402
from zse.format import spec  # noqa: E402
from zse.format.container import PREFIX_BYTES, Container  # noqa: E402
from zse.format.reader import ZSEReader  # noqa: E402
from zse.kernels import pack_header  # noqa: E402
from zse.kernels.errors import KernelPackError  # noqa: E402
from zse.kernels.pack import KernelPack  # noqa: E402
from zse.kv import prefix_pack  # noqa: E402
from zse.kv.prefix_pack import PrefixPack  # noqa: E402
from zse.kv.prefix_pack_writer import RunToSave, pack_bytes  # noqa: E402

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


def build(data: bytes, number: int, container: Container) -> bytes:
    """Return the damaged file of one round."""
    choose = random.Random(number)
    kind = choose.randrange(3)
    if kind == 0:
        return damage_bytes(data, choose)
    length = struct.unpack_from("<Q", data, 8)[0]
    end = PREFIX_BYTES + length
    rest = end + len(data[end:]) - len(data[end:].lstrip(b"\0"))
    damage = damage_header_text if kind == 1 else damage_header_values
    raw = damage(data[PREFIX_BYTES:end], choose)
    return container.seal(raw).ljust(rest, b"\0") + data[rest:]


def try_file(path: Path) -> str:
    """Open, verify and read everything; return how it ended."""
    try:
        with ZSEReader(path) as reader:
            for entry in reader.header.tensors:
                for part in entry.parts:
                    assert len(reader.part(entry.name, part.role)) == part.length_bytes
            reader.verify()
    except FormatError as error:
        return f"zse: {error.rule}"
    return "zse: accepted"


def try_pack(path: Path) -> str:
    """Open and verify a pack; return how it ended."""
    try:
        KernelPack.open(path).verify()
    except KernelPackError as error:
        return f"pack: {error.rule}"
    return "pack: accepted"


def sample_prefixes() -> bytes:
    """Return a pack of two runs, of a model with a window."""
    binding = prefix_pack.PrefixBinding(
        model="ab" * 32,
        layout="cpu1-fp16-8-0123456789abcdef",
        block_size=8,
        block_bytes=(1000, 30),
        computed_by="AVX2",
        is_deterministic=True,
        zse="0.1",
    )
    runs = [
        RunToSave(token_ids=range(16), blocks=[4, 5], windows=[[1]], name="system"),
        RunToSave(token_ids=range(8), blocks=[7], windows=[[]], parent=0, salt="ann"),
    ]
    sizes = binding.block_bytes
    return b"".join(
        pack_bytes(binding, runs, lambda group, blocks: bytes(sizes[group] * len(blocks)))
    )


def try_prefixes(path: Path) -> str:
    """Open a pack of prefixes and read everything; return how it ended."""
    try:
        pack = PrefixPack(memoryview(path.read_bytes()))
        for index, run in enumerate(pack.runs):
            pack.check(index)
            assert len(pack.token_ids(index)) == run.num_blocks * pack.binding.block_size
            assert pack.path(index)[-1] == index
    except FormatError as error:
        return f"prefixes: {error.rule}"
    return "prefixes: accepted"


def main() -> int:
    """Run rounds; return 1 at the first one that ends in anything but a broken rule."""
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
        kinds = (
            (path.read_bytes(), spec.CONTAINER, try_file),
            (sample_packs.sample_pack(), pack_header.CONTAINER, try_pack),
            (sample_prefixes(), prefix_pack.CONTAINER, try_prefixes),
        )
        while time.monotonic() < until and (
            not options.rounds or number < options.start + options.rounds
        ):
            data, container, attempt = kinds[number % len(kinds)]
            path.write_bytes(build(data, number, container))
            try:
                ends[attempt(path)] += 1
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


if __name__ == "__main__":
    sys.exit(main())
