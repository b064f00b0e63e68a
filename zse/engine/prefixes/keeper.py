"""Brings prefixes at a start and keeps them at the end. Nothing that goes wrong here stops either.

What lies in files is read and checked by a thread while the weights are on their way; into the
pool it goes when that is there, before the first request. A prefix that is not exactly what this
model would compute here is left out, with a warning that says why.
"""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.engine.prefixes.binding import binding_of, check_can_save
from zse.engine.prefixes.restoring import restore
from zse.errors import ZSEError
from zse.kv.prefix_pack import PrefixPack, check_chunk
from zse.records import record

if TYPE_CHECKING:
    from zse.engine.core import EngineCore
    from zse.engine.prefixes.store import PrefixStore
    from zse.format.model_file import ModelFile
    from zse.kv.prefix_pack import PrefixBinding
    from zse.options import LoadOptions
    from zse.settings import Settings

SECTIONS = "prefixes/"
"""How the names of sections begin that hold prefixes: ``prefixes/NAME/LAYOUT``."""
_LOG = logging.getLogger("zse.engine")
_CHECK_THREADS = 8


@record
class _Found:
    """A pack whose bytes were checked."""

    where: str
    origin: str
    """``file`` or ``store``."""
    pack: PrefixPack


class PrefixKeeper:
    """The prefixes of one model, from its opening to its end.

    Args:
        reader: The model's file.
        device_kind: ``cpu``, ``gpu`` or ``torch``: what prefixes of the file have to be of.

    Raises:
        UsageError: The store or its key cannot be what was named.
    """

    def __init__(
        self, reader: ModelFile, options: LoadOptions, settings: Settings, *, device_kind: str
    ) -> None:
        self._reader = reader
        self._options = options
        self._kind = device_kind
        cache = options.cache
        self._key = b""
        self._store: PrefixStore | None = None
        if cache.prefix_key_file:
            from zse.engine.prefixes.cipher import read_key

            self._key = read_key(cache.prefix_key_file)
        if cache.prefix_store:
            from zse.engine.prefixes.store import open_store

            self._store = open_store(cache.prefix_store, settings, cache.prefix_store_bytes)
        pool = ThreadPoolExecutor(1, "zse-prefixes")
        self._of_file: Future[list[_Found]] = pool.submit(self._read_sections)
        pool.shutdown(wait=False)

    def bring(self, core: EngineCore) -> None:
        """Put what fits into the engine's cache, and have it kept when the engine is closed."""
        found = self._of_file.result()
        try:
            check_can_save(core)
        except ZSEError as error:
            _LOG.warning("%s", error, extra={"hint": error.hint})
            return
        binding = binding_of(self._reader.header, core.runner, self._options.device)
        for one in (*found, *self._read_store(binding)):
            self._restore(core, binding, one)
        if self._store is not None:
            core.parting = lambda: self._keep(core, binding)

    def _restore(self, core: EngineCore, binding: PrefixBinding, found: _Found) -> None:
        obstacle = binding.obstacle(found.pack.binding)
        if obstacle:
            is_of_others = found.origin == "file" and binding.layout != found.pack.binding.layout
            level = logging.INFO if is_of_others else logging.WARNING
            _LOG.log(level, "the prefixes of %s are not used: %s", found.where, obstacle)
            return
        started = time.perf_counter()
        restored = restore(core, found.pack, found.origin)
        figures = {
            "from": found.where,
            "prefixes": restored.num_prefixes,
            "tokens": restored.num_tokens,
            "left_out": restored.num_left_out,
            "ms": round(1000 * (time.perf_counter() - started), 1),
        }
        _LOG.info("prefixes are back", extra=figures)

    # --- reading --------------------------------------------------------------------------------

    def _read_sections(self) -> list[_Found]:
        """Read the file's prefixes of this kind of device."""
        found = []
        for section in self._reader.header.sections:
            layout = section.name.rpartition("/")[2]
            if section.name.startswith(SECTIONS) and layout.startswith(self._kind):
                where = f"{section.name} of {self._reader.path}"
                try:
                    data = self._reader.section(section.name)
                    found.append(_checked(where, "file", data))
                except (ZSEError, OSError) as error:
                    _LOG.warning("the prefixes of %s are not used: %s", where, error)
        return found

    def _read_store(self, binding: PrefixBinding) -> list[_Found]:
        if self._store is None:
            return []
        from zse.engine.prefixes.store import name_of

        where = f"{self._options.cache.prefix_store} ({name_of(binding)})"
        try:
            data = self._store.read(name_of(binding))
            return [] if data is None else [_checked(where, "store", self._plain(data))]
        except (ZSEError, OSError) as error:
            _LOG.warning("the prefixes of %s are not used: %s", where, error)
            return []

    def _plain(self, data: memoryview) -> memoryview:
        from zse.engine.prefixes.cipher import UnreadablePrefixesError, decrypted, is_encrypted

        if self._key:
            return memoryview(decrypted(data, self._key))
        if is_encrypted(data):
            raise UnreadablePrefixesError("it is encrypted, and no key was given")
        return data

    # --- keeping --------------------------------------------------------------------------------

    def _keep(self, core: EngineCore, binding: PrefixBinding) -> None:
        from zse.engine.prefixes.saving import hot_runs, packed
        from zse.engine.prefixes.store import name_of

        assert self._store is not None
        started = time.perf_counter()
        try:
            runs = hot_runs(core, binding, self._options.cache.prefix_store_bytes)
            if not runs:
                return
            pieces = packed(core, binding, runs)
            if self._key:
                from zse.engine.prefixes.cipher import encrypted

                pieces = encrypted(pieces, self._key)
            count = self._store.write(name_of(binding), pieces)
        except (ZSEError, OSError) as error:
            _LOG.warning("prefixes are not kept: %s", error)
            return
        figures = {
            "at": self._options.cache.prefix_store,
            "tokens": sum(len(run.token_ids) for run in runs),
            "bytes": count,
            "ms": round(1000 * (time.perf_counter() - started), 1),
        }
        _LOG.info("prefixes are kept", extra=figures)


def _checked(where: str, origin: str, data: memoryview) -> _Found:
    """Return a pack all of whose bytes have their digests; several threads look at them."""
    pack = PrefixPack(data)
    chunks = [chunk for index in range(len(pack.runs)) for chunk in pack.chunks(index)]
    if len(chunks) > 1:
        with ThreadPoolExecutor(min(_CHECK_THREADS, os.cpu_count() or 1), "zse-prefixes") as pool:
            list(pool.map(lambda chunk: check_chunk(*chunk), chunks))
    else:
        for chunk in chunks:
            check_chunk(*chunk)
    return _Found(where=where, origin=origin, pack=pack)
