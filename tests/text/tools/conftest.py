"""The corpus of answers, and how a test reads one."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from corpus import TOOLS

from zse.text.dialect import Dialect
from zse.text.pieces import Arguments, CallOpening, Said, Thought


class Read(NamedTuple):
    """What came out of an answer, put together as a client does."""

    said: str
    calls: tuple[tuple[str, str], ...]
    thought: str


def read(sample, cuts=()):
    """Read a sample that arrives cut at some places."""
    dialect = Dialect(calls=sample.form, reasoning=sample.reasoning)
    reading = dialect.shape(sample.prompt, has_tools=True).reading(TOOLS)
    reader = reading.make_reader()
    edges = [0, *cuts, len(sample.text)]
    pieces = []
    for start, end in itertools.pairwise(edges):
        pieces += reader.push(sample.text[start:end])
    return joined(pieces + reader.finish())


def joined(pieces):
    said = "".join(piece.text for piece in pieces if isinstance(piece, Said))
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    calls = []
    for piece in pieces:
        if isinstance(piece, CallOpening):
            calls.append([piece.name, ""])
        elif isinstance(piece, Arguments):
            calls[-1][1] += piece.text
    return Read(said, tuple(map(tuple, calls)), thought)


def arguments_of(text):
    """The arguments as JSON, or the text where they are cut."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.fixture
def read_sample():
    return read


@pytest.fixture
def parsed_arguments():
    return arguments_of
