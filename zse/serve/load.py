"""From a model's name to a model that answers, phase by phase, in the boot thread."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from zse import __version__
from zse.backends import preload
from zse.engine.request import SET_BY_MODEL, SamplingParams
from zse.errors import InvalidParameterError, TemplateError
from zse.serve.state import LoadedModel
from zse.text.dialect import detect_dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from zse.backends.adapters import AdapterWeights
    from zse.engine.async_engine import AsyncEngine
    from zse.engine.loading import LoadedModel as EngineModel
    from zse.engine.opening import OpenedModel
    from zse.format.model_file import ModelFile
    from zse.models.runner import ModelRunner
    from zse.models.spec import ModelSpec
    from zse.serve.head_start import HeadStart
    from zse.serve.progress import LoadProgress
    from zse.serve.text_cache import TextCache
    from zse.server_options import ServeOptions
    from zse.settings import Settings
    from zse.text.dialect import Dialect
    from zse.text.template import ChatTemplate
    from zse.text.tokenizer import Tokenizer

LOG = logging.getLogger("zse.serve")
_MORE_ADAPTERS = 8
"""That a GPU has room for where adapters may be loaded over the API."""


def load_served_model(
    settings: Settings,
    progress: LoadProgress,
    head_start: HeadStart,
    text_cache: TextCache | None = None,
) -> LoadedModel:
    """Load the model that is being opened, and tell of each phase; all of it is there then.

    A tokenizer and a template that are cached are not made again.

    Raises:
        ZSEError: The model is missing, damaged or does not fit the device.
    """
    model = begin_served_model(settings, progress, head_start, text_cache)
    try:
        model.settle()
    except BaseException:
        model.close()
        raise
    return model


def begin_served_model(
    settings: Settings,
    progress: LoadProgress,
    head_start: HeadStart,
    text_cache: TextCache | None = None,
) -> LoadedModel:
    """Do what ``load_served_model`` does, but for the weights that are still on their way.

    Requests can be taken already: they compute with what is there.
    """
    options = settings.serve
    with progress.enter("imports"):
        from zse.engine.async_engine import AsyncEngine
        from zse.engine.inbox import UnreadBounds
        from zse.engine.loading import FileReading, begin_model

        preload(options.load.device)
    with progress.enter("weights"), ThreadPoolExecutor(1, "zse-template") as beside:
        progress.phase = "model-file"  # which a conversion or a download comes before
        reader, phases = head_start.file(), progress.ledger.phase
        # The GPU is still being opened: whatever needs only the file is done now, since Python is
        # slower beside the threads that load.
        tokenizer = None if text_cache is None else text_cache.tokenizer(reader)
        template = None if text_cache is None else text_cache.template(reader)
        compiling = None if template is not None else beside.submit(template_of, reader)
        reading = FileReading(reader, phases, tokenizer, head_start.known_spec)
        preload(options.load.device, reading.spec)
        name = options.served_model_name or model_name_of(options.model)
        adapters = _adapters_of(options, name, reading.spec)
        opened = head_start.take()
        progress.phase = "weights"
        _tell(opened, progress)
        loaded = begin_model(
            opened,
            options.load,
            settings,
            reading=reading,
            phases=phases,
            num_adapters=len(adapters) + _MORE_ADAPTERS * bool(options.adapter_places),
            runner_of=_mesh_of(settings),
        )
        if compiling is not None:
            template = compiling.result()
    with progress.enter("engine"):
        if options.telemetry.trace_steps:
            _trace_steps(loaded, options.telemetry.trace_steps, name)
        engine = AsyncEngine(
            loaded.core, loaded.tokenizer, unread=UnreadBounds(each=options.max_unread)
        )
        if opened.ranks is not None:
            opened.ranks.group.when_failed(engine.fail)
        try:
            for weights, folder in adapters:
                engine.adapters(options.load.lora).add(weights, folder)
        except BaseException:
            engine.close()
            loaded.reader.close()
            raise
    return _served(name, engine, loaded, template, options)


def _trace_steps(loaded: EngineModel, path: str, name: str) -> None:
    """Have a line written for each step; an encoder has none that follow each other."""
    from zse.engine.core import EngineCore
    from zse.engine.step_trace import open_step_trace

    if not isinstance(loaded.core, EngineCore):
        LOG.warning("steps of an encoder are not traced", extra={"model": name})
        return
    try:
        loaded.core.trace_steps(open_step_trace(path, name))
    except BaseException:
        loaded.core.close()
        loaded.reader.close()
        raise


def _mesh_of(settings: Settings) -> Callable[[ModelFile], ModelRunner] | None:
    """Return what lets the nodes of a mesh compute; None where this machine does."""
    if not settings.serve.mesh.mesh:
        return None
    from zse.serve.meshed import mesh_runner

    return partial(mesh_runner, settings)


def _served(
    name: str,
    engine: AsyncEngine,
    loaded: EngineModel,
    template: ChatTemplate | None,
    options: ServeOptions,
) -> LoadedModel:
    """Put together what answers, and what is told of it."""
    return LoadedModel(
        name=name,
        engine=engine,
        tokenizer=loaded.tokenizer,
        template=template,
        max_context=loaded.core.capacity_tokens,
        vocab_size=loaded.core.runner.vocab_size,
        fingerprint=_fingerprint(loaded),
        created=int(time.time()),
        vector_size=loaded.core.runner.spec.hidden_size,
        spec=loaded.core.runner.spec,
        sampling_defaults=sampling_defaults(loaded.reader),
        dialect=dialect_of(template, loaded.tokenizer, options),
        details={**_facts_of(loaded.reader), "device": str(loaded.device)},
        resources=(loaded.reader,),
    )


def _adapters_of(
    options: ServeOptions, name: str, spec: ModelSpec
) -> list[tuple[AdapterWeights, Path]]:
    """Read the adapters that were asked for: what is wrong is told before weights move."""
    if not options.loras:
        return []
    from zse.serve.adapters import read_for_start

    return read_for_start(options, name, spec)


def _tell(opened: OpenedModel, progress: LoadProgress) -> None:
    """Say what is being loaded, and where to look how far it is."""
    target = "the CPU"
    if opened.arrival is not None:
        target = opened.arrival.gpu.info.name
        progress.ledger.watch("weights", opened.arrival.num_bytes)
    model = {"model": str(opened.reader.path), "target": target}
    LOG.info("model opened", extra={**model, **_facts_of(opened.reader)})


def _facts_of(reader: ModelFile) -> dict[str, object]:
    header, size = reader.header, reader.size_bytes
    return {"architecture": header.architecture, "scheme": header.main_scheme, "file_bytes": size}


def template_of(reader: ModelFile) -> ChatTemplate | None:
    from zse.text.template import load_chat_template

    try:
        return load_chat_template(reader)
    except TemplateError as error:  # of a base model, or one that cannot be trusted
        LOG.warning("chat is not served: %s", error, extra={"hint": error.hint})
        return None


def dialect_of(
    template: ChatTemplate | None, tokenizer: Tokenizer, options: ServeOptions
) -> Dialect:
    return detect_dialect(
        template.source if template else "",
        tokenizer.facts.added,
        calls=options.tool_parser,
        reasoning=options.reasoning_parser,
    )


def model_name_of(model: str) -> str:
    """Return the public name: a hub id as it is, of a path the last part without ``.zse``."""
    name = model.rstrip("/")
    if name.endswith(".zse") or name.startswith((".", "/", "~")) or "://" in name:
        name = name.rpartition("/")[2]
    return name.removesuffix(".zse") or "model"


def _fingerprint(loaded: EngineModel) -> str:
    """Hash what decides an answer besides the request: weights, quantization, template, code."""
    header = loaded.reader.header
    digest = hashlib.sha256(__version__.encode())
    for part in (*header.groups, *header.sections):
        digest.update(f"{part.name}:{part.sha256};".encode())
    return f"zse-{digest.hexdigest()[:16]}"


def sampling_defaults(reader: ModelFile) -> Mapping[str, float]:
    """Read the model's own sampling defaults; ``do_sample: false`` there means greedy."""
    if not reader.has_section("generation_config.json"):
        return {}
    try:
        config = json.loads(bytes(reader.section("generation_config.json")))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(config, dict):
        return {}
    if config.get("do_sample") is False:
        return {"temperature": 0.0}
    given = {name: config[name] for name in SET_BY_MODEL if config.get(name) is not None}
    usable = {name: value for name, value in given.items() if _is_usable(name, value)}
    if len(usable) < len(given):
        left_out = {name: value for name, value in given.items() if name not in usable}
        LOG.warning("sampling defaults without meaning are left out", extra={"values": left_out})
    return usable


def _is_usable(name: str, value: object) -> bool:
    """Whether a request may be answered with it: the file can say anything."""
    if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else (int, float)):
        return False
    try:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    except InvalidParameterError:
        return False
    return True
