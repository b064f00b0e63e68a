"""A .zse file for whatever the user names, converted once and kept.

This is what makes ``zse serve tiny`` or ``zse chat ./checkpoint`` work without a separate step.
The cache's key is made of everything that decides the bytes, so it never holds a stale file.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from typing import TYPE_CHECKING

from zse import __version__
from zse.errors import needing
from zse.format.spec import VERSION
from zse.models.resolve import Builtin, LocalFile, resolve_model
from zse.models.storage import Storage
from zse.quantize.source import fingerprint, resolve_source
from zse.quantize.text_files import TextOptions
from zse.settings import load_settings
from zse.store.cache import open_cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.quantize.report import ConversionProgress

# The built-in model is small enough that 8 bits cost nothing; it is the sure choice.
_BUILTIN_QUANTIZATION = "int8"
_OTHER_QUANTIZATION = "int4"


def ensure_zse(
    model: str | Path,
    *,
    quant: str | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[ConversionProgress], None] | None = None,
) -> Path:
    """Return the path of a .zse file for ``model``, converting into the cache when needed.

    Processes that ask for one model at the same time convert it once: the others wait.

    Args:
        model: A .zse file (returned as it is), a built-in's name, a checkpoint folder, a hub id.
        quant: As for ``convert_model``; None means int8 for built-ins, int4 for others.
        cache_dir: None means the one from the settings.
        progress: Called while converting.

    Raises:
        NotFoundError: There is no such model.
        ZSEError: What ``convert_model`` raises.
    """
    named = resolve_model(model)
    if isinstance(named, LocalFile):
        return named.path
    is_builtin = isinstance(named, Builtin)
    quant = quant or (_BUILTIN_QUANTIZATION if is_builtin else _OTHER_QUANTIZATION)
    quant = quant.lower()
    options = Storage(quantization=quant)
    source = resolve_source(model, check=TextOptions().check_names)
    key = {
        "checkpoint": fingerprint(source.folder),
        "name": source.name,
        "revision": source.revision,
        "format": VERSION,
        "tool": __version__,
        "options": options.to_json(),
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name)

    def write(target: Path) -> None:
        # By name: a model that was converted before is found without torch.
        with needing("convert", f"converting {source.name}"):
            convert_source = importlib.import_module("zse.quantize.convert").convert_source
        convert_source(source, target, options, resume=True, progress=progress)

    cache = open_cache(cache_dir or load_settings().cache_dir)
    return cache.make(f"{name}-{quant}-{digest}.zse", f"{source.name} as {quant}", write)
