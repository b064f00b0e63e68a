"""Documents are cut into chunks that keep their words, their page and their headings."""

from __future__ import annotations

import itertools
import random

from zse.serve.documents.blocks import Block, markdown_blocks, plain_blocks
from zse.serve.documents.chunks import chunks_of

MARKDOWN = """\
intro

# Install
## Linux
Type this.

```
# no heading

pip install zse
```
## Windows ##
Do not.
"""


def test_markdown_is_cut_at_headings_and_code_stays_whole():
    blocks = markdown_blocks(MARKDOWN)
    assert [(one.heading, one.text) for one in blocks] == [
        ("", "intro"),
        ("Install > Linux", "Type this."),
        ("Install > Linux", "```\n# no heading\n\npip install zse\n```"),
        ("Install > Windows", "Do not."),
    ]


def test_form_feeds_begin_pages():
    assert [one.page for one in plain_blocks("a\n\nb\fc")] == [1, 1, 2]
    assert [one.page for one in plain_blocks("a\n\nb")] == [None, None]


def test_no_word_is_lost_and_no_chunk_is_too_long():
    chance = random.Random(7)
    for _ in range(30):
        words = [f"w{number}" for number in range(chance.randrange(1, 900))]
        text, at = [], 0
        while at < len(words):
            step = chance.randrange(1, 200)
            text.append(chance.choice([" ", ". ", "\n"]).join(words[at : at + step]))
            at += step
        size = chance.randrange(200, 600)
        overlap = chance.randrange(0, size // 2)
        blocks = [Block(text=one, page=chance.choice([1, 2])) for one in text]
        chunks = list(chunks_of(blocks, size_characters=size, overlap_characters=overlap))
        assert max(len(chunk.text) for chunk in chunks) <= size
        said = " ".join(chunk.text for chunk in chunks).replace(".", " ").split()
        assert list(dict.fromkeys(said)) == words


def test_a_chunk_begins_with_the_end_of_the_one_before():
    text = " ".join(f"Sentence number {number}." for number in range(100))
    chunks = [one.text for one in chunks_of([Block(text=text)], size_characters=400)]
    for before, after in itertools.pairwise(chunks):
        repeated = after.partition("\n\n")[0]
        assert repeated
        assert before.endswith(repeated)


def test_a_chunk_is_of_one_page_and_one_heading():
    blocks = [
        Block(text="one", page=1, heading="A"),
        Block(text="two", page=1, heading="A"),
        Block(text="three", page=2, heading="A"),
        Block(text="four", page=2, heading="B"),
    ]
    found = [(one.text, one.page, one.heading) for one in chunks_of(blocks)]
    assert found == [("one\n\ntwo", 1, "A"), ("three", 2, "A"), ("four", 2, "B")]


def test_a_word_longer_than_a_chunk_is_cut():
    chunks = list(chunks_of([Block(text="x" * 1000)], size_characters=300, overlap_characters=0))
    assert "".join(one.text for one in chunks) == "x" * 1000
