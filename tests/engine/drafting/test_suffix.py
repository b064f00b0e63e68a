"""Where the end of a text stood before, and what followed."""

from __future__ import annotations

import random

from zse.engine.drafting.suffix import GRAM, MOST_TOKENS, Match, Text, begin_text, find_match


def indexed(tokens, **own):
    text = Text(tokens, **own)
    text.index(len(tokens))
    return text


def test_the_longest_match_is_found_and_of_equal_ones_the_newest():
    tokens = [9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3, 6, 9, 1, 2, 3]
    text = indexed(tokens)
    assert text.find([9, 1, 2, 3]) == (4, 4)
    assert text.find([5, 1, 2, 3]) == (14, 3)
    assert text.find([2, 3, 1]) == (-1, 0)


def test_what_stands_at_the_end_is_not_its_own_match():
    text = indexed([4, 1, 2, 3])
    assert text.find([4, 1, 2, 3]) == (-1, 0)
    text.tokens.append(5)
    text.index(5)
    assert text.find([1, 2, 3]) == (4, 3)


def test_matches_are_those_that_a_search_through_the_whole_text_finds():
    draw = random.Random(0)
    tokens = [draw.randrange(6) for _ in range(400)]
    text = indexed(tokens)
    for end in range(GRAM, 400, 7):
        tail = tokens[end - GRAM : end]
        places = [i for i in range(GRAM, 400) if tokens[i - GRAM : i] == tail]
        place, length = text.find(tail)
        assert (place, length) == ((max(places), GRAM) if places else (-1, 0))


def test_a_match_goes_on_with_the_tokens_it_guessed_and_ends_with_another():
    match = Match(indexed([1, 2, 3, 4, 5]), 3, 3)
    assert match.guess(9, is_own=False) == [4, 5]
    assert match.follow(4)
    assert (match.guess(9, is_own=False), match.length) == ([5], 4)
    assert not match.follow(6)


def test_a_text_that_repeats_itself_is_guessed_to_go_on_so():
    tokens = [1, 2, 3, 4, 1, 2, 3]
    text = indexed(tokens)
    match = Match(text, *text.find(tokens))
    assert match.guess(9, is_own=True) == [4, 1, 2, 3, 4, 1, 2, 3, 4]
    assert match.guess(2, is_own=True) == [4, 1]


def test_of_a_long_text_the_newest_tokens_are_found():
    text = begin_text([*range(MOST_TOKENS + 100)])
    text.index(MOST_TOKENS + 100)
    assert text.find([5, 6, 7]) == (-1, 0)
    assert text.find([200, 201, 202]) == (203, 3)
    assert text.find([98, 99, 100, 101, 102]) == (103, 3)  # what stands before is not looked at


def test_the_longest_match_of_several_texts_is_taken_and_the_first_of_equal_ones():
    own, other = indexed([1, 2, 3, 7]), indexed([9, 1, 2, 3, 8])
    match = find_match([own, other], [9, 1, 2, 3])
    assert match is not None
    assert match.text is other
    match = find_match([own, other], [5, 1, 2, 3])
    assert match is not None
    assert match.text is own
    assert find_match([own, other], [5, 6, 7]) is None
