"""What a version of zse writes, kept for all later ones: `released/<version>` holds it.

`scripts/update_golden.py` adds the folder of the version it runs in, once. What stands in a kept
folder never changes: SHA256SUMS says what it was, samples.json what is read from it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import small_file

import zse
from zse.format import ZSEReader
from zse.serve.access.key_file import KeyFile
from zse.serve.access.keys import ApiKey, digest_of
from zse.serve.audit.entry import AuditEntry, encode_line

RELEASED = Path(__file__).parent / "released"
SECRET = b"zse-kept-sample-of-a-key-that-opens-nothing"
SUMS, SAMPLES = "SHA256SUMS", "samples.json"


def keep(root: Path = RELEASED) -> Path | None:
    """Write the folder of this version; None where it is there already, which is left as it is."""
    folder = root / zse.__version__
    if folder.exists():
        return None
    beside = root / f".{zse.__version__}"
    beside.mkdir(parents=True)
    _write(beside)
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in files_of(beside)]
    (beside / SUMS).write_text("\n".join(sums) + "\n")
    beside.rename(folder)
    return folder


def files_of(folder: Path) -> list[Path]:
    """Return what a folder keeps, without the list of it and locks."""
    return [p for p in sorted(folder.iterdir()) if p.name != SUMS and not p.name.startswith(".")]


def numbers_of(path: Path) -> dict[str, str]:
    """Return, for each tensor of a .zse file, the SHA-256 of its values as float32."""
    from zse.format.as_torch import dequantize, tensor_from

    found = {}
    with ZSEReader(path) as reader:
        for entry in reader.header.tensors:
            parts = {p.role: tensor_from(reader.part(entry.name, p.role), p) for p in entry.parts}
            values = dequantize(entry, parts).float().contiguous()
            found[entry.name] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
            del parts, values
    return found


def _write(folder: Path) -> None:
    path = folder / "small.zse"
    small_file.write(path)
    samples: dict[str, Any] = {
        "numbers": numbers_of(path),
        "schemes": sorted(t.scheme.value for _, group in small_file.GROUPS for t in group),
        "pack": _write_pack(folder / "sm_90.zkp"),
        "key": {"name": "app", "scope": "inference", "rate_limit": 60},
    }
    (folder / "small.zse.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    key_id = digest_of(SECRET)[:16]
    KeyFile(folder / "api_keys.json").add(
        ApiKey(name="app", key_id=key_id, sha256=digest_of(SECRET), created=1, rate_limit=60)
    )
    (folder / ".api_keys.json.lock").unlink(missing_ok=True)
    entry = AuditEntry(
        request_id="req-1",
        timestamp="2026-11-23T07:00:00.000Z",
        method="POST",
        path="/v1/chat/completions",
        status_code=200,
        latency_ms=12.5,
        api_key_name="app",
        client_ip="192.0.2.1",
        user_agent="curl/8",
        model_id="tiny",
        total_tokens=21,
    )
    (folder / "audit.jsonl").write_bytes(encode_line(entry))
    (folder / SAMPLES).write_text(json.dumps(samples, indent=1) + "\n")


def _write_pack(path: Path) -> list[str]:
    sys.path.append(str(Path(__file__).parents[1] / "support"))
    from sample_packs import sample_pack

    from zse.kernels.pack import KernelPack

    path.write_bytes(sample_pack(provenance={"zse": zse.__version__}))
    return sorted(KernelPack.open(path.read_bytes()))
