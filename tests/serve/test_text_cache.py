"""What makes text of a model stays for the next one that is made of the same files."""

from types import SimpleNamespace

import pytest

from zse.serve.text_cache import TextCache


def reader_of(**digests):
    sections = [SimpleNamespace(name=name, sha256=value) for name, value in digests.items()]
    return SimpleNamespace(header=SimpleNamespace(sections=sections))


def named(**changed):
    files = {"tokenizer.json": "1", "tokenizer_config.json": "2", "chat_template.jinja": "3"}
    return reader_of(**{**files, "prefixes/0": "4", **changed})


def model_of(reader, tokenizer="tokenizer", template="template"):
    return SimpleNamespace(resources=(reader,), tokenizer=tokenizer, template=template)


@pytest.mark.parametrize(
    ("changed", "tokenizer", "template"),
    [
        ({}, "tokenizer", "template"),
        ({"prefixes/0": "other"}, "tokenizer", "template"),
        ({"chat_template.jinja": "other"}, "tokenizer", None),
        ({"tokenizer.json": "other"}, None, "template"),
        ({"tokenizer_config.json": "other"}, None, None),
        ({"config.json": "new"}, None, "template"),
    ],
)
def test_each_is_known_by_the_files_that_it_is_made_of(changed, tokenizer, template):
    cache = TextCache()
    cache.put(model_of(named()))
    assert cache.tokenizer(named(**changed)) == tokenizer
    assert cache.template(named(**changed)) == template


def test_a_model_without_a_template_leaves_none():
    cache = TextCache()
    cache.put(model_of(named(), template=None))
    assert cache.tokenizer(named()) == "tokenizer"
    assert cache.template(named()) is None


def test_sixteen_stay_and_the_one_that_left_first_goes():
    cache = TextCache()
    for number in (*range(16), 0, 16):  # the first leaves once more
        changed = {"tokenizer_config.json": str(number)}
        cache.put(model_of(named(**changed), tokenizer=number, template=number))
    found = [cache.template(named(**{"tokenizer_config.json": str(n)})) for n in range(17)]
    assert found == [0, None, *range(2, 17)]
    assert len(cache) == 16
    cache.clear()
    assert len(cache) == 0
    assert cache.template(named(**{"tokenizer_config.json": "5"})) is None
