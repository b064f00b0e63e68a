"""Every answer of the corpus, whole and cut everywhere."""

from __future__ import annotations

import pytest
from corpus import ALL

NAMED = [pytest.param(sample, id=f"{sample.form}: {sample.what}") for sample in ALL]


@pytest.mark.parametrize("sample", NAMED)
def test_an_answer_is_read_as_it_was_meant(sample, read_sample, parsed_arguments):
    found = read_sample(sample)
    assert found.said == sample.said
    assert found.thought == sample.thought
    assert tuple((name, parsed_arguments(text)) for name, text in found.calls) == sample.calls


@pytest.mark.parametrize("sample", NAMED)
def test_where_an_answer_is_cut_into_deltas_changes_nothing(sample, read_sample):
    whole = read_sample(sample)
    for cut in range(len(sample.text)):
        assert read_sample(sample, (cut,)) == whole
    for size in (1, 2, 3, 5):
        assert read_sample(sample, range(size, len(sample.text), size)) == whole
