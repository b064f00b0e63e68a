"""Compiles thousands of schemas, each another one; prints resident MiB after a fourth, and at last."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from grammar_walks import WordTokenizer, allowed_by, compiler_for

from zse.text.grammar import spec as forms

COUNT = 2000


def resident_mib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) >> 10
    return 0


def main() -> None:
    tokenizer = WordTokenizer()
    compiler = compiler_for(tokenizer)
    sizes = []
    for number in range(COUNT):
        properties = {f"property_{number}_{i}": {"type": "string"} for i in range(8)}
        spec = forms.json_schema({"type": "object", "properties": properties})
        allowed_by(compiler.compile(spec).begin(), tokenizer.vocab_size)
        if number in (COUNT // 4, COUNT - 1):
            sizes.append(resident_mib())
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
