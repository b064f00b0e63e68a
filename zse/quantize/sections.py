"""The metadata that travels in the file: tokenizer, template, generation settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from zse.errors import CheckpointError
from zse.text.binary import build_binary

if TYPE_CHECKING:
    from zse.quantize.checkpoint import Checkpoint

_COPIED = (
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def collect_sections(checkpoint: Checkpoint) -> list[tuple[str, bytes]]:
    """Return ``(section name, content)`` in the order they are written.

    Files are copied as they are. The chat template is taken from wherever the checkpoint keeps
    it. The tokenizer's fast binary form is added when it is proven equal to the usual one.

    Raises:
        CheckpointError: tokenizer_config.json is malformed.
    """
    sections = []
    for name in _COPIED:
        data = checkpoint.read_file(name)
        if data is not None:
            sections.append((name, data))
    template = _chat_template(checkpoint)
    if template:
        sections.append(("chat_template.jinja", template.encode()))
    tokenizer = checkpoint.read_file("tokenizer.json")
    binary = build_binary(tokenizer) if tokenizer is not None else None
    if binary is not None:
        sections.append(("tokenizer.kitoken", binary))
    return sorted(sections)


def _chat_template(checkpoint: Checkpoint) -> str | None:
    """Return the default chat template; newer checkpoints keep it in a file of its own."""
    own_file = checkpoint.read_file("chat_template.jinja")
    if own_file is not None:
        return own_file.decode("utf-8", errors="strict")
    for name in ("chat_template.json", "tokenizer_config.json"):
        raw = checkpoint.read_file(name)
        if raw is None:
            continue
        try:
            template = json.loads(raw).get("chat_template")
        except (ValueError, AttributeError) as error:
            raise CheckpointError(f"{name} cannot be read as a JSON object: {error}") from error
        if isinstance(template, list):  # several templates, each with a name
            named = {item.get("name"): item.get("template") for item in template}
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None
