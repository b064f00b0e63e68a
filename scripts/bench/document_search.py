"""How long a search of documents takes: made-up words by Zipf's law, random vectors.

    python scripts/bench/document_search.py --chunks 10000 --size 384

Each question has the words of a chunk and a vector near its own. Times are of the library alone,
without the embedding of the question. Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import tempfile
import time
from pathlib import Path

from machine import machine_facts

from zse.engine.vectors import unit
from zse.serve.documents import similar
from zse.serve.documents.chunks import Chunk
from zse.serve.documents.library import Library
from zse.serve.documents.ranking import best_of

CHUNK_WORDS = 150
VOCABULARY = 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=384, help="numbers of a vector")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--words", type=int, default=8, help="of a question")
    options = parser.parse_args()
    chance = random.Random(1)
    words = [f"w{number}x" for number in range(VOCABULARY)]
    weights = [1 / (rank + 10) for rank in range(VOCABULARY)]
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(Path(folder) / "library.sqlite3", check_same_thread=False)
        library = Library(database)
        texts = [
            " ".join(chance.choices(words, weights, k=CHUNK_WORDS)) for _ in range(options.chunks)
        ]
        vectors = [unit([chance.gauss(0, 1) for _ in range(options.size)]) for _ in texts]
        began = time.perf_counter()
        for start in range(0, len(texts), 100):
            chunks = [
                Chunk(text=text, page=None, heading="") for text in texts[start : start + 100]
            ]
            facts = {"name": "x", "kind": "text", "metadata": {}, "num_bytes": 0}
            library.add(chunks, vectors[start : start + 100], embedder="e", **facts)
        kept_seconds = time.perf_counter() - began
        results = {"chunks_per_second_kept": round(len(texts) / kept_seconds)}
        print(f"{'search':>16} {'p50 ms':>8} {'p95 ms':>8} {'first ms':>9}")
        for way in ("words", "both", "both, no numpy"):
            times = searched(library, texts, vectors, way, options)
            first, rest = times[0], sorted(times[1:])
            p50, p95 = rest[len(rest) // 2], rest[int(len(rest) * 0.95)]
            print(f"{way:>16} {p50:>8.1f} {p95:>8.1f} {first:>9.1f}")
            results[way] = {
                "p50_ms": round(p50, 2),
                "p95_ms": round(p95, 2),
                "first_ms": round(first, 1),
            }
        library.close()
    print(
        json.dumps({"chunks": options.chunks, "size": options.size, **results, **machine_facts()})
    )


def searched(library, texts, vectors, way, options) -> list[float]:
    chance = random.Random(2)
    if way == "both, no numpy":
        similar._numpy = lambda: None
        library._version += 1
    times = []
    for _ in range(options.questions):
        meant = chance.randrange(len(texts))
        question = " ".join(chance.choices(texts[meant].split(), k=options.words))
        near = unit([value + chance.gauss(0, 0.02) for value in vectors[meant]])
        began = time.perf_counter()
        found = library.find(question, None if way == "words" else near, embedder="e")
        hits = best_of(library, found, most=5)
        times.append((time.perf_counter() - began) * 1000)
        assert hits
    return times


if __name__ == "__main__":
    main()
