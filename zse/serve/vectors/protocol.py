"""The requests of the routes that make vectors of texts, and what is refused of their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from zse.serve.http.fields import read_fields
from zse.serve.openai.field_table import WITHOUT_EFFECT

if TYPE_CHECKING:
    from typing import TypeVar

    from zse.serve.http.fields import Refused

    Request = TypeVar("Request", bound="VectorFields")

MAX_INPUTS = 2048
MAX_DOCUMENTS = 1024


class VectorFields(msgspec.Struct, kw_only=True):
    """Fields that all of these routes share."""

    model: str | None = None
    user: str | None = None
    add_special_tokens: bool | None = None
    truncate: bool | Literal["NONE", "END"] | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def cuts(self) -> bool:
        """Whether the end of a text that is too long is cut off, not refused."""
        return self.truncate in (True, "END")


class EmbeddingRequest(VectorFields, kw_only=True):
    """The body of POST /v1/embeddings."""

    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None


class Document(msgspec.Struct, kw_only=True):
    """A document that is not just its text."""

    text: str


class RerankRequest(VectorFields, kw_only=True):
    """The body of POST /v1/rerank."""

    query: str
    documents: list[str | Document]
    instruction: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None


class ScoreRequest(VectorFields, kw_only=True):
    """The body of POST /v1/score."""

    text_1: str | list[str]
    text_2: str | list[str]


_NEVER_CUT = "A text that is too long is refused; 'truncate' cuts its end off."
_SHARED_REFUSED: Refused = {
    "truncate_prompt_tokens": ((), _NEVER_CUT),
    "truncation_direction": (("Right", "right"), "The end of a text is cut off."),
    "mm_processor_kwargs": (({},), "Only text is read."),
    "images": (([],), "Only text is read."),
    "activation": ((), "Scores are from 0 to 1, or cosines."),
    "softmax": ((False,), "Scores are from 0 to 1, or cosines."),
    "raw_scores": ((False,), "Scores are from 0 to 1, or cosines."),
}
REFUSED: dict[type[VectorFields], Refused] = {
    EmbeddingRequest: {
        **_SHARED_REFUSED,
        "messages": ((), "Send texts or token ids as 'input'."),
        "chat_template": ((), "Write the instruction of the model into 'input'."),
        "input_type": ((), "Write the instruction of the model into 'input'."),
        "task": ((), "Write the instruction of the model into 'input'."),
        "embedding_types": ((["float"],), "Use 'encoding_format'."),
        "embed_dtype": (("float32",), "Numbers have 32 bits."),
        "endianness": (("little", "native"), "The first byte of a number is its lowest."),
    },
    RerankRequest: {
        **_SHARED_REFUSED,
        "rank_fields": (([], ["text"]), "The text of a document is ranked."),
        "max_chunks_per_doc": ((1,), "A document is ranked as a whole."),
        "max_tokens_per_doc": ((), _NEVER_CUT),
    },
    ScoreRequest: _SHARED_REFUSED,
}
"""What is known of fields that the structs do not have, besides what no route takes notice of."""


def read_vector_request(
    mapping: dict[str, Any], kind: type[Request]
) -> tuple[Request, tuple[str, ...]]:
    """Convert a body; return it and the names of fields that have no effect.

    Raises:
        UnsupportedParameterError: A known field asks for something this server does not do.
        BadRequestError: A field has the wrong type or shape; ``param`` names it.
    """
    return read_fields(mapping, kind, refused=REFUSED[kind], without_effect=WITHOUT_EFFECT)
