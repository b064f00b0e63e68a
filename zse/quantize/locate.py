"""A .zse file for whatever the user names, fetched or converted once and kept.

This is what makes ``zse serve tiny`` or ``zse chat ./checkpoint`` work without a separate step.
A conversion's key is made of everything that decides the bytes, so the cache never holds a stale
file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zse import __version__
from zse.errors import needing
from zse.format.reader import ZSEReader as FileReader
from zse.format.spec import VERSION
from zse.models.builtin import BUILTIN_QUANTIZATION, ready_file
from zse.models.resolve import Builtin, LocalFile, OciFile, RemoteFile, resolve_model
from zse.models.storage import DEFAULT_QUANTIZATION, Storage
from zse.quantize.formats import quantization
from zse.quantize.source import Source, fingerprint, resolve_source
from zse.quantize.text_files import TextOptions
from zse.quantize.weight_files import read_json
from zse.settings import Settings, load_settings
from zse.store.cache import Cache
from zse.store.whole import write_whole

if TYPE_CHECKING:
    import os

StageProgress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done_bytes, total_bytes)``; a stage is ``fetch`` or ``convert``."""


def locate_model(
    model: str | Path,
    settings: Settings,
    *,
    quant: str | None = None,
    progress: StageProgress | None = None,
) -> Path:
    """Return the .zse file of a model, fetched or converted into the cache when need be.

    Processes that ask for one model at the same time fetch or convert it once: the others wait.
    The file stays until this process ends.

    Args:
        model: Anything ``resolve_model`` knows. What is behind an address is fetched, what is a
            checkpoint is converted.
        quant: As for ``convert_model``, but None means int8 for built-ins.

    Raises:
        UsageError: The address is malformed.
        NotFoundError: There is no such file or model.
        StoreError: The storage failed, or the bytes are not those that were stored.
        ZSEError: What ``convert_model`` raises.
    """
    named = resolve_model(model)
    notify = progress or (lambda _stage, _done, _total: None)
    if isinstance(named, LocalFile):
        return named.path
    if isinstance(named, OciFile):
        from zse.stream.oci import fetch_oci  # a registry's client, which few models need

        return fetch_oci(named.reference, settings, partial(notify, "fetch"))
    cache = Cache(settings)
    if isinstance(named, RemoteFile):
        return cache.fetch(named.location, partial(notify, "fetch"))
    is_builtin = isinstance(named, Builtin)
    quant = quant or (BUILTIN_QUANTIZATION if is_builtin else None)
    is_chosen = quant is not None
    quant = (quant or DEFAULT_QUANTIZATION).lower()
    options = Storage(quantization=quant)
    source = resolve_source(
        model, settings, check=TextOptions().check_names, progress=partial(notify, "fetch")
    )
    with closing(source):
        if not is_chosen and _is_quantized(source):
            options = replace(options, is_default=True)
        return _converted(source, cache, options, settings, notify)


def _converted(
    source: Source, cache: Cache, options: Storage, settings: Settings, notify: StageProgress
) -> Path:
    """Return a checkpoint as a file of the cache, converted unless it is there."""
    key = {
        "checkpoint": fingerprint(source.path),
        "name": source.name,
        "revision": source.revision,
        "format": VERSION,
        "tool": __version__,
        "options": options.to_json(),
        "is_default": options.is_default,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
    name, quant = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name), options.quantization

    def write(target: Path) -> None:
        ready = ready_file(source.name, source.path)
        if ready is not None and options == Storage(quantization=BUILTIN_QUANTIZATION):
            write_whole(target, gzip.decompress(ready.read_bytes()))
            return
        # A model that was converted before is found without torch.
        with needing("convert", f"converting {source.name}"):
            from zse.quantize.writing import Recipe, convert_source
        convert_source(
            source,
            target,
            Recipe(storage=options, threads=settings.serve.load.device.threads),
            resume=True,
            progress=lambda now: notify(now.stage, now.done_bytes, now.total_bytes),
        )

    return cache.make(f"{name}-{quant}-{digest}.zse", f"{source.name} as {quant}", write)


def _is_quantized(source: Source) -> bool:
    """Whether a checkpoint may have come quantized: a GGUF file, or by its config.json."""
    if source.folder is None:
        return True
    path = source.path / "config.json"
    return path.is_file() and quantization(read_json(path)) is not None


class ZSEReader(FileReader):
    """Random access to the file of a model. Use it as a context manager.

    Views and tensors taken from a reader stay valid after ``close``: they keep the mapping alive.

    Args:
        path: The file. A text that is no path of this machine may name any model, as in ``LLM``:
            what is behind an address is fetched, and a checkpoint converted, into the cache.

    Raises:
        NotFoundError: There is no such file or model, or it is a folder.
        UsageError: The file cannot be opened.
        FormatError: It breaks a rule of the format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if isinstance(path, str) and not Path(path).exists():
            path = locate_model(path, load_settings())
        super().__init__(path)
