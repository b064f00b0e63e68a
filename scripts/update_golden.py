"""Record the golden file, image and plans again. Run it only when one changes on purpose.

The stored file is compressed because its tensor region starts at 2 MiB; its SHA-256 stands beside
it, so that a change shows in a diff. Of the image the digests are kept; they change with zse's
version, which its labels say, and with IMAGE_FORMAT, which every change of the bytes must raise.
What this version writes is added to released/, once; a folder that is there is never changed.
The built-in model's converted form is written anew as well.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
sys.path[:0] = [str(ROOT), str(GOLDEN)]

import plans_h200  # noqa: E402
import released_files  # noqa: E402
import small_file  # noqa: E402
import small_image  # noqa: E402

from zse.format import convert_model  # noqa: E402
from zse.models.builtin import BUILTIN_MODELS, BUILTIN_QUANTIZATION  # noqa: E402


def main() -> None:
    """Write small.zse.gz with its digest, small_image.json, plans_h200.json and the built-in."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.zse"
        small_file.write(path)
        data = path.read_bytes()
    (GOLDEN / "small.zse.gz").write_bytes(gzip.compress(data, mtime=0))
    digest = hashlib.sha256(data).hexdigest()
    (GOLDEN / "small.zse.sha256").write_text(f"{digest}\n", encoding="ascii")
    print(f"small.zse: {len(data)} bytes, SHA-256 {digest}")
    with tempfile.TemporaryDirectory() as folder:
        found = json.dumps(small_image.digests(Path(folder)), indent=2) + "\n"
    (GOLDEN / "small_image.json").write_text(found, encoding="ascii")
    print(found, end="")
    plans = json.dumps(plans_h200.plans(), indent=1) + "\n"
    (GOLDEN / "plans_h200.json").write_text(plans, encoding="ascii")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.zse"
        convert_model("tiny", path, quantization=BUILTIN_QUANTIZATION)
        ready = BUILTIN_MODELS["tiny"] / f"{BUILTIN_QUANTIZATION}.zse.gz"
        ready.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        print(f"{ready.name}: {ready.stat().st_size} bytes")
    kept = released_files.keep()
    print(f"kept: {kept}" if kept else "released: this version is kept already")


if __name__ == "__main__":
    main()
