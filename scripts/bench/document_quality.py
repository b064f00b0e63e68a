"""How well documents are found: questions about this project's guides, each with its passage.

    python scripts/bench/document_quality.py
    python scripts/bench/document_quality.py --embedder minilm.zse --reranker reranker.zse

The questions (scripts/bench/rag/questions.jsonl) were written in other words than their passages. A
chunk answers one if it holds its passage. nDCG@10 and recall@5 are those of the chunks' order, with
an interval of 95% over the questions (bootstrap). Guides are read and cut, searched, fused and put
in order by what serves; ``BM25, plain`` is the textbook's, on words as they stand.
Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from machine import machine_facts

from zse.engine.vectors import unit
from zse.records import record
from zse.serve.documents.chunks import CHUNK_CHARACTERS, OVERLAP_CHARACTERS, chunks_of
from zse.serve.documents.library import Found, Library
from zse.serve.documents.ranking import best_of
from zse.serve.documents.reading import read_document
from zse.serve.documents.reranking import LEAST_READ

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.serve.documents.chunks import Chunk

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = Path(__file__).parent / "rag" / "questions.jsonl"
MOST = 10
RECALLED = 5
_WORD = re.compile(r"\w+")


@record
class Labelled:
    """A question, and the chunks that answer it."""

    text: str
    answers: frozenset[int]


Ranking = "Callable[[str], Sequence[int]]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--embedder", help="a .zse file of an embedder")
    parser.add_argument("--reranker", help="a .zse file of a reranker")
    parser.add_argument("--chunk-characters", type=int, default=CHUNK_CHARACTERS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    chunks = guide_chunks(options.chunk_characters)
    questions = labelled(chunks)
    library = Library(sqlite3.connect(":memory:", check_same_thread=False))
    results = {}
    print(f"{len(chunks)} chunks, {len(questions)} questions")
    print(f"{'order':<30} {'nDCG@10':>22} {'recall@5':>22}")
    for name, order in rankings(library, chunks, options).items():
        found = [scores(order(question.text), question.answers) for question in questions]
        results[name] = {
            "ndcg_at_10": interval([one[0] for one in found]),
            "recall_at_5": interval([one[1] for one in found]),
        }
        columns = (f"{m:.3f} ({a:.3f} to {b:.3f})" for m, a, b in results[name].values())
        print(f"{name:<30} " + " ".join(f"{column:>22}" for column in columns), flush=True)
    library.close()
    counts = {"chunks": len(chunks), "questions": len(questions)}
    print(json.dumps({**counts, **results, **machine_facts()}))


def guide_chunks(size_characters: int) -> list[tuple[str, Chunk]]:
    """Return the chunks of all guides, each with the name of its file."""
    found = []
    for path in sorted((ROOT / "docs" / "guides").glob("*.md")):
        blocks = read_document("markdown", path.read_bytes())
        cut = chunks_of(
            blocks,
            size_characters=size_characters,
            overlap_characters=min(OVERLAP_CHARACTERS, size_characters // 6),
        )
        found += [(path.name, chunk) for chunk in cut]
    return found


def labelled(chunks: Sequence[tuple[str, Chunk]]) -> list[Labelled]:
    """Return the questions whose passages the guides still have; ids of chunks begin at 1."""
    texts = [(guide, plain(chunk.text)) for guide, chunk in chunks]
    found = []
    for line in QUESTIONS.read_text().splitlines():
        asked = json.loads(line)
        passage = plain(asked["passage"])
        answers = frozenset(
            number
            for number, (guide, text) in enumerate(texts, 1)
            if guide == asked["guide"] and passage in text
        )
        if answers:
            found.append(Labelled(text=asked["question"], answers=answers))
        else:
            print(f"left out, its passage is gone: {asked['question']}")
    return found


def plain(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))


def rankings(
    library: Library, chunks: Sequence[tuple[str, Chunk]], options: argparse.Namespace
) -> dict[str, Ranking]:
    """Return the orders that are compared, by their names."""
    from zse import LLM

    texts = [f"{one.heading}\n{one.text}" if one.heading else one.text for _, one in chunks]
    vectors, embed = [], None
    if options.embedder:
        embedder = LLM(options.embedder, threads=options.threads)

        def embed(asked: list[str]):
            return [unit(list(row)) for row in embedder.embed(asked)]

        for start in range(0, len(texts), 32):
            vectors += embed(texts[start : start + 32])
    facts = {"name": "guides", "kind": "markdown", "metadata": {}, "num_bytes": 0}
    library.add([chunk for _, chunk in chunks], vectors, embedder="e", **facts)

    def found(question: str, *, words: bool = True, meaning: bool = True) -> list[int]:
        vector = embed([question])[0] if embed and meaning else None
        both = library.find(question, vector, embedder="e")
        kept = Found(by_words=both.by_words if words else [], by_vector=both.by_vector)
        return [hit.position + 1 for hit in best_of(library, kept, most=LEAST_READ)]

    orders: dict[str, Ranking] = {
        "BM25, plain": textbook([chunk.text for _, chunk in chunks]),
        "words (stems, headings)": lambda question: found(question, meaning=False),
    }
    if embed:
        orders["meaning"] = lambda question: found(question, words=False)
        orders["words and meaning"] = found
    if options.reranker:
        reranker = LLM(options.reranker, threads=options.threads)

        def reranked(question: str) -> list[int]:
            before = found(question)
            scored = reranker.rerank(question, [texts[one - 1] for one in before], truncate=True)
            return [before[one.index] for one in scored]

        orders["the same, reranked"] = reranked
    return orders


def textbook(texts: Sequence[str]) -> Ranking:
    """Return BM25 with k1 = 1.2 and b = 0.75 (Robertson and Zaragoza, 2009)."""
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    lengths = [sum(one.values()) for one in counts]
    mean = sum(lengths) / len(lengths)
    holders = Counter(word for one in counts for word in one)

    def order(question: str) -> list[int]:
        sums = [0.0] * len(texts)
        for word in dict.fromkeys(_WORD.findall(question.lower())):
            rarity = math.log(1 + (len(texts) - holders[word] + 0.5) / (holders[word] + 0.5))
            for place, one in enumerate(counts):
                if often := one[word]:
                    length = 1.2 * (0.25 + 0.75 * lengths[place] / mean)
                    sums[place] += rarity * often * 2.2 / (often + length)
        return sorted(range(1, len(texts) + 1), key=lambda one: -sums[one - 1])[:MOST]

    return order


def scores(order: Sequence[int], answers: frozenset[int]) -> tuple[float, float]:
    """Return nDCG@10 and whether an answer is among the first five.

    Two chunks that overlap may hold one passage; the first of them is what counts.
    """
    places = [place for place, one in enumerate(order[:MOST]) if one in answers]
    gain = 1 / math.log2(places[0] + 2) if places else 0.0
    return gain, float(bool(places) and places[0] < RECALLED)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and where 95% of means of as many drawn values lie."""
    chance = random.Random(1)
    means = sorted(sum(chance.choices(values, k=len(values))) / len(values) for _ in range(2000))
    return sum(values) / len(values), means[50], means[1949]


if __name__ == "__main__":
    main()
