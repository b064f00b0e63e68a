"""PDF as blocks: the text that its pages show, by pypdf. A page of pictures has none."""

from __future__ import annotations

from io import BytesIO

from zse.errors import RefusedError, ZSEError, needing
from zse.serve.documents.blocks import MAX_TEXT_CHARACTERS, Block, plain_blocks

MAX_PAGES = 5000


def pdf_blocks(data: bytes) -> list[Block]:
    """Return the blocks of a file.

    Raises:
        RefusedError: It is no PDF, is damaged, locked, or has too many pages.
        MissingDependencyError: pypdf is not installed.
    """
    with needing("rag", "reading PDF"):
        from pypdf import PdfReader
    try:
        reader = PdfReader(BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise RefusedError("this PDF is locked by a password")
        if len(reader.pages) > MAX_PAGES:
            raise RefusedError(f"this PDF has {len(reader.pages)} pages, more than {MAX_PAGES}")
        blocks: list[Block] = []
        num_characters = 0
        for number, page in enumerate(reader.pages, 1):
            text = page.extract_text()
            num_characters += len(text)
            if num_characters > MAX_TEXT_CHARACTERS:
                break  # which whoever asked refuses
            blocks += [Block(text=one.text, page=number) for one in plain_blocks(_clean(text))]
    except (ZSEError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - of a damaged file pypdf raises whatever it met
        raise RefusedError(f"this PDF cannot be read: {type(error).__name__}: {error}") from None
    return blocks


def _clean(text: str) -> str:
    return text.replace("\f", "\n").replace("\x00", "")
