"""The bytes of a file never change by accident, and SPEC.md is enough to read them."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from pathlib import Path

import small_file

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def test_small_file_has_the_golden_bytes(small_path: Path) -> None:
    golden = gzip.decompress((GOLDEN / "small.zse.gz").read_bytes())
    written = small_path.read_bytes()
    assert hashlib.sha256(written).hexdigest() == (GOLDEN / "small.zse.sha256").read_text().strip()
    assert written == golden, "the format changed; if on purpose, run scripts/update_golden.py"


def test_golden_file_can_be_read_with_struct_and_json_alone() -> None:
    data = gzip.decompress((GOLDEN / "small.zse.gz").read_bytes())
    magic, version, length, digest, reserved = struct.unpack("<4sIQ32s16s", data[:64])
    assert (magic, version, reserved) == (b"ZSE\0", 1, bytes(16))
    raw = data[64 : 64 + length]
    assert hashlib.sha256(raw).digest() == digest
    header = json.loads(raw)
    assert (
        raw
        == json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    )
    assert header["model_config"] == small_file.MODEL_CONFIG
    for section in header["sections"]:
        body = data[section["offset"] : section["offset"] + section["length"]]
        assert section["offset"] % 4096 == 0
        assert body == small_file.SECTIONS[section["name"]]
        assert hashlib.sha256(body).hexdigest() == section["sha256"]
    assert header["groups"][0]["offset"] % (2 << 20) == 0
    for group in header["groups"]:
        body = data[group["offset"] : group["offset"] + group["length"]]
        assert group["length"] % 4096 == 0
        assert hashlib.sha256(body).hexdigest() == group["sha256"]
    assert len(data) == header["groups"][-1]["offset"] + header["groups"][-1]["length"]


def test_int4_nibbles_and_scales_lie_where_the_specification_says() -> None:
    data = gzip.decompress((GOLDEN / "small.zse.gz").read_bytes())
    header = json.loads(data[64 : 64 + struct.unpack_from("<Q", data, 8)[0]])
    entry = next(t for t in header["tensors"] if t["scheme"] == "int4")
    packed, scales = (data[p["offset"] : p["offset"] + p["length"]] for p in entry["parts"])
    rows, columns = entry["shape"]
    group = entry["group_size"]
    weights = []
    for row in range(rows):
        for column in range(columns):
            number, inside = divmod(column, group)
            byte = packed[row * columns // 2 + number * group // 2 + inside % (group // 2)]
            code = byte & 15 if inside < group // 2 else byte >> 4
            pair = 4 * (row * (columns // group) + number)
            scale, minus_zero = struct.unpack_from("<ee", scales, pair)
            weights.append(code * scale + minus_zero)
    from zse.format.as_torch import dequantize, tensor_from
    from zse.format.spec import TensorEntry

    tensor = TensorEntry.from_json(entry)
    views = {
        part.role: tensor_from(raw, part)
        for part, raw in zip(tensor.parts, (packed, scales), strict=True)
    }
    assert dequantize(tensor, views).flatten().tolist() == weights


def test_specification_names_every_rule() -> None:
    import zse.format
    from zse.format.errors import Rule

    text = (Path(zse.format.__file__).parent / "SPEC.md").read_text(encoding="utf-8")
    assert {rule for rule in Rule if f"`{rule}`" not in text} == set()
