"""The metadata that travels in the file: tokenizer, template, generation settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.quantize.text_files import (
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_FILES,
    TextOptions,
    default_template,
)
from zse.text.binary import build_binary

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from zse.quantize.checkpoint import Checkpoint

_OWN = ("config.json", "generation_config.json")
_COPIED_TEXTS = ("special_tokens_map.json", TOKENIZER, "tokenizer_config.json")


def collect_sections(checkpoint: Checkpoint, options: TextOptions) -> list[tuple[str, bytes]]:
    """Return ``(section name, content)`` in the order they are written.

    Files are copied as they are. The chat template is taken from wherever the checkpoint, or the
    folder that was named for its tokenizer, keeps it. The tokenizer's fast binary form is added
    when it is proven equal to the usual one.

    Raises:
        TokenizerMissingError: There is no tokenizer, and nobody said that there need be none.
        CheckpointError: tokenizer_config.json is malformed.
    """
    names = [path.name for path in checkpoint.folder.iterdir()]
    options.check_names(str(checkpoint.folder), names)
    sections = list(_present(checkpoint.folder, _OWN).items())
    texts = own = _present(checkpoint.folder, TOKENIZER_FILES)
    if options.tokenizer is not None:
        texts = _present(options.tokenizer, TOKENIZER_FILES)
    sections += [(name, texts[name]) for name in _COPIED_TEXTS if name in texts]
    template = options.template() or default_template(texts) or default_template(own)
    if template:
        sections.append((TEMPLATE, template.encode()))
    binary = build_binary(texts[TOKENIZER]) if TOKENIZER in texts else None
    if binary is not None:
        sections.append(("tokenizer.kitoken", binary))
    return sorted(sections)


def _present(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    paths = {name: folder / name for name in names}
    return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
