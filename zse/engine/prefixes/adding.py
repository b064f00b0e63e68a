"""Computes the prefix of a prompt and puts it into the model's file, as a section of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.engine.core import EngineCore
from zse.engine.prefixes.binding import binding_of, check_can_save
from zse.engine.prefixes.keeper import SECTIONS
from zse.engine.prefixes.saving import packed, run_of_prompt
from zse.engine.request import Request, SamplingParams
from zse.errors import EngineError, FormatError, UnsupportedModelError, UsageError
from zse.kv.prefix_pack import PrefixPack
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.loading import LoadedModel
    from zse.format.model_file import ModelFile
    from zse.format.spec import Section
    from zse.kv.prefix_pack import PrefixBinding
    from zse.options import DeviceOptions

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@record
class StoredPrefix:
    """A section that holds a prefix."""

    section: str
    name: str
    length_bytes: int
    num_tokens: int
    binding: PrefixBinding | None
    """None where the section is damaged."""
    problem: str = ""


def check_name(name: str) -> None:
    """Refuse what cannot be a part of a section's name, with a UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a prefix cannot be called {name[:80]!r}",
            hint="Use up to 64 letters, digits, '.', '_' and '-'.",
        )


def computed_prefix(
    model: LoadedModel, token_ids: Sequence[int], device: DeviceOptions, name: str
) -> tuple[str, bytes]:
    """Compute a prompt's full blocks; return the section's name and its bytes.

    Raises:
        UnsupportedModelError: The model reads texts whole, or has states beside its blocks.
        UsageError: The prompt has no full block.
    """
    core = model.core
    if not isinstance(core, EngineCore):
        raise UnsupportedModelError("this model reads texts whole: it has no prefixes")
    check_can_save(core)
    size = core.runner.block_size
    tokens = list(token_ids[: len(token_ids) // size * size])
    if not tokens:
        raise UsageError(
            f"the prompt has {len(token_ids)} tokens; a prefix is whole blocks of {size}",
            hint="Only prompts that are longer are worth keeping.",
        )
    # One token more, so that everything that goes on from the prefix finds it as it ends.
    prompt = [*tokens, token_ids[0]]
    params = SamplingParams(max_tokens=1, temperature=0.0)
    core.add_request(Request(request_id="prefix", prompt_token_ids=prompt, params=params))
    while core.has_work:
        core.step()
    run = run_of_prompt(core, tokens, name)
    if run is None:
        raise EngineError("the prompt was computed, and is not in the cache")
    binding = binding_of(model.reader.header, core.runner, device)
    return f"{SECTIONS}{name}/{binding.layout}", b"".join(packed(core, binding, [run]))


def stored_prefixes(reader: ModelFile) -> list[StoredPrefix]:
    """Return the prefixes of a file; their digests are checked."""
    sections = [one for one in reader.header.sections if one.name.startswith(SECTIONS)]
    return [_stored(reader, one) for one in sections]


def _stored(reader: ModelFile, section: Section) -> StoredPrefix:
    num_tokens, binding, problem = 0, None, ""
    try:
        pack = PrefixPack(reader.section(section.name))
        for index in range(len(pack.runs)):
            pack.check(index)
        binding = pack.binding
        num_tokens = sum(run.num_blocks for run in pack.runs) * binding.block_size
    except FormatError as error:
        problem = str(error)
    return StoredPrefix(
        section=section.name,
        name=section.name.removeprefix(SECTIONS).rpartition("/")[0],
        length_bytes=section.length_bytes,
        num_tokens=num_tokens,
        binding=binding,
        problem=problem,
    )
