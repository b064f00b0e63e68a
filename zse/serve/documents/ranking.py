"""Two rankings into one: by reciprocal ranks, which need no common scale.

After Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual
Rank Learning Methods", SIGIR 2009: a chunk gets 1 / (60 + rank) of each list it is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.serve.documents.library import Found, Library, Row

_SMOOTHING = 60


@record
class Hit:
    """A chunk that was found."""

    document: str
    """Its id."""
    name: str
    """Of the document."""
    position: int
    """Of the chunk in its document, from 0."""
    page: int | None
    heading: str
    text: str
    score: float
    """Comparable within one search only."""
    similarity: float | None
    """Cosine of the angle to the question; None where vectors did not find it."""

    def source(self, number: int) -> dict[str, Any]:
        """Return what an answer tells of it, under the number that the answer cites it by."""
        return {
            "number": number,
            "document": self.document,
            "name": self.name,
            "chunk": self.position,
            "page": self.page,
            "heading": self.heading,
            "score": round(self.score, 6),
            "text": self.text,
        }


def best_of(library: Library, found: Found, *, most: int) -> list[Hit]:
    """Return the best chunks of what was found, the best first."""
    scores: dict[int, float] = {}
    for ranking in (found.by_words, [near.chunk for near in found.by_vector]):
        for rank, chunk in enumerate(ranking, 1):
            scores[chunk] = scores.get(chunk, 0.0) + 1 / (_SMOOTHING + rank)
    ordered = sorted(scores, key=lambda chunk: (-scores[chunk], chunk))[:most]
    similarity = {near.chunk: near.similarity for near in found.by_vector}
    rows = library.chunks(ordered)
    return [
        _hit(rows[chunk], scores[chunk], similarity.get(chunk))
        for chunk in ordered
        if chunk in rows  # one that was deleted meanwhile is not
    ]


def _hit(row: Row, score: float, similarity: float | None) -> Hit:
    return Hit(
        document=row["document"],
        name=row["name"],
        position=row["position"],
        page=row["page"],
        heading=row["heading"],
        text=row["text"],
        score=score,
        similarity=similarity,
    )


def within(hits: Sequence[Hit], characters: int) -> list[Hit]:
    """Return the best hits that have so many characters together; one that is too long is left."""
    kept, left = [], characters
    for hit in hits:
        if len(hit.text) <= left:
            kept.append(hit)
            left -= len(hit.text)
    return kept
