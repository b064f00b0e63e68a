"""A model: whether it is there, whole, fits, and can be spoken with."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from zse.device.open import cuda_driver_present
from zse.device.probe import probe
from zse.device.survey import survey_cuda
from zse.doctor.findings import Findings, fine, note, problem
from zse.engine.ranks.devices import named_gpus
from zse.engine.requirements import facts_of, facts_of_file, read_facts
from zse.errors import TemplateError, UnsupportedModelError, UsageError
from zse.format.reader import ZSEReader
from zse.models.rank_memory import estimate_rank
from zse.models.resolve import (
    Builtin,
    LocalFile,
    OciFile,
    RemoteFile,
    resolve_model,
)
from zse.models.streaming_memory import least_streaming_bytes
from zse.stream.opening import open_remote
from zse.text.template import load_chat_template
from zse.text.tokenizer import NoTokenizerError, check_tokenizer
from zse.units import memory_text, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.device.facts import GpuInfo
    from zse.format.model_file import ModelFile
    from zse.models.memory import MemoryEstimate, ModelFacts
    from zse.options import LoadOptions
    from zse.settings import Settings


def check_model(settings: Settings) -> Findings:
    """Look at the model that the settings name; its weights are not read."""
    name, options = settings.serve.model, settings.serve.load
    with ExitStack() as opened:
        match resolve_model(name):
            case LocalFile(path=path):
                reader: ModelFile = opened.enter_context(ZSEReader(path))
            case RemoteFile(location=location):
                reader = opened.enter_context(open_remote(location, settings))
            case OciFile(reference=reference):
                reader = opened.enter_context(open_remote(reference, settings))
            case Builtin():
                yield fine("model", f"{name} ships with zse")
                return
            case _:
                facts = read_facts(name, settings)
                fix = f"Convert it once, or every machine does: zse convert {name} -o MODEL.zse"
                yield note(
                    "model", f"{name} is a checkpoint of the family {facts.spec.family}", fix
                )
                yield from _check_memory(facts, options.quant or "int4", settings)
                return
        header = reader.header
        found = f"{name}: {header.architecture}, {header.main_scheme}"
        yield fine("model", f"{found}, {size_text(reader.size_bytes)}")
        yield from _check_text(reader, name)
        facts = facts_of_file(reader) if isinstance(reader, ZSEReader) else facts_of(header)
        yield from _check_memory(facts, header.main_scheme, settings)


def _check_text(reader: ModelFile, name: str) -> Findings:
    try:
        check_tokenizer(reader, name)
    except NoTokenizerError as error:
        yield problem("tokenizer", error.message, error.hint)
        return
    try:
        load_chat_template(reader)
    except TemplateError as error:
        yield note("chat", error.message, error.hint)
    else:
        yield fine("chat", "it has a tokenizer and a chat template")


def _check_memory(facts: ModelFacts, scheme: str, settings: Settings) -> Findings:
    """Hold what the model takes against the memory of where it would run."""
    options = settings.serve.load
    gpus = [gpu.info for gpu in survey_cuda().gpus] if cuda_driver_present() else []
    on_gpu = bool(gpus) and options.device.name != "cpu"
    devices = options.ranks.num_devices
    if not on_gpu:
        free = probe().available_memory_bytes // devices
    elif not (free := _free_of_fullest(gpus, options)):
        found = f"{devices} devices are asked for, and {len(gpus)} GPUs are here"
        yield problem("fits", found, "Ask for fewer with --tensor-parallel, --pipeline-parallel.")
        return
    try:
        estimate = _estimate_of(facts, scheme, options, on_gpu=on_gpu)
    except (UsageError, UnsupportedModelError) as error:  # it cannot be divided so
        yield problem("fits", error.message, error.hint)
        return
    where = "the GPU" if on_gpu else "the machine"
    if devices > 1:
        where = f"each of {devices} devices"
    found = f"it takes {estimate}; {where} has {memory_text(free)}"
    least = least_streaming_bytes(facts, estimate)
    may_stream = options.stream.stream != "off" and devices == 1
    if estimate.total_bytes <= free:
        yield fine("fits", found)
    elif least <= free and may_stream:
        fix = "More memory makes it faster; docs/guides/stream.md says what to expect."
        yield note("fits", f"{found}: layers stream, for which {memory_text(least)} will do", fix)
    else:
        fix = "Take a smaller --quant or --max-context, a larger machine, or free its memory."
        yield problem("fits", found, fix)


def _free_of_fullest(gpus: Sequence[GpuInfo], options: LoadOptions) -> int:
    """Return what the rank with the least room may take; 0: there are fewer GPUs than are asked."""
    ranks, allowed = named_gpus(options.ranks.gpus), options.device.vram_bytes
    free = {gpu.ordinal: min(gpu.free_bytes, allowed or gpu.free_bytes) for gpu in gpus}
    if ranks:
        return min(free.get(one, 0) // ranks.count(one) for one in ranks)
    if options.ranks.num_devices > len(free):
        return 0
    return sorted(free.values(), reverse=True)[options.ranks.num_devices - 1]


def _estimate_of(
    facts: ModelFacts, scheme: str, options: LoadOptions, *, on_gpu: bool
) -> MemoryEstimate:
    """Return what a model takes of each device that computes it."""
    return estimate_rank(
        facts,
        scheme,
        options.ranks.tensor_parallel,
        on_gpu=on_gpu,
        stages=options.ranks.pipeline_parallel,
        context_tokens=options.batch.max_context,
        kv_dtype=options.cache.kv_dtype,
    )
