"""A small image of fixed inputs: its digests are recorded in small_image.json.

Tests build it again, `scripts/update_golden.py` records it. The wheel is stored, not deflated, and
no byte code goes in, so that nothing but the builder decides a byte.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

from zse.oci.image.build import build_image
from zse.oci.image.options import BuildOptions
from zse.oci.layout.layer import Compression
from zse.oci.recipe import load_recipe

if TYPE_CHECKING:
    from pathlib import Path

_FACTS = {"name": "made for tests", "version": "1", "quantization": "int4"}
_RECIPE = """
name = "golden"
python = "3.11"
base = "debian:bookworm"
entrypoint = ["python3", "/opt/zse/boot.py"]
[files]
"opt/zse/boot.py" = "boot.py"
[code]
exclude = ["*"]
[wheels]
requirements = ["demo==1.0"]
[kernels]
gpu = ["sm_90"]
"""


def digests(folder: Path) -> dict[str, object]:
    """Build the image with every compression that no other library decides; return its digests."""
    recipe = _inputs(folder)
    found: dict[str, object] = {}
    for compression in (Compression.ZSTD, Compression.NONE):
        built = build_image(
            load_recipe(recipe),
            BuildOptions(
                name="golden:1",
                cache_dir=folder / "cache",
                model=folder / "model.zse",
                model_facts=_FACTS,
                kernels={"sm_90": folder / "sm_90.zkp"},
                base=f"rootfs:{folder / 'base.tar'}",
                output=f"oci:{folder / compression.value}",
                compression=compression,
            ),
            lambda _: None,
        )
        layers = {layer.comment: [layer.digest, layer.diff_id] for layer in built.layers}
        found[compression.value] = {"image": built.digest, "layers": layers}
    return found


def _inputs(folder: Path) -> Path:
    """Write what goes in; return the recipe's folder."""
    recipe = folder / "recipe"
    recipe.mkdir(parents=True)
    (recipe / "image.toml").write_text(_RECIPE)
    (recipe / "boot.py").write_bytes(b"print('boot')\n")
    wheel, name = _wheel(), "demo-1.0-py3-none-any.whl"
    digest = hashlib.sha256(wheel).hexdigest()
    (recipe / "wheels.amd64.lock").write_text(
        f'[[wheel]]\nname = "demo"\nversion = "1.0"\nfile = "{name}"\nsha256 = "{digest}"\n'
    )
    kept = folder / "cache" / "downloads" / "wheels" / digest
    kept.mkdir(parents=True)
    (kept / name).write_bytes(wheel)
    (folder / "model.zse").write_bytes(bytes(range(256)) * 40)
    (folder / "sm_90.zkp").write_bytes(b"pack" * 1000)
    with tarfile.open(folder / "base.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        # 4.5 MB: how many threads compress shows only beyond the first jobs that they are given.
        text = _text(400_000)
        header = tarfile.TarInfo("usr/share/text")
        header.size = len(text)
        archive.addfile(header, io.BytesIO(text))
    return recipe


def _text(words: int) -> bytes:
    """Return words that compress badly, always the same."""
    state, found = 1, []
    for number in range(words):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(b"%d word%d " % (number % 100, state >> 20))
    return b"".join(found)


def _wheel() -> bytes:
    info = "demo-1.0.dist-info"
    files = {
        "demo/__init__.py": b"VALUE = 1\n",
        "demo/text.txt": _text(1000),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_urlsafe(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return buffer.getvalue()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
