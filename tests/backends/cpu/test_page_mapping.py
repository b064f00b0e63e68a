"""A mapped file's pages are mapped before anything reads them."""

import mmap
import os
import re
from pathlib import Path

import pytest
from mapped_files import mapped_bytes

from zse.backends.cpu import page_mapping
from zse.format.reader import ZSEReader
from zse.quantize.locate import locate_model
from zse.settings import Settings


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return locate_model("tiny", Settings(cache_dir=tmp_path_factory.mktemp("cache")))


def test_weights_that_nobody_read_are_present(model, monkeypatch):
    monkeypatch.setattr(page_mapping, "_FEWEST_BYTES", 1)
    with ZSEReader(model) as reader:
        weights = len(reader.weights())
        assert mapped_bytes(model) < weights // 2
        page_mapping.begin_to_map(reader).join()
        assert mapped_bytes(model) >= weights


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_huge_pages_are_asked_for_the_weights_and_for_nothing_before_them(model, monkeypatch):
    monkeypatch.setattr(page_mapping, "_FEWEST_BYTES", 1)
    with ZSEReader(model) as reader:
        page_mapping.begin_to_map(reader).join()
        asked = [
            int(size) * 1024
            for size, flags in re.findall(
                rf" {re.escape(str(model))}\nSize: +(\d+) kB\n(?:.*\n)*?VmFlags:(.*)\n",
                Path("/proc/self/smaps").read_text(),
            )
            if "hg" in flags.split()
        ]
        assert len(asked) == 1
        assert 0 <= asked[0] - len(reader.weights()) <= 2 * mmap.PAGESIZE


def test_a_reader_may_be_closed_meanwhile(model, monkeypatch):
    monkeypatch.setattr(page_mapping, "_FEWEST_BYTES", 1)
    with ZSEReader(model) as reader:
        thread = page_mapping.begin_to_map(reader)
    thread.join()
    del reader
    assert mapped_bytes(model) == 0


def test_few_weights_and_more_than_half_of_the_memory_are_left_alone(model, monkeypatch):
    with ZSEReader(model) as reader:
        assert page_mapping.begin_to_map(reader) is None
        monkeypatch.setattr(page_mapping, "_FEWEST_BYTES", 1)
        pages = len(reader.weights()) // mmap.PAGESIZE
        monkeypatch.setattr(os, "sysconf", lambda _: pages)
        assert page_mapping.begin_to_map(reader) is None


def test_the_view_of_all_weights_begins_with_the_first_and_ends_with_the_last(model):
    with ZSEReader(model) as reader:
        weights, names = reader.weights(), list(reader.names())
        first, last = (reader.entry(names[place]).parts for place in (0, -1))
        assert weights[: first[0].length_bytes] == reader.part(names[0], first[0].role)
        end = reader.part(names[-1], last[-1].role)
        assert bytes(weights).rstrip(b"\0").endswith(bytes(end).rstrip(b"\0"))
