"""A tokenizer as large as those of real models, of made-up words: for what takes time with size.

    python scripts/bench/wide_tokenizer.py FOLDER [--entries 151643]
    python scripts/bench/make_model.py --like qwen2.5-7b --tokenizer FOLDER -o MODEL.zse

Byte-level BPE as the built-in model has it, with more merges: first those that make each word of
``load_plan`` one token, with and without a space before it, then pairs of tokens that are there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from load_plan import WORDS

from zse.models.builtin import builtin_checkpoint

SPACE = "\u0120"
PART_LETTERS = 6
"""Most letters of what entries are made of: two of these are hardly ever there already."""
OTHERS = ("tokenizer_config.json", "generation_config.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--entries", type=int, default=151643)
    options = parser.parse_args()
    write_tokenizer(options.folder, options.entries)


def write_tokenizer(folder: Path, entries: int) -> None:
    source = builtin_checkpoint("tiny")
    tokenizer = json.loads((source / "tokenizer.json").read_bytes())
    widen(tokenizer["model"]["vocab"], tokenizer["model"]["merges"], entries)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    for name in OTHERS:
        (folder / name).write_bytes((source / name).read_bytes())


def widen(vocabulary: dict[str, int], merges: list[list[str]], entries: int) -> None:
    """Add merges until there are so many entries."""
    as_pairs = not merges or isinstance(merges[0], list)

    def merge(left: str, right: str) -> str:
        joined = left + right
        if joined not in vocabulary:
            vocabulary[joined] = max(vocabulary.values(), default=-1) + 1
            merges.append([left, right] if as_pairs else f"{left} {right}")
        return joined

    for word in WORDS:
        for begun in ("", SPACE):
            letters = [*begun, *word]
            made = letters[0]
            for letter in letters[1:]:
                made = merge(made, letter)
    draw = random.Random(1)
    parts = [text for text in vocabulary if text.isalpha() and text.isascii()]
    number = max(vocabulary.values()) + 1
    while number < entries:
        left, right = draw.choice(parts), draw.choice(parts)
        joined = left + right
        if joined not in vocabulary:
            vocabulary[joined] = number
            merges.append([left, right] if as_pairs else f"{left} {right}")
            number += 1
            if len(joined) <= PART_LETTERS:
                parts.append(joined)


if __name__ == "__main__":
    main()
